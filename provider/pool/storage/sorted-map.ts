/** Keys in one block. A longer block is split in two. */
const ROW = 256;

/**
 * An ordered map from string to T: the rows of the memory store, of the row cache and of the write buffer. Keys are in blocks of bounded
 * length, so that an insert moves few of them.
 */
export class SortedMap<T> {
  readonly #values: Map<string, T>;
  /** None of them is empty, except when there is only one. */
  readonly #rows: string[][];

  constructor(from?: SortedMap<T>) {
    this.#values = new Map(from ? from.#values : []);
    this.#rows = from ? from.#rows.map((row) => [...row]) : [[]];
  }

  get size(): number {
    return this.#values.size;
  }

  get(key: string): T | undefined {
    return this.#values.get(key);
  }

  set(key: string, value: T): void {
    const before = this.#values.size;
    this.#values.set(key, value);
    if (this.#values.size === before) return;
    const at = this.#rowOf(key);
    const row = this.#rows[at]!;
    row.splice(placeIn(row, key), 0, key);
    if (row.length > ROW) this.#rows.splice(at + 1, 0, row.splice(ROW / 2));
  }

  delete(key: string): void {
    if (!this.#values.delete(key)) return;
    const at = this.#rowOf(key);
    const row = this.#rows[at]!;
    row.splice(placeIn(row, key), 1);
    if (row.length === 0 && this.#rows.length > 1) this.#rows.splice(at, 1);
  }

  clear(): void {
    this.#values.clear();
    this.#rows.splice(0, Infinity, []);
  }

  /** While it is read, it may not be changed. */
  *entries(from = "", to?: string): Generator<[string, T]> {
    let at = this.#rowOf(from);
    for (let i = placeIn(this.#rows[at]!, from); at < this.#rows.length; at++, i = 0) {
      for (const row = this.#rows[at]!; i < row.length; i++) {
        const key = row[i]!;
        if (to !== undefined && key >= to) return;
        yield [key, this.#values.get(key)!];
      }
    }
  }

  /** The first entry that is not before `from`. */
  first(from: string): [string, T] | undefined {
    const at = this.#rowOf(from);
    const row = this.#rows[at]!;
    const key = row[placeIn(row, from)] ?? this.#rows[at + 1]?.[0];
    return key === undefined ? undefined : [key, this.#values.get(key)!];
  }

  /** Index of the row in which a key lies or would lie: the last that begins before it. */
  #rowOf(key: string): number {
    let [low, high] = [0, this.#rows.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#rows[middle]![0]! <= key) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

/** Index of the first key that is not before `key`. */
function placeIn(keys: string[], key: string): number {
  let [low, high] = [0, keys.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (keys[middle]! < key) low = middle + 1;
    else high = middle;
  }
  return low;
}
