import { execFile } from "node:child_process";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { afterEach, describe, expect, test } from "vitest";
import { isCommitted } from "../../../provider/ipam/types";
import { by, createPool, firstOf, openPool, type Pool, ranges } from "../fixture";
import { raceContract } from "../races";

const TERMS = { offerTtl: 3600, quarantine: 300 };
const run = promisify(execFile);

/** Processes, each with its own connections. They are closed after each test of the `describe` that calls this. */
export function newProcesses(): (url: string) => Promise<Pool> {
  const open: Pool[] = [];
  afterEach(async () => {
    for (const pool of open.splice(0)) await pool.end();
  });
  return async (url) => {
    const pool = await openPool(url, TERMS);
    open.push(pool);
    return pool;
  };
}

/** What holds for several processes on one store. */
export function processContract(newUrl: () => string): void {
  const open = newProcesses();

  test("four processes that open a new store and claim at the same time get no value twice, and lose no lease", async () => {
    const url = newUrl();
    const runWorker = (name: string) =>
      run(process.execPath, ["--import", "tsx", join(__dirname, "claim-worker.ts"), url, name, "25", "4"], {
        timeout: 50_000,
      });
    const outputs = await Promise.all(["a", "b", "c", "d"].map(runWorker));
    const lines = outputs.flatMap(({ stdout }) => stdout.trim().split("\n"));
    const after = (what: string) => lines.flatMap((line) => (line.startsWith(what) ? [line.slice(what.length)] : []));
    const [claimed, released] = [after("claimed "), after("released ")];
    const values = new Set(claimed.map((line) => line.split(" ")[0]));
    expect([claimed.length, values.size, released.length]).toEqual([100, 100, 20]);
    const pool = await open(url);
    const held = (await pool.leases("pool/p")).filter(isCommitted);
    const acknowledged = claimed.filter((line) => !released.includes(line));
    expect(held.map((lease) => `${firstOf(lease)} ${lease.leaseId}`).sort()).toEqual(acknowledged.sort());
    expect(await pool.fsck()).toEqual([]);
  });

  describe("races for a token", () => raceContract(newUrl));
}

/** Three processes claim while `fail` runs: the server is killed, or another one takes over. */
export function crashContract(what: string, urlOf: () => string, fail: () => Promise<void>): void {
  const open = newProcesses();

  test(`${what}: all acknowledged claims survive, and no value is given twice`, async () => {
    const pools = await Promise.all([1, 2, 3].map(() => open(urlOf())));
    await createPool(pools[0]!, { ranges: ranges("10.0.0.0/16") });
    let isOver = false;
    const acknowledged = new Map<string, bigint>();
    const claims = pools.map(async (pool, i) => {
      for (let n = 0; !isOver; n++) acknowledged.set(`${i}/${n}`, firstOf(await pool.claim(by(`${i}/${n}`))));
    });
    await sleep(300);
    await fail();
    const before = acknowledged.size;
    await sleep(300);
    isOver = true;
    await Promise.all(claims);
    expect(acknowledged.size).toBeGreaterThan(before);
    expect(new Set(acknowledged.values()).size).toBe(acknowledged.size);
    const pool = await open(urlOf());
    const held = new Map((await pool.leases("pool/p")).map((lease) => [lease.owner, firstOf(lease)]));
    expect(held).toEqual(acknowledged);
    expect(await pool.fsck()).toEqual([]);
  });
}

/** A store under test, and its backups. */
export interface BackedUp {
  newUrl(): string;
  /** Returns what puts the store back to what it is now. */
  backUp(url: string): Promise<() => Promise<void>>;
}

/** A process that runs on notices that commits it has seen are gone, also if others have made as many since. */
export function restoreContract({ newUrl, backUp }: BackedUp): void {
  const open = newProcesses();

  test.each([0, 5])(
    "a backup is restored under a running process, with %i commits since: STORE_LOST",
    async (since) => {
      const url = newUrl();
      const running = await open(url);
      await createPool(running, { ranges: ranges("10.0.0.0/24") });
      const restore = await backUp(url);
      await sleep(1100);
      for (const owner of ["a", "b", "c"]) await running.claim(by(owner));
      const seen = await running.describe();
      await restore();
      await sleep(1100);
      const other = await open(url);
      for (let i = 0; i < since; i++) await other.claim(by(`other ${i}`));
      const lost = { code: "STORE_LOST" };
      await expect(running.claim(by("d"))).rejects.toMatchObject(lost);
      await expect(running.leases("pool/p")).rejects.toMatchObject(lost);
      await expect(other.describe(seen)).rejects.toMatchObject(lost);
      expect((await other.leases("pool/p")).map(({ owner }) => owner)).not.toContain("d");
    },
  );
}
