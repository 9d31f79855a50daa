import { beforeEach, describe, expect, test } from "vitest";
import {
  accessTokenInput,
  createAccessToken,
  describeAccessToken,
  listAccessTokens,
  revokeAccessToken,
} from "../../../provider/access";
import { Authenticator } from "../../../provider/access/authenticate";
import type { Pool } from "../../../provider/pool/types";
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
    { pool: stage.pool, createdBy: "root@vm" },
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
    const [stored] = await stage.pool.accessTokens();
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
  await revokeAccessToken(stage.pool, "c", NOW);
  const names = async (all: boolean, now: number) =>
    (await listAccessTokens(stage.pool, { all }, now)).map(({ name }) => name);
  expect(await names(false, NOW)).toEqual(["a", "b"]);
  expect(await names(false, NOW + 60_000)).toEqual(["b"]);
  expect(await names(true, NOW + 60_000)).toEqual(["a", "b", "c"]);
});

test("revoke takes an id or a name, once", async () => {
  const { token } = await create({});
  expect(await revokeAccessToken(stage.pool, token.id, NOW)).toMatchObject({ name: "ci", revokedAt: NOW });
  expect(await codeOf(revokeAccessToken(stage.pool, "ci", NOW))).toBe("ACCESS_TOKEN_NOT_FOUND");
});

describe("authenticate", () => {
  let [now, reads] = [NOW, 0];
  const authenticator = (pool: Pick<Pool, "findAccessToken"> = stage.pool) => {
    [now, reads] = [NOW, 0];
    const counted = {
      findAccessToken: (id: string) => {
        reads++;
        return pool.findAccessToken(id);
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
    await revokeAccessToken(stage.pool, token.id, NOW);
    expect(await codeOf(access.authenticate(text))).toBe("done");
    now = NOW + 1000;
    expect(await codeOf(access.authenticate(text))).toBe("ACCESS_TOKEN_INVALID");
    expect(reads).toBe(2);
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
