import { beforeEach, expect, test } from "vitest";
import { UNKNOWN, type Values } from "../../../provider/lifecycle/values";
import { ranges } from "../../contract/fixture";
import { inPool, ownerOf, Stage } from "./stage";

/** Pools that change in the run in which resources are added to them: up gives what preview shows. */
let stage: Stage;
beforeEach(async () => {
  stage = await Stage.up();
});

test("a pool that grows: a new address is offered, and nothing else changes", async () => {
  const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/29"] });
  const held = await stage.make("IPReservation", "a", inPool(pool));
  stage.newRun();
  const grown = await stage.preview("IPPool", "lb", { ranges: ["10.61.0.0/28"] }, pool);
  const same = await stage.preview("IPReservation", "a", inPool(grown), held);
  expect(await stage.of("IPReservation").diff(held, same)).toMatchObject({ changes: false, replaces: [] });
  const shown = await stage.preview("IPReservation", "b", inPool(grown));
  expect(shown.ip).toMatch(/^10\.61\.0\.\d+$/);
  stage.newRun();
  const now = await stage.change("IPPool", "lb", pool, { ranges: ["10.61.0.0/28"] });
  expect(await stage.make("IPReservation", "b", inPool(now))).toMatchObject({ ip: shown.ip });
});

const LOWEST = { ranges: ["10.61.0.0/29"], allocation: "lowest" };
const ANN = { org: "acme", project: "ann" };
const BOB = { org: "acme", project: "bob" };

test.each<[change: string, before: Values, after: Values, request: Values, ip: string]>([
  ["reserves the lowest address", LOWEST, { ...LOWEST, reserved: ["10.61.0.0"] }, {}, "10.61.0.1"],
  ["reserves another address", { reserved: ["10.61.0.0"] }, { reserved: ["10.61.0.1"] }, {}, "10.61.0.0"],
  ["keeps some for requests", {}, { staticOnly: ["10.61.0.0/30"] }, {}, "10.61.0.4"],
  ["keeps some for requests", {}, { staticOnly: ["10.61.0.0/30"] }, { ip: "10.61.0.2" }, "10.61.0.2"],
  ["keeps others for requests", { staticOnly: ["10.61.0.0/30"] }, { staticOnly: ["10.61.0.4"] }, {}, "10.61.0.0"],
  ["avoids .0", {}, { avoidBoundaryIps: true }, {}, "10.61.0.1"],
  ["avoids .0 no longer", { avoidBoundaryIps: true }, {}, {}, "10.61.0.1"],
  ["shrinks", { allocation: "hashed" }, { ranges: ["10.61.0.6/31"] }, {}, "10.61.0.6"],
  ["moves", {}, { ranges: ["10.61.0.6-10.61.0.20"] }, {}, "10.61.0.6"],
  ["chooses otherwise", { allocation: "random", ranges: ["10.0.0.0/8"] }, { ranges: ["10.0.0.0/8"] }, {}, "10.0.0.0"],
  ["gets a tenant", {}, { tenant: ANN }, { tenant: ANN }, "10.61.0.0"],
  ["gets another tenant", { tenant: BOB }, { tenant: ANN }, { tenant: ANN }, "10.61.0.0"],
])(
  "a pool that %s: what preview shows is what up gives (%o to %o, request %o)",
  async (_, before, after, request, ip) => {
    const pool = await stage.make("IPPool", "lb", { ...LOWEST, ...before });
    stage.newRun();
    const changed = await stage.preview("IPPool", "lb", { ...LOWEST, ...after }, pool);
    expect(await stage.preview("IPReservation", "new", inPool(changed, request))).toMatchObject({ ip });
    stage.newRun();
    const now = await stage.change("IPPool", "lb", pool, { ...LOWEST, ...after });
    expect(await stage.make("IPReservation", "new", inPool(now, request))).toMatchObject({ ip });
    expect(stage.warnings).toEqual([]);
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  },
);

test.each<[change: string, after: Values, request: Values, code: string]>([
  ["reserves the requested address", { reserved: ["10.61.0.4"] }, { ip: "10.61.0.4" }, "IP_RESERVED"],
  ["loses the requested address", { ranges: ["10.61.0.0/30"] }, { ip: "10.61.0.4" }, "IP_OUTSIDE_POOL"],
  ["avoids the requested address", { avoidBoundaryIps: true }, { ip: "10.61.0.0" }, "IP_RESERVED"],
  ["assigns none any more", { autoAssign: false }, {}, "IP_NOT_REQUESTED"],
  ["leaves the choice to another system", { allocation: "external" }, {}, "IP_NOT_REQUESTED"],
  ["reserves all addresses", { reserved: ["10.61.0.0/29"] }, {}, "POOL_EXHAUSTED"],
  ["avoids .0 and .255", { avoidBoundaryIps: true, ranges: ["10.61.0.0"] }, {}, "POOL_EXHAUSTED"],
  ["gets another tenant", { tenant: BOB }, { tenant: ANN }, "TENANT_MISMATCH"],
  ["gets a tenant", { tenant: BOB }, {}, "TENANT_MISMATCH"],
])("a pool that %s: preview refuses as up does", async (_, after, request, code) => {
  const pool = await stage.make("IPPool", "lb", LOWEST);
  stage.newRun();
  const changed = await stage.preview("IPPool", "lb", { ...LOWEST, ...after }, pool);
  const refused = new RegExp(`^${code}: `);
  expect(await stage.refusal("IPReservation", "new", inPool(changed, request))).toMatch(refused);
  stage.newRun();
  const now = await stage.change("IPPool", "lb", pool, { ...LOWEST, ...after });
  expect(await stage.refusal("IPReservation", "new", inPool(now, request))).toMatch(refused);
});

test.each<[change: string, before: Values, after: Values, request: Values, ip: string]>([
  ["frees the requested address", { reserved: ["10.61.0.4"] }, {}, { ip: "10.61.0.4" }, "10.61.0.4"],
  ["gets the requested address", {}, { ranges: ["10.61.0.0/28"] }, { ip: "10.61.0.9" }, "10.61.0.9"],
  ["grows when it is full", { ranges: ["10.61.0.0"] }, { ranges: ["10.61.0.0/31"] }, {}, "10.61.0.1"],
  ["assigns addresses again", { autoAssign: false }, {}, {}, "10.61.0.1"],
  ["was another system's choice", { allocation: "external" }, {}, {}, "10.61.0.1"],
])("a pool that %s: preview shows the address that it gives then", async (_, before, after, request, ip) => {
  const pool = await stage.make("IPPool", "lb", { ...LOWEST, ...before });
  await stage.make("IPReservation", "held", inPool(pool, { ip: "10.61.0.0" }));
  stage.newRun();
  const changed = await stage.preview("IPPool", "lb", { ...LOWEST, ...after }, pool);
  expect(await stage.preview("IPReservation", "new", inPool(changed, request))).toMatchObject({ ip });
  expect(stage.warnings.filter((text) => !text.includes("80 %"))).toEqual([]);
  stage.newRun();
  const now = await stage.change("IPPool", "lb", pool, { ...LOWEST, ...after });
  expect(await stage.make("IPReservation", "new", inPool(now, request))).toMatchObject({ ip });
  expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
});

test.each<[change: string, after: Values, requests: Values[], code: string]>([
  [
    "gets only addresses for requests",
    { ranges: ["10.61.0.0/30"], reserved: ["10.61.0.1"], staticOnly: ["10.61.0.2/31"] },
    [{}],
    "POOL_EXHAUSTED",
  ],
  ["shrinks and reserves less", { ranges: ["10.61.0.0"] }, [{}], "POOL_EXHAUSTED"],
  ["gets one address for two resources", {}, [{}, {}], "POOL_EXHAUSTED"],
  ["gets an address that two resources request", {}, [{ ip: "10.61.0.1" }, { ip: "10.61.0.1" }], "IP_IN_USE"],
  [
    "grows beyond its quota",
    { ranges: ["10.61.0.0/29"], quota: { maxReservations: 1 } },
    [{ ip: "10.61.0.4" }],
    "POOL_QUOTA",
  ],
])("a full pool that %s: preview refuses as up does", async (_, after, requests, code) => {
  const pool = await stage.make("IPPool", "lb", { ...LOWEST, ranges: ["10.61.0.0/31"], reserved: ["10.61.0.1"] });
  await stage.make("IPReservation", "held", inPool(pool, { ip: "10.61.0.0" }));
  const news = { ...LOWEST, ranges: ["10.61.0.0/31"], ...after };
  stage.newRun();
  const changed = await stage.preview("IPPool", "lb", news, pool);
  const [last, ...others] = requests.toReversed().map((request) => inPool(changed, request));
  for (const [i, request] of others.entries()) await stage.preview("IPReservation", `r${i}`, request);
  expect(await stage.refusal("IPReservation", "last", last!)).toMatch(new RegExp(`^${code}: `));
  stage.newRun();
  const now = await stage.change("IPPool", "lb", pool, news);
  const inUp = requests.toReversed().map((request) => inPool(now, request));
  for (const [i, request] of inUp.slice(1).entries()) await stage.make("IPReservation", `r${i}`, request);
  expect(await stage.refusal("IPReservation", "last", inUp[0]!)).toMatch(new RegExp(`^${code}: `));
});

test.each<[what: string, before: Values, after: Values]>([
  ["moves", {}, { ranges: ["10.62.0.0/29"] }],
  ["grows and reserves the rest", {}, { ranges: ["10.61.0.0/28"], reserved: ["10.61.0.0/29"] }],
  ["is replaced and reserves the address", {}, { type: "clusterIP", reserved: ["10.61.0.0"] }],
])("a pool that %s: an offer of an earlier preview is replaced by that of the next one", async (_, before, after) => {
  const pool = await stage.make("IPPool", "lb", { ...LOWEST, ...before });
  const news = { ...LOWEST, ...after };
  stage.program = "main";
  stage.newRun();
  expect(await stage.preview("IPReservation", "new", inPool(pool))).toMatchObject({ ip: "10.61.0.0" });
  stage.newRun();
  const changed = await stage.preview("IPPool", "lb", news, pool);
  const { ip } = await stage.preview("IPReservation", "new", inPool(changed));
  expect(ip).not.toBe("10.61.0.0");
  stage.newRun();
  if ("type" in after) await stage.of("IPPool").delete(pool);
  const now = "type" in after ? await stage.make("IPPool", "lb", news) : await stage.change("IPPool", "lb", pool, news);
  const made = await stage.make("IPReservation", "new", inPool(now));
  expect(made).toMatchObject({ ip: ip === UNKNOWN ? expect.stringMatching(/^10/) : ip });
  expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
});

test("an offer that was shown to another branch stays a promise to it", async () => {
  const pool = await stage.make("IPPool", "lb", LOWEST);
  for (const program of ["main", "branch"]) {
    stage.program = program;
    stage.newRun();
    await stage.preview("IPReservation", "new", inPool(pool));
  }
  stage.newRun();
  const changed = await stage.preview("IPPool", "lb", { ...LOWEST, ranges: ["10.62.0.0/29"] }, pool);
  expect(await stage.preview("IPReservation", "new", inPool(changed))).toMatchObject({ ip: "10.62.0.0" });
  stage.newRun();
  const now = await stage.change("IPPool", "lb", pool, { ...LOWEST, ranges: ["10.62.0.0/29"] });
  stage.program = "main";
  const caller = { owner: ownerOf("IPReservation", "new"), dryRun: false, program: "main" };
  const { failures } = await stage.of("IPReservation").check(caller, undefined, inPool(now));
  expect(failures[0]?.reason).toMatch(/^PLAN_STALE: /);
  stage.program = "branch";
  expect(await stage.make("IPReservation", "new", inPool(now))).toMatchObject({ ip: "10.62.0.0" });
});

test("a child pool that moves with its parent: what its preview has shown in it is no promise any more", async () => {
  const parent = { ranges: ["10.61.0.0/24"], allocation: "lowest" };
  const moved = { ...parent, ranges: ["10.62.0.0/24"] };
  const carve = (pool: Values) => ({ parent: inPool(pool).pool, prefixLength: 28, allocation: "lowest" });
  const before = await stage.make("IPPool", "p", parent);
  stage.program = "main";
  stage.newRun();
  const shown = await stage.preview("IPPool", "c", carve(before));
  expect(await stage.preview("IPReservation", "r", inPool(shown))).toMatchObject({ ip: "10.61.0.0" });
  stage.newRun();
  const changed = await stage.preview("IPPool", "p", moved, before);
  const next = await stage.preview("IPPool", "c", carve(changed));
  expect(next).toMatchObject({ ranges: ["10.62.0.0/28"] });
  expect(await stage.preview("IPReservation", "r", inPool(next))).toMatchObject({ ip: "10.62.0.0" });
  stage.newRun();
  const now = await stage.change("IPPool", "p", before, moved);
  const child = await stage.make("IPPool", "c", carve(now));
  expect(await stage.make("IPReservation", "r", inPool(child))).toMatchObject({ ip: "10.62.0.0" });
  expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
});

test("an expired offer to another branch, which a moved pool cannot give, does not stop an up", async () => {
  const moved = { ...LOWEST, ranges: ["10.62.0.0/29"] };
  const pool = await stage.make("IPPool", "lb", LOWEST);
  stage.program = "branch";
  stage.newRun();
  await stage.preview("IPReservation", "new", inPool(pool));
  stage.pass(25 * 3600);
  stage.program = "main";
  stage.newRun();
  const changed = await stage.preview("IPPool", "lb", moved, pool);
  expect(await stage.preview("IPReservation", "new", inPool(changed))).toMatchObject({ ip: "10.62.0.0" });
  stage.newRun();
  const now = await stage.change("IPPool", "lb", pool, moved);
  expect(await stage.make("IPReservation", "new", inPool(now))).toMatchObject({ ip: "10.62.0.0" });
});

test("a full pool that grows gives a requested address, whichever resource is checked first", async () => {
  for (const order of [
    ["auto", "pinned"],
    ["pinned", "auto"],
  ]) {
    stage = await Stage.up();
    const pool = await stage.make("IPPool", "lb", { ...LOWEST, ranges: ["10.61.0.0"] });
    await stage.make("IPReservation", "held", inPool(pool));
    stage.newRun();
    const changed = await stage.preview("IPPool", "lb", { ...LOWEST, ranges: ["10.61.0.0/30"] }, pool);
    for (const name of order) {
      const news = inPool(changed, name === "pinned" ? { ip: "10.61.0.1" } : {});
      const declared = ranges("10.61.0.1");
      const caller = { owner: ownerOf("IPReservation", name), dryRun: true, program: "main", declared };
      const { inputs } = await stage.of("IPReservation").check(caller, undefined, news);
      expect(inputs).toMatchObject({ ip: name === "pinned" ? "10.61.0.1" : "10.61.0.2" });
    }
  }
});

test.each<[what: string, before: Values, after: Values, request: Values]>([
  ["in its quota", { quota: { maxReservations: 2 } }, { ranges: ["10.61.0.0/28"] }, { ip: "10.61.0.9" }],
  ["on addresses for requests", { staticOnly: ["10.61.0.1-10.61.0.7"] }, {}, {}],
])("an offer of another branch does not count %s", async (_, before, after, request) => {
  const rules = { ...LOWEST, ...(before.quota ? before : {}) };
  const pool = await stage.make("IPPool", "lb", { ...LOWEST, ...before });
  await stage.make("IPReservation", "held", inPool(pool, { ip: "10.61.0.0" }));
  stage.program = "branch";
  stage.newRun();
  for (let i = 1; i <= (before.quota ? 1 : 7); i++)
    await stage.preview("IPReservation", `theirs${i}`, inPool(pool, { ip: `10.61.0.${i}` }));
  stage.program = "main";
  stage.newRun();
  const changed = await stage.preview("IPPool", "lb", { ...rules, ...after }, pool);
  const { ip } = await stage.preview("IPReservation", "new", inPool(changed, request));
  stage.newRun();
  const now = await stage.change("IPPool", "lb", pool, { ...rules, ...after });
  expect(await stage.make("IPReservation", "new", inPool(now, request))).toMatchObject({ ip });
});

test("a resource that holds its address keeps it in a pool that assigns none any more", async () => {
  const pool = await stage.make("IPPool", "lb", LOWEST);
  const held = await stage.make("IPReservation", "a", inPool(pool));
  stage.newRun();
  const changed = await stage.preview("IPPool", "lb", { ...LOWEST, autoAssign: false }, pool);
  expect(await stage.preview("IPReservation", "a", inPool(changed))).toMatchObject({ ip: held.ip });
});

test("an offer of another branch that a moved pool loses does not count in its quota", async () => {
  const limited = { ...LOWEST, quota: { maxReservations: 1 } };
  const pool = await stage.make("IPPool", "lb", limited);
  stage.program = "branch";
  stage.newRun();
  await stage.preview("IPReservation", "theirs", inPool(pool));
  stage.program = "main";
  stage.newRun();
  const changed = await stage.preview("IPPool", "lb", { ...limited, ranges: ["10.61.0.4-10.61.0.20"] }, pool);
  expect(await stage.preview("IPReservation", "new", inPool(changed))).toMatchObject({ ip: "10.61.0.4" });
});

test("a quarantined address that the changed pool avoids stays quarantined, and no warning names it", async () => {
  const pool = await stage.make("IPPool", "lb", { ...LOWEST, ranges: ["10.61.0.0/31"] });
  const gone = [
    await stage.make("IPReservation", "a", inPool(pool)),
    await stage.make("IPReservation", "b", inPool(pool)),
  ];
  for (const props of gone) await stage.of("IPReservation").delete(props);
  stage.newRun();
  stage.warnings.splice(0);
  const news = { ...LOWEST, ranges: ["10.61.0.0/31"], avoidBoundaryIps: true };
  const changed = await stage.preview("IPPool", "lb", news, pool);
  expect(await stage.preview("IPReservation", "new", inPool(changed))).toMatchObject({ ip: "10.61.0.1" });
  expect(stage.warnings.filter((text) => text.includes("10.61.0.0 "))).toEqual([]);
  expect((await stage.pool.ipam.leases("pool/lb")).map(({ state }) => state)).toContain("quarantined");
});

test("the order of a replacement follows the quota after the change", async () => {
  const limited = { ...LOWEST, quota: { maxReservations: 1 } };
  const pool = await stage.make("IPPool", "lb", limited);
  const held = await stage.make("IPReservation", "a", inPool(pool, { ip: "10.61.0.1" }));
  stage.newRun();
  const changed = await stage.preview("IPPool", "lb", { ...LOWEST, quota: { maxReservations: 5 } }, pool);
  const shown = await stage.preview("IPReservation", "a", inPool(changed, { ip: "10.61.0.2" }), held);
  expect(await stage.of("IPReservation").diff(held, shown)).toMatchObject({ deleteBeforeReplace: false });
});

test("a request by tenant and type does not get an address of a pool that goes to another tenant", async () => {
  const mine = { ...LOWEST, type: "clusterIP", tenant: ANN };
  const pool = await stage.make("IPPool", "lb", mine);
  stage.newRun();
  await stage.preview("IPPool", "lb", { ...mine, tenant: BOB }, pool);
  const request = { tenant: ANN, type: "clusterIP" };
  const { ip } = await stage.preview("IPReservation", "new", request);
  stage.newRun();
  await stage.change("IPPool", "lb", pool, { ...mine, tenant: BOB });
  expect(await stage.make("IPReservation", "new", request)).toMatchObject({ ip });
});

test("a pool that moves warns by the addresses that it gets", async () => {
  const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/24"] });
  stage.newRun();
  const changed = await stage.preview("IPPool", "lb", { ranges: ["10.61.0.255-10.61.3.255"] }, pool);
  expect(await stage.preview("IPReservation", "new", inPool(changed))).toMatchObject({
    ip: expect.stringMatching(/^10\.61\./),
  });
  expect(stage.warnings).toEqual([]);
});

test("a pool that reserves an address which was offered: a branch that does so is offered another one", async () => {
  const pool = await stage.make("IPPool", "lb", LOWEST);
  stage.newRun();
  stage.program = "main";
  expect(await stage.preview("IPReservation", "new", inPool(pool))).toMatchObject({ ip: "10.61.0.0" });
  const reserving = { ...LOWEST, reserved: ["10.61.0.0"] };
  for (let run = 1; run <= 2; run++) {
    stage.newRun();
    stage.program = "branch";
    const changed = await stage.preview("IPPool", "lb", reserving, pool);
    expect(await stage.preview("IPReservation", "new", inPool(changed))).toMatchObject({ ip: "10.61.0.1" });
  }
  stage.newRun();
  stage.program = "main";
  expect(await stage.preview("IPReservation", "new", inPool(pool))).toMatchObject({ ip: "10.61.0.0" });
  stage.newRun();
  stage.program = "branch";
  const now = await stage.change("IPPool", "lb", pool, reserving);
  expect(await stage.make("IPReservation", "new", inPool(now))).toMatchObject({ ip: "10.61.0.1" });
  expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
});

test("a parent that reserves the lowest block: a new child pool gets the next one, in preview and up", async () => {
  const parent = { ranges: ["10.96.0.0/16"], allocation: "lowest" };
  const reserving = { ...parent, reserved: ["10.96.0.0"] };
  const before = await stage.make("IPPool", "p", parent);
  stage.newRun();
  const changed = await stage.preview("IPPool", "p", reserving, before);
  const carve = (pool: Values) => ({ parent: inPool(pool).pool, prefixLength: 20 });
  expect(await stage.preview("IPPool", "child", carve(changed))).toMatchObject({ ranges: ["10.96.16.0/20"] });
  stage.newRun();
  const now = await stage.change("IPPool", "p", before, reserving);
  expect(await stage.make("IPPool", "child", carve(now))).toMatchObject({ ranges: ["10.96.16.0/20"] });
});

test("ports that a pool gets in the same run are shown", async () => {
  const ports = await stage.make("IPPool", "np", { type: "nodePort", portRange: "30000-30009" });
  stage.newRun();
  const grown = await stage.preview("IPPool", "np", { type: "nodePort", portRange: "30000-30019" }, ports);
  expect(await stage.preview("IPReservation", "new", inPool(grown, { port: 30015 }))).toMatchObject({ port: 30015 });
  expect(await stage.refusal("IPReservation", "other", inPool(grown, { port: 30020 }))).toMatch(/^INPUT_INVALID: /);
});

test("a child pool of a replaced pool is not shown, instead of being refused", async () => {
  const parent = await stage.make("IPPool", "p", { ranges: ["10.96.0.0/16"] });
  const { poolName, addressSpace, type, ranges } = parent;
  const child = { parent: { poolName, addressSpace, type, ranges }, prefixLength: 20 };
  await stage.make("IPPool", "child", child);
  stage.newRun();
  const changed = await stage.preview("IPPool", "p", { ranges: ["10.97.0.0/16"], type: "clusterIP" }, parent);
  const news = { parent: { ...child.parent, type: "clusterIP", ranges: changed.ranges }, prefixLength: 20 };
  expect(await stage.preview("IPPool", "second", news)).toMatchObject({ ranges: UNKNOWN });
});
