/** Runs at most `limit` pieces of work at a time; the others wait, first come, first served. */
export class Gate {
  #running = 0;
  readonly #waiting: (() => void)[] = [];

  constructor(private limit: number) {}

  async pass<T>(work: () => Promise<T>): Promise<T> {
    if (this.#running < this.limit) this.#running++;
    else await new Promise<void>((go) => this.#waiting.push(go));
    try {
      return await work();
    } finally {
      // The place goes to the next one that waits, so that no later call takes it before.
      const next = this.#running <= this.limit ? this.#waiting.shift() : undefined;
      if (next) next();
      else this.#running--;
    }
  }

  /** From now on one less than the number that is running; false if that would be none. */
  narrow(): boolean {
    if (this.#running < 2) return false;
    this.limit = this.#running - 1;
    return true;
  }
}
