/** Lets at most `limit` pieces of work run at a time; the others wait their turn, first come first served. */
export class Gate {
  #running = 0;
  readonly #waiting: (() => void)[] = [];

  constructor(private readonly limit: number) {}

  async pass<T>(work: () => Promise<T>): Promise<T> {
    if (this.#running < this.limit) this.#running++;
    else await new Promise<void>((go) => this.#waiting.push(go));
    try {
      return await work();
    } finally {
      // The place is handed over, so that no newcomer takes it before the one who waited runs.
      const next = this.#waiting.shift();
      if (next) next();
      else this.#running--;
    }
  }
}
