import type { DesiredState } from "../../network/model/items";
import { BOOT_SCRIPT } from "../../network/model/record";
import type { Host } from "../connection";
import { runConversation } from "./conversation";
import type { ApplyRequest, ConversationReport, InspectResult, Job, ReconcileOptions } from "./types";

/**
 * Brings hosts to the desired state: lock, facts, is the lease still ours?, steps, one batch, read back. It compares with the host,
 * never with memory. Requests that wait for one host share one conversation, so that 63 runners do not cause 63 scans of
 * the hub; the error of one owner does not fail the others.
 */
export class Reconciler {
  readonly #waiting = new Map<string, Job[]>();
  readonly #options: ReconcileOptions;
  /** Names of hosts without systemd, by machine; undefined: the user was warned. */
  readonly #withoutSystemd = new Map<string, string | undefined>();
  readonly #written = new Set<string>();

  constructor(
    private readonly onConversation: (report: ConversationReport) => void = () => {},
    options: Partial<ReconcileOptions> = {},
  ) {
    const begin = ({ machine }: Host, states: DesiredState[]): void => {
      for (const { record } of states) this.#written.add(`${machine} ${record.uid}`);
    };
    const warnWithoutSystemd = (host: Host): void => this.#addWithoutSystemd(host);
    this.#options = { warn: () => {}, revertAfter: 60, ...options, begin, warnWithoutSystemd };
  }

  /** Changes the host until it has the desired state; one without items removes everything of this owner. */
  apply(host: Host, request: ApplyRequest): Promise<InspectResult> {
    return this.#enqueue((waiting) => ({ action: "apply", request, host, ...waiting }));
  }

  /** How the host differs from the desired state. Changes nothing. */
  inspect(host: Host, request: DesiredState): Promise<InspectResult> {
    return this.#enqueue((waiting) => ({ action: "inspect", request, host, ...waiting }));
  }

  /** Throws the error with which an apply of this request would be refused. Changes nothing. */
  check(host: Host, request: ApplyRequest): Promise<InspectResult> {
    return this.#enqueue((waiting) => ({ action: "check", request, host, ...waiting }));
  }

  /** Whether a write for this owner was begun on the machine. */
  wasWritten(machine: string, uid: string): boolean {
    return this.#written.has(`${machine} ${uid}`);
  }

  #addWithoutSystemd({ machine, name }: Host): void {
    if (!this.#withoutSystemd.has(machine)) this.#withoutSystemd.set(machine, name);
  }

  /** One warning for all hosts that are done at the same time. */
  #warnWithoutSystemd(): void {
    const names = [...this.#withoutSystemd.values()].filter((name) => name !== undefined);
    if (names.length > 0) this.#options.warn(systemdWarning(names));
    for (const machine of this.#withoutSystemd.keys()) this.#withoutSystemd.set(machine, undefined);
  }

  #enqueue(toJob: (waiting: Pick<Job, "done" | "fail">) => Job): Promise<InspectResult> {
    return new Promise((done, fail) => {
      const job = toJob({ done, fail });
      const waiting = this.#waiting.get(job.host.machine);
      if (waiting) waiting.push(job);
      else {
        this.#waiting.set(job.host.machine, [job]);
        void this.#drain(job.host);
      }
    });
  }

  async #drain({ machine, name }: Host): Promise<void> {
    for (let jobs = this.#waiting.get(machine)!; jobs.length > 0; jobs = this.#waiting.get(machine)!) {
      const later: Job[] = [];
      this.#waiting.set(machine, later);
      const started = performance.now();
      const steps = await runConversation(jobs, later, this.#options);
      const works = jobs.filter(({ action }) => action === "apply").length;
      const milliseconds = Math.round(performance.now() - started);
      this.onConversation({ host: name, works, inspections: jobs.length - works, steps, milliseconds });
    }
    this.#waiting.delete(machine);
    if (this.#waiting.size === 0) this.#warnWithoutSystemd();
  }
}

const systemdWarning = (names: string[]): string =>
  `Hosts without systemd: ${names.sort().join(", ")}. They do not restore their part of the overlay after a boot until their init runs ` +
  `\`sh ${BOOT_SCRIPT}\`, or until the next \`pulumi up --refresh\`. Set persist: false if that is meant.`;
