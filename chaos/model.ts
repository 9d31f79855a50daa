import { omitUndefined } from "../provider/ipam/decide/rows";
import type { CallResult, Entry, GrantedLease } from "./ledger";

/**
 * The state of an owner's lease as far as its calls determine it. The calls of one owner are sequential, also across restarts of its
 * worker. After each call the owner has a lease, has none, or, if the call was not answered, either. A worker uses and releases only
 * leases that are certain. Otherwise it claims again, and must get the lease that it may still hold.
 */
export interface LeaseModel {
  /** The owner may have no lease. */
  free: boolean;
  /** The owner may have a lease: its known properties. */
  held?: Partial<GrantedLease>;
}

export const NO_LEASE: LeaseModel = { free: true };
const ANY_LEASE: LeaseModel = { free: true, held: {} };

/** undefined: it is not certain that there is a lease, or its properties are not all known. */
export const certainLease = ({ free, held }: LeaseModel): GrantedLease | undefined =>
  !free && held?.value && held.leaseId && held.state ? (held as GrantedLease) : undefined;

export type ViolationKind = "duplicate" | "lost" | "changed" | "fault";

export interface ModelStep {
  model: LeaseModel;
  /** Set if the answer contradicts the model. */
  wrong?: { kind: ViolationKind; what: string };
}

const contradict = (kind: ViolationKind, what: string, model = NO_LEASE): ModelStep => ({
  model,
  wrong: { kind, what },
});

/** Nothing was changed. After any other failure the state is not known. */
const REFUSED = ["POOL_EXHAUSTED", "LEASE_FENCED"];
const EXPECTED = ["STORE_UNAVAILABLE", "STORE_CONFLICT"];

export function applyEntry(before: LeaseModel, entry: Entry): ModelStep {
  const { result } = entry;
  const failed = result && "failed" in result ? result.failed : undefined;
  if (failed !== undefined && ![...REFUSED, ...EXPECTED].includes(failed))
    return contradict("fault", `${entry.call} failed with ${failed}`, applyUnanswered(before, entry));
  if (!result || EXPECTED.includes(failed!)) return { model: applyUnanswered(before, entry) };
  if (entry.call === "find") return applyFind(before, result);
  if (entry.call === "claim") return applyClaim(before, result);
  if (entry.call === "use") return applyUse(before, result);
  return entry.stale ? applyStaleRelease(before, result) : applyRelease(before, result);
}

function applyUnanswered(before: LeaseModel, entry: Entry): LeaseModel {
  if (entry.call === "find") return before;
  if (entry.call === "release") return entry.stale ? before : { ...before, free: true };
  if (before.free || !before.held) return ANY_LEASE;
  // A claim may have renewed the id, a use may have changed the state.
  const { leaseId, state, ...rest } = before.held;
  const kept = entry.call === "claim" ? { state } : { leaseId };
  return { free: false, held: { ...rest, ...omitUndefined<Partial<GrantedLease>>(kept) } };
}

function applyClaim({ free, held }: LeaseModel, result: CallResult): ModelStep {
  if (!("got" in result))
    return free ? { model: NO_LEASE } : contradict("lost", `${held?.value} was held, then nothing was left`);
  const { got } = result;
  const model = { free: false, held: got };
  if (free) return { model };
  if (held?.value !== got.value)
    return contradict("changed", `held ${held?.value}, and was then given ${got.value}`, model);
  if (held.leaseId === got.leaseId)
    return contradict("changed", `${got.value} was claimed again under the old id`, model);
  if (held.state && held.state !== got.state)
    return contradict("changed", `${got.value} was ${held.state}, and was then ${got.state}`, model);
  return { model };
}

/** A call without an answer may still take effect after the find: what is not certain stays so. */
function applyFind(before: LeaseModel, result: CallResult): ModelStep {
  const { free, held } = before;
  if (!("got" in result))
    return free ? { model: before } : contradict("lost", `${held?.value} was held, and was not found`);
  const { got } = result;
  const model = { free: false, held: got };
  if (!held) return contradict("changed", `nothing was held, and ${got.value} was found`, model);
  for (const field of ["value", "leaseId", "state"] as const)
    if (held[field] !== undefined && held[field] !== got[field])
      return contradict("changed", `${field} was ${held[field]}, and ${got[field]} was found`, model);
  return { model: held.value === undefined ? model : before };
}

function applyUse({ held }: LeaseModel, result: CallResult): ModelStep {
  if ("got" in result) return { model: { free: false, held: result.got } };
  return contradict("lost", `${held?.value} was held under ${held?.leaseId}, and could not be used`);
}

function applyRelease({ held }: LeaseModel, result: CallResult): ModelStep {
  if ("did" in result && result.did) return { model: NO_LEASE };
  return contradict("lost", `${held?.value} was held under ${held?.leaseId}, and could not be released`);
}

function applyStaleRelease(before: LeaseModel, result: CallResult): ModelStep {
  if ("did" in result && !result.did) return { model: before };
  return contradict("changed", `${before.held?.value} was released by an id that had been renewed`);
}
