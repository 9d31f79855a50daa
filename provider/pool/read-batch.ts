import { setImmediate as nextTurn } from "node:timers/promises";
import { isOverlayError } from "../errors";
import type { OperationResult } from "./queue";
import { EngineFault, type Store, type Tx } from "./storage/store";

type View<T> = (tx: Tx) => Promise<T>;

interface Member {
  view: View<unknown>;
  resolve(value: unknown): void;
  reject(error: unknown): void;
}

/**
 * Reads that this process asks for in the same turn of the event loop share one transaction, which begins after all of them were asked for:
 * each sees what was committed before. A server engine then has one round trip for them all.
 */
export class ReadBatch {
  #waiting: Member[] = [];
  readonly #running = new Set<Promise<void>>();

  constructor(private readonly store: Store) {}

  read<T>(view: View<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.#waiting.push({ view, resolve, reject } as Member);
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
  async #readTogether(group: Member[]): Promise<OperationResult[]> {
    try {
      return await this.store.read((tx) => readAll(tx, group));
    } catch (error) {
      if (group.length === 1 || isOverlayError(error, "STORE_UNAVAILABLE")) return group.map(() => ({ error }));
    }
    return (await Promise.all(group.map((member) => this.#readTogether([member])))).flat();
  }
}

/** An error fails one read only. A fault of the engine fails the transaction, and the store may try it again. */
async function readAll(tx: Tx, group: Member[]): Promise<OperationResult[]> {
  const settled = await Promise.allSettled(group.map(({ view }) => view(tx)));
  return settled.map((each): OperationResult => {
    if (each.status === "fulfilled") return { value: each.value };
    if (each.reason instanceof EngineFault) throw each.reason;
    return { error: each.reason };
  });
}
