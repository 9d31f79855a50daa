import { beforeEach, describe, expect, test } from "vitest";
import {
  accessTokenInput,
  createAccessToken,
  describeAccessToken,
  listAccessTokens,
  revokeAccessToken,
} from "../../../provider/access/access-tokens";
import { Authenticator } from "../../../provider/access/authenticate";
import { OverlayError } from "../../../provider/errors";
import type { StoreAdmin } from "../../../provider/ipam/admin";
import { Stage } from "../lifecycle/stage";

const NOW = Date.UTC(2030, 0, 1);
let stage: Stage;
beforeEach(async () => {
  stage = await Stage.up();
  await stage.network();
  await stage.make("IPPool", "web", { ranges: ["192.168.7.0/28"] });
});

const create = (given: object, now = NOW) =>
  createAccessToken(
    { pool: stage.pool.ipam, createdBy: "root@vm" },
    accessTokenInput.parse({ name: "ci", scopes: ["reserve"], ...given }),
    now,
  );
const codeOf = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => "done",
    (error: { code?: string }) => error.code ?? String(error),
  );

describe("create", () => {
  test("the store has the hash, not the secret; the text has the id", async () => {
    const { token, text } = await create({ scopes: ["read", "reserve", "read"], tenant: "acme/web", expiresIn: 60 });
    expect(text).toMatch(new RegExp(`^ovl_${token.id}_[\\w-]{43}$`));
    const [stored] = await stage.pool.ipam.admin.accessTokens();
    expect(stored).toEqual({
      id: token.id,
      name: "ci",
      hash: expect.stringMatching(/^[0-9a-f]{64}$/),
      scopes: ["read", "reserve"],
      tenant: { org: "acme", project: "web" },
      createdAt: NOW,
      createdBy: "root@vm",
      expiresAt: NOW + 60_000,
    });
    expect(JSON.stringify(stored)).not.toContain(text.slice(13));
    expect(describeAccessToken(stored!)).toEqual({
      id: token.id,
      name: "ci",
      scopes: ["read", "reserve"],
      tenant: "acme/web",
      createdAt: "2030-01-01T00:00:00Z",
      createdBy: "root@vm",
      expiresAt: "2030-01-01T00:01:00Z",
    });
  });

  test.each([
    [{ pool: "web" }, "pool/web"],
    [{ pool: "pool/web" }, "pool/web"],
  ])("%o is bound to the pool by its whole name", async (given, pool) => {
    expect((await create(given)).token.pool).toBe(pool);
  });

  test.each([
    [{ network: "trainin" }, "POOL_NOT_FOUND"],
    [{ pool: "wep" }, "POOL_NOT_FOUND"],
    [{ pool: "runner/training/node9" }, "POOL_NOT_FOUND"],
  ])("%o is refused: there is none", async (given, code) => {
    expect(await codeOf(create(given))).toBe(code);
  });

  test.each([
    [{ scopes: [] }],
    [{ scopes: ["root"] }],
    [{ tenant: "acme" }],
    [{ tenant: "acme/web/x" }],
    [{ expiresIn: 0 }],
    [{ name: "a b" }],
    [{ name: "" }],
  ])("%o is not valid", (given) => {
    expect(accessTokenInput.safeParse({ name: "ci", scopes: ["read"], ...given }).success).toBe(false);
  });

  test("a name stands for one token, until that is revoked or expires", async () => {
    await create({ expiresIn: 60 });
    expect(await codeOf(create({}))).toBe("ACCESS_TOKEN_EXISTS");
    expect(await codeOf(create({}, NOW + 60_000))).toBe("done");
  });
});

test("list has active tokens by name, and with `all` those that were revoked or have expired", async () => {
  for (const [name, more] of Object.entries({ b: {}, a: { expiresIn: 60 }, c: {} })) await create({ name, ...more });
  await revokeAccessToken(stage.pool.ipam, "c", NOW);
  const names = async (all: boolean, now: number) =>
    (await listAccessTokens(stage.pool.ipam, { all }, now)).map(({ name }) => name);
  expect(await names(false, NOW)).toEqual(["a", "b"]);
  expect(await names(false, NOW + 60_000)).toEqual(["b"]);
  expect(await names(true, NOW + 60_000)).toEqual(["a", "b", "c"]);
});

test("revoke takes an id or a name, once", async () => {
  const { token } = await create({});
  expect(await revokeAccessToken(stage.pool.ipam, token.id, NOW)).toMatchObject({ name: "ci", revokedAt: NOW });
  expect(await codeOf(revokeAccessToken(stage.pool.ipam, "ci", NOW))).toBe("ACCESS_TOKEN_NOT_FOUND");
});

describe("authenticate", () => {
  let [now, reads] = [NOW, 0];
  const authenticator = (admin: Pick<StoreAdmin, "findAccessToken" | "accessTokens"> = stage.pool.ipam.admin) => {
    [now, reads] = [NOW, 0];
    const counted = {
      findAccessToken: (id: string) => {
        reads++;
        return admin.findAccessToken(id);
      },
      accessTokens: () => {
        reads++;
        return admin.accessTokens();
      },
    };
    return new Authenticator(counted, () => now);
  };

  test("returns the caller with its bounds", async () => {
    const { text } = await create({ tenant: "acme/web", network: "training", pool: "web" });
    expect(await authenticator().authenticate(text)).toEqual({
      name: "ci",
      scopes: ["reserve"],
      tenant: { org: "acme", project: "web" },
      network: "training",
      pool: "pool/web",
    });
  });

  test("expires at its time", async () => {
    const { text } = await create({ expiresIn: 60 });
    const access = authenticator();
    now = NOW + 59_999;
    expect(await codeOf(access.authenticate(text))).toBe("done");
    now = NOW + 60_000;
    expect(await codeOf(access.authenticate(text))).toBe("ACCESS_TOKEN_INVALID");
  });

  test("a row is read once a second; a revocation is seen after a second", async () => {
    const { text, token } = await create({});
    const access = authenticator();
    for (const at of [0, 500, 999]) {
      now = NOW + at;
      expect(await codeOf(access.authenticate(text))).toBe("done");
    }
    expect(reads).toBe(1);
    await revokeAccessToken(stage.pool.ipam, token.id, NOW);
    expect(await codeOf(access.authenticate(text))).toBe("done");
    now = NOW + 1000;
    expect(await codeOf(access.authenticate(text))).toBe("ACCESS_TOKEN_INVALID");
    expect(reads).toBe(2);
  });

  test("a token is known for ten minutes after it was read; all ids are listed once a second", async () => {
    const { text } = await create({});
    const access = authenticator();
    expect([access.isKnown(text), await access.isListed(text)]).toEqual([false, true]);
    const unknown = `ovl_00000000_${"A".repeat(43)}`;
    for (let i = 0; i < 3; i++) expect(await access.isListed(unknown)).toBe(false);
    expect(reads).toBe(1);
    await access.authenticate(text);
    now = NOW + 599_999;
    expect([access.isKnown(text), access.isKnown(unknown)]).toEqual([true, false]);
    now = NOW + 600_000;
    expect(access.isKnown(text)).toBe(false);
  });

  describe("without the store", () => {
    const unavailable = () => Promise.reject(new OverlayError("STORE_UNAVAILABLE", "It is down.", "Wait."));
    const open = async () => {
      const [{ text, token }, state] = [await create({}), { isDown: false }];
      const read = (id: string) => (state.isDown ? unavailable() : stage.pool.ipam.admin.findAccessToken(id));
      const access = authenticator({ findAccessToken: read, accessTokens: unavailable });
      const outcome = (given = text) => codeOf(access.authenticateWithoutStore(given, (work) => work));
      return { text, token, outcome, fail: () => (state.isDown = true), restore: () => (state.isDown = false) };
    };

    test("a token counts for ten minutes as it was read last", async () => {
      const { text, outcome, fail } = await open();
      expect(await outcome()).toBe("done");
      fail();
      now = NOW + 599_999;
      expect([await outcome(), await outcome(`${text.slice(0, -1)}_`)]).toEqual(["done", "ACCESS_TOKEN_INVALID"]);
      expect(reads).toBe(2); // not again within a second
      now = NOW + 600_000;
      expect(await outcome()).toBe("STORE_UNAVAILABLE");
    });

    test("a token that was not read before is not accepted", async () => {
      const { outcome, fail } = await open();
      fail();
      expect(await outcome()).toBe("STORE_UNAVAILABLE");
    });

    test("a token is refused that was revoked before, or expires meanwhile, or is found to be revoked", async () => {
      const { token, outcome, fail, restore } = await open();
      await outcome();
      fail();
      now = NOW + 2000;
      expect(await outcome()).toBe("done");
      await revokeAccessToken(stage.pool.ipam, token.id, NOW);
      restore();
      now = NOW + 4000;
      expect(await outcome()).toBe("ACCESS_TOKEN_INVALID");
      fail();
      now = NOW + 6000;
      expect(await outcome()).toBe("ACCESS_TOKEN_INVALID");
    });
  });

  test.each([
    ["empty", ""],
    ["of another kind", "ipr1.abc.def.ghi"],
    ["too short", `ovl_00000000_${"A".repeat(42)}`],
    ["too long", `ovl_00000000_${"A".repeat(44)}`],
    ["with an id in capitals", `ovl_ABCDEF00_${"A".repeat(43)}`],
  ])("a text that is %s costs no read", async (_, text) => {
    const access = authenticator();
    expect(await codeOf(access.authenticate(text))).toBe("ACCESS_TOKEN_INVALID");
    expect(reads).toBe(0);
  });

  test("an unknown id is read once a second, too", async () => {
    const access = authenticator();
    const unknown = `ovl_00000000_${"A".repeat(43)}`;
    for (let i = 0; i < 3; i++) expect(await codeOf(access.authenticate(unknown))).toBe("ACCESS_TOKEN_INVALID");
    expect(reads).toBe(1);
  });
});
