import { beforeEach, describe, expect, test } from "vitest";
import { findUsage } from "../../../provider/ipam/interface";

import { pickInputs, UNKNOWN, type Values } from "../../../provider/lifecycle/values";
import { resourceOf } from "../../../provider/resources";
import { inPool, ownerOf, Stage } from "./stage";

/**
 * A pool that cannot change in place. Pulumi deletes the resources that refer to it, then the pool, and creates them again: other
 * leases in the pool must stop that before the first delete.
 */
let stage: Stage;
let pool: Values;
let web: Values;

const POOL = { ranges: ["10.2.0.0/28"] };
const CHANGED = { ...POOL, type: "clusterIP" };
const BY_NAME = { pool: "lb" };

/** A resource of another stack. */
async function makeElsewhere(type: string, name: string, news: Values): Promise<Values> {
  const lifecycle = stage.of(type);
  const { inputs, failures } = await lifecycle.check(
    { owner: ownerOf(type, name, "other"), dryRun: false, program: "main" },
    undefined,
    news,
  );
  expect(failures).toEqual([]);
  return (await lifecycle.create(inputs)).props;
}

/** Pulumi passes only the old inputs to a check. */
const check = (type: string, name: string, news: Values, olds: Values, dryRun = false) =>
  stage.check(type, name, news, pickInputs(resourceOf(type), olds), dryRun);

/** The errors of preview and up for a change of the pool, each in a run of its own. */
async function refusals(type: string, name: string, news: Values, olds: Values): Promise<string[]> {
  const reasons: string[] = [];
  for (const dryRun of [true, false]) {
    stage.newRun();
    const { failures } = await check(type, name, news, olds, dryRun);
    reasons.push(failures.map(({ reason }) => reason).join("\n"));
  }
  return reasons;
}

const isHeld = async ({ leaseId }: Values): Promise<boolean> =>
  (await stage.pool.ipam.find({ pool: "pool/lb", leaseId: String(leaseId) })) !== undefined;

/** Calls `diff` as Pulumi does for the resources that refer to a pool, before it deletes them and the pool. */
const askDependent = (props: Values) => stage.of("IPReservation").diff(props, { ...props, pool: UNKNOWN });

beforeEach(async () => {
  stage = await Stage.up();
  pool = await stage.make("IPPool", "lb", POOL);
  web = await stage.make("IPReservation", "web", { ...inPool(pool), ip: "10.2.0.7" });
});

describe("leases of others", () => {
  test("preview and up are refused while another stack has a lease in the pool", async () => {
    await makeElsewhere("IPReservation", "theirs", { ...BY_NAME, ip: "10.2.0.9" });
    const [preview, up] = await refusals("IPPool", "lb", CHANGED, pool);
    expect(preview).toMatch(
      /^POOL_IN_USE: IPPool lb cannot be replaced \(change of type\): it has leases that would stay: 10\.2\.0\.9 \S+:other::\S+::theirs \(last seen \S+\)\. Delete what holds them first\./,
    );
    expect(up).toBe(preview);
    expect(await isHeld(web)).toBe(true);
  });

  test("a change in place is not refused", async () => {
    await makeElsewhere("IPReservation", "theirs", BY_NAME);
    await stage.change("IPPool", "lb", pool, { ranges: ["10.2.0.0/27"] });
  });

  test("a child pool of the replaced pool counts, too", async () => {
    const { poolName, addressSpace, type, ranges } = pool;
    const parent = { poolName, addressSpace, type, ranges };
    await stage.make("IPPool", "child", { parent, prefixLength: 30 });
    await makeElsewhere("IPReservation", "theirs", { pool: "child" });
    const [preview, up] = await refusals("IPPool", "lb", CHANGED, pool);
    expect(preview).toMatch(
      /^POOL_IN_USE: IPPool lb cannot be replaced \(change of type\): IPPool child, which ends with it, has leases .*::theirs/,
    );
    expect(up).toBe(preview);
  });

  test("a network with a runner of another stack", async () => {
    const network = await stage.network();
    const connections = { connection: { host: "192.0.2.11" }, hubConnection: { host: "192.0.2.1" } };
    await makeElsewhere("RunnerSubnet", "r1", { network: "training", ...connections });
    const news = { hubConnection: { host: "192.0.2.1" }, subnets: "10.64.0.0/12/6/14" };
    const [preview, up] = await refusals("OverlayNetwork", "training", news, network);
    expect(preview).toMatch(/^POOL_IN_USE: Network training cannot be replaced \(change of subnets\): .*::r1 /);
    expect(up).toBe(preview);
  });

  test("a runner whose host was forgotten keeps its network from being replaced", async () => {
    const network = await stage.network();
    const runner = await stage.runner("r1", "192.0.2.11");
    stage.fleet.down.add("192.0.2.11");
    stage.deps.unreachableOnDelete = "forget";
    await stage.of("RunnerSubnet").delete(runner);
    const news = { hubConnection: { host: "192.0.2.1" }, subnets: "10.64.0.0/12/6/14" };
    const [preview, up] = await refusals("OverlayNetwork", "training", news, network);
    expect(preview).toMatch(/^POOL_IN_USE: Network training cannot be replaced .*`overlayctl gc --forgotten`/);
    expect(up).toBe(preview);
  });

  test("leases of containers on a runner do not count: its delete releases them", async () => {
    await stage.network();
    stage.fleet.containers.set("192.0.2.11", [{ name: "alpha", running: true, addresses: ["10.128.64.9"] }]);
    const runner = await stage.runner("r1", "192.0.2.11");
    expect(await findUsage(stage.pool.ipam, "runner/training/r1")).toMatchObject({ used: 1 });
    const connections = { connection: { host: "192.0.2.11" }, hubConnection: { host: "192.0.2.1" } };
    const news = { network: "training", runnerName: "r2", ...connections };
    expect(await refusals("RunnerSubnet", "r1", news, runner)).toEqual(["", ""]);
  });
});

describe("leases of the same stack", () => {
  test("the resources that refer to the pool are replaced with it, and keep their values", async () => {
    stage.newRun();
    const pools = stage.of("IPPool");
    const { inputs } = await check("IPPool", "lb", CHANGED, pool);
    expect(await pools.diff(pool, inputs)).toMatchObject({ replaces: ["type"], deleteBeforeReplace: true });
    expect(await askDependent(web)).toMatchObject({ replaces: ["pool"] });
    await stage.of("IPReservation").delete(web);
    await pools.delete(pool);
    const made = await stage.make("IPPool", "lb", CHANGED);
    const again = await stage.make("IPReservation", "web", { ...inPool(made), ip: "10.2.0.7" });
    expect(again).toMatchObject({ ip: web.ip });
    // The replacement is done: leases in the pool can end again.
    await stage.of("IPReservation").delete(again);
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test.each(["the pool", "the reservation"])(
    "one that names the pool is refused, when %s is checked first",
    async (first) => {
      const named = await stage.make("IPReservation", "named", BY_NAME);
      for (const dryRun of [true, false]) {
        stage.newRun();
        const checks = [
          () => check("IPPool", "lb", CHANGED, pool, dryRun),
          () => check("IPReservation", "named", BY_NAME, named, dryRun),
        ];
        const [earlier, later] = first === "the pool" ? checks : checks.reverse();
        expect((await earlier!()).failures).toEqual([]);
        expect((await later!()).failures[0]?.reason).toMatch(
          /^POOL_IN_USE: IPPool lb cannot be replaced .*::named .* get it as a resource, not by name/,
        );
      }
    },
  );

  /** The first delete that Pulumi asks for is refused, and another run can do it. */
  async function expectStop(other: Values): Promise<void> {
    await expect(stage.of("IPReservation").delete(web)).rejects.toThrow(/^POOL_IN_USE: IPPool lb cannot be replaced/);
    expect([await isHeld(web), await isHeld(other)]).toEqual([true, true]);
    stage.newRun();
    await stage.of("IPReservation").delete(web);
  }

  test("one that names the pool, and is checked late, stops up before a resource is deleted", async () => {
    const named = await stage.make("IPReservation", "named", BY_NAME);
    stage.newRun();
    expect((await check("IPPool", "lb", CHANGED, pool)).failures).toEqual([]);
    await askDependent(web);
    await expectStop(named);
  });

  test("so does a lease that another stack has claimed since the check", async () => {
    stage.newRun();
    expect((await check("IPPool", "lb", CHANGED, pool)).failures).toEqual([]);
    await askDependent(web);
    await expectStop(await makeElsewhere("IPReservation", "theirs", BY_NAME));
  });
});

test.each(["web", "renamed"])(
  "a resource that leaves a replaced pool is created as %s after its old one is deleted",
  async (name) => {
    const other = await stage.make("IPPool", "other", { ranges: ["10.3.0.0/28"] });
    stage.newRun();
    await check("IPPool", "lb", CHANGED, pool);
    await askDependent(web);
    const lifecycle = stage.of("IPReservation");
    const olds = name === "web" ? undefined : pickInputs(resourceOf("IPReservation"), web);
    const { inputs } = await lifecycle.check(
      { owner: ownerOf("IPReservation", name), dryRun: false, program: "main" },
      olds,
      inPool(other),
    );
    let isCreated = false;
    const created = lifecycle.create(inputs).finally(() => {
      isCreated = true;
    });
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect([isCreated, await isHeld(web)]).toEqual([false, true]);
    await stage.of("IPReservation").delete(web);
    expect((await created).props).toMatchObject({ ip: expect.stringMatching(/^10\.3\./) });
  },
);

test("a renamed resource that this run deletes and creates again keeps the name that it was created with", async () => {
  const { poolName, addressSpace, type, ranges } = pool;
  const child = { parent: { poolName, addressSpace, type, ranges }, prefixLength: 30 };
  const made = await stage.make("IPPool", "child", child);
  const { inputs } = await check("IPPool", "renamed", child, made);
  const renamed = await stage.of("IPPool").update("id", made, inputs);
  stage.newRun();
  for (const dryRun of [true, false]) {
    const lifecycle = stage.of("IPPool");
    await lifecycle.diff(renamed, { ...renamed, parent: UNKNOWN });
    if (!dryRun) await lifecycle.delete(renamed);
    const unknown = dryRun ? { ...child, parent: { ...child.parent, ranges: UNKNOWN } } : child;
    const again = await lifecycle.check(
      { owner: ownerOf("IPPool", "renamed"), dryRun, program: "main" },
      undefined,
      unknown,
    );
    expect(again.inputs).toMatchObject({ poolName: "child" });
  }
});

test("a resource that is renamed and replaced in one run keeps its name", async () => {
  stage.newRun();
  const lifecycle = stage.of("IPPool");
  const renamed = { owner: ownerOf("IPPool", "renamed"), dryRun: true };
  const { inputs } = await lifecycle.check(renamed, pickInputs(resourceOf("IPPool"), pool), CHANGED);
  await lifecycle.diff(pool, inputs);
  expect((await lifecycle.check(renamed, undefined, CHANGED)).inputs).toMatchObject({ poolName: "lb" });
});

describe("a resource in a replaced pool that is also renamed", () => {
  /** Pulumi has scheduled the delete of the old name, and checks the new one with the old state. */
  async function previewRenamed(change: Values, before: Values, news: Values) {
    stage.newRun();
    const olds = pickInputs(resourceOf("IPPool"), pool);
    const replaced = await stage.preview("IPPool", "lb", { ...CHANGED, ...change }, olds);
    for (const props of new Set([web, before])) await askDependent(props);
    return check("IPReservation", "renamed", { ...inPool(replaced), ...news }, before, true);
  }

  async function upRenamed(before: Values, news: Values): Promise<Values> {
    stage.newRun();
    const { inputs } = await check("IPPool", "lb", CHANGED, pool);
    for (const props of new Set([web, before])) await askDependent(props);
    for (const props of new Set([web, before])) await stage.of("IPReservation").delete(props);
    await stage.of("IPPool").delete(pool);
    const made = (await stage.of("IPPool").create(inputs)).props;
    const checked = await check("IPReservation", "renamed", { ...inPool(made), ...news }, before);
    expect(checked.failures).toEqual([]);
    return (await stage.of("IPReservation").create(checked.inputs)).props;
  }

  test.each<[kind: string, request: Values]>([
    ["requested", { ip: "10.2.0.9" }],
    ["chosen", {}],
  ])("is not shown its %s address, and keeps it in up", async (_, request) => {
    const before = await stage.make("IPReservation", "before", { ...inPool(pool), ...request });
    const { inputs, failures } = await previewRenamed({}, before, request);
    expect([failures, inputs.ip]).toEqual([[], UNKNOWN]);
    expect(await upRenamed(before, request)).toMatchObject({ ip: before.ip });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("can request another address", async () => {
    expect(await upRenamed(web, { ip: "10.2.0.9" })).toMatchObject({ ip: "10.2.0.9" });
  });

  test("is refused if it names the pool, because Pulumi does not delete it then", async () => {
    stage.newRun();
    await stage.preview("IPPool", "lb", CHANGED, pickInputs(resourceOf("IPPool"), pool));
    const { failures } = await check("IPReservation", "renamed", { ...BY_NAME, ip: "10.2.0.7" }, web, true);
    expect(failures[0]?.reason).toMatch(/^POOL_IN_USE: /);
  });
});

test("a new resource is not refused by what the replaced pool is now", async () => {
  const vips = await stage.make("IPPool", "vips", { ranges: ["10.4.0.0/28"], type: "vip" });
  stage.newRun();
  const olds = pickInputs(resourceOf("IPPool"), vips);
  expect(await stage.refusal("IPReservation", "new", inPool(vips))).toMatch(/^IP_NOT_REQUESTED: /);
  const replaced = await stage.preview("IPPool", "vips", { ranges: vips.ranges }, olds);
  expect(await stage.preview("IPReservation", "new", inPool(replaced))).toMatchObject({ ip: UNKNOWN });
  expect(stage.warnings.at(-1)).toBe(
    "Values of new resources in IPPool vips are not shown in this preview: it is being replaced.",
  );
});
