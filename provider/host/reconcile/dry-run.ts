import { factsAfterRemoval, planSteps } from "../../network/diff/steps";
import type { HostRecord } from "../../network/model/items";
import type { Step } from "../../network/model/steps";
import { adaptToHost } from "../../network/plan/this-host";
import { findBlockedRemovals } from "../../network/preflight/foreign-rules";
import { preflightScript } from "../../network/read/facts";
import { renderChange } from "../../network/render/script";
import type { Host } from "../connection";
import { acceptRequests, desiredOf } from "./conversation";
import { parseHostFacts, withHostName } from "./facts";
import type { ApplyRequest, Job } from "./types";

export interface DryRun {
  steps: Step[];
  /** The very script that would be sent, without the lines that write records. */
  script: string;
  /** Records that would be written, each with its number of items. */
  records: HostRecord[];
  /** Why some of the work would be refused. */
  refused: unknown[];
}

/** What an apply of all this would do to the host: those that leave it first. Changes nothing, and takes no lock. */
export async function dryRun(host: Host, works: ApplyRequest[]): Promise<DryRun> {
  const facts = parseHostFacts(host, await host.exec(preflightScript(works.map(({ record }) => record))));
  const refused: unknown[] = [];
  const ending = works.filter(({ items }) => items.length === 0).map((work) => adaptToHost(work, facts));
  const blocked = findBlockedRemovals(ending, facts);
  for (const error of blocked.values()) refused.push(withHostName(host, error));
  const leaving = ending.filter(({ record }) => !blocked.has(record.uid));
  const before = planSteps(leaving, facts);
  const cleared = factsAfterRemoval(before, leaving, facts);
  const jobs = works.filter(({ items }) => items.length > 0).map((request) => toJob(host, request, refused));
  const accepted = await acceptRequests(host, jobs, cleared);
  const steps = [...before, ...planSteps(desiredOf(accepted), cleared)];
  const records = accepted.flatMap(({ written }) => written);
  return { steps, script: steps.length > 0 ? renderChange(steps, []) : "", records, refused };
}

const toJob = (host: Host, request: ApplyRequest, refused: unknown[]): Job => ({
  host,
  request,
  done: () => {},
  fail: (error) => refused.push(error),
});
