/** Lets at most so many pieces of work run at a time; the others wait their turn, first come first served. */
export class Gate {
  #running = 0;
  #limit: number;
  readonly #waiting: (() => void)[] = [];

  constructor(limit: number) {
    this.#limit = limit;
  }

  async pass<T>(work: () => Promise<T>): Promise<T> {
    if (this.#running < this.#limit) this.#running++;
    else await new Promise<void>((go) => this.#waiting.push(go));
    try {
      return await work();
    } finally {
      this.#running--;
      this.#next();
    }
  }

  /** One less than are running now, from now on; false: only one is, and it cannot be less. */
  narrow(): boolean {
    if (this.#running < 2) return false;
    this.#limit = this.#running - 1;
    return true;
  }

  /** Whoever is woken is counted here, so that no newcomer takes the place before it runs. */
  #next(): void {
    if (this.#running >= this.#limit) return;
    const go = this.#waiting.shift();
    if (!go) return;
    this.#running++;
    go();
  }
}
