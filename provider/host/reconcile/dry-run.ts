import { keptWarnings } from "../../network/diff/other-routing";
import { factsAfterRemoval, planSteps } from "../../network/diff/steps";
import { diffItems } from "../../network/kinds";
import type { Facts } from "../../network/model/facts";
import { type HostRecord, type Item, readMismatch, type Step, type ValueChange } from "../../network/model/items";
import { isBootFile } from "../../network/model/record";
import { adaptToHost } from "../../network/plan/this-host";
import { findBlockedRemovals } from "../../network/preflight/foreign-rules";
import { preflightScript } from "../../network/read/facts";
import { renderChange } from "../../network/render/script";
import type { Host } from "../connection";
import { acceptedRequests } from "./change";
import { findLostRecords, linksOf, parseHostFacts, withHostName } from "./host-state";
import { acceptRequests } from "./reconciler";
import type { ApplyRequest, Job } from "./requests";

/** Computes what an apply would do, without changing the host. */

export interface DryRun {
  steps: PlannedStep[];
  /** The script that would be sent, without the lines that write records. */
  script: string;
  /** The same without the files and units that restore everything at boot. Empty if only these change. */
  commands: string;
  /** Records that would be written, each with its number of items. */
  records: HostRecord[];
  /** What up would warn of. */
  warnings: string[];
  /** Why some of the requests would be refused. */
  refused: unknown[];
}

/** A step, with the values that it changes. */
export type PlannedStep = Step & {
  values: ValueChange[];
  /** What is wrong beside values. */
  faults: string[];
};

/** What an apply of these requests would do to the host: removals first. Changes nothing, and takes no lock. */
export async function dryRun(host: Host, requests: ApplyRequest[]): Promise<DryRun> {
  const facts = parseHostFacts(host, await host.exec(preflightScript(requests), "reading its state"));
  await findLostRecords(requests, facts);
  facts.desiredLinks = linksOf(requests);
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
  const [script, commands] = [steps, steps.filter(({ item }) => !isForBoot(item))].map((each) =>
    each.length > 0 ? renderChange(each, []) : "",
  ) as [string, string];
  return {
    steps: steps.map((step) => withValues(step, after)),
    script,
    commands,
    records,
    warnings: keptWarnings(steps),
    refused,
  };
}

const isForBoot = (item: Item): boolean => item.kind === "service" || (item.kind === "file" && isBootFile(item.path));

function withValues(step: Step, facts: Facts): PlannedStep {
  const wrong = step.verb === "change" ? diffItems([step.item], facts).flatMap((difference) => difference.wrong) : [];
  const values = wrong.flatMap((text) => readMismatch(text) ?? []);
  return { ...step, values, faults: wrong.filter((text) => readMismatch(text) === undefined) };
}

const toJob = (host: Host, request: ApplyRequest, refused: unknown[]): Job => ({
  action: "apply",
  host,
  request,
  done: () => {},
  fail: (error) => refused.push(error),
});
