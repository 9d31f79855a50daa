import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { AccessTokenInput } from "../../../provider/access/access-tokens";
import { openIpam } from "../../../provider/ipam";
import { claimOne, findSpec, listSpecs } from "../../../provider/ipam/interface";
import { rangeOf, rangeText } from "../../../provider/ipam/store/columns";
import type { Lease, PoolSpec, Request, Store, ValueRange } from "../../../provider/ipam/types";
import { range } from "../../contract/fixture";
import { TestService } from "./service";

/**
 * Tenants that share a store over the service. Tenant other/web and the operator have leases and pools; a caller of acme/shop sends what its
 * own client would never send, as a resource of the same stack, and says that the run ends the leases of all others.
 */
const ACME = { org: "acme", project: "shop" };
const OTHER = { org: "other", project: "web" };
const SESSION = { actor: "ann@laptop", offerTtl: 3600, quarantine: 0 };
const TENANT_DEFAULTS = { clusterIP: { range: range("10.96.0.0/12"), prefixLength: 20 } };
/** Owners are resources of one stack. Those of other/web and of the operator have `secret` in their names. */
const owner = (name: string): string => `s/urn:pulumi:prod::shop::overlay:index:T::${name}`;

let pool: Store;
let now: number;
let service: TestService;
let token: string;
let held: Lease;
/** Of the pool priv. */
let priv: Lease;
let offered: Lease;

beforeEach(async () => {
  now = Date.UTC(2030, 0, 1);
  pool = await openIpam("memory:", { offerTtl: 3600, quarantine: 0, actor: "operator", clock: () => now });
  await makePool("web", "192.168.7.0/29", {}, "operator");
  priv = await makePool("priv", "192.168.8.0/29", { tenant: OTHER }, "secret-priv");
  const details = { tenant: OTHER, labels: { secret: "secret" }, data: { secret: "secret" } };
  held = await claimOne(pool, { ...at("secret-db", "192.168.7.0"), ...details, names: ["user/web/db"] });
  offered = await pool.offer({ ...at("secret-offer", "192.168.7.1"), ...details, names: ["user/web/offer"] });
  await pool.claim([{ ...at("secret-shared", "192.168.7.2"), ...details, sharingKey: "k", ports: [HTTP] }]);
  await pool.claim([{ pool: "pool/priv", owner: owner("secret-priv"), type: "IPReservation", tenant: OTHER }]);
  service = await TestService.on(pool, { tenantDefaults: TENANT_DEFAULTS });
  token = await service.token("acme", ["deploy", "reserve"], { tenant: ACME });
});
afterEach(() => service.close());

const HTTP = { protocol: "tcp", port: 80 } as const;

const specOf = (name: string, text: string, more: Partial<PoolSpec> = {}): PoolSpec => ({
  name: `pool/${name}`,
  kind: "address",
  ranges: [range(text)],
  allocation: "lowest",
  data: { settings: { poolName: name, addressSpace: "default", type: "container", ranges: [text] } },
  ...more,
});

const makePool = (name: string, text: string, more: Partial<PoolSpec>, by: string): Promise<Lease> =>
  claimOne(pool, {
    pool: "space/default",
    owner: owner(by),
    type: "IPPool",
    values: [range(text)],
    names: [more.name ?? `pool/${name}`],
    childPool: specOf(name, text, more),
    ...(more.tenant && { tenant: more.tenant }),
  });

const at = (name: string, ...addresses: string[]): Request => ({
  pool: "pool/web",
  owner: owner(name),
  type: "IPReservation",
  program: "main",
  ...(addresses.length > 0 && { values: addresses.map(range) }),
});

const fromWire = (text: unknown): ValueRange => rangeOf(String(text));

/** As JSON has it. */
const toWire = (value: unknown): unknown => {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return value.map(toWire);
  if (typeof value !== "object" || value === null) return value;
  if ("first" in value) return rangeText(value as ValueRange);
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, toWire(inner)]));
};

interface Outcome {
  /** `200`, or status and code. */
  result: string;
  text: string;
  /** What was offered, claimed or found. */
  lease?: Lease;
  what?: string;
}

/** Leases of others that the caller says it ends. */
const ended = (): string[] => [held, priv, offered].map(({ uid }) => uid);

/** Requests in a call, as those of a run that ends the leases of others. */
function endOthers(name: string, input: object): object {
  const hostile = (request: object) => ({ run: "run", mayEnd: ended(), ...request });
  if (name === "claim") return [input].flat().map(hostile);
  if (name === "offer") return hostile(input);
  return "leases" in input ? { ...input, leases: (input.leases as object[]).map(hostile) } : input;
}

async function send(name: string, input: object, bearer = token): Promise<Outcome> {
  const payload = { session: SESSION, input: toWire(endOthers(name, input)) } as never;
  const answer = await service.send(`POST /api/pool/v1/${name}`, bearer, { payload });
  const { code, what, result } = answer.json();
  const [lease] = [result].flat();
  return { result: [answer.statusCode, code].join(" ").trim(), text: answer.body, what, lease };
}

/** Everything in the store that is not of acme/shop. */
async function snapshot(): Promise<string> {
  const specs = await listSpecs(pool);
  const leases = (await Promise.all(specs.map(({ name }) => pool.leases(name)))).flat();
  const isOfOther = ({ tenant }: { tenant?: { org: string } }) => tenant?.org !== "acme";
  return JSON.stringify(toWire([specs.filter(isOfOther), leases.filter(isOfOther)]));
}

const claimOf = (request: Partial<Request>) => ({ ...at("mine"), ...request });
const offerOf = claimOf;
const poolOf = (text: string, more: Partial<Request>) =>
  claimOf({ pool: "space/default", type: "IPPool", values: [range(text)], ...more });
const identityOf = ({ uid, leaseId }: Lease) => ({ identity: { uid, leaseId } });
const placeOf = ({ pool, leaseId }: Lease) => ({ pool, leaseId });

describe("a caller of one tenant changes nothing of others, and reads nothing of them", () => {
  test.each<[what: string, name: string, input: () => object, result: string]>([
    ["claims a held address", "claim", () => claimOf({ values: held.ranges }), "409 PLAN_STALE"],
    ["claims a promised address", "claim", () => claimOf({ values: offered.ranges }), "409 PLAN_STALE"],
    ["offers a held address", "offer", () => offerOf({ values: held.ranges }), "409 IP_IN_USE"],
    ["offers a promised address", "offer", () => offerOf({ values: offered.ranges }), "409 IP_IN_USE"],
    ["claims as the owner of a lease", "claim", () => claimOf({ owner: held.owner }), "403 ACCESS_DENIED"],
    ["claims as the owner of an offer", "claim", () => claimOf({ owner: offered.owner }), "403 ACCESS_DENIED"],
    [
      "claims a lease again",
      "claim",
      () => claimOf({ owner: held.owner, idempotent: true, ttl: 60 }),
      "403 ACCESS_DENIED",
    ],
    ["offers as the owner of an offer", "offer", () => offerOf({ owner: offered.owner }), "403 ACCESS_DENIED"],
    ["offers as the owner of a lease", "offer", () => offerOf({ owner: held.owner }), "403 ACCESS_DENIED"],
    [
      "claims after a rename",
      "claim",
      () => claimOf({ formerOwner: held.owner, values: held.ranges }),
      "403 ACCESS_DENIED",
    ],
    [
      "offers after a rename",
      "offer",
      () => offerOf({ formerOwner: held.owner, values: held.ranges }),
      "409 IP_IN_USE",
    ],
    [
      "takes a name after a rename",
      "claim",
      () => claimOf({ formerOwner: held.owner, names: held.names! }),
      "403 ACCESS_DENIED",
    ],
    ["takes the name of an offer", "claim", () => claimOf({ names: offered.names! }), "403 ACCESS_DENIED"],
    [
      "takes a pool after a rename",
      "claim",
      () =>
        poolOf("192.168.9.0/29", { formerOwner: owner("secret-priv"), childPool: specOf("priv", "192.168.9.0/29") }),
      "403 ACCESS_DENIED",
    ],
    [
      "takes a pool that all tenants share",
      "claim",
      () => poolOf("192.168.9.0/29", { formerOwner: owner("operator"), childPool: specOf("web", "192.168.9.0/29") }),
      "403 ACCESS_DENIED",
    ],
    [
      "takes the range of all tenants",
      "claim",
      () => claimOf({ formerOwner: "tenants/clusterIP" }),
      "403 ACCESS_DENIED",
    ],
    [
      "takes a port",
      "claim",
      () => claimOf({ sharingKey: "k", ports: [HTTP], evictSameTenant: true, tenant: OTHER }),
      "200",
    ],
    [
      "takes an address with a port",
      "claim",
      () =>
        claimOf({
          values: [range("192.168.7.2")],
          sharingKey: "k",
          ports: [HTTP],
          evictSameTenant: true,
          tenant: OTHER,
        }),
      "409 SHARING_CONFLICT",
    ],
    [
      "claims several",
      "claim",
      () => [claimOf({ owner: owner("first") }), claimOf({ values: held.ranges })],
      "409 PLAN_STALE",
    ],
    ["imports a held address", "importLeases", () => ({ leases: [at("mine", "192.168.7.0")] }), "200"],
    ["imports a promised address", "importLeases", () => ({ leases: [at("mine", "192.168.7.1")] }), "200"],
    ["imports a lease that exists", "importLeases", () => ({ leases: [at("secret-db", "192.168.7.0")] }), "200"],
    [
      "imports under the uid of a lease",
      "importLeases",
      () => ({ leases: [{ ...at("mine", "192.168.7.5"), ...identityOf(held) }] }),
      "403 ACCESS_DENIED",
    ],
    [
      "imports under the uid of a lease in another pool, for its name",
      "importLeases",
      () => ({
        leases: [{ ...at("mine", "192.168.9.0/29"), pool: "space/default", ...identityOf(held), names: held.names }],
      }),
      "403 ACCESS_DENIED",
    ],
    [
      "imports under the uid of a lease in another pool, for its child pool",
      "importLeases",
      () => ({
        leases: [{ ...at("mine", "192.168.7.5"), ...identityOf(priv), childPool: specOf("priv", "192.168.7.5") }],
      }),
      "403 ACCESS_DENIED",
    ],
    ["claims in a pool", "claim", () => claimOf({ pool: "pool/priv", tenant: OTHER }), "404 POOL_NOT_FOUND"],
    ["claims an overlapping range", "claim", () => poolOf("192.168.8.0/30", {}), "409 PLAN_STALE"],
    ["changes", "change", () => ({ ...placeOf(held), changes: { owner: owner("mine") } }), "403 ACCESS_DENIED"],
    ["changes as a dry run", "change", () => ({ ...placeOf(held), changes: {}, dryRun: true }), "403 ACCESS_DENIED"],
    ["releases", "release", () => placeOf(held), "403 ACCESS_DENIED"],
    [
      "withdraws",
      "withdraw",
      () => ({ owner: offered.owner, program: "main", pool: offered.pool }),
      "403 ACCESS_DENIED",
    ],
    ["touches", "touch", () => placeOf(held), "403 ACCESS_DENIED"],
    ["closes", "close", () => placeOf(held), "403 ACCESS_DENIED"],
  ])("%s (%s)", async (_, name, input, result) => {
    const before = await snapshot();
    const outcome = await send(name, input());
    expect(outcome.result).toBe(result);
    expect(outcome.text).not.toContain("secret");
    expect(await snapshot()).toBe(before);
  });
});

describe("the tenant comes from the token", () => {
  const shared = TENANT_DEFAULTS.clusterIP.range;
  const sharedRange = {
    pool: "space/default",
    owner: "tenants/clusterIP",
    type: "IPPool",
    values: [shared],
    names: ["pool/tenants/clusterIP"],
    childPool: {
      ...specOf("tenants/clusterIP", "10.96.0.0/12"),
      reclaimAfter: 86_400,
      data: {
        settings: {
          poolName: "tenants/clusterIP",
          addressSpace: "default",
          type: "clusterIP",
          ranges: ["10.96.0.0/12"],
        },
      },
    },
  };

  test("a range for all tenants is made as the service has it", async () => {
    for (const name of ["offer", "claim"]) {
      const { result } = await send(name, { ...sharedRange, ...(name === "offer" && { inUp: true }) });
      expect(result).toBe("200");
    }
    expect(await pool.find({ pool: "space/default", owner: "tenants/clusterIP" })).not.toHaveProperty("tenant");
    expect(await findSpec(pool, "pool/tenants/clusterIP")).not.toHaveProperty("tenant");
  });

  test("it is imported as the service has it, and is not changed by a tenant", async () => {
    expect((await send("importLeases", { leases: [sharedRange] })).result).toBe("200");
    const { leaseId } = (await pool.find({ pool: "space/default", owner: "tenants/clusterIP" }))!;
    for (const name of ["release", "close", "touch"])
      expect((await send(name, { pool: "space/default", leaseId })).result).toBe("403 ACCESS_DENIED");
  });

  test.each<[string, object]>([
    ["another range", { values: [range("10.112.0.0/12")] }],
    ["a tenant", { tenant: OTHER }],
    ["labels", { labels: { x: "y" } }],
    ["another pool", { pool: "pool/web", values: undefined, childPool: undefined, names: undefined }],
    ["an unknown type", { owner: "tenants/evil" }],
    [
      "the pool of another tenant",
      { childPool: { ...sharedRange.childPool, name: "pool/tenant/other/web/clusterIP" } },
    ],
    ["a pool with a tenant", { childPool: { ...sharedRange.childPool, tenant: OTHER } }],
    ["a name", { names: ["pool/tenant/other/web/clusterIP"] }],
    ["a former owner", { formerOwner: owner("operator") }],
  ])("a range for all tenants with %s is refused", async (_, more) => {
    const request = { ...sharedRange, ...more };
    expect((await send("claim", request)).result).toBe("403 ACCESS_DENIED");
    expect((await send("offer", request)).result).toBe("403 ACCESS_DENIED");
    expect(await findSpec(pool, "pool/tenants/clusterIP")).toBeUndefined();
  });

  test.each<[string, Partial<Request>]>([
    ["the name", { names: ["pool/tenant/other/web/clusterIP"] }],
    ["the name of the shared range", { names: ["pool/tenants/clusterIP"] }],
    ["the owner", { owner: "tenant/other/web/clusterIP" }],
    ["the pool", { childPool: specOf("tenant/other/web/clusterIP", "192.168.9.0/29") }],
    ["the shared range", { childPool: specOf("tenants/clusterIP", "192.168.9.0/29") }],
  ])("%s of another tenant's default pool is refused", async (_, more) => {
    expect((await send("claim", poolOf("192.168.9.0/29", more))).result).toBe("403 ACCESS_DENIED");
  });

  test("a lease is not renamed to an owner for all tenants", async () => {
    const { lease } = await send("claim", claimOf({}));
    const change = { ...placeOf(lease!), changes: { owner: "tenants/clusterIP" } };
    expect((await send("change", change)).result).toBe("403 ACCESS_DENIED");
  });

  test("pools that an import adds get the caller's tenant", async () => {
    const lease = { ...at("mine", "192.168.10.0/29"), pool: "space/default", tenant: OTHER };
    const imported = { ...lease, childPool: specOf("imported", "192.168.10.0/29", { tenant: OTHER }) };
    expect((await send("importLeases", { leases: [imported] })).result).toBe("200");
    expect((await findSpec(pool, "pool/imported"))?.tenant).toEqual(ACME);
  });
});

describe("errors do not name owners, values and pools of others", () => {
  const fill = async (): Promise<void> => {
    for (const name of ["3", "4", "5", "6", "7"])
      await pool.claim([{ ...at(`secret-${name}`, `192.168.7.${name}`), tenant: OTHER }]);
  };

  test.each<[code: string, input: () => object, text: string]>([
    [
      "PLAN_STALE",
      () => claimOf({ values: held.ranges }),
      "Address 192.168.7.0 of IPPool web is reserved by another tenant now.",
    ],
    [
      "PLAN_STALE",
      () => claimOf({ values: offered.ranges }),
      "Address 192.168.7.1 of IPPool web is promised to another tenant now.",
    ],
    [
      "POOL_OVERLAP",
      () => poolOf("192.168.9.0/29", { names: ["pool/priv"], childPool: specOf("priv", "192.168.9.0/29") }),
      "Pool name priv belongs to another tenant (IPPool, reserved).",
    ],
    [
      "SHARING_CONFLICT",
      () => claimOf({ values: [range("192.168.7.2")], sharingKey: "mine" }),
      "Address 192.168.7.2 of IPPool web is shared by another tenant under another key or tenant than 'mine'.",
    ],
  ])("%s", async (code, input, text) => {
    const { result, what } = await send("claim", input());
    expect(result).toBe(`409 ${code}`);
    expect(what).toBe(text);
  });

  test("an overlap of ranges", async () => {
    const { what } = await send("offer", poolOf("192.168.8.0/30", {}));
    expect(what).toBe("192.168.8.0/30 overlaps a range, which is held by another tenant.");
  });

  test("a full pool names the caller's own leases", async () => {
    await send("claim", claimOf({}));
    now += 1000;
    for (let i = 4; i < 8; i++) await pool.claim([{ ...at(`secret-${i}`), tenant: OTHER }]);
    const { what } = await send("claim", claimOf({ owner: owner("next") }));
    expect(what).toMatch(/longest unseen first: .*another tenant/);
    expect(what).toContain(owner("mine"));
    expect(what).not.toContain("secret");
  });

  test("a quarantined value", async () => {
    await fill();
    const lengthy = pool.session({ quarantine: 3600 });
    await lengthy.release("pool/web", held.leaseId);
    const { text, lease } = await send("offer", offerOf({ values: held.ranges }));
    expect(lease!.warnings).toEqual([
      expect.stringMatching(/^Address 192.168.7.0 of IPPool web was released by another tenant at /),
    ]);
    expect(text).not.toContain("secret");
  });

  test("a promise that was broken", async () => {
    const { lease } = await send("offer", at("mine"));
    now += 3_601_000;
    await pool.claim([{ ...at("secret-next"), values: lease!.ranges.map(fromWire), tenant: OTHER }]);
    const { result, what } = await send("offer", { ...at("mine"), inUp: true });
    expect(result).toBe("409 PLAN_STALE");
    expect(what).toMatch(
      /^Address 192\.168\.7\.3 of IPPool web was promised to T mine at .* and is now reserved by another tenant\.$/,
    );
    const shown = await send("offer", at("mine"));
    expect(shown.lease!.warnings).toEqual([expect.stringContaining("is now reserved by another tenant.")]);
    expect(shown.text).not.toContain("secret");
  });

  test("a pool of the tenant with leases of others", async () => {
    const shared = { childPool: specOf("open", "192.168.9.0/29") };
    const { lease } = await send("claim", poolOf("192.168.9.0/29", shared));
    await pool.change("space/default", lease!.leaseId, shared); // for all tenants
    await pool.claim([{ pool: "pool/open", owner: owner("secret-guest"), type: "IPReservation", tenant: OTHER }]);
    const { result, what } = await send("close", placeOf(lease!));
    expect(result).toBe("409 POOL_IN_USE");
    expect(what).toBe("IPPool open still has leases: another tenant.");
  });

  test("through the routes for addresses", async () => {
    const taken = await service.send("POST /api/overlay/ip/reserve?pool=web&ip=192.168.7.0", token);
    expect(taken.json()).toMatchObject({
      code: "IP_IN_USE",
      what: "Address 192.168.7.0 of IPPool web is reserved by another tenant.",
    });
    await fill();
    const full = await service.send("POST /api/overlay/ip/reserve?pool=web", token);
    expect(full.json().what).toBe(
      "No address is free in IPPool web (192.168.7.0/29). Holders, longest unseen first: another tenant.",
    );
  });
});

describe("two callers at the same moment", () => {
  test("a lease is not changed by the claim of another tenant that arrives with it", async () => {
    const other = await service.token("other", ["deploy"], { tenant: OTHER });
    const claim = (ttl: number, more: object) => claimOf({ owner: owner("same"), idempotent: true, ttl, ...more });
    const outcomes = await Promise.all([
      send("claim", claim(10, {})),
      send("claim", claim(86_400, { labels: { vm: "true" } }), other),
    ]);
    expect(outcomes.map(({ result }) => result)).toEqual(["200", "403 ACCESS_DENIED"]);
    const leases = (await pool.leases("pool/web")).filter((lease) => lease.owner === owner("same"));
    expect(leases).toMatchObject([{ ttl: 10, tenant: ACME }]);
    expect(leases[0]).not.toHaveProperty("labels");
  });
});

describe("containers of two tenants may have one name", () => {
  let other: string;
  beforeEach(async () => {
    other = await service.token("other", ["deploy", "reserve", "read"], { tenant: OTHER });
  });

  test("in a pool that both use: each finds, reserves again and releases its own", async () => {
    const reserve = async (bearer: string) =>
      (await service.send("POST /api/overlay/ip/reserve?pool=web&container=c", bearer)).json().ip;
    const [own, others] = [await reserve(token), await reserve(other)];
    expect([own, others]).toEqual(["192.168.7.3", "192.168.7.4"]);
    expect([await reserve(token), await reserve(other)]).toEqual([own, others]);
    const released = await service.send("POST /api/overlay/ip/release?pool=web&container=c", token);
    expect(released.json().released).toMatchObject([{ ip: own }]);
    const left = await service.send("GET /api/overlay/ip/reservations?pool=web&container=c", other);
    expect(left.json().reservations).toMatchObject([{ ip: others }]);
  });

  test("in a network: each has its own address for it, and learns nothing of the other", async () => {
    await makePool("node1", "192.168.10.0/29", { name: "runner/web/node1" }, "node1");
    const request = { pool: "runner/web/node1", names: ["user/web/c"] };
    for (const [bearer, name] of [
      [token, "mine"],
      [other, "theirs"],
    ] as const) {
      const { result, lease } = await send("claim", claimOf({ ...request, owner: owner(name) }), bearer);
      expect([result, lease?.names]).toEqual(["200", ["user/web/c"]]);
      const found = await send("find", { name: "user/web/c" }, bearer);
      expect(found.lease).toMatchObject({ owner: owner(name), names: ["user/web/c"] });
      const second = claimOf({ ...request, owner: owner(`${name}-2`) });
      expect((await send("claim", second, bearer)).result).toBe("409 RESERVATION_EXISTS");
      const { leaseId, pool: at } = lease!;
      const changes = { names: ["user/web/c", "user/web/d"] };
      expect((await send("change", { pool: at, leaseId, changes }, bearer)).lease).toMatchObject(changes);
      expect((await send("find", { pool: at, name: "user/web/d" }, bearer)).lease).toMatchObject(changes);
    }
    expect(await pool.find({ name: "user/web/c" })).toBeUndefined();
    expect(await claimOne(pool, { ...at("operators"), ...request })).toMatchObject({ names: ["user/web/c"] });
  });
});

describe("what a caller of one tenant previews stops no other stack", () => {
  let bearer: string;
  beforeEach(async () => {
    bearer = await service.token("fork", ["preview"], { tenant: ACME });
  });
  const network: Request = {
    ...{ pool: "space/default", owner: owner("net"), type: "OverlayNetwork", values: [range("10.1.0.0/16")] },
    names: ["network/n", "host/10.0.0.5/link/br0"],
    childPool: { name: "network/n", kind: "id", ranges: [{ first: 1n, last: 9n }], allocation: "lowest" },
  };
  const runner: Request = {
    ...{ pool: "network/n", owner: owner("node1"), type: "RunnerSubnet" },
    names: ["runner/n/node1", "host/10.0.0.6/link/br0"],
    childPool: { name: "runner/n/node1", kind: "address", ranges: [range("10.1.1.0/24")], allocation: "lowest" },
  };
  const reservation: Request = {
    ...{ pool: "runner/n/node1", owner: owner("c"), type: "IPReservation", values: [range("10.1.1.9")] },
    names: ["user/n/c"],
  };
  const squat = (request: Request) =>
    send("offer", { ...request, owner: `${request.owner}-squat`, run: "squat" }, bearer);
  const claimAs = (request: Request) => claimOne(pool, { ...request, run: "run" });

  test("names and ranges of address spaces go to the first claim, also with a preview before it", async () => {
    for (const request of [network, runner, reservation]) {
      const other = request === reservation ? { values: [range("10.1.1.8")] } : {};
      expect((await squat({ ...request, ...other })).result, request.type).toBe("200");
      for (const inUp of [false, true]) {
        const { warnings } = await pool.offer({ ...request, owner: `${request.owner}-own`, run: "run", inUp });
        const isPromised = request !== reservation; // containers of two tenants may have one name
        expect(/was also shown to|overlaps what a preview/.test(`${warnings}`), request.type).toBe(isPromised);
      }
      await pool.withdraw({ pool: request.pool, owner: `${request.owner}-own`, program: "?" });
      const lease = await claimAs({ ...request, owner: `${request.owner}-own` });
      expect(lease.names).toEqual(request.names);
    }
    expect(await pool.admin.fsck()).toEqual([]);
  });

  test("two resources of one run do not get one name", async () => {
    await pool.offer({ ...network, run: "run" });
    const other = { ...network, owner: owner("other"), values: [range("10.2.0.0/16")], run: "run" };
    await expect(pool.offer(other)).rejects.toMatchObject({ code: "NETWORK_EXISTS" });
    const overlapping = { ...network, owner: owner("other"), names: [], childPool: undefined, run: "run" };
    await expect(pool.offer(overlapping as never)).rejects.toMatchObject({ code: "POOL_OVERLAP" });
  });

  test("it holds at most half of a pool that others use, also with several tokens", async () => {
    const second = await service.token("second", ["preview"], { tenant: ACME });
    const results: string[] = [];
    for (let i = 0; i < 5; i++)
      results.push((await send("offer", offerOf({ owner: owner(`blocker-${i}`) }), i % 2 ? bearer : second)).result);
    expect(results).toEqual([...Array(4).fill("200"), "409 POOL_QUOTA"]);
    const whole = offerOf({ owner: owner("whole"), values: [range("192.168.7.0/29")] });
    expect((await send("offer", whole, await service.token("pool", ["preview"], { pool: "web" }))).result).toMatch(
      /409/,
    );
    await makePool("mine", "192.168.9.0/30", { tenant: ACME }, "mine-pool");
    for (let i = 0; i < 4; i++) {
      const own = offerOf({ pool: "pool/mine", owner: owner(`own-${i}`) });
      expect((await send("offer", own, bearer)).result).toBe("200");
    }
  });
});

/** All requests in a pool read its offers, and those of its leases that they are about. */
describe("what a lease keeps besides its values is bounded", () => {
  const labels = (bytes: number) => ({ labels: { text: "x".repeat(3900), more: "x".repeat(bytes - 3900) } });
  const large = { labels: Object.fromEntries(Array.from({ length: 5 }, (_, i) => [`${i}`, "x".repeat(3900)])) };
  const data = { data: { texts: Array.from({ length: 20 }, () => "x".repeat(3900)) } };
  const spec = specOf("big", "192.168.9.0/29", data);

  test.each<[string, () => [operation: string, input: object]]>([
    ["an offer", () => ["offer", offerOf(large)]],
    ["a claim", () => ["claim", claimOf(large)]],
    ["an import", () => ["importLeases", { leases: [{ ...at("acme", "192.168.7.4"), ...large }] }]],
    ["a pool", () => ["claim", poolOf("192.168.9.0/29", { childPool: spec })]],
    ["an offer of a pool", () => ["offer", poolOf("192.168.9.0/29", { childPool: spec })]],
  ])("%s with more is refused", async (_, request) => {
    const [operation, input] = request();
    expect((await send(operation, input)).text).toMatch(/at most (16384|65536) are kept/);
  });

  test("a change to more is refused", async () => {
    const { pool: name, leaseId } = await claimOne(pool, { ...at("acme", "192.168.7.4"), tenant: ACME });
    const { result } = await send("change", { pool: name, leaseId, changes: large });
    expect(result).toBe("400 INPUT_INVALID");
  });

  test("offers of a tenant are smaller, the more there are of them in a pool", async () => {
    await makePool("mine", "192.168.12.0/22", { tenant: ACME }, "mine-pool");
    const offer = async (i: number, bytes: number) =>
      (await send("offer", offerOf({ pool: "pool/mine", owner: owner(`own-${i}`), ...labels(bytes) }))).result;
    const results: string[] = [];
    for (let i = 0; i < 300; i++) results.push(await offer(i, 7500));
    expect(results.indexOf("409 POOL_QUOTA")).toBeGreaterThan(250);
    expect(await offer(300, 3950)).toBe("200");
    const others = at("secret-other");
    expect((await pool.offer({ ...others, pool: "pool/mine", tenant: ACME, ...labels(7500) })).state).toBe("offered");
  });
});

describe("child pools", () => {
  const bound = (bounds: Partial<AccessTokenInput>): Promise<string> => service.token("bound", ["deploy"], bounds);

  test.each<[string, object, string]>([
    ["a pool", { childPool: specOf("outside", "192.168.7.3") }, "403 ACCESS_DENIED"],
    ["a network", { childPool: { ...specOf("x", "192.168.7.3"), name: "network/x" } }, "403 ACCESS_DENIED"],
    ["the name of a pool", { names: ["pool/outside"] }, "403 ACCESS_DENIED"],
    ["the name of a runner", { names: ["runner/training/node1"] }, "403 ACCESS_DENIED"],
    ["the name of a device", { names: ["host/10.0.0.5/link/br0"] }, "403 ACCESS_DENIED"],
    ["the name of a container of a network", { names: ["user/training/c"] }, "403 ACCESS_DENIED"],
    ["the name of a placement in a network", { names: ["placed/training/c"] }, "403 ACCESS_DENIED"],
    ["a name of no kind", { names: ["x"] }, "403 ACCESS_DENIED"],
    ["more than 20 names", { names: Array.from({ length: 21 }, (_, i) => `request/bound/${i}`) }, "400 INPUT_INVALID"],
    ["20 names of its requests", { names: Array.from({ length: 20 }, (_, i) => `request/bound/${i}`) }, "200"],
  ])("a token for one pool makes no other: %s", async (_, more, result) => {
    expect((await send("claim", claimOf({ ...more }), await bound({ pool: "web" }))).result).toBe(result);
  });

  test.each<[string, Bounded]>([
    ["for a tenant", { tenant: ACME }],
    ["of the operator", {}],
  ])("have no values outside of their lease, for a token %s", async (_, bounds) => {
    const bearer = await bound(bounds);
    const outcome = await send("claim", poolOf("192.168.9.0/29", { childPool: specOf("x", "192.168.8.0/29") }), bearer);
    expect(outcome.result).toBe("400 IP_OUTSIDE_POOL");
    expect(await findSpec(pool, "pool/x")).toBeUndefined();
  });

  test("do not replace an address space", async () => {
    const childPool = { ...specOf("x", "192.168.9.0/29"), name: "space/default" };
    const outcome = await send("claim", poolOf("192.168.9.0/29", { childPool }), await bound({}));
    expect(outcome.result).toBe("400 INPUT_INVALID");
  });
});

describe("limits of a pool that the operator made for a tenant", () => {
  const LIMITS = {
    tenant: ACME,
    quota: { maxReservations: 2 },
    reserved: [range("192.168.9.0")],
    staticOnly: [range("192.168.9.1")],
  };
  const limited = specOf("limited", "192.168.9.0/29", LIMITS);
  let opener: Lease;
  beforeEach(async () => {
    opener = await makePool("limited", "192.168.9.0/29", LIMITS, "limits");
  });

  test.each<[string, Partial<PoolSpec>]>([
    ["quota", { quota: { maxReservations: 3 } }],
    ["reserved values", { reserved: [] }],
    ["values by request only", { staticOnly: [] }],
  ])("%s: not changed by the tenant", async (_, more) => {
    const childPool = { ...limited, ...more };
    const changed = [
      await send("change", { ...placeOf(opener), changes: { childPool } }),
      await send("claim", poolOf("192.168.9.0/29", { owner: opener.owner, childPool })),
    ];
    expect(changed.map(({ result }) => result)).toEqual(Array(2).fill("403 ACCESS_DENIED"));
    expect(await findSpec(pool, "pool/limited")).toEqual(limited);
  });

  test("the pool is not ended by the tenant, which may change other settings of it", async () => {
    const other = poolOf("192.168.9.0/29", { mayEnd: [opener.uid] });
    for (const [name, input] of [
      ["close", placeOf(opener)],
      ["release", placeOf(opener)],
      ["change", { ...placeOf(opener), changes: { childPool: { ...limited, name: "pool/other" } } }],
    ] as const)
      expect((await send(name, input)).result, name).toBe("403 ACCESS_DENIED");
    expect((await send("claim", other)).result).toBe("409 PLAN_STALE");
    const childPool = { ...limited, warnAtPercent: 50 };
    expect((await send("change", { ...placeOf(opener), changes: { childPool } })).result).toBe("200");
    expect(await findSpec(pool, "pool/limited")).toEqual(childPool);
  });

  test("its quota holds for imports of the tenant, not for those of the operator", async () => {
    const existing = (name: string, address: string) => ({ ...at(name, address), pool: "pool/limited", tenant: ACME });
    const leases = ["2", "3", "4"].map((last) => existing(`mine-${last}`, `192.168.9.${last}`));
    const { text } = await send("importLeases", { leases });
    expect(JSON.parse(text).result).toMatchObject({
      added: expect.anything(),
      conflicts: [{ index: 2, error: { code: "POOL_QUOTA" } }],
    });
    expect(await pool.leases("pool/limited")).toEqual([]);
    const imported = leases.map((lease) => ({ ...lease, values: lease.values! }));
    expect((await pool.importLeases(imported)).added).toHaveLength(3);
  });

  test("a pool that the tenant made is changed and ended by it", async () => {
    const childPool = specOf("own", "192.168.10.0/29", LIMITS_OF_OWN);
    const { lease } = await send("claim", poolOf("192.168.10.0/29", { childPool }));
    const changes = { childPool: { ...childPool, quota: { maxReservations: 9 } } };
    expect((await send("change", { ...placeOf(lease!), changes })).result).toBe("200");
    expect((await send("release", placeOf(lease!))).result).toBe("200");
    expect(await findSpec(pool, "pool/own")).toBeUndefined();
  });
});

const LIMITS_OF_OWN = { quota: { maxReservations: 1 } };

type Bounded = Partial<AccessTokenInput>;
