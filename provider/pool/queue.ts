import { setImmediate as nextTurn } from "node:timers/promises";
import { isOverlayError } from "../errors";
import { writeWithBuffer } from "./storage/layout";
import { EngineFault, type Store, type Tx } from "./storage/store";
import type { PoolOptions, WriteBuffer } from "./storage/write-buffer";
import type { LoggedEvent, StoreVersion } from "./types";

type Operation<T> = (tx: WriteBuffer) => Promise<T>;
type OperationResult = { value: unknown } | { error: unknown };
/** The version of the store that a commit makes; undefined: it has written nothing. */
type CommitVersion = StoreVersion | undefined;

interface Member extends OperationOptions {
  work: Operation<unknown>;
  resolve(answer: [value: unknown, version: CommitVersion]): void;
  reject(error: unknown): void;
}

export interface OperationOptions {
  options: PoolOptions;
  /** A power cut may take it back. */
  promised?: boolean;
}

/** Operations that share a transaction at most: the last should not wait too long for the first. */
const GROUP = 64;

/**
 * Group commit: operations of this process that wait for the same pool share one transaction and one write to disk, so that they do not
 * conflict with each other. Conflicts between processes are resolved by the store.
 */
export class Queue {
  readonly #waiting = new Map<string, Member[]>();
  readonly #running = new Set<Promise<void>>();

  constructor(
    private readonly store: Store,
    /** Called after each commit with the changes that it has made. */
    private readonly onCommit: (events: LoggedEvent[]) => void = () => {},
  ) {}

  async add<T>(pool: string, work: Operation<T>, options: OperationOptions): Promise<T> {
    return (await this.commit(pool, work, options))[0];
  }

  /** The same; also returns the version of the store that the commit made. */
  commit<T>(pool: string, work: Operation<T>, options: OperationOptions): Promise<[value: T, version: CommitVersion]> {
    return new Promise((resolve, reject) => {
      const member = { ...options, work, resolve, reject } as Member;
      const waiting = this.#waiting.get(pool);
      if (waiting) waiting.push(member);
      else {
        this.#waiting.set(pool, [member]);
        this.#start(pool);
      }
    });
  }

  async idle(): Promise<void> {
    while (this.#running.size > 0) await Promise.all(this.#running);
  }

  #start(pool: string): void {
    const run = this.#run(pool).finally(() => this.#running.delete(run));
    this.#running.add(run);
  }

  async #run(pool: string): Promise<void> {
    for (;;) {
      // Operations that are added in the same turn of the event loop join the group.
      await nextTurn();
      const group = this.#waiting.get(pool)!.splice(0, GROUP);
      if (group.length === 0) break;
      const [outcomes, version] = await this.#transact(group).catch(
        (error: unknown): [OperationResult[], CommitVersion] => [group.map(() => ({ error })), undefined],
      );
      for (const [i, { resolve, reject }] of group.entries()) {
        const outcome = outcomes[i]!;
        if ("error" in outcome) reject(outcome.error);
        else resolve([outcome.value, version]);
      }
    }
    this.#waiting.delete(pool);
  }

  async #transact(group: Member[]): Promise<[OperationResult[], CommitVersion]> {
    const all = (tx: Tx) =>
      writeWithBuffer(tx, group[0]!.options, async (buffer): Promise<OperationResult[]> => {
        const outcomes: OperationResult[] = [];
        for (const member of group) outcomes.push(await attempt(buffer, member));
        return outcomes;
      });
    const promised = group.every((member) => member.promised);
    const { result, version, events } = await this.store.transact(all, promised);
    if (events.length > 0) this.onCommit(events);
    return [result, version];
  }
}

/** An error rolls back one operation only. A fault of the engine fails them all, because it is unknown what was written. */
async function attempt(buffer: WriteBuffer, { work, options }: Member): Promise<OperationResult> {
  buffer.options = options;
  try {
    const value = await work(buffer);
    buffer.savepoint();
    return { value };
  } catch (error) {
    if (error instanceof EngineFault) throw error;
    buffer.rollback();
    return { error };
  }
}

type View<T> = (tx: Tx) => Promise<T>;

interface Reader {
  view: View<unknown>;
  resolve(value: unknown): void;
  reject(error: unknown): void;
}

/**
 * Reads that this process asks for in the same turn of the event loop share one transaction, which begins after all of them were asked for:
 * each sees what was committed before. A server engine then has one round trip for them all.
 */
export class ReadBatch {
  #waiting: Reader[] = [];
  readonly #running = new Set<Promise<void>>();

  constructor(private readonly store: Store) {}

  read<T>(view: View<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.#waiting.push({ view, resolve, reject } as Reader);
      if (this.#waiting.length === 1) this.#start();
    });
  }

  async idle(): Promise<void> {
    while (this.#running.size > 0) await Promise.all(this.#running);
  }

  #start(): void {
    const run = this.#run().finally(() => this.#running.delete(run));
    this.#running.add(run);
  }

  async #run(): Promise<void> {
    await nextTurn();
    const group = this.#waiting;
    this.#waiting = [];
    const results = await this.#readTogether(group);
    for (const [i, { resolve, reject }] of group.entries()) {
      const result = results[i]!;
      if ("error" in result) reject(result.error);
      else resolve(result.value);
    }
  }

  /** What a server refuses, such as a table that the user may not read, fails the transaction: then each read gets its own. */
  async #readTogether(group: Reader[]): Promise<OperationResult[]> {
    try {
      return await this.store.read((tx) => readAll(tx, group));
    } catch (error) {
      if (group.length === 1 || isOverlayError(error, "STORE_UNAVAILABLE")) return group.map(() => ({ error }));
    }
    return (await Promise.all(group.map((member) => this.#readTogether([member])))).flat();
  }
}

/** An error fails one read only. A fault of the engine fails the transaction, and the store may try it again. */
async function readAll(tx: Tx, group: Reader[]): Promise<OperationResult[]> {
  const settled = await Promise.allSettled(group.map(({ view }) => view(tx)));
  return settled.map((each): OperationResult => {
    if (each.status === "fulfilled") return { value: each.value };
    if (each.reason instanceof EngineFault) throw each.reason;
    return { error: each.reason };
  });
}
