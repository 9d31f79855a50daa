import type { Journal, Turn } from "./journal";

/** So long a process keeps its turn at most, in milliseconds. */
const LENGTH = 100;
/** So soon behind an answer the next question comes from whoever has a row of them. */
const AT_ONCE = 3;

/** Whether questions come one here and one there, or each as soon as the last one was answered. */
export class Rhythm {
  #answered = -Infinity;
  isSteady = false;

  async of<T>(question: () => Promise<T>): Promise<T> {
    this.isSteady = performance.now() - this.#answered < AT_ONCE;
    try {
      return await question();
    } finally {
      this.#answered = performance.now();
    }
  }
}

/**
 * A turn that goes on while there is more to do. In a crowd it takes longer to hand a turn over, and to catch up with what
 * the others wrote, than to commit. So who asks again at once is let go on for a while, as if it were alone: all are done
 * sooner, and nobody waits longer than one spell for each who stands before him.
 */
export class Spell implements Journal {
  readonly news: Journal["news"];
  readonly findId: Journal["findId"];
  readonly rows: Journal["rows"];
  readonly #until = performance.now() + LENGTH;
  #goesOn = false;
  #over: Promise<void> | undefined;
  #waiting: NodeJS.Timeout | undefined;

  constructor(
    private readonly turn: Turn,
    private readonly rhythm: Rhythm,
  ) {
    ({ news: this.news, findId: this.findId, rows: this.rows } = turn);
  }

  async commit(...[from, commit, hoped]: Parameters<Journal["commit"]>): ReturnType<Journal["commit"]> {
    const goesOn = this.turn.lasts && this.rhythm.isSteady && performance.now() < this.#until;
    const news = await this.turn.commit(from, commit, hoped, goesOn);
    // News of the same head: something stood where nothing was hoped to be. That is no reason to go.
    this.#goesOn = goesOn && (!news || news.head.id === from.id);
    return news;
  }

  /** Whether it is still our turn, for one more transaction. */
  goOn(): boolean {
    clearTimeout(this.#waiting);
    this.#goesOn = false;
    return this.#over === undefined;
  }

  /** Behind a transaction: the turn ends, or will soon if nothing more comes. Nobody has to wait for that. */
  pause(): void {
    if (!this.#goesOn) void this.end();
    else this.#waiting = setTimeout(() => void this.end(), AT_ONCE).unref();
  }

  end(): Promise<void> {
    clearTimeout(this.#waiting);
    this.#over ??= this.turn.end();
    return this.#over;
  }
}
