import { Sorted } from "../sorted";
import type { Row, Write } from "../store";

/** Just behind a key: nothing lies between, since no key has the character NUL. */
export const behind = (key: string): string => `${key}\u0001`;

/**
 * Rows that this process has seen and that still stand, and the spans in which there are no others. A row outside all
 * spans is known by itself.
 */
export class Known {
  readonly #rows = new Sorted<string>();
  /** From the end of each span to its start, so that the first entry behind a key says whether the key lies inside. */
  readonly #spans = new Sorted<string>();

  get size(): number {
    return this.#rows.size + this.#spans.size;
  }

  get(key: string): string | undefined {
    return this.#rows.get(key);
  }

  /** Up to where everything is known from here on; `from` itself when nothing is. */
  until(from: string): string {
    const [end, start] = this.#spans.first(behind(from)) ?? [from, from];
    return start <= from ? end : from;
  }

  /** Known rows, at most `limit`. */
  range(from: string, to: string, limit: number): Row[] {
    const found: Row[] = [];
    for (const row of this.#rows.entries(from, to)) {
      if (found.length === limit) break;
      found.push(row);
    }
    return found;
  }

  /** These rows, and no others, lie between `from` and `to`. */
  learn(from: string, to: string, rows: Row[]): void {
    for (const [key, value] of rows) this.#rows.set(key, value);
    let [first, last] = [from, to];
    for (const [end, start] of [...this.#touching(from, to)]) {
      if (start < first) first = start;
      if (end > last) last = end;
      this.#spans.delete(end);
    }
    this.#spans.set(last, first);
  }

  /** What somebody has written. */
  apply(writes: Write[]): void {
    for (const [key, value] of writes) {
      if (value === null) this.#rows.delete(key);
      else this.#rows.set(key, value);
    }
  }

  forget(): void {
    this.#rows.clear();
    this.#spans.clear();
  }

  *#touching(from: string, to: string): Generator<[end: string, start: string]> {
    for (const span of this.#spans.entries(from)) {
      if (span[1] > to) return;
      yield span;
    }
  }
}
