import { beforeEach, describe, expect, test } from "vitest";
import { UNKNOWN, type Values } from "../../../provider/lifecycle/values";
import { ownerOf, Stage } from "./stage";

/** Reservations on any runner of a network, or in a pool of a tenant: what preview shows in the chosen pool is a promise, too. */
let stage: Stage;

const LATER = 25 * 3600;
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
    expect(await stage.pool.fsck()).toEqual([]);
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
        `^PLAN_STALE: Address ${shown.ip} of runner ${shown.runnerName} of network training was promised to IPReservation a at \\S+, but it now gets one of runner ${other} of network training\\. Run preview`,
      ),
    );
    stage.newRun();
    const again = await stage.preview("IPReservation", "a", ON_ANY);
    expect(again.runnerName).toBe(other);
    expect(stage.warnings.at(-1)).toMatch(/was promised to IPReservation a at \S+, but it now gets one of runner/);
    stage.newRun();
    expect(await stage.make("IPReservation", "a", ON_ANY)).toMatchObject({ ip: again.ip });
    expect(await stage.pool.fsck()).toEqual([]);
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
    expect(await stage.pool.fsck()).toEqual([]);
  });

  test("runners that are only offered and preempted by a branch: a second preview and up keep the runner", async () => {
    stage = await Stage.up();
    const hubConnection = { host: "192.0.2.1" };
    const previewAll = async () => {
      stage.newRun();
      await stage.preview("OverlayNetwork", "training", { hubConnection });
      for (const [i, name] of ["r1", "r2"].entries())
        await stage.preview("RunnerSubnet", name, {
          network: "training",
          connection: { host: `192.0.2.1${i}` },
          hubConnection,
        });
      return stage.preview("IPReservation", "a", ON_ANY);
    };
    stage.program = "main";
    const shown = await previewAll();
    stage.newRun();
    stage.program = "branch";
    await stage.preview("OverlayNetwork", "other", { hubConnection });
    stage.program = "main";
    expect(await previewAll()).toMatchObject({ ip: shown.ip });
    stage.newRun();
    await stage.network();
    for (const [i, name] of ["r1", "r2"].entries()) await stage.runner(name, `192.0.2.1${i}`);
    expect(await stage.make("IPReservation", "a", ON_ANY)).toMatchObject({ ip: shown.ip });
    expect(await stage.pool.fsck()).toEqual([]);
  });

  test("a network that is replaced: the address is not shown, and nothing is promised any more", async () => {
    await stage.preview("IPReservation", "a", ON_ANY);
    stage.newRun();
    const subnets = "10.64.0.0/12/6/14";
    await stage.preview("OverlayNetwork", "training", { hubConnection: { host: "192.0.2.1" }, subnets }, network);
    expect(await stage.preview("IPReservation", "a", ON_ANY)).toMatchObject({ ip: UNKNOWN });
    expect(stage.warnings.at(-1)).toBe(
      "POOL_NOT_FOUND: Network training is being replaced, and its runners with it. A runner is chosen once they exist. Its values are not shown in this preview.",
    );
    expect(await stage.pool.holder(`placed/training/${ownerOf("IPReservation", "a")}`)).toBeUndefined();
  });
});

describe("in a pool of a tenant", () => {
  const acme = { org: "acme", project: "web" };
  const BY_TYPE = { tenant: acme, type: "clusterIP" };
  const makePool = () => stage.make("IPPool", "own", { ranges: ["203.0.113.0/28"], type: "clusterIP", tenant: acme });

  test("an expired offer in a block, and a pool that the tenant has got since: up stops, and a preview says so", async () => {
    const shown = await stage.preview("IPReservation", "a", BY_TYPE);
    stage.pass(LATER);
    stage.newRun();
    await makePool();
    stage.newRun();
    expect((await checkInUp("a", BY_TYPE)).reason).toMatch(
      new RegExp(
        `^PLAN_STALE: Address ${shown.ip} of the pool of type clusterIP of tenant acme/web was promised to IPReservation a .* one of IPPool own\\.`,
      ),
    );
    stage.newRun();
    const again = await stage.preview("IPReservation", "a", BY_TYPE);
    expect(again.pool).toMatchObject({ poolName: "own" });
    expect(stage.warnings.at(-1)).toMatch(/but it now gets one of IPPool own\.$/);
    stage.newRun();
    expect(await stage.make("IPReservation", "a", BY_TYPE)).toMatchObject({ ip: again.ip });
    expect(await stage.pool.fsck()).toEqual([]);
  });

  test("a program that was not shown the address gets one of the new pool", async () => {
    await stage.preview("IPReservation", "a", BY_TYPE);
    stage.pass(LATER);
    await makePool();
    stage.newRun();
    stage.program = "branch";
    expect(await stage.make("IPReservation", "a", BY_TYPE)).toMatchObject({ pool: { poolName: "own" } });
    expect(await stage.pool.fsck()).toEqual([]);
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
