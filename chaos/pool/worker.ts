import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError } from "../../provider/errors";
import type { Pool } from "../../provider/pool";
import { openPool } from "../../provider/pool";
import { after, type Belief, NOTHING, sure } from "./belief";
import { type Call, type Entry, LedgerWriter, type Result, readLedger } from "./ledger";
import { grantOf, POOL, SETTINGS } from "./world";

/**
 * A process that claims, uses and releases at random until it is told to stop, or killed: `worker.ts URL FOLDER NAME
 * LIFE`. A later life reads what the ones before were told, and goes on from there.
 */
/** So many calls are under way at once, each for an owner of its own: they share commits. */
const LANES = 16;
const OWNERS = 4;

async function main([url, folder, name, life]: [string, string, string, string]): Promise<void> {
  const pool = await opened(url);
  const minds = new Map<string, Mind>();
  for (const entry of readLedger(folder, name)) learn(minds, entry);
  const ledger = new LedgerWriter(folder, name, Number(life));
  let stopped = false;
  process.once("SIGTERM", () => {
    stopped = true;
  });
  const lane = async (i: number) => {
    while (!stopped) {
      const owner = `${name}/${i}/${Math.floor(Math.random() * OWNERS)}`;
      const { call, act } = next(pool, owner, minds.get(owner));
      learn(minds, await ledger.keep(owner, call, () => act().catch(failed)));
    }
  };
  await Promise.all(Array.from({ length: LANES }, (_, i) => lane(i)));
  ledger.close();
  await pool.end();
}

/** Born while the server is down: it waits. */
async function opened(url: string): Promise<Pool> {
  for (;;) {
    try {
      return await openPool(url, SETTINGS);
    } catch (error) {
      if (!isOverlayError(error, "STORE_UNAVAILABLE")) throw error;
      await sleep(200);
    }
  }
}

/** What is believed of an owner's lease, and an id that it no longer has. */
interface Mind {
  belief: Belief;
  former?: string;
}

function learn(minds: Map<string, Mind>, entry: Entry): void {
  const before = minds.get(entry.owner);
  const { belief } = after(before?.belief ?? NOTHING, entry);
  const renewed = entry.call === "claim" && sure(belief) && before?.belief.held?.leaseId;
  const former = renewed || before?.former;
  minds.set(entry.owner, { belief, ...(former && { former }) });
}

function failed(error: unknown): Result {
  return { failed: isOverlayError(error) ? error.code : String(error) };
}

interface Act {
  call: Call;
  act(): Promise<Result>;
}

function next(pool: Pool, owner: string, { belief, former }: Mind = { belief: NOTHING }): Act {
  const lease = sure(belief);
  const dice = Math.random();
  if (!lease || dice < 0.15) return claiming(pool, owner);
  if (dice < 0.35) return using(pool, lease.leaseId);
  return dice < 0.45 && former ? releasing(pool, former, true) : releasing(pool, lease.leaseId);
}

const claiming = (pool: Pool, owner: string): Act => ({
  call: { call: "claim" },
  act: async () => ({ got: grantOf(await pool.claim({ pool: POOL, owner, type: "IPReservation" })) }),
});

const using = (pool: Pool, leaseId: string): Act => ({
  call: { call: "use", leaseId },
  act: async () => ({ got: grantOf(await pool.amend(POOL, leaseId, { state: "used", usedBy: "chaos" })) }),
});

const releasing = (pool: Pool, leaseId: string, stale = false): Act => ({
  call: { call: "release", leaseId, ...(stale && { stale }) },
  act: async () => ({ did: await pool.release(POOL, leaseId) }),
});

main(process.argv.slice(2) as [string, string, string, string]);
