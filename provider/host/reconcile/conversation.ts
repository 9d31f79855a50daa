import { findKeptKeys, findOwnedItems } from "../../network/diff/ownership";
import { findItemsToRemove, planSteps } from "../../network/diff/steps";
import { diffItems, formatDifference } from "../../network/kinds";
import { devicesWithAddress, findEmptiedBridges, formerPeer } from "../../network/kinds/device";
import { containersOn } from "../../network/kinds/docker";
import type { ItemDifference } from "../../network/kinds/kind";
import type { Facts } from "../../network/model/facts";
import { itemKey } from "../../network/model/items";
import { recordPath, scriptPath } from "../../network/model/paths";
import type { DesiredState } from "../../network/model/steps";
import { localWarnings } from "../../network/plan/local-rules";
import { adaptToHost } from "../../network/plan/this-host";
import { describeForeignDevices, isForeignDevice } from "../../network/preflight/foreign";
import { findForeignRoutes, formatForeignRoute } from "../../network/preflight/foreign-routes";
import { describeForeignRules, findBlockedRemovals } from "../../network/preflight/foreign-rules";
import { preflight } from "../../network/preflight/preflight";
import { findRiskySteps } from "../../network/preflight/ssh-path";
import { NOT_READ, preflightScript, readbackScript } from "../../network/read/facts";
import { REVERT_UNCONFIRMED } from "../../network/render/revert";
import { parseWarnings, renderChange } from "../../network/render/script";
import type { CommandResult, Host, Shell } from "../connection";
import { commandFailed, namingHost, parseHostFacts, readHostFacts, withHostName } from "./facts";
import { applyGuarded } from "./guarded-change";
import { findUnpluggedPorts, withLostPorts } from "./lost-ports";
import {
  desiredRecord,
  dockerWarnings,
  findStaleUids,
  invalidWarnings,
  planRecord,
  recordDifferences,
  refuseUnplanned,
  renderFinalRecords,
  wasRecordWritten,
} from "./records";
import type { ApplyRequest, CheckRequest, InspectResult, Job, ReconcileOptions, RecordChange } from "./types";

export interface Accepted extends RecordChange {
  job: Job;
}

export const isApply = (request: Job["request"]): request is ApplyRequest => "fence" in request;

/** Fenced off and foreign work is refused here, before anything is written. */
export async function acceptRequests(host: Host, jobs: Job[], facts: Facts): Promise<Accepted[]> {
  const accepted: Accepted[] = [];
  for (const job of jobs) {
    if (!isApply(job.request)) continue;
    try {
      await job.request.fence();
      const request: ApplyRequest = { ...job.request, staleUids: await findStaleUids(job.request, facts) };
      const desired = adaptToHost(request, facts);
      const planned = accepted.map(({ desired }) => desiredRecord(desired));
      namingHost(host, () => refuseUnplanned(desired, facts));
      namingHost(host, () => preflight(desired, { ...facts, records: [...facts.records, ...planned] }));
      accepted.push({ job, ...planRecord(desired, facts) });
    } catch (error) {
      job.fail(error);
    }
  }
  return refuseBlocked(host, accepted, facts);
}

/** Refuses work whose chains cannot be removed. Which chains stay depends on what is refused, so the rest is checked again. */
function refuseBlocked(host: Host, accepted: Accepted[], facts: Facts): Accepted[] {
  const blocked = findBlockedRemovals(desiredOf(accepted), facts);
  if (blocked.size === 0) return accepted;
  for (const { job, desired } of accepted) {
    const error = blocked.get(desired.record.uid);
    if (error) job.fail(withHostName(host, error));
  }
  const rest = accepted.filter(({ desired }) => !blocked.has(desired.record.uid));
  return refuseBlocked(host, rest, facts);
}

export const desiredOf = (accepted: Accepted[]): ApplyRequest[] => accepted.map(({ desired }) => desired);

export const isCheck = (request: Job["request"]): request is CheckRequest =>
  "isLeaseGone" in request && !isApply(request);

/** Answers every job, one way or the other; returns the number of changes made. */
export async function runConversation(jobs: Job[], later: Job[], manner: ReconcileOptions): Promise<number> {
  const { host } = jobs[0]!;
  try {
    if (!jobs.some(({ request }) => isApply(request))) {
      const isPreflight = jobs.some(({ request }) => isCheck(request));
      const facts = await (isPreflight ? readPreflightFacts(host, jobs) : readHostFacts(host));
      mergeWaiting(
        jobs,
        later,
        ({ request }) => !isApply(request) && (isCheck(request) ? isPreflight : wasScriptRead(request, facts)),
      );
      for (const warning of invalidWarnings(host.name, [], facts)) manner.warn(warning);
      await answerInspections(host, jobs, facts);
      return 0;
    }
    const holder = jobs.map(({ request }) => request.record.owner).join(", ");
    return await host.withLock(holder.slice(0, 200), (shell) => applyUnderLock(host, shell, jobs, later, manner));
  } catch (error) {
    for (const job of jobs) job.fail(error);
    return 0;
  }
}

/** What came while the host was being read is not late: nothing of ours has changed it since. */
export function mergeWaiting(jobs: Job[], later: Job[], may: (job: Job) => boolean): void {
  jobs.push(...later.filter(may));
  later.splice(0, later.length, ...later.filter((job) => !may(job)));
}

/** Whether the script of its record was read, and not only seen to be there. */
export const wasScriptRead = ({ record }: DesiredState, { files }: Facts): boolean =>
  files.get(scriptPath(record)) !== NOT_READ;

/** Facts with what is read before a change only, without the host's lock. */
const readPreflightFacts = async (host: Host, jobs: Job[]): Promise<Facts> =>
  parseHostFacts(host, await host.exec(preflightScript(jobs.map(({ request }) => request.record))));

export async function answerInspections(host: Host, jobs: Job[], facts: Facts): Promise<void> {
  for (const job of jobs) if (isCheck(job.request)) await answerCheck(host, job, job.request, facts);
  for (const { request, done } of jobs) {
    if (isApply(request) || isCheck(request)) continue;
    const fitting = adaptToHost(request, facts);
    const found = [
      ...recordDifferences(request, facts),
      ...diffItems(fitting.items, facts),
      ...findEmptiedBridges(fitting.items, facts),
    ];
    done(inspectResult(fitting, facts, excludeForeign(found, fitting, facts)));
  }
}

async function answerCheck(host: Host, job: Job, plan: CheckRequest, facts: Facts): Promise<void> {
  const work = { ...plan, fence: async () => {} };
  const [accepted] = await acceptRequests(host, [{ ...job, request: work }], facts);
  if (accepted) job.done(inspectResult(accepted.desired, facts, []));
}

export const inspectResult = (desired: DesiredState, facts: Facts, differences: ItemDifference[]): InspectResult => ({
  differences,
  foreign: describeForeign(desired, facts),
  containers: containersOn(desired.items, facts.docker),
  peerMoves: desired.items.some((item) => item.kind === "link" && formerPeer(item, facts) !== undefined),
});

async function applyUnderLock(
  host: Host,
  shell: Shell,
  jobs: Job[],
  later: Job[],
  manner: ReconcileOptions,
): Promise<number> {
  const look = preflightScript(jobs.map(({ request }) => request.record));
  const facts = parseHostFacts(host, await shell.run(`${REVERT_UNCONFIRMED}\n${look}`));
  mergeWaiting(jobs, later, ({ request }) => wasScriptRead(request, facts));
  await answerInspections(host, jobs, facts);
  const accepted = await acceptRequests(host, jobs, facts);
  const desiredStates = desiredOf(accepted);
  const { steps, warnings } = await withLostPorts(shell, planSteps(desiredStates, facts), desiredStates, facts);
  const records = accepted.flatMap(({ written }) => written);
  const aside = accepted.flatMap(({ invalidFiles }) => invalidFiles);
  const asked = jobs.map(({ request }) => request);
  for (const warning of [
    ...invalidWarnings(host.name, desiredStates, facts),
    ...dockerWarnings(host.name, asked, facts),
  ])
    manner.warn(warning);
  let passed = accepted;
  if (steps.length + records.length > 0) {
    const script = renderChange(steps, records, aside);
    const risky = findRiskySteps(steps, facts);
    manner.begin(host, desiredStates);
    const result =
      risky.length > 0
        ? await applyGuarded(host, shell, { steps, risky, records, aside, before: facts }, manner.revertAfter)
        : await shell.run(`(\n${script}\n) >&2\necho "@@ applied $?"\n${renderReadback(accepted, facts)}`);
    passed = checkResult(host, accepted, facts, result, script);
    warnings.push(...parseWarnings(result.stderr), ...(await findUnpluggedPorts(shell, steps)));
    if (steps.length > 0) warnings.push(...new Set(desiredStates.flatMap(({ items }) => localWarnings(items, facts))));
    for (const warning of warnings) manner.warn(`${host.name}: ${warning}`);
    const lasting = accepted.some(({ desired, written }) => desired.persist && written.length > 0);
    if (lasting && !facts.systemd) manner.warnWithoutSystemd(host);
  }
  const settled = renderFinalRecords(passed, facts);
  if (settled) {
    const { code, stderr } = await shell.run(settled);
    if (code !== 0) throw commandFailed(host, String(code), stderr, settled, []);
  }
  for (const { job, desired } of passed) job.done(inspectResult(desired, facts, []));
  return steps.length;
}

/** All that this work can have touched, now or before. */
function renderReadback(accepted: Accepted[], facts: Facts): string {
  const items = accepted.flatMap(({ desired }) => [...desired.items, ...findOwnedItems(desired, facts)]);
  const files = [
    ...items.flatMap((item) => (item.kind === "file" ? [item.path] : [])),
    ...accepted.flatMap(({ written }) => written.map(recordPath)),
  ];
  const devices = items.flatMap((item) => {
    if (item.kind === "link") return [item.name];
    if (item.kind === "zone") return item.underlay ? devicesWithAddress(item.underlay, facts) : [];
    return "dev" in item && item.dev !== undefined ? [item.dev] : [];
  });
  return readbackScript({
    devices: [...new Set(devices)].sort(),
    files: [...new Set(files)].sort(),
    v6: items.some((item) => "family" in item && item.family === 6),
  });
}

/** Each owner is judged by what the host now looks like, not by the exit code of a batch that it shared with others. */
function checkResult(
  host: Host,
  accepted: Accepted[],
  before: Facts,
  result: CommandResult,
  script: string,
): Accepted[] {
  const code = /^@@ applied (\d+)$/m.exec(result.stdout)?.[1] ?? "none";
  const after = parseHostFacts(host, result);
  const ownOf = (desired: DesiredState) => findOwnedItems(desired, before);
  const desiredStates = desiredOf(accepted);
  const keep = findKeptKeys(desiredStates.flatMap(ownOf), desiredStates, before);
  return accepted.filter((each) => {
    const { job, desired } = each;
    const left = findItemsToRemove(ownOf(desired), keep, after).filter(({ kind }) => kind !== "sysctl");
    const failed = [
      ...(wasRecordWritten(each, after) ? [] : [`${recordPath(desired.record)}: not written`]),
      ...diffItems(desired.items, after).map(formatDifference),
      ...left.map((i) => `${itemKey(i)}: still there`),
    ];
    if (failed.length > 0) job.fail(commandFailed(host, code, result.stderr, script, failed));
    return failed.length === 0;
  });
}

/** Objects of other programs that work against what this owner has on the host, as drift. They are never removed by us. */
export const describeForeign = (desired: DesiredState, facts: Facts): string[] => [
  ...describeForeignDevices(desired, facts),
  ...findForeignRoutes(desired, facts).map(formatForeignRoute),
  ...describeForeignRules(desired, facts),
];

/** Without those of devices that other programs have made: no `up` mends them. */
export const excludeForeign = (all: ItemDifference[], desired: DesiredState, facts: Facts): ItemDifference[] =>
  all.filter(({ item }) => !isForeignDevice(item, desired, facts));
