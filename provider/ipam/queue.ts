import { setImmediate as nextTurn } from "node:timers/promises";
import { isOverlayError } from "../errors";
import type { Commit, Engine } from "./store/store";
import { type Decided, type Guard, type Outcome, transact, type Work } from "./store/transact";

interface Member {
  work: Work;
  resolve(answer: [value: unknown, commit: Commit | undefined]): void;
  reject(error: unknown): void;
}

/** Requests that share a transaction at most: the last should not wait too long for the first. */
const BATCH = 64;

/** Group commit: requests of this process that wait at the same time share one transaction and one write to disk. */
export class Queue {
  readonly #waiting: Member[] = [];
  #running: Promise<void> | undefined;

  constructor(
    private readonly engine: Engine,
    private readonly guard: Guard,
    private readonly onDone: (decided: Decided, milliseconds: number) => void,
  ) {}

  add<T>(work: Work<T>): Promise<[value: T, commit: Commit | undefined]> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ work, resolve, reject } as Member);
      this.#running ??= this.#run().finally(() => {
        this.#running = undefined;
      });
    });
  }

  async idle(): Promise<void> {
    while (this.#running) await this.#running;
  }

  async #run(): Promise<void> {
    for (;;) {
      // Requests that are added in the same turn of the event loop join the batch.
      await nextTurn();
      const batch = this.#waiting.splice(0, Math.min(BATCH, this.engine.maxBatch ?? BATCH));
      if (batch.length === 0) return;
      await this.#commit(batch);
    }
  }

  async #commit(batch: Member[]): Promise<void> {
    const works = batch.map(({ work }) => work);
    const started = performance.now();
    const decided = await transact(this.engine, works, this.guard).catch(
      (error: unknown): Decided => ({ outcomes: works.map(() => ({ error })) }),
    );
    this.onDone(decided, performance.now() - started);
    if (batch.length > 1 && decided.outcomes.every(isUnstorable)) {
      for (const member of batch) await this.#commit([member]);
      return;
    }
    for (const [i, { resolve, reject }] of batch.entries()) {
      const outcome = decided.outcomes[i]!;
      if ("error" in outcome) reject(outcome.error);
      else resolve([outcome.value, decided.commit]);
    }
  }
}

/** One of a batch has a text that the store does not take: the commit of all of them has failed. */
const isUnstorable = (outcome: Outcome): boolean =>
  "error" in outcome && isOverlayError(outcome.error, "INPUT_INVALID");
