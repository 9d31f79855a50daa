import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { isCommitted, type Lease } from "../../provider/ipam/types";
import { Ctl } from "../unit/cli/ctl";
import { by, createPool, firstOf, openPool, type Pool, ranges } from "./fixture";
import { HttpProxy } from "./servers/http-proxy";
import { type PostgresServer, postgresMissing, startPostgres } from "./servers/postgres";
import { startService } from "./service-process";

/** Instances of `overlayctl serve` on one store, each a process, that are killed while stacks use them. */
const SETTINGS = { offerTtl: 3600, quarantine: 0 };
const WORKERS = 4;
const CLAIMS = 40;
const KILLS = 4;

describe("instances that are killed with SIGKILL", () => {
  const ctl = new Ctl();
  let postgres: PostgresServer | undefined;
  let proxy: HttpProxy;
  beforeAll(async () => {
    if (!postgresMissing) postgres = await startPostgres("memory");
  }, 120_000);
  afterAll(async () => {
    await postgres?.stop();
    ctl.remove();
  }, 60_000);
  afterEach(() => proxy?.close());

  /** Claims, uses and releases every fifth lease. Returns what it holds at the end. */
  async function work(pool: Pool, name: string): Promise<Lease[]> {
    const held: Lease[] = [];
    for (let i = 0; i < CLAIMS; i++) {
      const lease = await pool.claim(by(`${name} ${i}`, { data: { run: "r0" } }));
      const changes = { data: { run: "r1" } };
      const amended = await pool.change(lease.pool, lease.leaseId, changes, { onlyIf: { data: { run: "r0" } } });
      if (i % 5 === 0) expect(await pool.release(lease.pool, lease.leaseId)).toBe(true);
      else held.push(amended);
    }
    return held;
  }

  test.each<[string, () => string | undefined]>([
    ["SQLite", () => ctl.store],
    ["PostgreSQL", () => postgres?.url()],
  ])("on %s: nothing is given twice, and no acknowledged lease is lost", { timeout: 180_000 }, async (_, urlOf) => {
    const store = urlOf();
    if (store === undefined) return;
    const operator = await openPool(store, SETTINGS);
    await createPool(operator, { kind: "id", ranges: ranges("1-400"), allocation: "lowest" });
    const start = () => startService(ctl, ["--no-auth"], { OVERLAY_STORE: store });
    const instances = [await start(), await start()];
    const ports = instances.map(({ url }) => Number(new URL(url).port));
    proxy = await HttpProxy.before(ports);
    const pool = await openPool(`${proxy.url}?timeout=60`, { ...SETTINGS, storeToken: "unused" });
    const working = Promise.all(Array.from({ length: WORKERS }, (_, i) => work(pool, `w${i}`)));
    let isDone = false;
    working.finally(() => (isDone = true)).catch(() => {});
    let kills = 0;
    for (; kills < KILLS && !isDone; kills++) {
      await sleep(150);
      const turn = kills % instances.length;
      process.kill(instances[turn]!.pid, "SIGKILL");
      await instances[turn]!.ended;
      instances[turn] = await start();
      ports[turn] = Number(new URL(instances[turn]!.url).port);
    }
    const held = (await working).flat();
    expect(kills).toBeGreaterThan(1);
    expect(new Set(held.map(firstOf)).size).toBe(held.length);
    const stored = (await operator.leases("pool/p")).filter(isCommitted).map(({ leaseId }) => leaseId);
    expect(stored.sort()).toEqual(held.map(({ leaseId }) => leaseId).sort());
    expect(await operator.fsck()).toEqual([]);
    await pool.end();
    await operator.end();
    for (const instance of instances) await instance.stop();
  });
});
