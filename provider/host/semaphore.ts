/** Successes after which a reduced limit is raised by one. A raise that is too early costs one refusal. */
const RECOVER_AFTER = 20;

/** Runs at most `limit` pieces of work at a time; the others wait, first come, first served. */
export class Semaphore {
  #running = 0;
  #limit: number;
  /** Since the limit was last changed. */
  #successes = 0;
  readonly #waiting: (() => void)[] = [];

  constructor(private readonly most: number) {
    this.#limit = most;
  }

  async run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#running < this.#limit) this.#running++;
    else await new Promise<void>((go) => this.#waiting.push(go));
    try {
      return await work();
    } finally {
      // The slot passes to the next waiting call, so that no later call takes it first.
      const next = this.#running <= this.#limit ? this.#waiting.shift() : undefined;
      if (next) next();
      else this.#running--;
    }
  }

  /** From now on one less than the number that is running; false if that would be none. */
  shrink(): boolean {
    if (this.#running < 2) return false;
    this.#limit = this.#running - 1;
    this.#successes = 0;
    return true;
  }

  /** Counts a success: after several of them a limit that was reduced grows by one, up to the first one. */
  recover(): void {
    if (this.#limit === this.most || ++this.#successes < RECOVER_AFTER) return;
    this.#limit++;
    this.#successes = 0;
    const next = this.#running < this.#limit ? this.#waiting.shift() : undefined;
    if (!next) return;
    this.#running++;
    next();
  }
}
