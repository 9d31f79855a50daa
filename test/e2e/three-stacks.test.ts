import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Lab } from "../../lab/lab";
import { openPool } from "../../provider/pool";
import { type PostgresServer, postgresMissing, startPostgres } from "../contract/servers/postgres";
import { type Stack, Workspace } from "./stack";

/**
 * Two stacks of one backend, and one of another backend as on another machine, take from one network at the same time:
 * OVERLAY_MANY reservations each.
 */
const MANY = Number(process.env.OVERLAY_MANY ?? 40);
const PATIENCE = 900_000;

describe.skipIf(postgresMissing)("one network on PostgreSQL", { timeout: PATIENCE }, () => {
  let lab: Lab;
  let server: PostgresServer;
  let store: string;
  const workspaces: Workspace[] = [];

  beforeAll(async () => {
    lab = await Lab.up({ runners: 2 });
    server = await startPostgres("memory");
    // Through its socket: the controller has a loopback of its own.
    store = `postgres://overlay@localhost:${server.port}/overlay?host=${server.folder}`;
    workspaces.push(new Workspace(lab), new Workspace(lab));
  }, PATIENCE);

  afterAll(async () => {
    await lab?.down();
    await server?.stop();
    for (const workspace of workspaces) workspace.remove();
  }, PATIENCE);

  const stackIn = (workspace: number, name: string): Promise<Stack> => {
    const env = { OVERLAY_STORE: store, OVERLAY_SCOPE: `backend-${workspace}` };
    const quick = { PULUMI_EXPERIMENTAL: "true", PULUMI_SKIP_CHECKPOINTS: "true" };
    return workspaces[workspace]!.stack(name, { env: { ...env, ...quick } });
  };

  test(`${MANY} reservations each: none is refused and none is given out twice`, async () => {
    const network = await stackIn(0, "network");
    network.program(`
      const network = new overlay.OverlayNetwork("training", { hubConnection: at("hub") });
      for (const name of ["r1", "r2"]) new overlay.RunnerSubnet(name, { network, connection: at(name) });
    `);
    await network.mustUp();
    const takers = [await stackIn(0, "a"), await stackIn(0, "b"), await stackIn(1, "a")];
    for (const taker of takers) {
      taker.program(`for (let i = 0; i < ${MANY}; i++)
        new overlay.IPReservation("ip" + i, { network: "training", placement: "spread" });`);
    }
    await Promise.all(takers.map((taker) => taker.mustUp()));

    const states = await Promise.all(takers.map((taker) => taker.state()));
    const given = states.flatMap((state) => Object.values(state).map(({ outputs }) => outputs.ip));
    expect(given).toHaveLength(takers.length * MANY);
    expect(new Set(given).size).toBe(given.length);
    const pool = await openPool(store, { offerTtl: 3600, quarantine: 300 });
    const [r1, r2] = [await pool.usage("runner/training/r1"), await pool.usage("runner/training/r2")];
    expect(r1!.held + r2!.held).toBe(BigInt(given.length));
    expect(Math.abs(Number(r1!.held - r2!.held))).toBeLessThan(MANY / 2);
    expect(await pool.fsck()).toEqual([]);
    await pool.end();
  });
});
