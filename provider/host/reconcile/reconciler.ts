import { findDifferences } from "../../network/diff/differences";
import { keptWarnings } from "../../network/diff/other-routing";
import { isOwnRecord } from "../../network/diff/ownership";
import { planSteps } from "../../network/diff/steps";
import { formerPeer } from "../../network/kinds/device";
import { containersOn, keptMtuWarnings } from "../../network/kinds/docker";
import { threadedWarnings } from "../../network/kinds/wireguard";
import type { Facts } from "../../network/model/facts";
import type { DesiredState, ItemDifference } from "../../network/model/items";
import { BOOT_SCRIPT, scriptPath } from "../../network/model/record";
import { findNeighbours } from "../../network/plan/probes";
import { adaptToHost, localWarnings } from "../../network/plan/this-host";
import { describeForeign, excludeForeign } from "../../network/preflight/foreign";
import { findBlockedRemovals } from "../../network/preflight/foreign-rules";
import { preflight } from "../../network/preflight/preflight";
import { filesOf, NOT_READ, preflightScript } from "../../network/read/facts";
import { parseWarnings, REVERT_UNCONFIRMED } from "../../network/render/script";
import { LOCK_HOLDER_FILE } from "../../network/render/shell";
import type { Host, Shell } from "../connection";
import { acceptedRequests, applySteps, checkResult, findUnpluggedPorts, withLostPorts } from "./change";
import {
  commandFailedError,
  desiredRecord,
  dockerWarnings,
  findLostRecords,
  findStaleUids,
  invalidWarnings,
  linksOf,
  nameHostInErrors,
  parseHostFacts,
  planRecord,
  readHostFacts,
  refuseUnplanned,
  renderFinalRecords,
  withHostName,
} from "./host-state";
import type {
  Accepted,
  ApplyJob,
  ApplyRequest,
  CheckJob,
  CheckRequest,
  ConversationReport,
  InspectResult,
  Job,
  ReconcileOptions,
} from "./requests";

/**
 * Brings hosts to the desired state: lock, facts, is the lease still ours?, steps, one batch, read back. It compares with the host,
 * never with memory. Requests that wait for one host share one conversation, so that 63 runners do not cause 63 scans of
 * the hub; the error of one owner does not fail the others.
 */
export class Reconciler {
  readonly #waiting = new Map<string, Job[]>();
  readonly #options: ReconcileOptions;
  /** Names of hosts without systemd, by id; undefined: the user was warned. */
  readonly #withoutSystemd = new Map<string, string | undefined>();
  readonly #written = new Set<string>();

  constructor(
    private readonly onConversation: (report: ConversationReport) => void = () => {},
    options: Partial<ReconcileOptions> = {},
  ) {
    const begin = ({ id }: Host, states: DesiredState[]): void => {
      for (const { record } of states) this.#written.add(`${id} ${record.uid}`);
    };
    const warnWithoutSystemd = (host: Host): void => this.#addWithoutSystemd(host);
    this.#options = { warn: () => {}, revertAfter: 60, ...options, begin, warnWithoutSystemd };
  }

  /** Changes the host until it has the desired state; one without items removes everything of this owner. */
  apply(host: Host, request: ApplyRequest): Promise<InspectResult> {
    return this.#enqueue((waiting) => ({ action: "apply", request, host, ...waiting }));
  }

  /** How the host differs from the desired state. Changes nothing. */
  inspect(host: Host, request: CheckRequest): Promise<InspectResult> {
    return this.#enqueue((waiting) => ({ action: "inspect", request, host, ...waiting }));
  }

  /** Throws the error with which an apply of this request would be refused. Changes nothing. */
  check(host: Host, request: CheckRequest): Promise<InspectResult> {
    return this.#enqueue((waiting) => ({ action: "check", request, host, ...waiting }));
  }

  /** Whether a write for this owner was begun on the host with this id. */
  wasWritten(id: string, uid: string): boolean {
    return this.#written.has(`${id} ${uid}`);
  }

  #addWithoutSystemd({ id, name }: Host): void {
    if (!this.#withoutSystemd.has(id)) this.#withoutSystemd.set(id, name);
  }

  /** One warning for all hosts that are done at the same time. */
  #warnWithoutSystemd(): void {
    const names = [...this.#withoutSystemd.values()].filter((name) => name !== undefined);
    if (names.length > 0) this.#options.warn(systemdWarning(names));
    for (const id of this.#withoutSystemd.keys()) this.#withoutSystemd.set(id, undefined);
  }

  #enqueue(toJob: (waiting: Pick<Job, "done" | "fail">) => Job): Promise<InspectResult> {
    return new Promise((done, fail) => {
      const job = toJob({ done, fail });
      const waiting = this.#waiting.get(job.host.id);
      if (waiting) waiting.push(job);
      else {
        this.#waiting.set(job.host.id, [job]);
        void this.#drain(job.host);
      }
    });
  }

  async #drain({ id, name }: Host): Promise<void> {
    for (let jobs = this.#waiting.get(id)!; jobs.length > 0; jobs = this.#waiting.get(id)!) {
      const later: Job[] = [];
      this.#waiting.set(id, later);
      const started = performance.now();
      const steps = await runConversation(jobs, later, this.#options);
      const works = jobs.filter(({ action }) => action === "apply").length;
      const milliseconds = Math.round(performance.now() - started);
      this.onConversation({ host: name, works, inspections: jobs.length - works, steps, milliseconds });
    }
    this.#waiting.delete(id);
    if (this.#waiting.size === 0) this.#warnWithoutSystemd();
  }
}

const systemdWarning = (names: string[]): string =>
  `Hosts without systemd: ${names.sort().join(", ")}. They do not restore their part of the overlay after a boot until their init runs ` +
  `\`sh ${BOOT_SCRIPT}\`, or until the next \`pulumi up --refresh\`. Set persist: false if that is meant.`;

/** Answers every job, with a result or an error, and returns the number of steps applied. `later` gets the jobs that arrive meanwhile. */
async function runConversation(jobs: Job[], later: Job[], options: ReconcileOptions): Promise<number> {
  const { host } = jobs[0]!;
  let watch: NodeJS.Timeout | undefined;
  try {
    if (jobs.every(({ action }) => action !== "apply")) return await inspectWithoutLock(host, jobs, later, options);
    watch = setTimeout(() => void reportHolder(host, jobs).catch(() => {}), HOLDER_AFTER_MS).unref();
    const holder = requestsOf(jobs)
      .map(({ record }) => record.owner)
      .join(", ");
    return await host.withLock(holder.slice(0, 200), (shell) => {
      clearTimeout(watch);
      return applyUnderLock(host, shell, jobs, later, options);
    });
  } catch (error) {
    for (const job of jobs) job.fail(error);
    return 0;
  } finally {
    clearTimeout(watch);
  }
}

/** A lock that is not free by then is held by another run. */
const HOLDER_AFTER_MS = 1000;

async function reportHolder(host: Host, jobs: Job[]): Promise<void> {
  const { stdout } = await host.exec(`cat ${LOCK_HOLDER_FILE}`, "reading what holds its lock");
  const [holder, since] = stdout.split("\n");
  if (holder)
    report(jobs, `waiting for the lock of ${host.name}, held by ${holder} since ${since || "an unknown time"}`);
}

function report(jobs: Pick<Job, "request">[], text: string): void {
  for (const { request } of jobs) request.report?.(text);
}

const requestsOf = (jobs: Job[]): CheckRequest[] => jobs.map(({ request }) => request);

async function inspectWithoutLock(host: Host, jobs: Job[], later: Job[], options: ReconcileOptions): Promise<0> {
  const isPreflight = jobs.some(({ action }) => action === "check");
  const requests = requestsOf(jobs);
  report(jobs, `reading ${host.name}`);
  const facts = await (isPreflight ? readPreflightFacts(host, requests) : readHostFacts(host, requests));
  await findLostRecords(requests, facts);
  mergeWaiting(
    jobs,
    later,
    requests,
    facts,
    ({ action }) => action === "inspect" || (action === "check" && isPreflight),
  );
  for (const warning of invalidWarnings(host.name, [], facts)) options.warn(warning);
  for (const warning of notices(requests, facts)) options.warn(`${host.name}: ${warning}`);
  await answerInspections(host, jobs, facts);
  return 0;
}

/** What is no drift, and should be known. */
const notices = (states: DesiredState[], facts: Facts): string[] => [
  ...threadedWarnings(facts),
  ...new Set(states.flatMap(({ items }) => keptMtuWarnings(items, facts))),
];

/** Facts with what is read only before a change, without the host's lock. */
const readPreflightFacts = async (host: Host, requests: DesiredState[]): Promise<Facts> =>
  parseHostFacts(host, await host.exec(preflightScript(requests), "reading its state"));

/**
 * Jobs that arrived while the host was being read join this conversation: nothing of ours has changed the host since. The files that
 * they name must have been read, and not only seen.
 */
function mergeWaiting(
  jobs: Job[],
  later: Job[],
  requests: DesiredState[],
  facts: Facts,
  isPossible: (job: Job) => boolean,
): void {
  const read = new Set(requests.flatMap(filesOf));
  const canJoin = (job: Job): boolean =>
    isPossible(job) &&
    (job.action === "check" || facts.files.get(scriptPath(job.request.record)) !== NOT_READ) &&
    filesOf(job.request).every((path) => read.has(path));
  jobs.push(...later.filter(canJoin));
  later.splice(0, later.length, ...later.filter((job) => !canJoin(job)));
  facts.desiredLinks = linksOf(requestsOf(jobs));
}

async function answerInspections(host: Host, jobs: Job[], facts: Facts): Promise<void> {
  for (const job of jobs) if (job.action === "check") await answerCheck(host, job, facts);
  for (const { action, request, done } of jobs) {
    if (action !== "inspect") continue;
    const staleUids = await findStaleUids(request, facts);
    const desired = adaptToHost({ ...request, staleUids }, facts);
    done(inspectResult(desired, facts, excludeForeign(findDifferences(desired, facts), desired, facts)));
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
  neighbours: findNeighbours(desired, facts),
  containers: containersOn(desired.items, facts.docker),
  tunnels: facts.records
    .filter((record) => isOwnRecord(record, desired))
    .flatMap(({ items }) =>
      items.flatMap((item) => (item.kind === "link" && (item.vxlan || item.wireguard) ? item : [])),
    ),
  peerMoves: peerMoves(desired, facts),
});

const peerMoves = ({ items }: DesiredState, facts: Facts): boolean =>
  items.some((item) => item.kind === "link" && formerPeer(item, facts) !== undefined);

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
      nameHostInErrors(host, () => refuseUnplanned(desired, facts));
      nameHostInErrors(host, () => preflight(desired, { ...facts, records: [...facts.records, ...planned] }));
      accepted.push({ job, ...planRecord(desired, facts) });
    } catch (error) {
      job.fail(error);
    }
  }
  return refuseBlocked(host, accepted, facts);
}

/** Refuses requests whose chains cannot be removed. Which chains stay depends on what is refused, so the others are checked again. */
function refuseBlocked(host: Host, accepted: Accepted[], facts: Facts): Accepted[] {
  const blocked = findBlockedRemovals(acceptedRequests(accepted), facts);
  if (blocked.size === 0) return accepted;
  for (const { job, desired } of accepted) {
    const error = blocked.get(desired.record.uid);
    if (error) job.fail(withHostName(host, error));
  }
  const others = accepted.filter(({ desired }) => !blocked.has(desired.record.uid));
  return refuseBlocked(host, others, facts);
}

async function applyUnderLock(
  host: Host,
  shell: Shell,
  jobs: Job[],
  later: Job[],
  options: ReconcileOptions,
): Promise<number> {
  const requests = requestsOf(jobs);
  report(jobs, `reading ${host.name}`);
  const facts = parseHostFacts(
    host,
    await shell.run(`${REVERT_UNCONFIRMED}\n${preflightScript(requests)}`, "reading its state"),
  );
  await findLostRecords(requests, facts);
  mergeWaiting(jobs, later, requests, facts, () => true);
  await answerInspections(host, jobs, facts);
  const accepted = await acceptRequests(host, jobs, facts);
  for (const { desired } of accepted) desired.accepted?.(peerMoves(desired, facts));
  const states = acceptedRequests(accepted);
  const { steps, warnings } = await withLostPorts(shell, planSteps(states, facts), states, facts);
  for (const warning of invalidWarnings(host.name, states, facts)) options.warn(warning);
  for (const warning of dockerWarnings(host.name, requestsOf(jobs), facts)) options.warn(warning);
  let passed = accepted;
  if (steps.length > 0 || accepted.some(({ written }) => written.length > 0)) {
    options.begin(host, states);
    report(
      accepted.map(({ job }) => job),
      `applying ${steps.length} steps on ${host.name}`,
    );
    const { script, result } = await applySteps(host, shell, accepted, steps, facts, options.revertAfter);
    passed = checkResult(host, accepted, facts, result, script);
    warnings.push(...parseWarnings(result.stderr), ...(await findUnpluggedPorts(shell, steps)));
    if (steps.length > 0) warnings.push(...new Set(states.flatMap(({ items }) => localWarnings(items, facts))));
    warnings.push(...keptWarnings(steps), ...notices(states, facts));
    for (const warning of warnings) options.warn(`${host.name}: ${warning}`);
    const isPersistent = accepted.some(({ desired, written }) => desired.persist && written.length > 0);
    if (isPersistent && !facts.systemd) options.warnWithoutSystemd(host);
  }
  const final = renderFinalRecords(passed, facts);
  if (final) {
    const { code, stderr } = await shell.run(final, "writing its records");
    if (code !== 0) throw commandFailedError(host, String(code), stderr, final, []);
  }
  for (const { job, desired } of passed) job.done(inspectResult(desired, facts, []));
  return steps.length;
}
