import { BOOT_SCRIPT } from "../../network/model/paths";
import type { DesiredState } from "../../network/model/steps";
import type { Host } from "../connection";
import { isApply, runConversation } from "./conversation";
import type { ApplyRequest, ConversationReport, InspectResult, Job, ReconcileOptions } from "./types";

export class Reconciler {
  readonly #waiting = new Map<string, Job[]>();
  readonly #manner: ReconcileOptions;
  /** Names of hosts without systemd, by machine; undefined: the user has been told. */
  readonly #withoutSystemd = new Map<string, string | undefined>();
  readonly #written = new Set<string>();

  constructor(
    private readonly onConversation: (report: ConversationReport) => void = () => {},
    options: Partial<ReconcileOptions> = {},
  ) {
    const manner = { warn: () => {}, revertAfter: 60, ...options };
    const begin = ({ machine }: Host, desiredStates: DesiredState[]): void => {
      for (const { record } of desiredStates) this.#written.add(`${machine} ${record.uid}`);
    };
    this.#manner = { ...manner, begin, warnWithoutSystemd: (host) => this.#addWithoutSystemd(host) };
  }

  /** Changes the host until it looks as wanted; an empty want removes all of this owner. */
  apply(host: Host, work: ApplyRequest): Promise<InspectResult> {
    return this.#enqueue(host, work);
  }

  /** How the host differs from what is wanted. Changes nothing. */
  inspect(host: Host, desired: DesiredState): Promise<InspectResult> {
    return this.#enqueue(host, desired);
  }

  /** Throws what an apply of this would be refused with, before anything is changed anywhere. Changes nothing. */
  check(host: Host, { fence: _, ...plan }: ApplyRequest): Promise<InspectResult> {
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
    if (names.length > 0) this.#manner.warn(systemdWarning(names));
    for (const machine of this.#withoutSystemd.keys()) this.#withoutSystemd.set(machine, undefined);
  }

  #enqueue(host: Host, request: Job["request"]): Promise<InspectResult> {
    return new Promise((done, fail) => {
      const job = { host, request, done, fail };
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
      const steps = await runConversation(jobs, later, this.#manner);
      const works = jobs.filter(({ request }) => isApply(request)).length;
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
