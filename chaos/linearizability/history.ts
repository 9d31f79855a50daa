import { formatIp } from "../../provider/addressing/ip";
import type { CallResult, Entry, GrantedLease } from "../pool/ledger";

/** One call of a client, from its invocation to its answer. Times are of one monotonic clock. */
export interface Operation {
  process: string;
  owner: string;
  call: Entry["call"];
  /** The lease id that `use` and `release` were called with. */
  leaseId?: string;
  invokedAt: number;
  /** Infinity where the outcome is unknown. */
  answeredAt: number;
  outcome: Outcome;
}

/**
 * `ok` without a lease: a release, or a find of nothing. `fail`: the call had no effect, since the pool was full or the lease id was not
 * current. `unknown`: the process was killed, or the store did not answer: it may take effect at any later time, or never.
 */
export type Outcome = { type: "ok"; lease?: GrantedLease } | { type: "fail" } | { type: "unknown" };

/** The calls that one process has recorded. */
export const operationsOf = (process: string, entries: Entry[]): Operation[] =>
  entries.map((entry) => {
    const outcome = outcomeOf(entry.result);
    return {
      process,
      owner: entry.owner,
      call: entry.call,
      ...("leaseId" in entry && { leaseId: entry.leaseId }),
      invokedAt: entry.at,
      answeredAt: outcome.type === "unknown" ? Infinity : entry.answeredAt!,
      outcome,
    };
  });

/** Errors which say that nothing was done. */
const REFUSALS = ["POOL_EXHAUSTED", "LEASE_FENCED"];

function outcomeOf(result: CallResult | undefined): Outcome {
  if (!result) return { type: "unknown" };
  if ("got" in result) return { type: "ok", lease: result.got };
  if ("none" in result) return { type: "ok" };
  if ("did" in result) return { type: result.did ? "ok" : "fail" };
  return { type: REFUSALS.includes(result.failed) ? "fail" : "unknown" };
}

/** One line for each operation, in the order of their invocations; times in milliseconds since the first. */
export function describeOperations(operations: Operation[]): string[] {
  const sorted = [...operations].sort((a, b) => a.invokedAt - b.invokedAt);
  const time = (at: number) => (at === Infinity ? "?" : ((at - sorted[0]!.invokedAt) / 1000).toFixed(3));
  return sorted.map(({ process, owner, call, leaseId, invokedAt, answeredAt, outcome }) => {
    const what = `${call}(${[owner, leaseId].filter(Boolean).join(", ")})`;
    return `${time(invokedAt)}–${time(answeredAt)} ms  ${process}  ${what} → ${describeOutcome(outcome)}`;
  });
}

function describeOutcome(outcome: Outcome): string {
  if (outcome.type !== "ok") return outcome.type;
  const { lease } = outcome;
  return lease ? `${describeValue(lease.value)} ${lease.state}, ${lease.leaseId}` : "ok";
}

export const describeValue = (value: string): string => formatIp(BigInt(`0x${value}`));
