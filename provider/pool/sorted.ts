/** An ordered map from string to T: what the memory store is made of, and what a draft's unwritten rows are kept in. */
export class Sorted<T> {
  readonly #values: Map<string, T>;
  readonly #keys: string[];

  constructor(from?: Sorted<T>) {
    this.#values = new Map(from ? from.#values : []);
    this.#keys = from ? [...from.#keys] : [];
  }

  get size(): number {
    return this.#keys.length;
  }

  get(key: string): T | undefined {
    return this.#values.get(key);
  }

  set(key: string, value: T): void {
    if (!this.#values.has(key)) this.#keys.splice(this.#place(key), 0, key);
    this.#values.set(key, value);
  }

  delete(key: string): void {
    if (this.#values.delete(key)) this.#keys.splice(this.#place(key), 1);
  }

  clear(): void {
    this.#values.clear();
    this.#keys.length = 0;
  }

  *entries(from = "", to?: string): Generator<[string, T]> {
    for (let i = this.#place(from); i < this.#keys.length; i++) {
      const key = this.#keys[i]!;
      if (to !== undefined && key >= to) return;
      yield [key, this.#values.get(key)!];
    }
  }

  /** Index of the first key that is not before `key`. */
  #place(key: string): number {
    let [low, high] = [0, this.#keys.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#keys[middle]! < key) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
