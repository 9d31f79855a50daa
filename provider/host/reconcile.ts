import type { OverlayError } from "../errors";
import { renderChange } from "../network/commands";
import { type Difference, differences, differenceText } from "../network/compare";
import { devicesWith } from "../network/devices";
import { type Container, containersOn } from "../network/docker";
import { type Facts, preflightScript, readbackScript, UNREAD } from "../network/facts";
import { warningsIn } from "../network/follow-up";
import { foreignTexts, mendable } from "../network/foreign";
import { keyOf } from "../network/items";
import { localWarnings } from "../network/local-rules";
import { recordDifferences } from "../network/lost-record";
import { onThisHost } from "../network/on-host";
import { keptKeys, ownedItems } from "../network/ownership";
import { BOOT_SCRIPT, recordPath, scriptPath } from "../network/paths";
import { emptiedBridges } from "../network/ports";
import { UNDO_UNCONFIRMED } from "../network/revert";
import { endangersSsh } from "../network/ssh-path";
import { formerPeer, goneItems, planSteps, type Want } from "../network/steps";
import { type Accepted, accept, isWork, type Job, wantsOf } from "./accept";
import { changeCautiously } from "./caution";
import { commandFailed, factsOf, readFacts } from "./facts";
import { unpluggedPorts, withLostPorts } from "./lost-ports";
import { dockerWarnings, invalidWarnings, isWritten, renderSettled } from "./records";
import type { Host, Result, Shell } from "./types";

/**
 * Makes hosts look as wanted: lock, facts, is the lease still ours?, steps, one batch, read back. Compares with the
 * machine, never with memory. Work that waits for one host is done together in one conversation, so that 63 runners do
 * not mean 63 scans of the hub; one owner's error does not fail the others.
 */
export interface Work extends Want {
  /** Asked under the host's lock, before the first write; throws when the work is no longer ours to do. */
  fence(): Promise<void>;
  /** Whether the lease behind a record of our own store is gone for good, so that what it lists is nobody's. */
  isGone(uid: string): Promise<boolean>;
  /** Why there is no plan of what is to be removed. */
  planError?: OverlayError;
}

/** Work that is only checked: whether it would be refused. */
export type Plan = Omit<Work, "fence">;

/** What a host was found to have. */
export interface Seen {
  differences: Difference[];
  /** Objects of other programs that are in its way, as text; they stay, whatever is applied. */
  foreign: string[];
  /** On the owner's Docker network. */
  containers: Container[];
  /** Whether a tunnel's peer is to get another address. Its own end must change later, or its packets are dropped meanwhile. */
  peerMoves: boolean;
}

export interface ConversationReport {
  host: string;
  works: number;
  inspections: number;
  steps: number;
  milliseconds: number;
}

/** How it goes about its work. */
export interface Manner {
  warn(text: string): void;
  /** Called for each host that cannot restore its part after a boot. */
  warnWithoutSystemd(host: Host): void;
  /** Called before the first write for these owners. */
  begin(host: Host, wants: Want[]): void;
  /** Seconds after which a host undoes a change that could lock us out, unless a new connection confirms it. */
  revertAfter: number;
}

const isPlan = (want: Job["want"]): want is Plan => "isGone" in want && !isWork(want);

export class Reconciler {
  readonly #waiting = new Map<string, Job[]>();
  readonly #manner: Manner;
  /** Names of hosts without systemd, by machine; undefined: the user has been told. */
  readonly #withoutSystemd = new Map<string, string | undefined>();
  readonly #written = new Set<string>();

  constructor(
    private readonly onConversation: (report: ConversationReport) => void = () => {},
    options: Partial<Manner> = {},
  ) {
    const manner = { warn: () => {}, revertAfter: 60, ...options };
    const begin = ({ machine }: Host, wants: Want[]): void => {
      for (const { record } of wants) this.#written.add(`${machine} ${record.uid}`);
    };
    this.#manner = { ...manner, begin, warnWithoutSystemd: (host) => this.#addWithoutSystemd(host) };
  }

  /** Changes the host until it looks as wanted; an empty want removes all of this owner. */
  apply(host: Host, work: Work): Promise<Seen> {
    return this.#enqueue(host, work);
  }

  /** How the host differs from what is wanted. Changes nothing. */
  inspect(host: Host, want: Want): Promise<Seen> {
    return this.#enqueue(host, want);
  }

  /** Throws what an apply of this would be refused with, before anything is changed anywhere. Changes nothing. */
  check(host: Host, { fence: _, ...plan }: Work): Promise<Seen> {
    return this.#enqueue(host, plan);
  }

  /** Whether a write for this owner was begun on the machine. */
  wasWritten(machine: string, uid: string): boolean {
    return this.#written.has(`${machine} ${uid}`);
  }

  #addWithoutSystemd({ machine, name }: Host): void {
    if (!this.#withoutSystemd.has(machine)) this.#withoutSystemd.set(machine, name);
  }

  /** One warning for all hosts whose work ends together: a fleet may have many. */
  #warnWithoutSystemd(): void {
    const names = [...this.#withoutSystemd.values()].filter((name) => name !== undefined);
    if (names.length > 0) this.#manner.warn(withoutSystemd(names));
    for (const machine of this.#withoutSystemd.keys()) this.#withoutSystemd.set(machine, undefined);
  }

  #enqueue(host: Host, want: Job["want"]): Promise<Seen> {
    return new Promise((done, fail) => {
      const job = { host, want, done, fail };
      const waiting = this.#waiting.get(host.machine);
      if (waiting) waiting.push(job);
      else {
        this.#waiting.set(host.machine, [job]);
        void this.#drain(host);
      }
    });
  }

  async #drain({ machine, name }: Host): Promise<void> {
    for (let jobs = this.#waiting.get(machine)!; jobs.length > 0; jobs = this.#waiting.get(machine)!) {
      const later: Job[] = [];
      this.#waiting.set(machine, later);
      const started = performance.now();
      const steps = await converse(jobs, later, this.#manner);
      const works = jobs.filter(({ want }) => isWork(want)).length;
      const milliseconds = Math.round(performance.now() - started);
      this.onConversation({ host: name, works, inspections: jobs.length - works, steps, milliseconds });
    }
    this.#waiting.delete(machine);
    if (this.#waiting.size === 0) this.#warnWithoutSystemd();
  }
}

/** Answers every job, one way or the other; returns the number of changes made. */
async function converse(jobs: Job[], later: Job[], manner: Manner): Promise<number> {
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
function join(jobs: Job[], later: Job[], may: (job: Job) => boolean): void {
  jobs.push(...later.filter(may));
  later.splice(0, later.length, ...later.filter((job) => !may(job)));
}

/** Whether the script of its record was read, and not only seen to be there. */
const isRead = ({ record }: Want, { files }: Facts): boolean => files.get(scriptPath(record)) !== UNREAD;

/** Facts with what is read before a change only, without the host's lock. */
const preflightFactsOf = async (host: Host, jobs: Job[]): Promise<Facts> =>
  readFacts(host, await host.exec(preflightScript(jobs.map(({ want }) => want.record))));

async function answerInspections(host: Host, jobs: Job[], facts: Facts): Promise<void> {
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

const seen = (want: Want, facts: Facts, differences: Difference[]): Seen => ({
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

const withoutSystemd = (names: string[]): string =>
  `Hosts without systemd: ${names.sort().join(", ")}. They do not restore their part of the overlay after a boot until their init runs ` +
  `\`sh ${BOOT_SCRIPT}\`, or until the next \`pulumi up --refresh\`. Set persist: false if that is meant.`;

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
