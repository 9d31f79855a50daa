import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { type AccessTokenInput, createAccessToken, revokeAccessToken } from "../../../provider/access/access-tokens";
import { openIpam } from "../../../provider/ipam";
import { claimOne, findSpec, historyOf } from "../../../provider/ipam/interface";
import { OPERATIONS, type OperationName } from "../../../provider/ipam/remote/api";
import { RunPlan } from "../../../provider/ipam/run-plan";
import { rangeText } from "../../../provider/ipam/store/columns";
import type { Ipam, Lease, Request, Store, Tenant } from "../../../provider/ipam/types";
import { range as rangeOf } from "../../contract/fixture";
import { Stage } from "../lifecycle/stage";
import { TestService } from "./service";

/** The service as a store: which access token may do what, and what requests it refuses. */
const ACME = { org: "acme", project: "shop" };
const OTHER = { org: "other", project: "web" };
const PROGRAM = "main";
const SESSION = { actor: "ann@laptop", offerTtl: 3600, quarantine: 300 };
let stage: Stage;
let service: TestService;
let seen: object;
/** In a pool of all tenants. */
let shared: Target;
/** In a pool of acme. */
let own: Target;

/** What the samples name. */
interface Target {
  pool: string;
  /** On its first address. */
  lease: Lease;
  offer: Lease;
  /** The token of the lease. */
  signed: string;
  /** An address that is free. */
  free: string;
}

async function fillPool(pool: string, free: string, tenant?: Tenant): Promise<Target> {
  const mine = { pool, ...(tenant && { tenant }) };
  const child = { ...childPool(`of-${pool}`), ...(tenant && { tenant }) };
  const lease = await claimOne(stage.pool.ipam, request("a", { ...mine, childPool: child }));
  const offer = await stage.pool.ipam.offer(request("b", mine));
  return { pool, lease, offer, signed: (await stage.pool.ipam.signTokens([lease]))[0]!, free };
}

beforeEach(async () => {
  stage = await Stage.up();
  await stage.make("IPPool", "web", { ranges: ["192.168.7.0/28"], allocation: "lowest" });
  await stage.make("IPPool", "secret", { ranges: ["192.168.8.0/28"], allocation: "lowest", tenant: ACME });
  shared = await fillPool("pool/web", range("192.168.7.12"));
  own = await fillPool("pool/secret", range("192.168.8.12"), ACME);
  seen = await stage.pool.ipam.describe();
  service = await TestService.on(stage.pool.ipam, { tenantDefaults: stage.deps.tenantDefaults });
});
afterEach(() => service.close());

const request = (owner: string, more: Partial<Request> = {}): Request => ({
  pool: "pool/web",
  owner,
  type: "IPReservation",
  program: PROGRAM,
  ...more,
});
/** As JSON has it. */
const range = (text: string): string => rangeText(rangeOf(text));
const childPool = (name: string) => ({
  name,
  kind: "id" as const,
  ranges: [{ first: 1n, last: 9n }],
  allocation: "lowest" as const,
});

const call = (name: string, token: string | undefined, input: unknown, session: object = SESSION) =>
  service.send(`POST /api/pool/v1/${name}`, token, { payload: { session, input } as never });

async function outcome(name: string, token: string | undefined, input: unknown): Promise<string> {
  const answer = await call(name, token, input);
  return answer.statusCode === 200 ? "200" : `${answer.statusCode} ${answer.json().code}`;
}

let made = 0;
const tokenWith = (scopes: AccessTokenInput["scopes"], bounds: Partial<AccessTokenInput> = {}): Promise<string> =>
  service.token(`t${++made}`, scopes, bounds);

const at = ({ pool, leaseId } = shared.lease) => ({ pool, leaseId });

/** An input that succeeds, and the scope that it needs. */
const SAMPLES: Record<OperationName, [scope: "preview" | "deploy", input: (target: Target) => unknown][]> = {
  describe: [
    ["preview", () => ({})],
    ["preview", () => ({ seen })],
  ],
  offer: [
    ["preview", ({ pool }) => request("c", { pool })],
    ["deploy", ({ pool }) => ({ ...request("c", { pool }), inUp: true })],
  ],
  claim: [["deploy", ({ pool }) => [request("c", { pool })]]],
  change: [
    ["preview", ({ lease }) => ({ ...at(lease), changes: { labels: {} }, dryRun: true })],
    ["deploy", ({ lease }) => ({ ...at(lease), changes: { labels: {} } })],
    ["deploy", ({ lease }) => ({ ...at(lease), changes: { labels: {} }, dryRun: false })],
  ],
  importLeases: [
    ["preview", () => ({ leases: [], dryRun: true })],
    ["deploy", ({ pool, free }) => ({ leases: [{ ...request("c", { pool }), values: [free] }] })],
  ],
  close: [["deploy", ({ lease }) => at(lease)]],
  release: [["deploy", ({ lease }) => at(lease)]],
  withdraw: [["preview", ({ pool, offer }) => ({ owner: offer.owner, program: PROGRAM, pool })]],
  touch: [["deploy", ({ lease }) => at(lease)]],
  signTokens: [["deploy", ({ lease }) => [at(lease)]]],
  openToken: [["preview", ({ signed }) => ({ token: signed })]],
  find: [
    ["preview", ({ pool, lease }) => ({ pool, value: String(lease.ranges[0]!.first) })],
    ["preview", ({ pool, lease }) => ({ pool, endedUid: lease.uid })],
    ["preview", ({ pool }) => ({ name: pool })],
    ["preview", ({ offer }) => ({ owner: offer.owner, program: PROGRAM })],
  ],
  leases: [["preview", ({ pool }) => ({ pool, limit: 10 })]],
  pools: [
    ["preview", () => ({ prefix: "", limit: 10, withUsage: true })],
    ["preview", ({ pool }) => ({ name: pool, withUsage: true })],
  ],
  freeRanges: [["preview", ({ pool }) => ({ pool, limit: 10 })]],
  events: [
    ["preview", () => ({ after: 0, limit: 10 })],
    ["preview", ({ pool }) => ({ pool, limit: 10 })],
  ],
};

/**
 * Samples that are answered to a token of another tenant, without what is acme's. The content of a token is not encrypted: `openToken` shows nothing
 * that its bearer could not read.
 */
const ANSWERED = [
  ...[
    "describe 0",
    "describe 1",
    "importLeases 0",
    "importLeases 1",
    "openToken 0",
    "find 0",
    "find 1",
    "find 2",
    "find 3",
  ],
  ...["leases 0", "pools 0", "pools 1", "freeRanges 0", "events 0", "events 1"],
];

describe.each(OPERATIONS.flatMap((name) => SAMPLES[name].map(([scope, input], i) => [name, i, scope, input] as const)))(
  "%s (%i), which needs %s",
  (name, index, scope, input) => {
    /** The request is logged, and no line has a secret of it. */
    const outcomeLogged = async (token: string | undefined, target = shared): Promise<string> => {
      const before = service.lines.length;
      const found = await outcome(name, token, input(target));
      const lines = service.lines.slice(before);
      const line = { method: "POST", route: `/api/pool/v1/${name}`, status: Number(found.split(" ")[0]) };
      expect(lines.map((each) => JSON.parse(each))).toContainEqual(expect.objectContaining(line));
      for (const secret of [token?.replace(/^ovl_[0-9a-f]{8}_/, ""), target.signed.split(".").at(-1)])
        if (secret !== undefined) expect(lines.join("")).not.toContain(secret);
      return found;
    };

    test("is done for a token that has the scope", async () => {
      expect(await outcomeLogged(await tokenWith([scope]))).toBe("200");
      expect(await outcomeLogged(await tokenWith(["admin"]))).toMatch(/^200$|^409 LEASE_FENCED$/);
    });

    test("is refused without a token, and without the scope", async () => {
      expect(await outcomeLogged(undefined)).toBe("401 ACCESS_TOKEN_MISSING");
      expect(await outcomeLogged(await tokenWith(["read", "reserve"]))).toBe("403 ACCESS_DENIED");
      if (scope === "deploy") expect(await outcomeLogged(await tokenWith(["preview"]))).toBe("403 ACCESS_DENIED");
    });

    test("is refused with an expired or a revoked token", async () => {
      const input = { name: `t${++made}`, scopes: ["admin" as const], expiresIn: 60 };
      const expired = await createAccessToken({ pool: stage.pool.ipam, createdBy: "test" }, input, Date.now() - 61_000);
      expect(await outcomeLogged(expired.text)).toBe("401 ACCESS_TOKEN_INVALID");
      const revoked = await tokenWith(["admin"]);
      await revokeAccessToken(stage.pool.ipam, `t${made}`);
      expect(await outcomeLogged(revoked)).toBe("401 ACCESS_TOKEN_INVALID");
    });

    test("shows and changes nothing of another tenant", async () => {
      const token = await tokenWith(["admin"], { tenant: OTHER });
      const { version } = await stage.pool.ipam.describe();
      const isAnswered = ANSWERED.includes(`${name} ${index}`);
      const refusal = ["offer", "claim"].includes(name) ? "404 POOL_NOT_FOUND" : "403 ACCESS_DENIED";
      expect(await outcomeLogged(token, own)).toBe(isAnswered ? "200" : refusal);
      const { body } = await call(name, token, input(own));
      const hidden = ["acme", own.lease.uid, own.offer.uid, ...(isAnswered ? ["pool/secret"] : [])];
      for (const text of hidden) if (name !== "openToken") expect(body).not.toContain(text);
      expect((await stage.pool.ipam.describe()).version).toBe(version);
    });
  },
);

test("the refusal says which token, and which scope is needed", async () => {
  const token = await service.token("ci-fork", ["preview"]);
  const answer = await call("claim", token, [request("c")]);
  expect(answer.json()).toMatchObject({
    code: "ACCESS_DENIED",
    what: "Access token ci-fork may only preview: it may not change leases.",
    fix: "Use a token with the scope deploy for up, refresh and destroy.",
  });
});

test("a preview withdraws offers, but ends no lease", async () => {
  const token = await tokenWith(["preview"]);
  for (const { pool, owner } of [shared.lease, shared.offer])
    expect(await outcome("withdraw", token, { owner, program: PROGRAM, pool })).toBe("200");
  expect(await stage.pool.ipam.find({ owner: shared.offer.owner, program: PROGRAM })).toBeUndefined();
  expect((await stage.pool.ipam.leases("pool/web")).map(({ owner }) => owner)).toEqual(["a"]);
});

test("the history names the token and the user, whatever the request says", async () => {
  const token = await service.token("ci", ["deploy"]);
  await call("claim", token, [request("c")], { ...SESSION, actor: "ann@laptop" });
  expect(await call("claim", token, [{ ...request("d"), by: "root" }])).toMatchObject({
    statusCode: 400,
  });
  const events = await historyOf(stage.pool.ipam, "pool/web");
  expect(events.filter(({ owner }) => owner === "c").map(({ by }) => by)).toEqual(["ci (ann@laptop)"]);
});

test("the client may shorten its offers and lengthen its quarantine, not the other way round", async () => {
  const token = await tokenWith(["deploy"]);
  const expiry = async (owner: string, offerTtl: number) => {
    const answer = await call("offer", token, request(owner), { ...SESSION, offerTtl });
    return (answer.json().result.expiresAt - stage.now) / 1000;
  };
  expect([await expiry("c", 60), await expiry("d", 1e6)]).toEqual([60, 3600]);
  await call("release", token, at(), { ...SESSION, quarantine: 0 });
  expect(await stage.pool.ipam.find({ pool: "pool/web", endedUid: shared.lease.uid })).toMatchObject({
    expiresAt: stage.now + 300_000,
  });
});

describe("a token that is bound to a tenant", () => {
  const claimAs = async (token: string, owner: string, more: object = {}) =>
    (await call("claim", token, [{ ...request(owner), ...more }])).json().result[0];

  test("gives its tenant to leases and to the pools that they open", async () => {
    const token = await tokenWith(["deploy"], { tenant: ACME });
    const spec = { ...childPool("pool/mine"), ranges: [range("1-9")], tenant: OTHER };
    const lease = await claimAs(token, "c", { tenant: OTHER, childPool: spec });
    expect(lease.tenant).toEqual(ACME);
    expect((await findSpec(stage.pool.ipam, "pool/mine"))?.tenant).toEqual(ACME);
    const changes = { tenant: OTHER, childPool: { ...spec, warnAtPercent: 50 } };
    await call("change", token, { pool: "pool/web", leaseId: lease.leaseId, changes });
    expect(await findSpec(stage.pool.ipam, "pool/mine")).toMatchObject({ tenant: ACME, warnAtPercent: 50 });
  });

  test("reaches no lease of others, and signs no token for it", async () => {
    const token = await tokenWith(["deploy"], { tenant: OTHER });
    for (const name of ["release", "close", "touch"] as const)
      expect(await outcome(name, token, at())).toBe("403 ACCESS_DENIED");
    expect(await outcome("signTokens", token, [at()])).toBe("403 ACCESS_DENIED");
    expect(await outcome("change", token, { ...at(), changes: { owner: "mine" } })).toBe("403 ACCESS_DENIED");
    expect(await outcome("withdraw", token, { owner: "b", program: PROGRAM, pool: "pool/web" })).toBe(
      "403 ACCESS_DENIED",
    );
    expect(await outcome("claim", token, [request("a")])).toBe("403 ACCESS_DENIED");
    // It sees the lease of a pool that it may use, but no offer of others.
    const { result } = (await call("leases", token, { pool: "pool/web", limit: 10 })).json();
    expect(result).toMatchObject([{ owner: "a", childPool: "of-pool/web" }]);
  });

  test("makes the range of all tenants, if there is none, without a tenant", async () => {
    const pool = await served(await tokenWith(["deploy"], { tenant: ACME }));
    useStore(pool);
    const { ip } = await stage.make("IPReservation", "first", { tenant: ACME, type: "clusterIP" });
    expect(ip).toMatch(/^10\./);
    expect(await stage.pool.ipam.find({ pool: "space/default", owner: "tenants/clusterIP" })).not.toHaveProperty(
      "tenant",
    );
    expect((await findSpec(stage.pool.ipam, "pool/tenant/acme/shop/clusterIP"))?.tenant).toEqual(ACME);
    const other = await served(await tokenWith(["deploy"], { tenant: OTHER }));
    useStore(other);
    await stage.make("IPReservation", "second", { tenant: OTHER, type: "clusterIP" });
    expect((await findSpec(stage.pool.ipam, "pool/tenant/other/web/clusterIP"))?.tenant).toEqual(OTHER);
  });
});

/** The stage deploys with this store. */
function useStore(ipam: Ipam): void {
  stage.deps = { ...stage.deps, pool: async () => new RunPlan(ipam) };
}

async function served(token: string): Promise<Store> {
  if (!service.app.server.listening) await service.app.listen({ host: "127.0.0.1", port: 0 });
  const { port } = service.app.server.address() as AddressInfo;
  return openIpam(`http://127.0.0.1:${port}`, { ...SESSION, storeToken: token });
}

describe("through the client", () => {
  test("a preview shows what an up gives, and an up with its token is refused before anything is changed", async () => {
    const pool = await served(await service.token("ci-fork", ["preview"]));
    useStore(pool);
    const shown = await stage.preview("IPReservation", "r", { pool: "web" });
    const { failures } = await stage.check("IPReservation", "r", { pool: "web" });
    expect(failures.map(({ reason }) => reason)).toEqual([
      "ACCESS_DENIED: Access token ci-fork may only preview: it may not change leases. Use a token with the scope deploy for up, refresh and destroy.",
    ]);
    await expect(claimOne(pool, request("c"))).rejects.toMatchObject({ code: "ACCESS_DENIED" });
    const deploying = await served(await tokenWith(["deploy"]));
    useStore(deploying);
    expect(await stage.make("IPReservation", "r", { pool: "web" })).toMatchObject({ ip: shown.ip });
  });

  test("a store is administered where it is", async () => {
    const pool = await served(await tokenWith(["admin"]));
    expect(() => pool.admin).toThrow(
      /^ACCESS_DENIED: The service at http:.* does not administer its store for others\. Run the command on a machine of the service/,
    );
  });

  test("a token that was revoked, or is of another store, is refused when the store is opened", async () => {
    await expect(served(`ovl_00000000_${"A".repeat(43)}`)).rejects.toMatchObject({ code: "ACCESS_TOKEN_INVALID" });
    await expect(served("not\na token")).rejects.toMatchObject({ code: "SETTING_INVALID" });
  });
});

describe("a hostile request", () => {
  const good = () => [request("c")];
  const withRequest = (more: object) => [{ ...request("c"), ...more }];

  test.each<[string, string, () => unknown, RegExp]>([
    ["an unknown field", "claim", () => withRequest({ admin: true }), /INPUT_INVALID/],
    ["an owner of the service", "claim", () => withRequest({ owner: "service/x" }), /INPUT_INVALID/],
    ["a former owner of the service", "claim", () => withRequest({ formerOwner: "service/x" }), /INPUT_INVALID/],
    ["a rename to the service", "change", () => ({ ...at(), changes: { owner: "service/x" } }), /INPUT_INVALID/],
    ["a range as an object", "claim", () => withRequest({ values: [{ first: 1, last: 2 }] }), /INPUT_INVALID/],
    [
      "a range that ends before it begins",
      "claim",
      () => withRequest({ values: [`${range("9").slice(0, 33)}${range("1").slice(33)}`] }),
      /INPUT_INVALID/,
    ],
    [
      "a value past 128 bits",
      "claim",
      () => withRequest({ values: [`${"f".repeat(40)}-${"f".repeat(40)}`] }),
      /INPUT_INVALID/,
    ],
    ["no size", "claim", () => withRequest({ size: "0" }), /INPUT_INVALID/],
    ["a negative ttl", "claim", () => withRequest({ ttl: -1 }), /INPUT_INVALID/],
    ["a ttl of eleven years", "claim", () => withRequest({ ttl: 346_896_000 }), /INPUT_INVALID/],
    ["a long heartbeat", "touch", () => ({ ...at(), ttl: 2 ** 53 - 1 }), /INPUT_INVALID/],
    ["a long ttl in a change", "change", () => ({ ...at(), changes: { ttl: 1e12 } }), /INPUT_INVALID/],
    [
      "a long time in a pool",
      "claim",
      () => withRequest({ childPool: { ...childPool("pool/x"), ranges: [range("1-9")], reclaimAfter: 1e300 } }),
      /INPUT_INVALID/,
    ],
    ["more values than there are", "claim", () => withRequest({ size: "9".repeat(40) }), /INPUT_INVALID/],
    ["a value that no pool has", "find", () => ({ pool: "pool/web", value: "-7" }), /INPUT_INVALID/],
    [
      "deep data",
      "claim",
      () => withRequest({ data: JSON.parse("[".repeat(1000) + "]".repeat(1000)) }),
      /BODY_TOO_LARGE/,
    ],
    ["a pool name with a line end", "find", () => ({ pool: "pool/web\n", owner: "a" }), /INPUT_INVALID/],
    ["two ways to find", "find", () => ({ pool: "pool/web", owner: "a", uid: "u" }), /INPUT_INVALID/],
    ["control characters", "claim", () => withRequest({ labels: { x: "\u001b[2J" } }), /INPUT_INVALID/],
    ["a long list", "claim", () => withRequest({ names: Array(20_000).fill("x") }), /INPUT_INVALID/],
    ["a large page", "leases", () => ({ pool: "pool/web", limit: 1e9 }), /INPUT_INVALID/],
    ["an empty batch", "claim", () => [], /INPUT_INVALID/],
    ["no input", "claim", () => undefined, /INPUT_INVALID/],
  ])("with %s is refused, and changes nothing", async (_, name, input, expected) => {
    const before = (await stage.pool.ipam.describe()).version;
    const token = await tokenWith(["admin"]);
    const written = (await stage.pool.ipam.describe()).version;
    expect(await outcome(name, token, input())).toMatch(expected);
    expect((await stage.pool.ipam.describe()).version).toBe(written);
    expect(written).toBe(before + 1); // the access token
  });

  test.each<[string, object]>([
    ["without an actor", { ...SESSION, actor: undefined }],
    ["with an actor with a line end", { ...SESSION, actor: "a\nb" }],
    ["with offers without end", { ...SESSION, offerTtl: -1 }],
    ["with a quarantine without end", { ...SESSION, quarantine: 2 ** 53 - 1 }],
    ["with a tenant", { ...SESSION, tenant: OTHER }],
  ])("%s in its session is refused", async (_, session) => {
    const answer = await call("claim", await tokenWith(["admin"]), good(), session);
    expect([answer.statusCode, answer.json().code]).toEqual([400, "INPUT_INVALID"]);
  });

  test("has left a time that no Date can show: the lease is listed", async () => {
    await stage.pool.ipam.claim([request("c", { ttl: 8.9e12 })]);
    const answer = await service.send("GET /api/overlay/ip/reservations?owner=c", await tokenWith(["read"]));
    expect(answer.statusCode).toBe(200);
    expect(answer.json().reservations).toMatchObject([{ expiresAt: "+275760-09-13T00:00:00Z" }]);
  });

  test("to another procedure, method or content is refused", async () => {
    const token = await tokenWith(["admin"]);
    expect(await outcome("dropAll", token, {})).toBe("404 NOT_FOUND");
    expect(await outcome("__proto__", token, {})).toBe("404 NOT_FOUND");
    expect(await service.outcome("GET /api/pool/v1/find", token)).toMatch(/^40[45] /);
    const text = { payload: "{", headers: { "content-type": "application/json" } };
    expect(await service.outcome("POST /api/pool/v1/find", token, text)).toBe("400 INPUT_INVALID");
    const large = { payload: `"${"x".repeat(3 * 1024 * 1024)}"`, headers: { "content-type": "application/json" } };
    expect(await service.outcome("POST /api/pool/v1/find", token, large)).toBe("413 BODY_TOO_LARGE");
  });

  test("no answer and no line of the log has a token or a key", async () => {
    const token = await tokenWith(["admin"]);
    const keys = (await stage.pool.ipam.admin.findSecret("tokenKeys"))!;
    const answers = await Promise.all(
      OPERATIONS.filter((name) => name !== "signTokens").flatMap((name) =>
        SAMPLES[name].map(([, input]) => call(name, token, input(shared))),
      ),
    );
    const texts = [...answers.map(({ body }) => body), ...service.lines];
    for (const text of texts) for (const secret of [keys, token, shared.signed]) expect(text).not.toContain(secret);
  });
});
