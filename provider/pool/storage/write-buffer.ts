import type { Lease } from "../types";
import type { Key, Span } from "./keys";
import { decodeRow } from "./records";
import { SortedMap } from "./sorted-map";
import type { Row, Tx, Write } from "./store";

/** What all operations of a process go by. Seconds. */
export interface PoolOptions {
  offerTtl: number;
  quarantine: number;
  /** The user on whose behalf this process works, for the history. */
  actor?: string | undefined;
  /** Whether an offer may end for the owner's request: one of an earlier run, to a resource that this run has not met. */
  isAbandoned?(holder: Lease, owner: string): boolean;
}

/**
 * A transaction's view of the store: its writes lie above what is stored, are seen by its own reads, and go to the engine
 * when all is done, each row once. Operations follow each other on it: one that throws is taken back, and its neighbours
 * never notice.
 */
export class WriteBuffer {
  /** What was read stays as it is for the length of the transaction; a row is asked for once. */
  readonly #read = new Map<string, string | undefined>();
  /** The first row behind a place, by the end of the span that was looked at. It stays so just as well. */
  readonly #firstRows = new Map<string, { from: string; row: Row }>();
  /** What texts mean, by their keys: rows such as the counts are read and written again and again. */
  readonly #decoded = new Map<string, { text: string; value: unknown }>();
  /** What was there before each write of the operation at hand. */
  #before: [key: string, text: string | null | undefined][] = [];
  /** How many leases have been cleaned up by the way in this transaction. */
  expired = 0;
  #expiredBefore = 0;

  constructor(
    readonly now: number,
    readonly options: PoolOptions,
    private readonly tx: Tx,
    private readonly writes = new SortedMap<string | null>(),
  ) {}

  async get<T>({ at, codec, expectEmpty }: Key<T>): Promise<T | undefined> {
    const own = this.writes.get(at);
    const text = own === undefined ? await this.#storedText(at, expectEmpty) : own;
    if (text === undefined || text === null) return undefined;
    const known = this.#decoded.get(at);
    if (known?.text === text) return known.value as T;
    const value = decodeRow(codec, at, text);
    this.#decoded.set(at, { text, value });
    return value;
  }

  async #storedText(at: string, expectEmpty?: boolean): Promise<string | undefined> {
    if (!this.#read.has(at)) this.#read.set(at, await this.tx.get(at, expectEmpty));
    return this.#read.get(at);
  }

  /** What will be asked for one by one is got together where that matters. */
  async prefetch(keys: Key<unknown>[]): Promise<void> {
    if (keys.length > 1) await this.tx.prefetch?.(keys.map(({ at }) => at));
  }

  put<T>({ at, codec }: Key<T>, value: T): void {
    const text = codec.encode(value);
    this.#decoded.set(at, { text, value });
    this.set(at, text);
  }

  delete({ at }: Key<unknown>): void {
    this.set(at, null);
  }

  /** A row as it is stored; null deletes it. What stands there already is not written again. */
  set(at: string, text: string | null): void {
    if (text !== null && this.#read.get(at) === text && this.writes.get(at) === undefined) return;
    this.#before.push([at, this.writes.get(at)]);
    this.writes.set(at, text);
  }

  async first<T>(span: Span<T>): Promise<T | undefined> {
    return (await this.range(span, 1))[0];
  }

  async range<T>(span: Span<T>, limit: number): Promise<T[]> {
    return (await this.rows(span, limit)).map(([, value]) => value);
  }

  async all<T>(span: Span<T>): Promise<T[]> {
    return (await this.allRows(span)).map(([, value]) => value);
  }

  /** All of a span, a page at a time. */
  async allRows<T>(span: Span<T>): Promise<[key: string, value: T][]> {
    const found: [string, T][] = [];
    for (let rest: Span<T> | undefined = span; rest; ) {
      const page: [string, T][] = await this.rows(rest, PAGE);
      for (const row of page) found.push(row);
      rest = page.length < PAGE ? undefined : { ...rest, from: after(page) };
    }
    return found;
  }

  /** The first `limit` of a span, and the rest of it if there may be more. */
  async page<T>(span: Span<T>, limit: number): Promise<[T[], Span<T> | undefined]> {
    const rows = await this.rows(span, limit);
    const rest = rows.length < limit ? undefined : { ...span, from: after(rows) };
    return [rows.map(([, value]) => value), rest];
  }

  async rows<T>({ from, to, codec, expectEmpty }: Span<T>, limit: number): Promise<[key: string, value: T][]> {
    const found: [string, T][] = [];
    for (let start = from; start < to; ) {
      const stored = await this.#stored(start, to, limit - found.length, expectEmpty);
      // Up to here everything stored is known; what lies beyond is asked for again if own deletions left too little.
      const horizon = stored.length < limit - found.length ? to : after(stored);
      for (const [key, text] of merge(stored, this.writes.entries(start, horizon))) {
        if (text !== null) found.push([key, decodeRow(codec, key, text)]);
        if (found.length === limit) return found;
      }
      start = horizon;
    }
    return found;
  }

  /** Who picks a value from an extent looks for the extent again when it is taken. */
  async #stored(from: string, to: string, limit: number, expectEmpty?: boolean): Promise<Row[]> {
    const seen = limit === 1 ? this.#firstRows.get(to) : undefined;
    if (seen && seen.from <= from && from <= seen.row[0]) return [seen.row];
    const rows = await this.tx.range(from, to, limit, expectEmpty);
    if (rows[0]) this.#firstRows.set(to, { from, row: rows[0] });
    return rows;
  }

  /** The operation at hand is done; what comes now is another one's. */
  savepoint(): void {
    this.#before = [];
    this.#expiredBefore = this.expired;
  }

  /** The operation at hand has done nothing. */
  rollback(): void {
    for (const [key, text] of this.#before.reverse()) {
      if (text === undefined) this.writes.delete(key);
      else this.writes.set(key, text);
    }
    this.expired = this.#expiredBefore;
    this.savepoint();
  }

  get hasWrites(): boolean {
    return this.writes.size > 0;
  }

  async flush(): Promise<void> {
    if (this.writes.size > 0) await this.tx.write([...this.writes.entries()]);
  }
}

/** Runs one piece of work over a transaction; `writes` are seen by it, and added to. */
export async function withBuffer<T>(
  tx: Tx,
  terms: PoolOptions,
  work: (draft: WriteBuffer) => Promise<T>,
  writes?: SortedMap<string | null>,
): Promise<T> {
  const now = await tx.now();
  return await work(new WriteBuffer(now, terms, tx, writes));
}

const PAGE = 500;

/** Just behind the last of these rows. Not with NUL, which ends a text in SQLite and cannot be in one in PostgreSQL. */
const after = (rows: [string, unknown][]): string => `${rows.at(-1)![0]}\u0001`;

/** Merges two ordered lists; where both have a key, the second one's value counts. */
function* merge(stored: Row[], own: Iterator<Write>): Generator<Write> {
  let next = own.next();
  for (const row of stored) {
    while (!next.done && next.value[0] < row[0]) {
      yield next.value;
      next = own.next();
    }
    if (!next.done && next.value[0] === row[0]) continue;
    yield row;
  }
  while (!next.done) {
    yield next.value;
    next = own.next();
  }
}
