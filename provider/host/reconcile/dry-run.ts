import { afterRemoval, planSteps } from "../../network/diff/steps";
import type { HostRecord } from "../../network/model/items";
import type { Step } from "../../network/model/steps";
import { onThisHost } from "../../network/plan/this-host";
import { blockedRemovals } from "../../network/preflight/foreign-rules";
import { preflightScript } from "../../network/read/facts";
import { renderChange } from "../../network/render/script";
import type { Host } from "../connection";
import { accept, wantsOf } from "./conversation";
import { readFacts, withHost } from "./facts";
import type { Job, Work } from "./types";

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
export async function dryRun(host: Host, works: Work[]): Promise<DryRun> {
  const facts = readFacts(host, await host.exec(preflightScript(works.map(({ record }) => record))));
  const refused: unknown[] = [];
  const ending = works.filter(({ items }) => items.length === 0).map((work) => onThisHost(work, facts));
  const blocked = blockedRemovals(ending, facts);
  for (const error of blocked.values()) refused.push(withHost(host, error));
  const leaving = ending.filter(({ record }) => !blocked.has(record.uid));
  const before = planSteps(leaving, facts);
  const cleared = afterRemoval(before, leaving, facts);
  const jobs = works.filter(({ items }) => items.length > 0).map((want) => jobOf(host, want, refused));
  const accepted = await accept(host, jobs, cleared);
  const steps = [...before, ...planSteps(wantsOf(accepted), cleared)];
  const records = accepted.flatMap(({ union }) => union);
  return { steps, script: steps.length > 0 ? renderChange(steps, []) : "", records, refused };
}

const jobOf = (host: Host, want: Work, refused: unknown[]): Job => ({
  host,
  want,
  done: () => {},
  fail: (error) => refused.push(error),
});
