/** Takes changes back: those of a request that is refused, or of a decision that must be made again with more rows. */
export class Journal {
  readonly #undo: (() => void)[] = [];

  add(undo: () => void): void {
    this.#undo.push(undo);
  }

  get mark(): number {
    return this.#undo.length;
  }

  rollBack(to: number): void {
    while (this.#undo.length > to) this.#undo.pop()!();
  }
}

/** The entries of a row in an index: none, one or several. */
type Keys<R> = (row: R) => string | string[] | undefined;

/** Rows by key and by index. It remembers what the store has, so that `changes` is what the store must write. */
export class Table<R extends object, I extends string> {
  readonly #rows = new Map<string, R>();
  /** What the store has, of rows that were loaded or looked for. */
  readonly #stored = new Map<string, R | undefined>();
  readonly #indexes: [keysOf: Keys<R>, keys: Map<string, Set<string>>][] = [];

  /** Grows with each change. */
  version = 0;

  constructor(
    private readonly journal: Journal,
    private readonly keyOf: (row: R) => string,
    private readonly indexes: Record<I, Keys<R>>,
  ) {
    for (const name in indexes) this.#indexes.push([indexes[name], new Map()]);
  }

  get(key: string): R | undefined {
    return this.#rows.get(key);
  }

  get size(): number {
    return this.#rows.size;
  }

  by(index: I, value: string): R[] {
    const keysOf = this.indexes[index];
    const keys = this.#indexes.find(([each]) => each === keysOf)![1].get(value);
    return keys ? Array.from(keys, (key) => this.#rows.get(key)!) : [];
  }

  /** A row of the store. One that was changed since stays as it is. */
  load(row: R): void {
    const key = this.keyOf(row);
    if (this.#stored.has(key)) return;
    this.#stored.set(key, row);
    this.#set(key, row);
  }

  put(row: R): void {
    this.#change(this.keyOf(row), row);
  }

  delete(key: string): void {
    if (this.#rows.has(key)) this.#change(key, undefined);
  }

  get changes(): { put: R[]; deleted: R[] } {
    const [put, deleted]: [R[], R[]] = [[], []];
    for (const [key, row] of this.#rows) if (this.#stored.get(key) !== row) put.push(row);
    for (const [key, row] of this.#stored) if (row && !this.#rows.has(key)) deleted.push(row);
    return { put, deleted };
  }

  /** What the store has in the place of a row. */
  before(row: R): R | undefined {
    return this.#stored.get(this.keyOf(row));
  }

  #change(key: string, row: R | undefined): void {
    const before = this.#rows.get(key);
    this.#set(key, row);
    this.journal.add(() => this.#set(key, before));
  }

  #set(key: string, row: R | undefined): void {
    this.version++;
    const before = this.#rows.get(key);
    for (const [keysOf, index] of this.#indexes) {
      for (const value of before ? listOf(keysOf(before)) : []) index.get(value)?.delete(key);
      for (const value of row ? listOf(keysOf(row)) : []) {
        const keys = index.get(value);
        if (keys) keys.add(key);
        else index.set(value, new Set([key]));
      }
    }
    if (row) this.#rows.set(key, row);
    else this.#rows.delete(key);
  }
}

const listOf = (keys: string | string[] | undefined): string[] =>
  keys === undefined ? [] : typeof keys === "string" ? [keys] : keys;
