import { omitUndefined } from "../../provider/pool/storage/records";
import type { Entry, Grant, Result } from "./ledger";

/**
 * What an owner's ledger lets one believe about its lease. Its calls come one after another, also over the lives of its
 * worker, so after each there are few possibilities: it is held, it is free, or either, when a call was cut off. Only
 * who is sure uses or releases; who is not claims again, and must be given what it may still hold.
 */
export interface Belief {
  /** It may have none. */
  free: boolean;
  /** It may have one: what is known of it. */
  held?: Partial<Grant>;
}

export const NOTHING: Belief = { free: true };
const ANYTHING: Belief = { free: true, held: {} };

/** The lease that is there beyond doubt. */
export const sure = ({ free, held }: Belief): Grant | undefined =>
  !free && held?.value && held.leaseId && held.state ? (held as Grant) : undefined;

export type Kind = "duplicate" | "lost" | "changed" | "fault";

export interface Step {
  belief: Belief;
  /** Where the answer contradicts what was believed. */
  wrong?: { kind: Kind; what: string };
}

const refuted = (kind: Kind, what: string, belief = NOTHING): Step => ({ belief, wrong: { kind, what } });

/** These say that nothing was done; of every other failure one cannot know. */
const REFUSED = ["POOL_EXHAUSTED", "LEASE_FENCED"];
const EXPECTED = ["STORE_UNAVAILABLE", "STORE_CONFLICT"];

export function after(before: Belief, entry: Entry): Step {
  const { result } = entry;
  // Finds are compared with what was true at their time by the check of linearizability.
  if (entry.call === "find") return { belief: before };
  const failed = result && "failed" in result ? result.failed : undefined;
  if (failed !== undefined && ![...REFUSED, ...EXPECTED].includes(failed))
    return refuted("fault", `${entry.call} failed with ${failed}`, cutOff(before, entry));
  if (!result || EXPECTED.includes(failed!)) return { belief: cutOff(before, entry) };
  if (entry.call === "claim") return claimed(before, result);
  if (entry.call === "use") return used(before, result);
  return entry.stale ? fenced(before, result) : released(before, result);
}

function cutOff(before: Belief, entry: Entry): Belief {
  if (entry.call === "release") return entry.stale ? before : { ...before, free: true };
  if (before.free || !before.held) return ANYTHING;
  // A claim may have renewed the id, a use may have changed the state.
  const { leaseId, state, ...rest } = before.held;
  const kept = entry.call === "claim" ? { state } : { leaseId };
  return { free: false, held: { ...rest, ...omitUndefined<Partial<Grant>>(kept) } };
}

function claimed({ free, held }: Belief, result: Result): Step {
  if (!("got" in result))
    return free ? { belief: NOTHING } : refuted("lost", `${held?.value} was held, then nothing was left`);
  const { got } = result;
  const belief = { free: false, held: got };
  if (free) return { belief };
  if (held?.value !== got.value)
    return refuted("changed", `held ${held?.value}, and was then given ${got.value}`, belief);
  if (held.leaseId === got.leaseId)
    return refuted("changed", `${got.value} was claimed again under the old id`, belief);
  if (held.state && held.state !== got.state)
    return refuted("changed", `${got.value} was ${held.state}, and was then ${got.state}`, belief);
  return { belief };
}

function used({ held }: Belief, result: Result): Step {
  if ("got" in result) return { belief: { free: false, held: result.got } };
  return refuted("lost", `${held?.value} was held under ${held?.leaseId}, and could not be used`);
}

function released({ held }: Belief, result: Result): Step {
  if ("did" in result && result.did) return { belief: NOTHING };
  return refuted("lost", `${held?.value} was held under ${held?.leaseId}, and could not be released`);
}

function fenced(before: Belief, result: Result): Step {
  if ("did" in result && !result.did) return { belief: before };
  return refuted("changed", `${before.held?.value} was released by an id that had been renewed`);
}
