import { closeSync, openSync, readdirSync, readFileSync, writeSync } from "node:fs";
import { join } from "node:path";

/**
 * The calls of one worker process and their answers, in an append-only file. Each call is written before it is made, and its answer
 * after it: the effect of a call without an answer is not known. SIGKILL loses no written data; at most the last line is incomplete.
 */
export type Intent = { at: number; owner: string } & Call;

export type Call =
  | { call: "claim" }
  | { call: "use"; leaseId: string }
  | { call: "find" }
  /** `stale`: with a lease id that has been renewed since. It must have no effect. */
  | { call: "release"; leaseId: string; stale?: boolean };

export type CallResult =
  | { got: GrantedLease }
  /** Of a find: the owner has no lease. */
  | { none: true }
  | { did: boolean }
  /** An error's code. */
  | { failed: string };

export interface GrantedLease {
  value: string;
  leaseId: string;
  state: string;
}

/** A call and its answer, if there is one. Times are of the monotonic clock, which all processes share. */
export type Entry = Intent & { answeredAt?: number; result?: CallResult };

type Line = { id: number } & (Intent | { answeredAt: number; result: CallResult });

export const monotonicMicros = (): number => Number(process.hrtime.bigint() / 1000n);

export class LedgerWriter {
  readonly #file: number;
  #entries = 0;

  constructor(folder: string, worker: string, generation: number) {
    this.#file = openSync(ledgerFile(folder, worker, generation), "a");
  }

  /** Writes the call, makes it, and writes the answer. */
  async record(owner: string, call: Call, act: () => Promise<CallResult>): Promise<Entry> {
    const id = this.#entries++;
    const intent: Intent = { at: monotonicMicros(), owner, ...call };
    this.#add({ id, ...intent });
    const result = await act();
    const answeredAt = monotonicMicros();
    this.#add({ id, answeredAt, result });
    return { ...intent, answeredAt, result };
  }

  close(): void {
    closeSync(this.#file);
  }

  #add(line: Line): void {
    writeSync(this.#file, `${JSON.stringify(line)}\n`);
  }
}

export const ledgerFile = (folder: string, worker: string, generation: number): string =>
  join(folder, `${worker}.${String(generation).padStart(6, "0")}`);

/** Names of the files in a folder of ledgers: one for each process. */
export const processesIn = (folder: string): string[] => readdirSync(folder).sort();

export const entriesOf = (folder: string, process: string): Entry[] =>
  entriesIn(readFileSync(join(folder, process), "utf8"));

/** The entries of all processes of a worker, in the order of their calls. */
export const readLedger = (folder: string, worker: string): Entry[] =>
  processesIn(folder)
    .filter((name) => name.startsWith(`${worker}.`))
    .flatMap((name) => entriesOf(folder, name));

export function entriesIn(text: string): Entry[] {
  const entries = new Map<number, Entry>();
  // The text after the last line feed is empty, or an incomplete line.
  for (const line of text.split("\n").slice(0, -1)) {
    const { id, ...rest } = JSON.parse(line) as Line;
    entries.set(id, { ...entries.get(id), ...rest } as Entry);
  }
  return [...entries.values()];
}
