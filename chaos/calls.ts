import { isOverlayError } from "../provider/errors";
import type { Ipam, Lease } from "../provider/ipam";
import { claimOne } from "../provider/ipam/interface";
import { POOL, toGrantedLease } from "./chaos-pool";
import type { Call, CallResult, Entry, LedgerWriter } from "./ledger";
import { applyEntry, certainLease, type LeaseModel, NO_LEASE } from "./model";

/** The model of an owner's lease, and a former id of it. */
export interface OwnerState {
  model: LeaseModel;
  former?: string;
}

export function recordEntry(states: Map<string, OwnerState>, entry: Entry): void {
  const before = states.get(entry.owner);
  const { model } = applyEntry(before?.model ?? NO_LEASE, entry);
  const renewed = entry.call === "claim" && certainLease(model) && before?.model.held?.leaseId;
  const former = renewed || before?.former;
  states.set(entry.owner, { model, ...(former && { former }) });
}

/** Makes a random call for an owner and writes it to the ledger. `dice`, from 0 to 1, chooses among the calls that are valid for it. */
export async function makeCall(
  pool: Ipam,
  ledger: LedgerWriter,
  states: Map<string, OwnerState>,
  owner: string,
  dice = Math.random(),
): Promise<void> {
  const { call, act } = chooseCall(pool, owner, states.get(owner), dice);
  recordEntry(states, await ledger.record(owner, call, () => act().catch(describeFailure)));
}

function describeFailure(error: unknown): CallResult {
  return { failed: isOverlayError(error) ? error.code : String(error) };
}

interface Act {
  call: Call;
  act(): Promise<CallResult>;
}

function chooseCall(pool: Ipam, owner: string, { model, former }: OwnerState = { model: NO_LEASE }, dice: number): Act {
  const lease = certainLease(model);
  if (dice >= 0.9) return findCall(pool, owner);
  if (!lease || dice < 0.15) return claimCall(pool, owner);
  if (dice < 0.35) return useCall(pool, lease.leaseId);
  return dice < 0.45 && former ? releaseCall(pool, former, true) : releaseCall(pool, lease.leaseId);
}

const claimCall = (pool: Ipam, owner: string): Act => ({
  call: { call: "claim" },
  act: async () => ({ got: toGrantedLease(await claimOne(pool, { pool: POOL, owner, type: "IPReservation" })) }),
});

const useCall = (pool: Ipam, leaseId: string): Act => ({
  call: { call: "use", leaseId },
  act: async () => ({ got: toGrantedLease(await pool.change(POOL, leaseId, { state: "used", usedBy: "chaos" })) }),
});

const releaseCall = (pool: Ipam, leaseId: string, stale = false): Act => ({
  call: { call: "release", leaseId, ...(stale && { stale }) },
  act: async () => ({ did: await pool.release(POOL, leaseId) }),
});

const findCall = (pool: Ipam, owner: string): Act => ({
  call: { call: "find" },
  act: async () => describeFound(await pool.find({ pool: POOL, owner })),
});

const describeFound = (lease: Lease | undefined): CallResult =>
  lease ? { got: toGrantedLease(lease) } : { none: true };
