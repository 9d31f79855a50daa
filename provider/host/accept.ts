import type { Facts } from "../network/facts";
import { blockedRemovals } from "../network/foreign-rules";
import { onThisHost } from "../network/on-host";
import { preflight } from "../network/preflight";
import type { Want } from "../network/steps";
import { onHost, withHost } from "./answer";
import type { Plan, Seen, Work } from "./reconcile";
import { earlierLives, planRecord, type RecordWork, recordOf, refuseUnplanned } from "./records";
import type { Host } from "./types";

/** Decides which of the work that waits for a host can be done, before anything is written. */

export interface Job {
  host: Host;
  want: Want | Plan | Work;
  done(seen: Seen): void;
  fail(error: unknown): void;
}

export interface Accepted extends RecordWork {
  job: Job;
}

export const isWork = (want: Job["want"]): want is Work => "fence" in want;

/** Fenced off and foreign work is refused here, before anything is written. */
export async function accept(host: Host, jobs: Job[], facts: Facts): Promise<Accepted[]> {
  const accepted: Accepted[] = [];
  for (const job of jobs) {
    if (!isWork(job.want)) continue;
    try {
      await job.want.fence();
      const want = onThisHost({ ...job.want, earlier: await earlierLives(job.want, facts) }, facts);
      const planned = accepted.map(({ want }) => recordOf(want));
      onHost(host, () => refuseUnplanned(want, facts));
      onHost(host, () => preflight(want, { ...facts, records: [...facts.records, ...planned] }));
      accepted.push({ job, ...planRecord(want, facts) });
    } catch (error) {
      job.fail(error);
    }
  }
  return withoutBlocked(host, accepted, facts);
}

/** Refuses work whose chains cannot be removed. Which chains stay depends on what is refused, so the rest is checked again. */
function withoutBlocked(host: Host, accepted: Accepted[], facts: Facts): Accepted[] {
  const blocked = blockedRemovals(wantsOf(accepted), facts);
  if (blocked.size === 0) return accepted;
  for (const { job, want } of accepted) {
    const error = blocked.get(want.record.uid);
    if (error) job.fail(withHost(host, error));
  }
  const rest = accepted.filter(({ want }) => !blocked.has(want.record.uid));
  return withoutBlocked(host, rest, facts);
}

export const wantsOf = (accepted: Accepted[]): Work[] => accepted.map(({ want }) => want);
