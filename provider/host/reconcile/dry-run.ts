import { keptWarnings } from "../../network/diff/other-routing";
import { factsAfterRemoval, planSteps } from "../../network/diff/steps";
import type { HostRecord, Step } from "../../network/model/items";
import { adaptToHost } from "../../network/plan/this-host";
import { findBlockedRemovals } from "../../network/preflight/foreign";
import { preflightScript } from "../../network/read/facts";
import { renderChange } from "../../network/render/script";
import type { Host } from "../connection";
import { acceptedRequests } from "./change";
import { findLostRecords, parseHostFacts, withHostName } from "./host-state";
import { acceptRequests } from "./reconciler";
import type { ApplyRequest, Job } from "./requests";

/** Computes what an apply would do, without changing the host. */

export interface DryRun {
  steps: Step[];
  /** The script that would be sent, without the lines that write records. */
  script: string;
  /** Records that would be written, each with its number of items. */
  records: HostRecord[];
  /** What up would warn of. */
  warnings: string[];
  /** Why some of the requests would be refused. */
  refused: unknown[];
}

/** What an apply of these requests would do to the host: removals first. Changes nothing, and takes no lock. */
export async function dryRun(host: Host, requests: ApplyRequest[]): Promise<DryRun> {
  const facts = parseHostFacts(host, await host.exec(preflightScript(requests), "reading its state"));
  await findLostRecords(requests, facts);
  const refused: unknown[] = [];
  const removals = requests.filter(({ items }) => items.length === 0).map((request) => adaptToHost(request, facts));
  const blocked = findBlockedRemovals(removals, facts);
  for (const error of blocked.values()) refused.push(withHostName(host, error));
  const removed = removals.filter(({ record }) => !blocked.has(record.uid));
  const removeSteps = planSteps(removed, facts);
  const after = factsAfterRemoval(removeSteps, removed, facts);
  const jobs = requests.filter(({ items }) => items.length > 0).map((request) => toJob(host, request, refused));
  const accepted = await acceptRequests(host, jobs, after);
  const steps = [...removeSteps, ...planSteps(acceptedRequests(accepted), after)];
  const records = accepted.flatMap(({ written }) => written);
  const script = steps.length > 0 ? renderChange(steps, []) : "";
  return { steps, script, records, warnings: keptWarnings(steps), refused };
}

const toJob = (host: Host, request: ApplyRequest, refused: unknown[]): Job => ({
  action: "apply",
  host,
  request,
  done: () => {},
  fail: (error) => refused.push(error),
});
