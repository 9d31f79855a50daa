import { setImmediate as nextTurn } from "node:timers/promises";
import { writeWithBuffer } from "./storage/layout";
import { EngineFault, type Store, type Tx } from "./storage/store";
import type { PoolOptions, WriteBuffer } from "./storage/write-buffer";
import type { StoreVersion } from "./types";

type Operation<T> = (tx: WriteBuffer) => Promise<T>;
type OperationResult = { value: unknown } | { error: unknown };
/** The version of the store that a commit makes; undefined: it has written nothing. */
type CommitVersion = StoreVersion | undefined;

interface Member {
  work: Operation<unknown>;
  promised: boolean;
  resolve(answer: [value: unknown, version: CommitVersion]): void;
  reject(error: unknown): void;
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
    private readonly options: PoolOptions,
  ) {}

  /** `promised`: a power cut may take it back. */
  async add<T>(pool: string, work: Operation<T>, promised = false): Promise<T> {
    return (await this.commit(pool, work, promised))[0];
  }

  /** The same; also returns the version of the store that the commit made. */
  commit<T>(pool: string, work: Operation<T>, promised = false): Promise<[value: T, version: CommitVersion]> {
    return new Promise((resolve, reject) => {
      const member = { work, promised, resolve, reject } as Member;
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

  #transact(group: Member[]): Promise<[OperationResult[], CommitVersion]> {
    const { options } = this;
    const all = (tx: Tx) =>
      writeWithBuffer(tx, options, async (buffer): Promise<OperationResult[]> => {
        const outcomes: OperationResult[] = [];
        for (const { work } of group) outcomes.push(await attempt(buffer, work));
        return outcomes;
      });
    const promised = group.every((member) => member.promised);
    return this.store.transact(all, promised);
  }
}

/** An error rolls back one operation only. A fault of the engine fails them all, because it is unknown what was written. */
async function attempt(buffer: WriteBuffer, work: Operation<unknown>): Promise<OperationResult> {
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
