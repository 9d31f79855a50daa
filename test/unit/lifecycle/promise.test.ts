import { beforeEach, describe, expect, test } from "vitest";
import { UNKNOWN, type Values } from "../../../provider/lifecycle/values";
import { ownerOf, Stage } from "./stage";

/** Up gives the values that preview shows, or stops with the reason. */
let stage: Stage;
beforeEach(async () => {
  stage = await Stage.up();
});

const HUB = { host: "192.0.2.1" };
const networkInputs = (more: Values = {}): Values => ({ hubConnection: HUB, ...more });
const runnerInputs = (network: Values | string, host: string, more: Values = {}): Values => ({
  network: typeof network === "string" ? network : settingsOf(network),
  connection: { host },
  hubConnection: HUB,
  ...more,
});
const settingsOf = ({ owner: _, uid: __, leaseId: ___, hubConnection: ____, ...props }: Values): Values => {
  const keys = ["networkName", "subnets", "vniBase", "vxlanPort", "mtu", "masquerade", "devicePrefix", "bridgeName"];
  return Object.fromEntries([...keys, "verify", "persist"].map((key) => [key, props[key]]));
};
const inPool = ({ poolName, addressSpace, type, ranges, tenant }: Values, more: Values = {}): Values => ({
  pool: { poolName, addressSpace, type, ranges, ...(tenant ? { tenant } : {}) },
  ...more,
});

describe("two requests for one value in one run", () => {
  test("a requested runner id is kept for that runner, and the next preview offers the other one another id", async () => {
    await stage.network();
    stage.newRun();
    const first = await stage.preview("RunnerSubnet", "free", runnerInputs("training", "192.0.2.11"));
    expect(first).toMatchObject({ runnerId: 1, vni: 101 });
    const pinned = runnerInputs("training", "192.0.2.12", { runnerId: 1 });
    expect(await stage.refusal("RunnerSubnet", "pinned", pinned)).toMatch(
      /^RUNNER_ID_TAKEN: .* promised to RunnerSubnet free in this run.* Run preview again/,
    );
    stage.newRun();
    const second = await stage.preview("RunnerSubnet", "free", runnerInputs("training", "192.0.2.11"));
    expect(second).toMatchObject({ runnerId: 2, vni: 102, hubDevice: "vxkr2" });
    expect(stage.warnings.at(-1)).toMatch(/Runner id 1 .* was promised to RunnerSubnet free .*RunnerSubnet::pinned/);
    expect(await stage.preview("RunnerSubnet", "pinned", pinned)).toMatchObject({ runnerId: 1 });
    stage.newRun();
    expect(await stage.runner("free", "192.0.2.11")).toMatchObject({ runnerId: 2 });
    expect(await stage.runner("pinned", "192.0.2.12", { runnerId: 1 })).toMatchObject({ runnerId: 1 });
  });

  test("an address of a resource that the program no longer declares is refused, with a fix", async () => {
    const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/24"] });
    await stage.make("IPReservation", "old", inPool(pool, { ip: "10.61.0.7" }));
    stage.newRun();
    const caller = { owner: ownerOf("IPReservation", "new"), dryRun: true, movesAway: () => false };
    const { failures } = await stage.of("IPReservation").check(caller, undefined, inPool(pool, { ip: "10.61.0.7" }));
    expect(failures[0]?.reason).toMatch(/^IP_IN_USE: .*::old\. .* remove it in an earlier up/);
  });
});

describe("a pool that changes in the same run", () => {
  test("a network whose layout changes: the values of its runners are not shown, and they keep their ids", async () => {
    const network = await stage.network();
    const runners = [await stage.runner("r1", "192.0.2.11"), await stage.runner("r2", "192.0.2.12")];
    stage.newRun();
    const subnets = "10.64.0.0/12/6/14";
    const changed = await stage.preview("OverlayNetwork", "training", networkInputs({ subnets }), network);
    for (const [i, runner] of runners.entries()) {
      const news = runnerInputs(changed, `192.0.2.1${i + 1}`, { runnerName: `r${i + 1}` });
      const shown = await stage.preview("RunnerSubnet", `r${i + 1}`, news, runner);
      expect(shown).toMatchObject({ runnerId: UNKNOWN, subnet: UNKNOWN });
    }
    expect(new Set(stage.warnings)).toEqual(
      new Set(["Values of new resources in network training are not shown in this preview: it is being replaced."]),
    );
    stage.newRun();
    // Pulumi deletes the dependents first, in reverse order, and then checks them again.
    const lifecycle = stage.of("RunnerSubnet");
    for (const runner of runners.toReversed()) await lifecycle.delete(runner);
    await stage.of("OverlayNetwork").delete(network);
    const made = await stage.make("OverlayNetwork", "training", networkInputs({ subnets }));
    for (const name of ["r2", "r1"]) {
      const caller = { owner: ownerOf("RunnerSubnet", name), dryRun: false };
      const news = runnerInputs(made, `192.0.2.1${name.slice(1)}`, { runnerName: name });
      const { inputs } = await lifecycle.check(caller, undefined, news);
      expect((await lifecycle.create(inputs)).props).toMatchObject({ runnerId: Number(name.slice(1)) });
    }
  });

  test("a pool that grows: a new address is offered, and nothing else changes", async () => {
    const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/29"] });
    const held = await stage.make("IPReservation", "a", inPool(pool));
    stage.newRun();
    const grown = await stage.preview("IPPool", "lb", { ranges: ["10.61.0.0/28"] }, pool);
    const same = await stage.preview("IPReservation", "a", inPool(grown), held);
    expect(await stage.of("IPReservation").diff(held, same)).toMatchObject({ changes: false, replaces: [] });
    const shown = await stage.preview("IPReservation", "b", inPool(grown));
    expect(shown.ip).toMatch(/^10\.61\.0\.\d$/);
    stage.newRun();
    const now = await stage.change("IPPool", "lb", pool, { ranges: ["10.61.0.0/28"] });
    expect(await stage.make("IPReservation", "b", inPool(now))).toMatchObject({ ip: shown.ip });
  });

  const LOWEST = { ranges: ["10.61.0.0/29"], allocation: "lowest" };
  const ANN = { org: "acme", project: "ann" };
  const BOB = { org: "acme", project: "bob" };

  test.each<[change: string, before: Values, after: Values, request: Values, ip: string]>([
    ["reserves the lowest address", LOWEST, { ...LOWEST, reserved: ["10.61.0.0"] }, {}, "10.61.0.1"],
    ["reserves another address", { reserved: ["10.61.0.0"] }, { reserved: ["10.61.0.1"] }, {}, "10.61.0.2"],
    ["keeps some for requests", {}, { staticOnly: ["10.61.0.0/30"] }, {}, "10.61.0.4"],
    ["keeps some for requests", {}, { staticOnly: ["10.61.0.0/30"] }, { ip: "10.61.0.2" }, "10.61.0.2"],
    ["keeps others for requests", { staticOnly: ["10.61.0.0/30"] }, { staticOnly: ["10.61.0.4"] }, {}, "10.61.0.5"],
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
      expect(await stage.pool.fsck()).toEqual([]);
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
  ])("a pool that %s: the address is not shown, with the reason", async (_, before, after, request, ip) => {
    const pool = await stage.make("IPPool", "lb", { ...LOWEST, ...before });
    await stage.make("IPReservation", "held", inPool(pool, { ip: "10.61.0.0" }));
    stage.newRun();
    const changed = await stage.preview("IPPool", "lb", { ...LOWEST, ...after }, pool);
    expect(await stage.preview("IPReservation", "new", inPool(changed, request))).toMatchObject({ ip: UNKNOWN });
    expect(stage.warnings.filter((text) => !text.includes("80 %"))).toEqual([
      "Values of new resources in IPPool lb are not shown in this preview: it is being changed, and gives them after that.",
    ]);
    stage.newRun();
    const now = await stage.change("IPPool", "lb", pool, { ...LOWEST, ...after });
    expect(await stage.make("IPReservation", "new", inPool(now, request))).toMatchObject({ ip });
    expect(await stage.pool.fsck()).toEqual([]);
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
  ])("a pool that %s: an offer of an earlier preview is no promise any more", async (_, before, after) => {
    const pool = await stage.make("IPPool", "lb", { ...LOWEST, ...before });
    const news = { ...LOWEST, ...after };
    stage.program = "main";
    stage.newRun();
    expect(await stage.preview("IPReservation", "new", inPool(pool))).toMatchObject({ ip: "10.61.0.0" });
    stage.newRun();
    const changed = await stage.preview("IPPool", "lb", news, pool);
    expect(await stage.preview("IPReservation", "new", inPool(changed))).toMatchObject({ ip: UNKNOWN });
    stage.newRun();
    if ("type" in after) await stage.of("IPPool").delete(pool);
    const now =
      "type" in after ? await stage.make("IPPool", "lb", news) : await stage.change("IPPool", "lb", pool, news);
    expect(await stage.make("IPReservation", "new", inPool(now))).toMatchObject({ ip: expect.stringMatching(/^10/) });
    expect(await stage.pool.fsck()).toEqual([]);
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
    expect(await stage.preview("IPReservation", "new", inPool(changed))).toMatchObject({ ip: UNKNOWN });
    stage.newRun();
    const now = await stage.change("IPPool", "lb", pool, { ...LOWEST, ranges: ["10.62.0.0/29"] });
    stage.program = "main";
    const caller = { owner: ownerOf("IPReservation", "new"), dryRun: false, program: "main" };
    const { failures } = await stage.of("IPReservation").check(caller, undefined, inPool(now));
    expect(failures[0]?.reason).toMatch(/^PLAN_STALE: /);
    stage.program = "branch";
    expect(await stage.make("IPReservation", "new", inPool(now))).toMatchObject({ ip: "10.62.0.0" });
  });

  test("a child pool that is not shown any more: what its preview has shown in it is no promise either", async () => {
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
    expect(await stage.preview("IPPool", "c", carve(changed))).toMatchObject({ ranges: UNKNOWN });
    stage.newRun();
    const now = await stage.change("IPPool", "p", before, moved);
    const child = await stage.make("IPPool", "c", carve(now));
    expect(await stage.make("IPReservation", "r", inPool(child))).toMatchObject({ ip: "10.62.0.0" });
    expect(await stage.pool.fsck()).toEqual([]);
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
    expect(await stage.preview("IPReservation", "new", inPool(changed))).toMatchObject({ ip: UNKNOWN });
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
        const request = inPool(changed, name === "pinned" ? { ip: "10.61.0.1" } : {});
        expect(await stage.preview("IPReservation", name, request)).toMatchObject({ ip: UNKNOWN });
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
    expect(await stage.preview("IPReservation", "new", inPool(changed, request))).toMatchObject({ ip: UNKNOWN });
    stage.newRun();
    const now = await stage.change("IPPool", "lb", pool, { ...rules, ...after });
    await stage.make("IPReservation", "new", inPool(now, request));
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
    expect((await stage.pool.leases("pool/lb")).map(({ state }) => state)).toContain("quarantined");
  });

  test("a network that reclaims runner ids from now on: the id of a new runner is not shown", async () => {
    const subnets = "10.128.0.0/12/1/19";
    const network = await stage.network("training", { subnets });
    const held = await stage.pool.leases("network/training");
    expect(held).toEqual([]);
    await stage.runner("r1", "192.0.2.11");
    stage.newRun();
    const news = networkInputs({ subnets, onExhausted: "reclaimInactive" });
    await stage.preview("OverlayNetwork", "training", news, network);
    const runner = runnerInputs("training", "192.0.2.12");
    expect(await stage.preview("RunnerSubnet", "r2", runner)).toMatchObject({ runnerId: UNKNOWN });
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
    expect(await stage.preview("IPReservation", "new", inPool(changed))).toMatchObject({ ip: "10.61.0.255" });
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
    expect(await stage.pool.fsck()).toEqual([]);
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

  test("ports that a pool gets in the same run are not shown, instead of being refused", async () => {
    const ports = await stage.make("IPPool", "np", { type: "nodePort", portRange: "30000-30009" });
    stage.newRun();
    const grown = await stage.preview("IPPool", "np", { type: "nodePort", portRange: "30000-30019" }, ports);
    await stage.preview("IPReservation", "new", inPool(grown, { port: 30015 }));
    expect(stage.warnings).toEqual([expect.stringMatching(/^Values of new resources in IPPool np are not shown/)]);
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

  test("a network can change its name: its own old lease is no conflict", async () => {
    const network = await stage.network();
    stage.newRun();
    const news = networkInputs({ networkName: "renamed" });
    const shown = await stage.preview("OverlayNetwork", "training", news, network);
    expect(await stage.of("OverlayNetwork").diff(network, shown)).toMatchObject({
      replaces: ["networkName"],
      deleteBeforeReplace: true,
    });
    await stage.of("OverlayNetwork").delete(network);
    expect(await stage.make("OverlayNetwork", "training", news)).toMatchObject({ networkName: "renamed" });
    expect(await stage.pool.fsck()).toEqual([]);
  });
});

test("an up without a preview stops if its promise was taken, also if its program has changed since", async () => {
  const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/29"], allocation: "lowest" });
  stage.newRun();
  stage.program = "before";
  await stage.preview("IPReservation", "new", inPool(pool));
  stage.pass(25 * 3600);
  stage.newRun();
  stage.program = "other";
  await stage.make("IPReservation", "other", inPool(pool, { ip: "10.61.0.0" }));
  for (const program of ["before", "changed"]) {
    stage.newRun();
    const caller = { owner: ownerOf("IPReservation", "new"), dryRun: false, program };
    const { failures } = await stage.of("IPReservation").check(caller, undefined, inPool(pool));
    expect(failures[0]?.reason).toMatch(/^PLAN_STALE: .*10\.61\.0\.0 .*::other/);
  }
});

test.each([
  ["new", "lost"],
  ["lost", "new"],
])(
  "a resource whose lease has ended counts in the quota, too: of %s and %s, preview refuses the second",
  async (...order) => {
    const pool = await stage.make("IPPool", "few", { ranges: ["10.61.0.0/28"], quota: { maxReservations: 2 } });
    await stage.make("IPReservation", "held", inPool(pool));
    const lost = await stage.make("IPReservation", "lost", inPool(pool));
    await stage.of("IPReservation").delete(lost);
    stage.newRun();
    const [first, second] = order.map(
      (name) => ["IPReservation", name, inPool(pool), name === "lost" ? lost : undefined] as const,
    );
    await stage.preview(...first!);
    expect(await stage.refusal(...second!)).toMatch(/^POOL_QUOTA: IPPool few would have 3 leases/);
  },
);

describe("interrupted deletes", () => {
  test("a killed delete is shown as an update, and up restores what is missing", async () => {
    const network = await stage.network();
    const runner = await stage.runner("r1", "192.0.2.11");
    const leaseId = String(runner.leaseId);
    await stage.pool.amend("network/training", leaseId, { deleting: true });
    await stage.pool.close("network/training", leaseId);
    stage.fleet.items.delete("192.0.2.11");
    stage.newRun();
    const news = runnerInputs(network, "192.0.2.11", { runnerName: "r1" });
    const shown = await stage.preview("RunnerSubnet", "r1", news, runner);
    expect(stage.warnings.at(-1)).toMatch(/^RunnerSubnet r1: a delete that began at .* was not finished/);
    expect(await stage.of("RunnerSubnet").diff(runner, shown)).toMatchObject({ changes: true, replaces: [] });
    const settings = Object.fromEntries(
      ["networkName", "runnerName", "subnets", "dockerNetwork"].map((key) => [key, runner[key]]),
    );
    const address = await stage.preview("IPReservation", "new", { runner: settings });
    const done = await stage.of("RunnerSubnet").update("id", runner, shown);
    expect(done).toMatchObject({ drift: [], leaseId });
    expect(stage.fleet.itemsOn("192.0.2.11")).not.toEqual([]);
    expect(await stage.of("RunnerSubnet").diff(done, shown)).toMatchObject({ changes: false });
    expect(await stage.make("IPReservation", "new", { runner: settings })).toMatchObject({ ip: address.ip });
  });

  test("a delete is marked on the lease before a host is contacted", async () => {
    await stage.network();
    const runner = await stage.runner("r1", "192.0.2.11");
    const { ask } = stage.fleet;
    const marks: unknown[] = [];
    stage.fleet.ask = async (...args) => {
      const lease = await stage.pool.find("network/training", { leaseId: String(runner.leaseId) });
      marks.push(lease?.deletingSince);
      return ask(...args);
    };
    await stage.of("RunnerSubnet").delete(runner);
    expect(marks[0]).toBe(stage.now);
  });

  test("a resource whose delete is done but not in the state is created again with the same values", async () => {
    const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/24"], allocation: "random" });
    const held = await stage.make("IPReservation", "a", inPool(pool));
    await stage.of("IPReservation").delete(held);
    stage.newRun();
    const shown = await stage.preview("IPReservation", "a", inPool(pool), held);
    expect(await stage.of("IPReservation").diff(held, shown)).toMatchObject({ replaces: ["leaseId"] });
    expect(shown.ip).toBe(held.ip);
  });

  test.each([
    ["knows of neither", true],
    ["knows that the address is gone", false],
  ])(
    "a pool and an address in it whose deletes are done are created again with the same values: the state %s",
    async (_, inState) => {
      const inputs = { ranges: ["10.61.0.0/16"], allocation: "random" };
      const pool = await stage.make("IPPool", "lb", inputs);
      const held = await stage.make("IPReservation", "a", inPool(pool));
      await stage.of("IPReservation").delete(held);
      await stage.of("IPPool").delete(pool);
      stage.newRun();
      const again = await stage.make("IPPool", "lb", inputs, pool);
      expect(await stage.make("IPReservation", "a", inPool(again), inState ? held : undefined)).toMatchObject({
        ip: held.ip,
      });
      expect(await stage.pool.fsck()).toEqual([]);
    },
  );

  test("a pool and an address that a preview showed are given as shown after the offers have expired", async () => {
    const inputs = { ranges: ["10.61.0.0/16"], allocation: "random" };
    const pool = await stage.preview("IPPool", "lb", inputs);
    const shown = await stage.preview("IPReservation", "a", inPool(pool));
    stage.pass(3601);
    stage.newRun();
    await stage.make("IPPool", "other", { ranges: ["10.62.0.0/24"] });
    const made = await stage.make("IPPool", "lb", inputs);
    expect(await stage.make("IPReservation", "a", inPool(made))).toMatchObject({ ip: shown.ip });
  });

  test("a create that finds its owner's lease warns that it takes it over", async () => {
    const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/24"] });
    await stage.make("IPReservation", "a", inPool(pool));
    stage.newRun();
    await stage.preview("IPReservation", "a", inPool(pool));
    expect(stage.warnings.at(-1)).toMatch(/^IPReservation a is already held by this stack, since 2030-.*overlay:scope/);
  });

  test("a lease that another state has taken over is not released by a delete, which warns with its name", async () => {
    const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/24"] });
    const first = await stage.make("IPReservation", "a", inPool(pool));
    stage.newRun();
    const second = await stage.make("IPReservation", "a", inPool(pool));
    expect(second).toMatchObject({ ip: first.ip, uid: first.uid });
    stage.newRun();
    await stage.of("IPReservation").delete(first);
    expect(stage.warnings.at(-1)).toBe(
      `IPReservation a: its lease was taken over at 2030-01-01T00:00:00.000Z (${second.leaseId}), and is not released.`,
    );
    expect(await stage.pool.find("pool/lb", { leaseId: String(second.leaseId) })).toBeDefined();
    await expect(stage.of("IPReservation").update("id", first, first)).rejects.toThrow(/^LEASE_FENCED/);
  });

  test("a lease that this run has renewed does not count as taken over by another state", async () => {
    const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/24"] });
    const first = await stage.make("IPReservation", "a", inPool(pool));
    stage.newRun();
    const lifecycle = stage.of("IPReservation");
    const { inputs } = await lifecycle.check(
      { owner: ownerOf("IPReservation", "a"), dryRun: false },
      first,
      inPool(pool),
    );
    await lifecycle.create(inputs);
    await lifecycle.delete(first);
    expect(stage.warnings).toEqual([]);
  });

  test("a pool with an address that its stack has retained is not deleted; the error has a fix", async () => {
    const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/24"] });
    await stage.make("IPReservation", "retained", inPool(pool));
    await expect(stage.of("IPPool").delete(pool)).rejects.toThrow(
      /^POOL_IN_USE: .*::retained .* \(retainOnDelete, a lost state\) is freed by `overlayctl ip free/,
    );
  });

  test("a forced replacement does not warn of a takeover: its owner was in the state", async () => {
    const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/24"] });
    const held = await stage.make("IPReservation", "a", inPool(pool));
    stage.newRun();
    const lifecycle = stage.of("IPReservation");
    const caller = { owner: ownerOf("IPReservation", "a"), dryRun: true };
    await lifecycle.check(caller, held, inPool(pool));
    await lifecycle.check(caller, undefined, inPool(pool));
    expect(stage.warnings).toEqual([]);
  });

  test("a lease that is missing in a store that was rebuilt without the stack's export is lost, not ended", async () => {
    const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/24"] });
    const held = await stage.make("IPReservation", "a", inPool(pool));
    const rebuilt = await Stage.up();
    await rebuilt.make("IPPool", "lb", { ranges: ["10.61.0.0/24"] });
    await rebuilt.pool.adoptIdentity([String(held.storeId)], 1000);
    await expect(rebuilt.of("IPReservation").diff(held, held)).rejects.toThrow(
      /^STORE_LOST: IPReservation lb\/10\.61\.0\.\d+ is in Pulumi's state, but not in IPPool lb of the store, which was rebuilt/,
    );
  });
});
