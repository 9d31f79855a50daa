import { beforeEach, describe, expect, test } from "vitest";
import { UNKNOWN, type Values } from "../../../provider/lifecycle/values";
import { tenantLeaseName } from "../../../provider/resources/tenants";
import { ownerOf, Stage } from "./stage";

/** Reservations on any runner of a network, or in a pool of a tenant: what preview shows in the chosen pool is a promise, too. */
let stage: Stage;

const LATER = 25 * 3600;
const HUB = { host: "192.0.2.1" };
const ON_ANY = { network: "training" };

/** A check in an up of this program. */
async function checkInUp(name: string, news: Values): Promise<{ reason: string; inputs: Values }> {
  const { inputs, failures } = await stage.check("IPReservation", name, news);
  return { inputs, reason: failures.map(({ reason }) => reason).join("\n") };
}

beforeEach(async () => {
  stage = await Stage.up();
  stage.program = "main";
});

describe("on any runner", () => {
  let network: Values;

  const previewRunner = (name: string, host: string) =>
    stage.preview("RunnerSubnet", name, { network: "training", connection: { host }, hubConnection: HUB });

  beforeEach(async () => {
    network = await stage.network("training", { subnets: "10.128.0.0/12/6/14" });
    for (const [i, name] of ["r1", "r2"].entries()) await stage.runner(name, `192.0.2.1${i}`);
    stage.newRun();
  });

  test("an expired offer still decides the runner, although another one has more free addresses now", async () => {
    const shown = await stage.preview("IPReservation", "a", ON_ANY);
    stage.pass(LATER);
    for (let i = 0; i < 3; i++) await stage.make("IPReservation", `x${i}`, { runner: `training/${shown.runnerName}` });
    stage.newRun();
    const made = await stage.make("IPReservation", "a", ON_ANY);
    expect(made).toMatchObject({ runnerName: shown.runnerName, ip: shown.ip });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("an expired offer whose address is taken: up stops, and a preview chooses again and says so", async () => {
    const shown = await stage.preview("IPReservation", "a", ON_ANY);
    stage.pass(LATER);
    stage.newRun();
    await stage.make("IPReservation", "x", { runner: `training/${shown.runnerName}`, ip: shown.ip });
    stage.newRun();
    const other = shown.runnerName === "r1" ? "r2" : "r1";
    expect((await checkInUp("a", ON_ANY)).reason).toMatch(
      new RegExp(
        `^PLAN_STALE: Address ${shown.ip} of runner ${shown.runnerName} of network training was promised to IPReservation a at \\S+, but the pool that is now chosen for it is runner ${other} of network training\\. Run preview`,
      ),
    );
    stage.newRun();
    const again = await stage.preview("IPReservation", "a", ON_ANY);
    expect(again.runnerName).toBe(other);
    expect(stage.warnings.at(-1)).toMatch(
      /was promised to IPReservation a at \S+, but the pool that is now chosen for it is runner/,
    );
    stage.newRun();
    expect(await stage.make("IPReservation", "a", ON_ANY)).toMatchObject({ ip: again.ip });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("a branch that requests an address on another runner does not change what main was shown", async () => {
    const shown = await stage.preview("IPReservation", "a", ON_ANY);
    stage.newRun();
    stage.program = "branch";
    const ip = shown.runnerName === "r1" ? "10.128.128.9" : "10.128.64.9";
    const pinned = await stage.preview("IPReservation", "a", { ...ON_ANY, ip });
    expect(pinned.runnerName).not.toBe(shown.runnerName);
    stage.newRun();
    stage.program = "main";
    expect(await stage.make("IPReservation", "a", ON_ANY)).toMatchObject({ ip: shown.ip });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("runners that are only offered and preempted by a branch: a second preview and up keep the runner", async () => {
    stage = await Stage.up();
    const previewAll = async () => {
      stage.newRun();
      await stage.preview("OverlayNetwork", "training", { hubConnection: HUB });
      for (const [i, name] of ["r1", "r2"].entries())
        await stage.preview("RunnerSubnet", name, {
          network: "training",
          connection: { host: `192.0.2.1${i}` },
          hubConnection: HUB,
        });
      return stage.preview("IPReservation", "a", ON_ANY);
    };
    stage.program = "main";
    const shown = await previewAll();
    stage.newRun();
    stage.program = "branch";
    await stage.preview("OverlayNetwork", "other", { hubConnection: HUB });
    stage.program = "main";
    expect(await previewAll()).toMatchObject({ ip: shown.ip });
    stage.newRun();
    await stage.network();
    for (const [i, name] of ["r1", "r2"].entries()) await stage.runner(name, `192.0.2.1${i}`);
    expect(await stage.make("IPReservation", "a", ON_ANY)).toMatchObject({ ip: shown.ip });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("a branch that requests the address which main was shown does not change what main gets", async () => {
    const shown = await stage.preview("IPReservation", "a", ON_ANY);
    stage.newRun();
    stage.program = "branch";
    await stage.preview("IPReservation", "a", { ...ON_ANY, ip: shown.ip });
    stage.newRun();
    for (let i = 0; i < 3; i++) await stage.make("IPReservation", `x${i}`, { runner: `training/${shown.runnerName}` });
    stage.newRun();
    stage.program = "main";
    expect(await stage.make("IPReservation", "a", ON_ANY)).toMatchObject({ ip: shown.ip });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("a branch that does not create the new runner gets another one, and main that which it was shown", async () => {
    await stage.make("IPReservation", "x1", { runner: "training/r1" });
    await stage.make("IPReservation", "x2", { runner: "training/r2" });
    stage.newRun();
    await previewRunner("r3", "192.0.2.13");
    const shown = await stage.preview("IPReservation", "a", ON_ANY);
    expect(shown.runnerName).toBe("r3");
    stage.newRun();
    stage.program = "branch";
    const other = await stage.preview("IPReservation", "a", ON_ANY);
    expect(other.runnerName).not.toBe("r3");
    stage.newRun();
    stage.program = "main";
    await stage.runner("r3", "192.0.2.13");
    const { inputs, reason } = await checkInUp("a", ON_ANY);
    expect([reason, inputs.ip]).toEqual(["", shown.ip]);
    stage.newRun();
    stage.program = "branch";
    expect(await stage.make("IPReservation", "a", ON_ANY)).toMatchObject({ ip: other.ip });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("a promise that a later preview replaced does not stop an up", async () => {
    const shown = await stage.preview("IPReservation", "a", ON_ANY);
    stage.pass(LATER);
    stage.newRun();
    await stage.make("IPReservation", "x", { runner: `training/${shown.runnerName}`, ip: shown.ip });
    stage.newRun();
    const again = await stage.preview("IPReservation", "a", ON_ANY);
    stage.newRun();
    const made = await stage.make("IPReservation", "a", ON_ANY);
    stage.newRun();
    await stage.of("IPReservation").delete(made);
    for (let i = 0; i < 4; i++) await stage.make("IPReservation", `y${i}`, { runner: `training/${again.runnerName}` });
    stage.pass(3600);
    stage.newRun();
    expect((await checkInUp("a", ON_ANY)).reason).toBe("");
  });

  test("a promise from before the reservation was last deleted does not stop an up", async () => {
    const shown = await stage.preview("IPReservation", "a", ON_ANY);
    stage.pass(LATER);
    stage.newRun();
    await stage.make("IPReservation", "x", { runner: `training/${shown.runnerName}`, ip: shown.ip });
    stage.newRun();
    stage.program = "branch";
    const made = await stage.make("IPReservation", "a", ON_ANY);
    stage.newRun();
    await stage.of("IPReservation").delete(made);
    stage.pass(LATER);
    stage.newRun();
    stage.program = "main";
    expect((await checkInUp("a", ON_ANY)).reason).toBe("");
  });

  test("no runner yet: the address is not shown, so it is not promised", async () => {
    stage = await Stage.up();
    stage.program = "main";
    await stage.network("training", { subnets: "10.128.0.0/12/6/14" });
    stage.newRun();
    await previewRunner("r1", "192.0.2.11");
    await stage.preview("IPReservation", "a", ON_ANY);
    stage.pass(LATER);
    stage.newRun();
    expect(await stage.preview("IPReservation", "a", ON_ANY)).toMatchObject({ ip: UNKNOWN });
    await previewRunner("r2", "192.0.2.12");
    stage.newRun();
    await stage.runner("r2", "192.0.2.12");
    expect((await checkInUp("a", ON_ANY)).reason).toBe("");
  });

  test("an existing reservation that stays on its runner keeps the network from being replaced, in preview and up", async () => {
    const made = await stage.make("IPReservation", "a", ON_ANY);
    for (const dryRun of [true, false]) {
      stage.newRun();
      await stage.check(
        "OverlayNetwork",
        "training",
        { hubConnection: HUB, subnets: "10.64.0.0/12/6/14" },
        network,
        dryRun,
      );
      const { failures } = await stage.check("IPReservation", "a", ON_ANY, made, dryRun);
      expect(failures[0]?.reason).toMatch(/^POOL_IN_USE: Network training cannot be replaced/);
    }
  });

  test("an address that is not shown is not promised, also if its runner was only offered and is gone", async () => {
    stage = await Stage.up();
    stage.program = "main";
    network = await stage.network("training", { subnets: "10.128.0.0/12/6/14" });
    stage.newRun();
    await previewRunner("r1", "192.0.2.11");
    await stage.preview("IPReservation", "a", ON_ANY);
    stage.pass(LATER);
    stage.newRun();
    await stage.of("RunnerSubnet").delete(await stage.runner("r9", "192.0.2.19"));
    stage.newRun();
    const changed = { hubConnection: HUB, subnets: "10.64.0.0/12/6/14" };
    await stage.preview("OverlayNetwork", "training", changed, network);
    await previewRunner("r5", "192.0.2.11");
    expect(await stage.preview("IPReservation", "a", ON_ANY)).toMatchObject({ ip: UNKNOWN });
    stage.newRun();
    await stage.check("OverlayNetwork", "training", changed, network);
    await stage.of("OverlayNetwork").delete(network);
    await stage.network("training", { subnets: changed.subnets });
    await stage.runner("r5", "192.0.2.11");
    expect((await checkInUp("a", ON_ANY)).reason).toBe("");
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("a network that is replaced: the address is not shown, and nothing is promised any more", async () => {
    await stage.preview("IPReservation", "a", ON_ANY);
    stage.newRun();
    const subnets = "10.64.0.0/12/6/14";
    await stage.preview("OverlayNetwork", "training", { hubConnection: HUB, subnets }, network);
    expect(await stage.preview("IPReservation", "a", ON_ANY)).toMatchObject({ ip: UNKNOWN });
    expect(stage.warnings.at(-1)).toBe(
      "POOL_NOT_FOUND: Network training is being replaced, and its runners with it. A runner is chosen once they exist. Its values are not shown in this preview.",
    );
    expect(await stage.pool.ipam.find({ name: `placed/training/${ownerOf("IPReservation", "a")}` })).toBeUndefined();
  });
});

describe("in a pool of a tenant", () => {
  const acme = { org: "acme", project: "web" };
  const BY_TYPE = { tenant: acme, type: "clusterIP" };
  const POOL = { ranges: ["203.0.113.0/28"], type: "clusterIP", tenant: acme };
  const makePool = () => stage.make("IPPool", "own", POOL);

  test("an expired offer in a block, and a pool that the tenant has got since: up stops, and a preview says so", async () => {
    const shown = await stage.preview("IPReservation", "a", BY_TYPE);
    stage.pass(LATER);
    stage.newRun();
    await makePool();
    stage.newRun();
    expect((await checkInUp("a", BY_TYPE)).reason).toMatch(
      new RegExp(
        `^PLAN_STALE: Address ${shown.ip} of the pool of type clusterIP of tenant acme/web was promised to IPReservation a .* is IPPool own\\.`,
      ),
    );
    stage.newRun();
    const again = await stage.preview("IPReservation", "a", BY_TYPE);
    expect(again.pool).toMatchObject({ poolName: "own" });
    expect(stage.warnings.at(-1)).toMatch(/but the pool that is now chosen for it is IPPool own\.$/);
    stage.newRun();
    expect(await stage.make("IPReservation", "a", BY_TYPE)).toMatchObject({ ip: again.ip });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("a program that was not shown the address gets one of the new pool", async () => {
    await stage.preview("IPReservation", "a", BY_TYPE);
    stage.pass(LATER);
    await makePool();
    stage.newRun();
    stage.program = "branch";
    expect(await stage.make("IPReservation", "a", BY_TYPE)).toMatchObject({ pool: { poolName: "own" } });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("a branch that does not create the new pool gets an address of the block, and main what it was shown", async () => {
    await stage.preview("IPPool", "own", POOL);
    const shown = await stage.preview("IPReservation", "a", BY_TYPE);
    expect(shown.pool).toMatchObject({ poolName: "own" });
    stage.newRun();
    stage.program = "branch";
    expect((await stage.preview("IPReservation", "a", BY_TYPE)).pool).not.toMatchObject({ poolName: "own" });
    stage.newRun();
    stage.program = "main";
    await makePool();
    expect(await stage.make("IPReservation", "a", BY_TYPE)).toMatchObject({ ip: shown.ip });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("a promise of more than thirty days ago does not stop an up", async () => {
    await stage.preview("IPReservation", "a", BY_TYPE);
    stage.pass(LATER);
    stage.newRun();
    await makePool();
    stage.pass(40 * 24 * 3600);
    stage.newRun();
    expect((await checkInUp("a", BY_TYPE)).reason).toBe("");
  });

  test("a lease can be imported under the name of an ended offer in a block that is gone", async () => {
    await stage.preview("IPReservation", "a", BY_TYPE);
    stage.pass(LATER);
    stage.newRun();
    await makePool();
    const owner = ownerOf("IPReservation", "a");
    const value = 0xffff_cb00_7105n;
    const lease = {
      ...{ pool: "pool/own", owner, type: "IPReservation", tenant: acme, values: [{ first: value, last: value }] },
      names: [tenantLeaseName(acme, "clusterIP", owner)],
    };
    expect(await stage.pool.ipam.importLeases([lease])).toMatchObject({ conflicts: [], added: [{ owner }] });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test.each<[what: string, before: string, after: string, shown: unknown, up: string]>([
    ["becomes one of this type: not shown", "loadBalancer", "clusterIP", UNKNOWN, "own"],
    [
      "becomes one of another type: in the block",
      "clusterIP",
      "loadBalancer",
      expect.any(String),
      "tenant/acme/web/clusterIP",
    ],
  ])("a pool of the tenant that is replaced and %s", async (_, before, after, shown, up) => {
    const made = await stage.make("IPPool", "own", { ...POOL, type: before });
    const changed = { ...POOL, type: after };
    stage.newRun();
    await stage.preview("IPPool", "own", changed, made);
    const { ip } = await stage.preview("IPReservation", "a", BY_TYPE);
    expect(ip).toEqual(shown);
    stage.newRun();
    await stage.check("IPPool", "own", changed, made);
    await stage.of("IPPool").delete(made);
    await stage.make("IPPool", "own", changed);
    const now = await stage.make("IPReservation", "a", BY_TYPE);
    expect(now.pool).toMatchObject({ poolName: up });
    if (ip !== UNKNOWN) expect(now.ip).toBe(ip);
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test.each([
    ["loadBalancer", "clusterIP"],
    ["clusterIP", "loadBalancer"],
  ])("in an up that replaces a pool (%s, then %s), none gets an address of the old one", async (before, after) => {
    const made = await stage.make("IPPool", "own", { ...POOL, type: before });
    stage.newRun();
    await stage.check("IPPool", "own", { ...POOL, type: after }, made);
    expect(await stage.make("IPReservation", "a", BY_TYPE)).toMatchObject({
      pool: { poolName: "tenant/acme/web/clusterIP" },
    });
    await stage.of("IPPool").delete(made);
  });

  test("a block that stays: the expired offer is kept, although there is a pool now", async () => {
    await stage.make("IPReservation", "first", BY_TYPE);
    stage.newRun();
    const shown = await stage.preview("IPReservation", "a", BY_TYPE);
    stage.pass(LATER);
    await makePool();
    stage.newRun();
    expect(await stage.make("IPReservation", "a", BY_TYPE)).toMatchObject({ ip: shown.ip });
  });
});
