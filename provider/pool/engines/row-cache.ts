import { SortedMap } from "../storage/sorted-map";
import type { Row, Write } from "../storage/store";

/** The next possible key: no key has the character NUL. */
export const keyAfter = (key: string): string => `${key}\u0001`;

/** Rows at the newest version that this process knows, and the ranges of which it has all rows. A row can be cached without a range. */
export class RowCache {
  readonly #rows = new SortedMap<string>();
  /** From the end of each range to its start: the first entry after a key tells whether a range covers the key. */
  readonly #ranges = new SortedMap<string>();

  get size(): number {
    return this.#rows.size + this.#ranges.size;
  }

  get(key: string): string | undefined {
    return this.#rows.get(key);
  }

  /** The end of the range that covers `from`; `from` itself if none does. */
  coveredUntil(from: string): string {
    const [end, start] = this.#ranges.first(keyAfter(from)) ?? [from, from];
    return start <= from ? end : from;
  }

  range(from: string, to: string, limit: number): Row[] {
    const found: Row[] = [];
    for (const row of this.#rows.entries(from, to)) {
      if (found.length === limit) break;
      found.push(row);
    }
    return found;
  }

  /** `rows` are all rows from `from` on and before `to`. */
  addRange(from: string, to: string, rows: Row[]): void {
    for (const [key, value] of rows) this.#rows.set(key, value);
    let [first, last] = [from, to];
    for (const [end, start] of [...this.#touching(from, to)]) {
      if (start < first) first = start;
      if (end > last) last = end;
      this.#ranges.delete(end);
    }
    this.#ranges.set(last, first);
  }

  apply(writes: Write[]): void {
    for (const [key, value] of writes) {
      if (value === null) this.#rows.delete(key);
      else this.#rows.set(key, value);
    }
  }

  clear(): void {
    this.#rows.clear();
    this.#ranges.clear();
  }

  *#touching(from: string, to: string): Generator<[end: string, start: string]> {
    for (const range of this.#ranges.entries(from)) {
      if (range[1] > to) return;
      yield range;
    }
  }
}
