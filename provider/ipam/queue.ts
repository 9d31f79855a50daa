import { setImmediate as nextTurn } from "node:timers/promises";
import { isOverlayError } from "../errors";
import type { Commit } from "./store/store";
import type { Decided, Outcome, Work } from "./store/transact";

interface Member {
  work: Work;
  resolve(answer: [value: unknown, commit: Commit | undefined]): void;
  reject(error: unknown): void;
}

/** Requests that share a transaction at most: the last should not wait too long for the first. */
const BATCH = 64;

export interface QueueOptions {
  /** Runs requests in one transaction. */
  execute(works: Work[]): Promise<Decided>;
  /** Transactions at once. */
  transactions: number;
}

/** Requests of this process that wait at the same time share one transaction: group commit, and the same for reads. */
export class Queue {
  readonly #waiting: Member[] = [];
  readonly #runs = new Set<Promise<void>>();
  #transactions = 0;
  /** A transaction begins in the next turn of the event loop: requests that are added until then join it. */
  #isStarting = false;

  constructor(private readonly options: QueueOptions) {}

  add<T>(work: Work<T>): Promise<[value: T, commit: Commit | undefined]> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ work, resolve, reject } as Member);
      this.#start();
    });
  }

  async idle(): Promise<void> {
    while (this.#runs.size > 0) await Promise.all(this.#runs);
  }

  #start(): void {
    if (this.#isStarting || this.#transactions === this.options.transactions) return;
    this.#isStarting = true;
    this.#transactions++;
    const run = this.#run().finally(() => this.#runs.delete(run));
    this.#runs.add(run);
  }

  async #run(): Promise<void> {
    await nextTurn();
    this.#isStarting = false;
    await this.#execute(this.#takeBatch());
    this.#transactions--;
    if (this.#waiting.length > 0) this.#start();
  }

  #takeBatch(): Member[] {
    let [count, size] = [0, 0];
    do size += this.#waiting[count++]!.work.size;
    while (count < this.#waiting.length && size + this.#waiting[count]!.work.size <= BATCH);
    return this.#waiting.splice(0, count);
  }

  async #execute(batch: Member[]): Promise<void> {
    const works = batch.map(({ work }) => work);
    const decided = await this.options
      .execute(works)
      .catch((error: unknown): Decided => ({ outcomes: works.map(() => ({ error })) }));
    // Answers are built in another turn than the transaction.
    await nextTurn();
    if (batch.length > 1 && decided.outcomes.every(isUnstorable)) {
      for (const member of batch) await this.#execute([member]);
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
