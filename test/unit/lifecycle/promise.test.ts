import { beforeEach, describe, expect, test } from "vitest";
import { UNKNOWN, type Values } from "../../../provider/lifecycle/values";
import { describeProgram } from "../../../sdk/declared";
import { inPool, ownerOf, Stage } from "./stage";

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

describe("two requests for one value in one run", () => {
  test("a runner id that the program requests goes to that runner, and the one before it gets another", async () => {
    await stage.network();
    stage.newRun();
    const requested = { runnerId: 1 };
    stage.described = describeProgram([
      { type: "RunnerSubnet", names: ["free"], args: {} },
      { type: "RunnerSubnet", names: ["pinned"], args: requested },
    ]);
    const free = await stage.preview("RunnerSubnet", "free", runnerInputs("training", "192.0.2.11"));
    expect(free).toMatchObject({ runnerId: 2, vni: 102, hubDevice: "ovl2" });
    const pinned = await stage.preview("RunnerSubnet", "pinned", runnerInputs("training", "192.0.2.12", requested));
    expect(pinned).toMatchObject({ runnerId: 1, vni: 101 });
    expect(stage.warnings).toEqual([]);
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

describe("a pool whose quota is reached", () => {
  const swapped = { a: "10.61.0.2", b: "10.61.0.1" };
  const others = { a: "10.61.0.4", b: "10.61.0.5" };
  test.each<[what: string, pins: Record<string, string>, quota: Values]>([
    ["swap their addresses", swapped, { maxReservations: 3 }],
    ["swap their addresses", swapped, { maxIps: 3 }],
    ["request others", others, { maxReservations: 3 }],
    ["request others", others, { maxIps: 3 }],
  ])("two resources may %s: what they hold is released before (%j, %j)", async (_, pins, quota) => {
    const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/28"], quota });
    const held: Record<string, Values> = {};
    for (const [name, ip] of Object.entries({ a: "10.61.0.1", b: "10.61.0.2", c: "10.61.0.3" }))
      held[name] = await stage.make("IPReservation", name, inPool(pool, { ip }));
    stage.newRun();
    for (const [name, ip] of Object.entries(pins))
      expect(await stage.preview("IPReservation", name, inPool(pool, { ip }), held[name])).toMatchObject({ ip });
    expect(await stage.refusal("IPReservation", "d", inPool(pool))).toMatch(
      /^POOL_QUOTA: IPPool lb would have 4 leases/,
    );
  });
});

test("a renamed resource may move in a pool whose quota is reached", async () => {
  const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/28"], quota: { maxReservations: 2 } });
  const a = await stage.make("IPReservation", "a", inPool(pool, { ip: "10.61.0.1" }));
  await stage.make("IPReservation", "b", inPool(pool, { ip: "10.61.0.2" }));
  stage.newRun();
  expect(await stage.refusal("IPReservation", "renamed", inPool(pool, { ip: "10.61.0.4" }), a)).toBe("");
});

test("a claim does not take a value whose resource is being deleted, but waits for the end of the delete", async () => {
  await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/28"] });
  const pool = "pool/lb";
  const at = (value: bigint) => [{ first: 0xffff_0a3d_0000n + value, last: 0xffff_0a3d_0000n + value }];
  const by = (name: string, value: bigint) => ({ pool, owner: ownerOf("T", name), type: "T", values: at(value) });
  const held = await stage.pool.claim(by("a", 1n));
  await stage.pool.claim(by("b", 2n));
  stage.newRun();
  await stage.pool.offer(by("a", 2n), { inUp: true, movesAway: () => true });
  await stage.pool.change(pool, held.leaseId, { deleting: true });
  const claimed = stage.pool.claim(by("b", 1n));
  await new Promise((resolve) => setTimeout(resolve, 500)); // longer than a claim waits for other holders in these tests
  expect(await stage.pool.ipam.find({ pool, leaseId: held.leaseId })).toBeDefined();
  await stage.pool.release(pool, held.leaseId);
  expect((await claimed).ranges).toEqual(at(1n));
});

describe("a shared address that was released", () => {
  const request = (owner: string) => ({ pool: "pool/lb", owner, type: "StaticIP", sharingKey: "web" });

  beforeEach(async () => {
    await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/28"] });
  });

  test("is given to its owner again", async () => {
    const held = await stage.pool.claim(request("a"));
    await stage.pool.release(held.pool, held.leaseId);
    expect((await stage.pool.offer(request("a"))).ranges).toEqual(held.ranges);
  });

  test.each([
    ["a", "b"],
    ["b", "a"],
  ])("by two resources of a stack is shared by them again, also if %s comes first", async (...names) => {
    const owners = names.map((name) => ownerOf("StaticIP", name));
    const held = [];
    for (const name of ["a", "b"]) held.push(await stage.pool.claim(request(ownerOf("StaticIP", name))));
    for (const { pool, leaseId } of held) await stage.pool.release(pool, leaseId);
    stage.newRun();
    for (const owner of owners) {
      const offer = await stage.pool.offer(request(owner));
      expect([offer.ranges, offer.warnings]).toEqual([held[0]!.ranges, undefined]);
    }
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("is given to its owner again, if its ports are taken on the address of others with the key", async () => {
    const ports = [{ protocol: "tcp" as const, port: 80 }];
    await stage.pool.claim({ ...request("b"), ports });
    const mine = { ...request("a"), ports, onPortConflict: "anotherAddress" as const };
    const held = await stage.pool.claim(mine);
    await stage.pool.release(held.pool, held.leaseId);
    expect((await stage.pool.offer(mine)).ranges).toEqual(held.ranges);
  });

  test("is given to its owner again after it has expired", async () => {
    const held = await stage.pool.claim({ ...request("a"), ttl: 60 });
    stage.pass(61);
    expect((await stage.pool.offer(request("a"))).ranges).toEqual(held.ranges);
  });

  test("is not, if another lease has the same sharing key: the two share its address", async () => {
    const held = await stage.pool.claim(request("a"));
    await stage.pool.release(held.pool, held.leaseId);
    const other = await stage.pool.claim(request("b"));
    expect((await stage.pool.offer(request("a"))).ranges).toEqual(other.ranges);
  });
});

describe("a network that changes in the same run", () => {
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

  test("a network that reclaims runner ids from now on: a new runner is refused while no runner is inactive", async () => {
    const subnets = "10.128.0.0/12/1/19";
    const network = await stage.network("training", { subnets });
    const held = await stage.pool.ipam.leases("network/training");
    expect(held).toEqual([]);
    await stage.runner("r1", "192.0.2.11");
    stage.newRun();
    const news = networkInputs({ subnets, onExhausted: "reclaimInactive" });
    await stage.preview("OverlayNetwork", "training", news, network);
    const runner = runnerInputs("training", "192.0.2.12");
    expect(await stage.refusal("RunnerSubnet", "r2", runner)).toMatch(/^RUNNER_IDS_EXHAUSTED: /);
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
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });
});

test("an up without a preview stops if its promise was taken", async () => {
  const pool = await stage.make("IPPool", "lb", { ranges: ["10.61.0.0/29"], allocation: "lowest" });
  stage.newRun();
  stage.program = "before";
  await stage.preview("IPReservation", "new", inPool(pool));
  stage.pass(25 * 3600);
  stage.newRun();
  stage.program = "other";
  await stage.make("IPReservation", "other", inPool(pool, { ip: "10.61.0.0" }));
  stage.newRun();
  stage.program = "before";
  const { failures } = await stage.check("IPReservation", "new", inPool(pool));
  expect(failures[0]?.reason).toMatch(/^PLAN_STALE: .*10\.61\.0\.0 .*::other/);
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
    await stage.pool.change("network/training", leaseId, { deleting: true });
    await stage.pool.ipam.close("network/training", leaseId);
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
      const lease = await stage.pool.ipam.find({ pool: "network/training", leaseId: String(runner.leaseId) });
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
      expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
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
    expect(stage.warnings.at(-1)).toMatch(
      /^IPReservation a has a lease in the store since 2030-.*--replace.*overlay:scope/,
    );
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
      `IPReservation a: its lease was taken over at 2030-01-01T00:00:00.000Z by ops@controller (${second.leaseId}), and is not released.`,
    );
    expect(await stage.pool.ipam.find({ pool: "pool/lb", leaseId: String(second.leaseId) })).toBeDefined();
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
    await rebuilt.pool.ipam.admin.adoptIdentity([String(held.storeId)], 1000);
    await expect(rebuilt.of("IPReservation").diff(held, held)).rejects.toThrow(
      /^STORE_LOST: IPReservation lb\/10\.61\.0\.\d+ is in Pulumi's state, but not in IPPool lb of the store, which was rebuilt/,
    );
  });
});

const DUAL = ["10.128.0.0/12/6/14", "fd10::/48/8/72"];

/** A preview of `web` on a runner that another stack then deletes with its network, and makes again. Returns what preview showed. */
async function previewAndRemake(before: Values, after: Values, runnerId: number): Promise<Values> {
  const network = await stage.network("training", before);
  const runner = await stage.runner("r1", "192.0.2.11", { runnerId: 1 });
  stage.newRun();
  stage.program = "branch";
  const shown = await stage.preview("IPReservation", "web", ON_R1);
  stage.newRun();
  await stage.of("RunnerSubnet").delete(runner);
  await stage.of("OverlayNetwork").delete(network);
  await stage.network("training", after);
  await stage.runner("r1", "192.0.2.11", { runnerId });
  stage.newRun();
  return shown;
}

const ON_R1 = { runner: "training/r1" };

test.each<[change: string, before: Values, after: Values, runnerId: number]>([
  ["gets another id", {}, {}, 2],
  ["has both families and gets another id", { subnets: DUAL }, { subnets: DUAL }, 2],
  ["also gets IPv6 and another id", {}, { subnets: DUAL }, 2],
  ["also gets IPv6", {}, { subnets: DUAL }, 1],
])("what preview showed on a runner that %s in another stack stops the next up", async (_, before, after, runnerId) => {
  const { ip } = await previewAndRemake(before, after, runnerId);
  const { failures } = await stage.check("IPReservation", "web", ON_R1);
  expect(failures[0]?.reason).toMatch(new RegExp(`^PLAN_STALE: Address ${ip}\\b.* was promised to IPReservation web`));
});

test("a reservation on a runner that also has IPv6 since gets an IPv6 address in the next preview", async () => {
  await previewAndRemake({}, { subnets: DUAL }, 1);
  expect(await stage.preview("IPReservation", "web", ON_R1)).toMatchObject({ ip6: expect.stringMatching(/^fd10:/) });
});

test("a block that preview showed is given also if its parent has grown since", async () => {
  const ranges = ["10.7.0.0/24"];
  const parent = await stage.make("IPPool", "parent", { ranges, allocation: "random" });
  const news = { parent: "parent", prefixLength: 29 };
  const shown = await stage.preview("IPPool", "child", news);
  stage.newRun();
  await stage.change("IPPool", "parent", parent, { ranges: [...ranges, "10.8.0.0/16"], allocation: "random" });
  stage.newRun();
  expect(await stage.make("IPPool", "child", news)).toMatchObject({ ranges: shown.ranges });
});

test("a block of another size in a pool that was made anew is another request", async () => {
  const ranges = ["10.7.0.0/24"];
  const parent = await stage.make("IPPool", "parent", { ranges });
  stage.program = "branch";
  await stage.preview("IPPool", "child", { parent: "parent", prefixLength: 29 });
  stage.newRun();
  await stage.of("IPPool").delete(parent);
  await stage.make("IPPool", "parent", { ranges });
  stage.newRun();
  expect((await stage.check("IPPool", "child", { parent: "parent", prefixLength: 30 })).failures).toEqual([]);
});

describe("runner ids", () => {
  const preview = async (...names: string[]) => {
    const ids: Record<string, unknown> = {};
    for (const name of names) {
      const connections = { connection: { host: `host-${name}` }, hubConnection: { host: "192.0.2.1" } };
      ids[name] = (await stage.preview("RunnerSubnet", name, { network: "training", ...connections })).runnerId;
    }
    return ids;
  };

  test.each([[["r1", "r2", "r3"]], [["r2", "r3", "r1"]], [["r3", "r1", "r2"]], [["r3", "r2", "r1"]]])(
    "follow the order of the program, if Pulumi checks %j",
    async (checked) => {
      await stage.network();
      stage.order = ["r1", "r2", "r3"];
      expect(await preview(...checked)).toEqual({ r1: 1, r2: 2, r3: 3 });
      stage.newRun();
      stage.program = "a branch";
      stage.order = ["r0", "r1", "r2", "r3", "r4"];
      expect(await preview("r4", ...checked, "r0")).toEqual({ r0: 4, r1: 1, r2: 2, r3: 3, r4: 5 });
    },
  );

  test("are those of former runners of the same names, also after their quarantine", async () => {
    const network = await stage.network();
    const runners = [await stage.runner("r2", "192.0.2.12"), await stage.runner("r1", "192.0.2.11")];
    for (const runner of runners) await stage.of("RunnerSubnet").delete(runner);
    await stage.of("OverlayNetwork").delete(network);
    stage.pass(3600);
    stage.newRun();
    await stage.network();
    stage.order = ["r1", "r2", "r3"];
    expect(await preview("r3", "r1", "r2")).toEqual({ r1: 2, r2: 1, r3: 3 });
  });
});
