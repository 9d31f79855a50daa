import { setImmediate as nextTurn } from "node:timers/promises";
import { writeWithBuffer } from "./storage/layout";
import { EngineFault, type Store, type Tx } from "./storage/store";
import type { PoolOptions, WriteBuffer } from "./storage/write-buffer";
import type { StoreVersion } from "./types";

type Work<T> = (tx: WriteBuffer) => Promise<T>;
type Outcome = { value: unknown } | { error: unknown };
/** The version of the store that a commit makes; undefined: it has written nothing. */
type CommitVersion = StoreVersion | undefined;

interface Member {
  work: Work<unknown>;
  promised: boolean;
  resolve(answer: [value: unknown, version: CommitVersion]): void;
  reject(error: unknown): void;
}

/** So many operations share a transaction at most: the last of them should not wait too long for the first. */
const GROUP = 64;

/**
 * Group commit: what waits for one pool at the same time is made in one transaction, with one write to disk. Between
 * processes the store decides who comes first; within one, nobody competes with itself.
 */
export class Queue {
  readonly #waiting = new Map<string, Member[]>();
  readonly #running = new Set<Promise<void>>();

  constructor(
    private readonly store: Store,
    private readonly terms: PoolOptions,
  ) {}

  /** `promised`: a power cut may take it back. */
  async add<T>(pool: string, work: Work<T>, promised = false): Promise<T> {
    return (await this.commit(pool, work, promised))[0];
  }

  /** The same; also returns the version of the store that the commit made. */
  commit<T>(pool: string, work: Work<T>, promised = false): Promise<[value: T, version: CommitVersion]> {
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
      // Whoever calls in this same turn of the event loop comes along; and whatever else waits in it gets its turn.
      await nextTurn();
      const group = this.#waiting.get(pool)!.splice(0, GROUP);
      if (group.length === 0) break;
      const [outcomes, version] = await this.#transact(group).catch((error: unknown): [Outcome[], CommitVersion] => [
        group.map(() => ({ error })),
        undefined,
      ]);
      for (const [i, { resolve, reject }] of group.entries()) {
        const outcome = outcomes[i]!;
        if ("error" in outcome) reject(outcome.error);
        else resolve([outcome.value, version]);
      }
    }
    this.#waiting.delete(pool);
  }

  #transact(group: Member[]): Promise<[Outcome[], CommitVersion]> {
    const { terms } = this;
    const all = (tx: Tx) =>
      writeWithBuffer(tx, terms, async (draft): Promise<Outcome[]> => {
        const outcomes: Outcome[] = [];
        for (const { work } of group) outcomes.push(await attempt(draft, work));
        return outcomes;
      });
    const promised = group.every((member) => member.promised);
    return this.store.transact(all, promised);
  }
}

/** One member's error is its own; only the engine's concern all, since then nobody knows what is written. */
async function attempt(draft: WriteBuffer, work: Work<unknown>): Promise<Outcome> {
  try {
    const value = await work(draft);
    draft.savepoint();
    return { value };
  } catch (error) {
    if (error instanceof EngineFault) throw error;
    draft.rollback();
    return { error };
  }
}
