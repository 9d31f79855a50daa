import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, onTestFailed, test, vi } from "vitest";
import type { OverlayError } from "../../provider/errors";
import { openEngine, openIpam } from "../../provider/ipam";
import { claimOne } from "../../provider/ipam/interface";
import { move } from "../../provider/ipam/transfer";
import { Ctl, deploy } from "../unit/cli/ctl";
import { changesOf, find, leaseRow } from "./engine";
import { type EtcdCluster, etcdMissing, startEtcd } from "./servers/etcd";
import { type PostgresServer, postgresMissing, startPostgres } from "./servers/postgres";
import { rowsAt } from "./store-rows";

const missing = postgresMissing || etcdMissing;

describe.skipIf(missing)(`overlayctl store migrate between engines${missing ? `: ${missing}` : ""}`, () => {
  const ctl = new Ctl();
  let postgres: PostgresServer;
  let etcd: EtcdCluster;
  beforeAll(async () => {
    [postgres, etcd] = await Promise.all([startPostgres("memory"), startEtcd("memory", { size: 1 })]);
    await ctl.withPool((pool) => deploy(pool, ["node1", "node2"]));
  }, 120_000);
  afterAll(async () => {
    await Promise.all([postgres?.stop(), etcd?.stop()]);
    ctl.remove();
  }, 60_000);

  test.each([
    ["SQLite", () => `sqlite:${join(ctl.folder, "busy.db")}`],
    ["PostgreSQL", () => postgres.url({ schema: "busy" })],
  ])(
    "a store that is being written moves to %s with all acknowledged writes, and later writes fail with STORE_MOVED",
    {
      timeout: 120_000,
    },
    async (name, target) => {
      const source = `sqlite:${join(ctl.folder, `from-${name}.db`)}`;
      await ctl.withPool((pool) => deploy(pool, ["node1"]), source);
      const [to, address] = [target(), "runner/training/node1"];
      const answered: string[] = [];
      let isFailed = false;
      onTestFailed(() => {
        isFailed = true;
      });
      const writer = async (id: number): Promise<OverlayError | undefined> => {
        const pool = await openIpam(source, { offerTtl: 3600, quarantine: 300 });
        try {
          for (let i = 0; !isFailed; i++) {
            const lease = await claimOne(pool, { pool: address, owner: `writer ${id} ${i}`, type: "IPReservation" });
            answered.push(lease.leaseId);
          }
          return undefined;
        } catch (error) {
          return error as OverlayError;
        } finally {
          await pool.end();
        }
      };
      const writers = [1, 2, 3].map(writer);
      await vi.waitFor(() => expect(answered.length).toBeGreaterThan(50), 10_000);
      const [moved] = await ctl.must("store", "migrate", source, to);
      expect(moved).toMatchObject({ problems: 0 });
      expect(moved!.closedSeconds).toBeGreaterThan(0);
      expect(moved!.closedSeconds).toBeLessThan(20);
      for (const error of await Promise.all(writers)) expect(error?.code).toBe("STORE_MOVED");
      const arrived = await ctl.withPool((pool) => pool.leases(address), to);
      expect(new Set(arrived.map(({ leaseId }) => leaseId))).toEqual(new Set(answered));
    },
  );

  test.each([
    ["PostgreSQL", () => postgres.url({ schema: "underway" })],
    ["etcd", () => `etcd://${etcd.hosts}/underway`],
  ])("a transaction under way in %s arrives, or is refused", async (_, url) => {
    const [from, other, to] = [await openEngine(url()), await openEngine(url()), await openEngine("memory:")];
    const lease = leaseRow("late", 1n);
    const tx = await other.begin([], [lease.pool]);
    const moving = move({ engine: from, place: "old" }, { engine: to, place: "new" });
    await sleep(500);
    const committed = await Promise.resolve(tx.commit(changesOf({ leases: [lease] }))).then(
      () => true,
      () => false,
    );
    await moving;
    const { leases = [] } = await find(to, { of: "lease", uid: "late" });
    expect(leases).toEqual(committed ? [lease] : []);
    await Promise.all([from, other, to].map((engine) => engine.close()));
  });

  test("SQLite to PostgreSQL to etcd and back: every row is the same, and each works", {
    timeout: 120_000,
  }, async () => {
    const places = [ctl.store, postgres.url(), `etcd://${etcd.hosts}/moved`, `sqlite:${join(ctl.folder, "back.db")}`];
    const given = ["ip", "reserve", "--network", "training", "--runner", "node1"];
    for (const [i, to] of places.entries()) {
      const from = places[i - 1];
      if (from === undefined) continue;
      const [{ token } = {}] = await ctl.must(...given, "--store", from);
      const before = await rowsAt(from);
      const [moved] = await ctl.must("store", "migrate", from, to);
      expect(moved).toMatchObject({ rows: before.length - 1, pools: 4, problems: 0 }); // without the version
      expect(await rowsAt(to)).toEqual(before);
      expect(await ctl.must("ip", "validate", String(token), "--store", to)).toHaveLength(1);
      expect((await ctl.run("store", "migrate", from, to)).stderr).toContain("STORE_MOVED: The source was moved to");
    }
  });
});
