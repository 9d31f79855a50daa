import { findKeptKeys, findOwnedItems } from "../../network/diff/ownership";
import { findItemsToRemove, planSteps } from "../../network/diff/steps";
import { diffItems, formatDifference } from "../../network/kinds";
import { devicesWithAddress, findEmptiedBridges, formerPeer } from "../../network/kinds/device";
import { containersOn } from "../../network/kinds/docker";
import type { Facts } from "../../network/model/facts";
import { type DesiredState, type ItemDifference, itemKey, type Step } from "../../network/model/items";
import { recordPath, scriptPath } from "../../network/model/record";
import { localWarnings } from "../../network/plan/local-rules";
import { adaptToHost } from "../../network/plan/this-host";
import { describeForeign, excludeForeign } from "../../network/preflight/foreign";
import { findBlockedRemovals } from "../../network/preflight/foreign-rules";
import { preflight } from "../../network/preflight/preflight";
import { findRiskySteps } from "../../network/preflight/ssh-path";
import { filesOf, NOT_READ, preflightScript, readbackScript } from "../../network/read/facts";
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
import type { ApplyJob, ApplyRequest, CheckJob, InspectResult, Job, ReconcileOptions, RecordChange } from "./types";

/** An accepted request, with what it does to its record. */
export interface Accepted extends RecordChange {
  job: ApplyJob;
}

/** Answers every job, with a result or an error, and returns the number of steps applied. `later` gets the jobs that arrive meanwhile. */
export async function runConversation(jobs: Job[], later: Job[], options: ReconcileOptions): Promise<number> {
  const { host } = jobs[0]!;
  try {
    if (jobs.every(({ action }) => action !== "apply")) return await inspectWithoutLock(host, jobs, later, options);
    const holder = requestsOf(jobs)
      .map(({ record }) => record.owner)
      .join(", ");
    return await host.withLock(holder.slice(0, 200), (shell) => applyUnderLock(host, shell, jobs, later, options));
  } catch (error) {
    for (const job of jobs) job.fail(error);
    return 0;
  }
}

const requestsOf = (jobs: Job[]): DesiredState[] => jobs.map(({ request }) => request);

async function inspectWithoutLock(host: Host, jobs: Job[], later: Job[], options: ReconcileOptions): Promise<0> {
  const isPreflight = jobs.some(({ action }) => action === "check");
  const requests = requestsOf(jobs);
  const facts = await (isPreflight ? readPreflightFacts(host, requests) : readHostFacts(host, requests));
  mergeWaiting(
    jobs,
    later,
    requests,
    facts,
    ({ action }) => action === "inspect" || (action === "check" && isPreflight),
  );
  for (const warning of invalidWarnings(host.name, [], facts)) options.warn(warning);
  await answerInspections(host, jobs, facts);
  return 0;
}

/** Facts with what is read only before a change, without the host's lock. */
const readPreflightFacts = async (host: Host, requests: DesiredState[]): Promise<Facts> =>
  parseHostFacts(host, await host.exec(preflightScript(requests)));

/**
 * Jobs that arrived while the host was being read join this conversation: nothing of ours has changed the host since. The files that
 * they name must have been read, and not only seen.
 */
function mergeWaiting(
  jobs: Job[],
  later: Job[],
  requests: DesiredState[],
  { files }: Facts,
  isPossible: (job: Job) => boolean,
): void {
  const read = new Set(requests.flatMap(filesOf));
  const canJoin = (job: Job): boolean =>
    isPossible(job) &&
    (job.action === "check" || files.get(scriptPath(job.request.record)) !== NOT_READ) &&
    filesOf(job.request).every((path) => read.has(path));
  jobs.push(...later.filter(canJoin));
  later.splice(0, later.length, ...later.filter((job) => !canJoin(job)));
}

async function answerInspections(host: Host, jobs: Job[], facts: Facts): Promise<void> {
  for (const job of jobs) if (job.action === "check") await answerCheck(host, job, facts);
  for (const { action, request, done } of jobs) {
    if (action !== "inspect") continue;
    const desired = adaptToHost(request, facts);
    const differences = [
      ...recordDifferences(request, facts),
      ...diffItems(desired.items, facts),
      ...findEmptiedBridges(desired.items, facts),
    ];
    done(inspectResult(desired, facts, excludeForeign(differences, desired, facts)));
  }
}

async function answerCheck(host: Host, { request, ...waiting }: CheckJob, facts: Facts): Promise<void> {
  const job: ApplyJob = { ...waiting, action: "apply", request: { ...request, fence: async () => {} } };
  const [accepted] = await acceptRequests(host, [job], facts);
  if (accepted) job.done(inspectResult(accepted.desired, facts, []));
}

const inspectResult = (desired: DesiredState, facts: Facts, differences: ItemDifference[]): InspectResult => ({
  differences,
  foreign: describeForeign(desired, facts),
  containers: containersOn(desired.items, facts.docker),
  peerMoves: desired.items.some((item) => item.kind === "link" && formerPeer(item, facts) !== undefined),
});

/** Accepts the requests that can be applied, and refuses the others, before anything is written. */
export async function acceptRequests(host: Host, jobs: Job[], facts: Facts): Promise<Accepted[]> {
  const accepted: Accepted[] = [];
  for (const job of jobs) {
    if (job.action !== "apply") continue;
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

/** Refuses requests whose chains cannot be removed. Which chains stay depends on what is refused, so the others are checked again. */
function refuseBlocked(host: Host, accepted: Accepted[], facts: Facts): Accepted[] {
  const blocked = findBlockedRemovals(desiredOf(accepted), facts);
  if (blocked.size === 0) return accepted;
  for (const { job, desired } of accepted) {
    const error = blocked.get(desired.record.uid);
    if (error) job.fail(withHostName(host, error));
  }
  const others = accepted.filter(({ desired }) => !blocked.has(desired.record.uid));
  return refuseBlocked(host, others, facts);
}

export const desiredOf = (accepted: Accepted[]): ApplyRequest[] => accepted.map(({ desired }) => desired);

async function applyUnderLock(
  host: Host,
  shell: Shell,
  jobs: Job[],
  later: Job[],
  options: ReconcileOptions,
): Promise<number> {
  const requests = requestsOf(jobs);
  const facts = parseHostFacts(host, await shell.run(`${REVERT_UNCONFIRMED}\n${preflightScript(requests)}`));
  mergeWaiting(jobs, later, requests, facts, () => true);
  await answerInspections(host, jobs, facts);
  const accepted = await acceptRequests(host, jobs, facts);
  const states = desiredOf(accepted);
  const { steps, warnings } = await withLostPorts(shell, planSteps(states, facts), states, facts);
  for (const warning of invalidWarnings(host.name, states, facts)) options.warn(warning);
  for (const warning of dockerWarnings(host.name, requestsOf(jobs), facts)) options.warn(warning);
  let passed = accepted;
  if (steps.length > 0 || accepted.some(({ written }) => written.length > 0)) {
    options.begin(host, states);
    const { script, result } = await applySteps(host, shell, accepted, steps, facts, options.revertAfter);
    passed = checkResult(host, accepted, facts, result, script);
    warnings.push(...parseWarnings(result.stderr), ...(await findUnpluggedPorts(shell, steps)));
    if (steps.length > 0) warnings.push(...new Set(states.flatMap(({ items }) => localWarnings(items, facts))));
    for (const warning of warnings) options.warn(`${host.name}: ${warning}`);
    const isPersistent = accepted.some(({ desired, written }) => desired.persist && written.length > 0);
    if (isPersistent && !facts.systemd) options.warnWithoutSystemd(host);
  }
  const final = renderFinalRecords(passed, facts);
  if (final) {
    const { code, stderr } = await shell.run(final);
    if (code !== 0) throw commandFailed(host, String(code), stderr, final, []);
  }
  for (const { job, desired } of passed) job.done(inspectResult(desired, facts, []));
  return steps.length;
}

/** Writes the records, applies the steps and reads back, in one message; in several if a step could cut SSH. */
async function applySteps(
  host: Host,
  shell: Shell,
  accepted: Accepted[],
  steps: Step[],
  facts: Facts,
  revertAfter: number,
): Promise<{ script: string; result: CommandResult }> {
  const records = accepted.flatMap(({ written }) => written);
  const invalidFiles = accepted.flatMap((each) => each.invalidFiles);
  const script = renderChange(steps, records, invalidFiles);
  const risky = findRiskySteps(steps, facts);
  if (risky.length === 0) {
    const readback = renderReadback(accepted, facts);
    return { script, result: await shell.run(`(\n${script}\n) >&2\necho "@@ applied $?"\n${readback}`) };
  }
  const change = { steps, states: desiredOf(accepted), risky, records, invalidFiles, before: facts };
  return { script, result: await applyGuarded(host, shell, change, revertAfter) };
}

/** Reads all that these requests can have changed, now or before. */
function renderReadback(accepted: Accepted[], facts: Facts): string {
  const items = accepted.flatMap(({ desired }) => [...desired.items, ...findOwnedItems(desired, facts)]);
  const files = [...filesOf({ items }), ...accepted.flatMap(({ written }) => written.map(recordPath))];
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

/** The requests whose desired state the host now has. The exit code is that of a batch which several owners share, and decides nothing. */
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
  const states = desiredOf(accepted);
  const keep = findKeptKeys(states.flatMap(ownOf), states, before);
  return accepted.filter((each) => {
    const { job, desired } = each;
    const remaining = findItemsToRemove(ownOf(desired), keep, after).filter(({ kind }) => kind !== "sysctl");
    const failed = [
      ...(wasRecordWritten(each, after) ? [] : [`${recordPath(desired.record)}: not written`]),
      ...diffItems(desired.items, after).map(formatDifference),
      ...remaining.map((item) => `${itemKey(item)}: still there`),
    ];
    if (failed.length > 0) job.fail(commandFailed(host, code, result.stderr, script, failed));
    return failed.length === 0;
  });
}
