import { isOverlayError } from "../../provider/errors";
import type { Lease, Pool } from "../../provider/pool";
import { after, type Belief, NOTHING, sure } from "./belief";
import type { Call, Entry, LedgerWriter, Result } from "./ledger";
import { grantOf, POOL } from "./world";

/** What is believed of an owner's lease, and an id that it no longer has. */
export interface OwnerState {
  belief: Belief;
  former?: string;
}

export function recordEntry(states: Map<string, OwnerState>, entry: Entry): void {
  const before = states.get(entry.owner);
  const { belief } = after(before?.belief ?? NOTHING, entry);
  const renewed = entry.call === "claim" && sure(belief) && before?.belief.held?.leaseId;
  const former = renewed || before?.former;
  states.set(entry.owner, { belief, ...(former && { former }) });
}

/** One call for an owner, which the ledger keeps with its answer. `dice` chooses among the calls that make sense for it. */
export async function makeCall(
  pool: Pool,
  ledger: LedgerWriter,
  states: Map<string, OwnerState>,
  owner: string,
  dice = Math.random(),
): Promise<void> {
  const { call, act } = next(pool, owner, states.get(owner), dice);
  recordEntry(states, await ledger.keep(owner, call, () => act().catch(failed)));
}

function failed(error: unknown): Result {
  return { failed: isOverlayError(error) ? error.code : String(error) };
}

interface Act {
  call: Call;
  act(): Promise<Result>;
}

function next(pool: Pool, owner: string, { belief, former }: OwnerState = { belief: NOTHING }, dice: number): Act {
  const lease = sure(belief);
  if (dice >= 0.9) return finding(pool, owner);
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

const finding = (pool: Pool, owner: string): Act => ({
  call: { call: "find" },
  act: async () => found(await pool.find(POOL, { owner })),
});

const found = (lease: Lease | undefined): Result => (lease ? { got: grantOf(lease) } : { none: true });

/** The last word of a history: what each owner has when all work is done. */
export async function findAll(pool: Pool, ledger: LedgerWriter, owners: Iterable<string>): Promise<void> {
  for (const owner of owners) {
    const { call, act } = finding(pool, owner);
    await ledger.keep(owner, call, act);
  }
}
