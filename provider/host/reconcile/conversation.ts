import { keptKeys, ownedItems } from "../../network/diff/ownership";
import { goneItems, planSteps } from "../../network/diff/steps";
import { differences, differenceText } from "../../network/kinds";
import { devicesWith, emptiedBridges, formerPeer } from "../../network/kinds/device";
import { containersOn } from "../../network/kinds/docker";
import type { Difference } from "../../network/kinds/kind";
import type { Facts } from "../../network/model/facts";
import { keyOf } from "../../network/model/items";
import { recordPath, scriptPath } from "../../network/model/paths";
import type { Want } from "../../network/model/steps";
import { localWarnings } from "../../network/plan/local-rules";
import { onThisHost } from "../../network/plan/this-host";
import { foreignDeviceTexts, isForeignDevice } from "../../network/preflight/foreign";
import { foreignRoutes, foreignRouteText } from "../../network/preflight/foreign-routes";
import { blockedRemovals, foreignRuleTexts } from "../../network/preflight/foreign-rules";
import { preflight } from "../../network/preflight/preflight";
import { endangersSsh } from "../../network/preflight/ssh-path";
import { preflightScript, readbackScript, UNREAD } from "../../network/read/facts";
import { UNDO_UNCONFIRMED } from "../../network/render/revert";
import { renderChange, warningsIn } from "../../network/render/script";
import type { Host, Result, Shell } from "../connection";
import { commandFailed, factsOf, onHost, readFacts, withHost } from "./facts";
import { changeCautiously } from "./guarded-change";
import { unpluggedPorts, withLostPorts } from "./lost-ports";
import {
  dockerWarnings,
  earlierLives,
  invalidWarnings,
  isWritten,
  planRecord,
  recordDifferences,
  recordOf,
  refuseUnplanned,
  renderSettled,
} from "./records";
import type { Job, Manner, Plan, RecordWork, Seen, Work } from "./types";

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

export const isPlan = (want: Job["want"]): want is Plan => "isGone" in want && !isWork(want);

/** Answers every job, one way or the other; returns the number of changes made. */
export async function converse(jobs: Job[], later: Job[], manner: Manner): Promise<number> {
  const { host } = jobs[0]!;
  try {
    if (!jobs.some(({ want }) => isWork(want))) {
      const isPreflight = jobs.some(({ want }) => isPlan(want));
      const facts = await (isPreflight ? preflightFactsOf(host, jobs) : factsOf(host));
      join(jobs, later, ({ want }) => !isWork(want) && (isPlan(want) ? isPreflight : isRead(want, facts)));
      for (const warning of invalidWarnings(host.name, [], facts)) manner.warn(warning);
      await answerInspections(host, jobs, facts);
      return 0;
    }
    const holder = jobs.map(({ want }) => want.record.owner).join(", ");
    return await host.locked(holder.slice(0, 200), (shell) => underLock(host, shell, jobs, later, manner));
  } catch (error) {
    for (const job of jobs) job.fail(error);
    return 0;
  }
}

/** What came while the host was being read is not late: nothing of ours has changed it since. */
export function join(jobs: Job[], later: Job[], may: (job: Job) => boolean): void {
  jobs.push(...later.filter(may));
  later.splice(0, later.length, ...later.filter((job) => !may(job)));
}

/** Whether the script of its record was read, and not only seen to be there. */
export const isRead = ({ record }: Want, { files }: Facts): boolean => files.get(scriptPath(record)) !== UNREAD;

/** Facts with what is read before a change only, without the host's lock. */
const preflightFactsOf = async (host: Host, jobs: Job[]): Promise<Facts> =>
  readFacts(host, await host.exec(preflightScript(jobs.map(({ want }) => want.record))));

export async function answerInspections(host: Host, jobs: Job[], facts: Facts): Promise<void> {
  for (const job of jobs) if (isPlan(job.want)) await answerPlan(host, job, job.want, facts);
  for (const { want, done } of jobs) {
    if (isWork(want) || isPlan(want)) continue;
    const fitting = onThisHost(want, facts);
    const found = [
      ...recordDifferences(want, facts),
      ...differences(fitting.items, facts),
      ...emptiedBridges(fitting.items, facts),
    ];
    done(seen(fitting, facts, mendable(found, fitting, facts)));
  }
}

async function answerPlan(host: Host, job: Job, plan: Plan, facts: Facts): Promise<void> {
  const work = { ...plan, fence: async () => {} };
  const [accepted] = await accept(host, [{ ...job, want: work }], facts);
  if (accepted) job.done(seen(accepted.want, facts, []));
}

export const seen = (want: Want, facts: Facts, differences: Difference[]): Seen => ({
  differences,
  foreign: foreignTexts(want, facts),
  containers: containersOn(want.items, facts.docker),
  peerMoves: want.items.some((item) => item.kind === "link" && formerPeer(item, facts) !== undefined),
});

async function underLock(host: Host, shell: Shell, jobs: Job[], later: Job[], manner: Manner): Promise<number> {
  const look = preflightScript(jobs.map(({ want }) => want.record));
  const facts = readFacts(host, await shell.run(`${UNDO_UNCONFIRMED}\n${look}`));
  join(jobs, later, ({ want }) => isRead(want, facts));
  await answerInspections(host, jobs, facts);
  const accepted = await accept(host, jobs, facts);
  const wants = wantsOf(accepted);
  const { steps, warnings } = await withLostPorts(shell, planSteps(wants, facts), wants, facts);
  const records = accepted.flatMap(({ union }) => union);
  const aside = accepted.flatMap(({ aside }) => aside);
  const asked = jobs.map(({ want }) => want);
  for (const warning of [...invalidWarnings(host.name, wants, facts), ...dockerWarnings(host.name, asked, facts)])
    manner.warn(warning);
  let passed = accepted;
  if (steps.length + records.length > 0) {
    const script = renderChange(steps, records, aside);
    const risky = endangersSsh(steps, facts);
    manner.begin(host, wants);
    const result =
      risky.length > 0
        ? await changeCautiously(host, shell, { steps, risky, records, aside, before: facts }, manner.revertAfter)
        : await shell.run(`(\n${script}\n) >&2\necho "@@ applied $?"\n${readbackOf(accepted, facts)}`);
    passed = judge(host, accepted, facts, result, script);
    warnings.push(...warningsIn(result.stderr), ...(await unpluggedPorts(shell, steps)));
    if (steps.length > 0) warnings.push(...new Set(wants.flatMap(({ items }) => localWarnings(items, facts))));
    for (const warning of warnings) manner.warn(`${host.name}: ${warning}`);
    const lasting = accepted.some(({ want, union }) => want.persist && union.length > 0);
    if (lasting && !facts.systemd) manner.warnWithoutSystemd(host);
  }
  const settled = renderSettled(passed, facts);
  if (settled) {
    const { code, stderr } = await shell.run(settled);
    if (code !== 0) throw commandFailed(host, String(code), stderr, settled, []);
  }
  for (const { job, want } of passed) job.done(seen(want, facts, []));
  return steps.length;
}

/** All that this work can have touched, now or before. */
function readbackOf(accepted: Accepted[], facts: Facts): string {
  const items = accepted.flatMap(({ want }) => [...want.items, ...ownedItems(want, facts)]);
  const files = [
    ...items.flatMap((item) => (item.kind === "file" ? [item.path] : [])),
    ...accepted.flatMap(({ union }) => union.map(recordPath)),
  ];
  const devices = items.flatMap((item) => {
    if (item.kind === "link") return [item.name];
    if (item.kind === "zone") return item.underlay ? devicesWith(item.underlay, facts) : [];
    return "dev" in item && item.dev !== undefined ? [item.dev] : [];
  });
  return readbackScript({
    devices: [...new Set(devices)].sort(),
    files: [...new Set(files)].sort(),
    v6: items.some((item) => "family" in item && item.family === 6),
  });
}

/** Each owner is judged by what the host now looks like, not by the exit code of a batch that it shared with others. */
function judge(host: Host, accepted: Accepted[], before: Facts, result: Result, script: string): Accepted[] {
  const code = /^@@ applied (\d+)$/m.exec(result.stdout)?.[1] ?? "none";
  const after = readFacts(host, result);
  const ownOf = (want: Want) => ownedItems(want, before);
  const wants = wantsOf(accepted);
  const keep = keptKeys(wants.flatMap(ownOf), wants, before);
  return accepted.filter((each) => {
    const { job, want } = each;
    const left = goneItems(ownOf(want), keep, after).filter(({ kind }) => kind !== "sysctl");
    const failed = [
      ...(isWritten(each, after) ? [] : [`${recordPath(want.record)}: not written`]),
      ...differences(want.items, after).map(differenceText),
      ...left.map((i) => `${keyOf(i)}: still there`),
    ];
    if (failed.length > 0) job.fail(commandFailed(host, code, result.stderr, script, failed));
    return failed.length === 0;
  });
}

/** Objects of other programs that work against what this owner has on the host, as drift. They are never removed by us. */
export const foreignTexts = (want: Want, facts: Facts): string[] => [
  ...foreignDeviceTexts(want, facts),
  ...foreignRoutes(want, facts).map(foreignRouteText),
  ...foreignRuleTexts(want, facts),
];

/** Without those of devices that other programs have made: no `up` mends them. */
export const mendable = (all: Difference[], want: Want, facts: Facts): Difference[] =>
  all.filter(({ item }) => !isForeignDevice(item, want, facts));
