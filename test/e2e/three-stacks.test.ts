import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { measureTime, ratio, seconds } from "../../bench/measure";
import { Lab } from "../../lab/lab";
import { openIpam } from "../../provider/ipam";
import { findUsage } from "../../provider/ipam/interface";
import { type PostgresServer, postgresMissing, startPostgres } from "../contract/servers/postgres";
import { type Stack, Workspace } from "./stack";

/**
 * Two stacks of one backend, and one of another backend on another machine, reserve on one network at the same time:
 * OVERLAY_MANY reservations each. The machines have in common only the server and the hosts, both over the network.
 */
const MANY = Number(process.env.OVERLAY_MANY ?? 40);
const TIMEOUT_MS = 1_800_000;

describe.skipIf(postgresMissing)("one network on PostgreSQL", { timeout: TIMEOUT_MS }, () => {
  let lab: Lab;
  let server: PostgresServer;
  let here: Workspace;
  let there: Workspace;

  beforeAll(async () => {
    lab = await Lab.up({ runners: 3 });
    server = await startPostgres("memory", {
      settings: [`listen_addresses=${lab.controllerAddress}`],
      hba: [`host all all ${lab.underlay.cidr} trust`],
      within: lab.controllerCommand([], "/"),
    });
    [here, there] = [new Workspace(lab), new Workspace(lab, await lab.secondController())];
    for (const hidden of [here.folder, server.folder]) await there.run("mount", ["-t", "tmpfs", "none", hidden]);
  }, TIMEOUT_MS);

  afterAll(async () => {
    await lab?.down();
    await server?.stop();
    for (const workspace of [here, there]) workspace?.remove();
  }, TIMEOUT_MS);

  const store = () => server.url({ host: lab.controllerAddress, sslmode: "disable" }); // the lab's network has no other listeners
  const stackOf = (workspace: Workspace, name: string): Promise<Stack> => {
    const env = { OVERLAY_STORE: store(), OVERLAY_SCOPE: workspace === here ? "here" : "there" };
    const quick = { PULUMI_EXPERIMENTAL: "true", PULUMI_SKIP_CHECKPOINTS: "true" };
    return workspace.stack(name, { env: { ...env, ...quick } });
  };
  const takerOf = async (workspace: Workspace, name: string): Promise<Stack> => {
    const taker = await stackOf(workspace, name);
    taker.program(`for (let i = 0; i < ${MANY}; i++)
      new overlay.IPReservation("ip" + i, { network: "training", placement: "spread" });`);
    return taker;
  };

  test("each controller adds runners of its own", async () => {
    const [network, more] = [await stackOf(here, "network"), await stackOf(there, "network")];
    network.program(`
      const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
      for (const name of ["r1", "r2"]) new overlay.RunnerSubnet(name, { network, connection: at(name) });
    `);
    await network.mustUp();
    more.program(`new overlay.RunnerSubnet("r3",
      { network: "training", connection: at("r3"), hubConnection: at("hub") });`);
    await more.mustUp();
    expect((await there.run("ls", [here.folder, server.folder])).stdout).not.toMatch(/state|data/);
  });

  test(`${MANY} reservations each: none is refused and no address is given twice`, async () => {
    const takers = [await takerOf(here, "a"), await takerOf(here, "b"), await takerOf(there, "a")];
    const alone = await takerOf(here, "alone");
    const one = await measureTime(() => alone.mustUp());
    const three = await measureTime(() => Promise.all(takers.map((taker) => taker.mustUp())));
    const sum = takers.length * one;
    console.log(
      `${MANY} each: three at once ${seconds(three)} s, one after the other ${seconds(sum)} s: ${ratio(three, sum)}`,
    );

    const states = await Promise.all([alone, ...takers].map((taker) => taker.state()));
    const given = states.flatMap((state) => Object.values(state).map(({ outputs }) => outputs.ip));
    expect(given).toHaveLength(4 * MANY);
    expect(new Set(given).size).toBe(given.length);
    const pool = await openIpam(`postgres://overlay@localhost:${server.port}/overlay?host=${server.folder}`, {
      offerTtl: 3600,
      quarantine: 300,
    });
    const held = await Promise.all(
      ["r1", "r2", "r3"].map(async (name) => Number((await findUsage(pool, `runner/training/${name}`))!.held)),
    );
    expect(held.reduce((sum, each) => sum + each)).toBe(given.length);
    expect(Math.max(...held) - Math.min(...held)).toBeLessThan(MANY / 2);
    expect(await pool.admin.fsck()).toEqual([]);
    await pool.end();
  });
});
