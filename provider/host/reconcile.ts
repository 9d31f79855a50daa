import { isOverlayError, OverlayError } from "../errors";
import { renderScript } from "../network/commands";
import { type Difference, differences, differenceText, isPresent } from "../network/compare";
import { FACTS_SCRIPT, type Facts, parseFacts } from "../network/facts";
import type { HostRecord, Item } from "../network/items";
import { keyOf } from "../network/items";
import { isMine, planSteps, refuseForeign, type Step, type Want } from "../network/steps";
import type { Host, Result, Shell } from "./types";

/**
 * Makes hosts look as wanted: lock, facts, is the lease still ours?, steps, one batch, read back. Compares with the
 * machine, never with memory. Work that waits for one host is done together in one conversation, so that 63 runners do
 * not mean 63 scans of the hub; one owner's error does not fail the others.
 */
export interface Work extends Want {
  /** Asked under the host's lock, before the first write; throws when the work is no longer ours to do. */
  fence(): Promise<void>;
}

export interface Conversation {
  host: string;
  works: number;
  inspections: number;
  steps: number;
  milliseconds: number;
}

interface Job {
  host: Host;
  want: Want | Work;
  done(differences: Difference[]): void;
  fail(error: unknown): void;
}

interface Accepted {
  job: Job;
  want: Work;
}

const isWork = (want: Want | Work): want is Work => "fence" in want;

export class Reconciler {
  readonly #waiting = new Map<string, Job[]>();

  constructor(private readonly onConversation: (conversation: Conversation) => void = () => {}) {}

  /** Changes the host until it looks as wanted; an empty want removes all of this owner. */
  async apply(host: Host, work: Work): Promise<void> {
    await this.#enqueue(host, work);
  }

  /** How the host differs from what is wanted. Changes nothing. */
  inspect(host: Host, want: Want): Promise<Difference[]> {
    return this.#enqueue(host, want);
  }

  #enqueue(host: Host, want: Want | Work): Promise<Difference[]> {
    return new Promise((done, fail) => {
      const job = { host, want, done, fail };
      const waiting = this.#waiting.get(host.name);
      if (waiting) waiting.push(job);
      else {
        this.#waiting.set(host.name, [job]);
        void this.#drain(host.name);
      }
    });
  }

  async #drain(name: string): Promise<void> {
    for (let jobs = this.#waiting.get(name)!; jobs.length > 0; jobs = this.#waiting.get(name)!) {
      this.#waiting.set(name, []);
      const started = performance.now();
      const steps = await converse(jobs);
      const works = jobs.filter(({ want }) => isWork(want)).length;
      const milliseconds = Math.round(performance.now() - started);
      this.onConversation({ host: name, works, inspections: jobs.length - works, steps, milliseconds });
    }
    this.#waiting.delete(name);
  }
}

/** Answers every job, one way or the other; returns the number of changes made. */
async function converse(jobs: Job[]): Promise<number> {
  const { host } = jobs[0]!;
  try {
    if (!jobs.some(({ want }) => isWork(want))) {
      answerInspections(jobs, readFacts(host, await host.exec(FACTS_SCRIPT)));
      return 0;
    }
    const holder = jobs.map(({ want }) => want.record.owner).join(", ");
    return await host.locked(holder.slice(0, 200), (shell) => underLock(host, shell, jobs));
  } catch (error) {
    for (const job of jobs) job.fail(error);
    return 0;
  }
}

function answerInspections(jobs: Job[], facts: Facts): void {
  for (const { want, done } of jobs) if (!isWork(want)) done(differences(want.items, facts));
}

async function underLock(host: Host, shell: Shell, jobs: Job[]): Promise<number> {
  const facts = readFacts(host, await shell.run(FACTS_SCRIPT));
  answerInspections(jobs, facts);
  const accepted = await accept(host, jobs, facts);
  const wants = accepted.map(({ want }) => want);
  const steps = planSteps(wants, facts);
  const script = scriptOf(wants, steps, facts);
  if (script === undefined) {
    for (const { job } of accepted) job.done([]);
    return 0;
  }
  const result = await shell.run(`(\n${script}\n) >&2\necho "@@ applied $?"\n${FACTS_SCRIPT}`);
  judge(host, accepted, steps, result, script);
  return steps.length;
}

/** Fenced off and foreign work is refused here, before anything is written. */
async function accept(host: Host, jobs: Job[], facts: Facts): Promise<Accepted[]> {
  const accepted: Accepted[] = [];
  for (const job of jobs) {
    const { want } = job;
    if (!isWork(want)) continue;
    try {
      await want.fence();
      const planned = accepted.map(({ want }) => recordOf(want));
      refuseForeign(want, { ...facts, records: [...facts.records, ...planned] });
      accepted.push({ job, want });
    } catch (error) {
      job.fail(onHost(host, error));
    }
  }
  return accepted;
}

const recordOf = (want: Want): HostRecord => ({ ...want.record, items: want.items });

/**
 * The record is written before the first change, with what stands and what shall stand, and cut to what shall stand
 * after the last: whenever the conversation is cut off, everything of ours on the host is in a record.
 */
function scriptOf(wants: Want[], steps: Step[], facts: Facts): string | undefined {
  const before: HostRecord[] = [];
  const after: HostRecord[] = [];
  const gone: HostRecord[] = [];
  for (const want of wants) {
    const old = facts.records.filter((record) => isMine(record, want));
    const final = recordOf(want);
    gone.push(...old.filter((record) => record.uid !== final.uid || final.items.length === 0));
    if (final.items.length === 0) continue;
    const all = new Map([...old.flatMap((r) => r.items), ...final.items].map((item) => [keyOf(item), item]));
    const union = { ...final, items: [...all.values()] };
    if (old.some((record) => JSON.stringify(record) === JSON.stringify(final))) continue;
    before.push(union);
    if (union.items.length > final.items.length) after.push(final);
  }
  if (steps.length + before.length + gone.length === 0) return undefined;
  return renderScript(steps, before, after, gone);
}

/** Each owner is judged by what the host now looks like, not by the exit code of a batch that it shared with others. */
function judge(host: Host, accepted: Accepted[], steps: Step[], result: Result, script: string): void {
  const applied = /^@@ applied (\d+)$/m.exec(result.stdout)?.[1] ?? "none";
  const facts = readFacts(host, result);
  const undone = steps.filter(
    ({ verb, item }) => verb === "remove" && item.kind !== "sysctl" && isPresent(item, facts),
  );
  for (const { job, want } of accepted) {
    const left = differences(want.items, facts);
    const failed = [...left.map(differenceText), ...(want.items.length === 0 ? undone.map(leftover) : [])];
    if (failed.length === 0 && (applied === "0" || want.items.length > 0)) job.done([]);
    else job.fail(commandFailed(host, applied, result.stderr, script, failed));
  }
}

const leftover = ({ item }: { item: Item }): string => `${keyOf(item)}: still there`;

function readFacts(host: Host, { code, stdout, stderr }: Result): Facts {
  if (code === 127) {
    throw new OverlayError(
      "HOST_TOOL_MISSING",
      `${host.name} has no '${stderr.trim().split("\n").at(-1)}'.`,
      "Install it there (Debian: apt-get install iproute2 iptables).",
    );
  }
  if (code !== 0) throw commandFailed(host, String(code), stderr, FACTS_SCRIPT, []);
  return parseFacts(stdout);
}

function commandFailed(host: Host, code: string, stderr: string, script: string, left: string[]): OverlayError {
  const [, number] = /Command failed -:(\d+)/.exec(stderr) ?? [];
  const batch = /^ip -force -batch - <<'END'.*\n([\s\S]*?)\nEND$/m.exec(script)?.[1]?.split("\n") ?? [];
  const command = number ? `'ip ${batch[Number(number) - 1]}'` : "a command";
  const said = stderr.trim().split("\n").slice(0, 4).join("; ") || "no message";
  const stands = left.length > 0 ? ` Now: ${left.slice(0, 5).join("; ")}.` : "";
  return new OverlayError(
    "HOST_COMMAND_FAILED",
    `${host.name}: ${command} failed (exit code ${code}): ${said}.${stands}`,
    "Nothing else was changed; mend the cause and run up again.",
  );
}

/** An error about a device or route must say on which machine. */
const onHost = (host: Host, error: unknown): unknown =>
  isOverlayError(error, "DEVICE_FOREIGN", "ROUTE_OVERLAP")
    ? new OverlayError(error.code, `${host.name}: ${error.what}`, error.fix, error)
    : error;
