import type { Access } from "../access";
import type { Event, Lease } from "../types";
import type { Key, Span } from "./keys";
import { decodeRow } from "./records";
import { SortedMap } from "./sorted-map";
import type { Row, Tx, Write } from "./store";

/** Options of all operations of a process. Times are in seconds. */
export interface PoolOptions {
  offerTtl: number;
  quarantine: number;
  /** The user of this process, for the history. */
  actor?: string | undefined;
  /** What the user of this operation may see and change; absent: everything. */
  access?: Access;
  /** Whether an offer may be ended for the owner's request: it is of an earlier run, to a resource that this run has not checked. */
  isAbandoned?(holder: Lease, owner: string): boolean;
}

/**
 * The write buffer of a transaction. Its reads see its writes, which go to the engine at the end, each row once. Several operations share
 * it: one that throws is rolled back to the last savepoint, and the others are not affected.
 */
export class WriteBuffer {
  /** Rows that were read: they do not change during the transaction. */
  readonly #read = new Map<string, string | undefined>();
  /** Results of reads of the first row of a span, by the end of the span. */
  readonly #firstRows = new Map<string, { from: string; row: Row }>();
  /** Decoded rows, by key: rows such as the counts are read and written several times. */
  readonly #decoded = new Map<string, { text: string; value: unknown }>();
  /** What each write since the savepoint has replaced. */
  #before: [key: string, text: string | null | undefined][] = [];
  /** How many overdue leases were ended in this transaction. */
  expired = 0;
  #expiredBefore = 0;
  /** Changes of this transaction, in order, for the event log. */
  readonly events: Event[] = [];
  #eventsBefore = 0;

  constructor(
    readonly now: number,
    /** Of the operation that runs now. */
    public options: PoolOptions,
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

  /** Reads rows together that will be read one by one. */
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

  /** Writes an encoded row; null deletes it. A row that does not change is not written. */
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

  /** All rows of a span, read in pages. */
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
      // All stored rows up to here were read. If deletions in the buffer leave too few, it reads on from here.
      const horizon = stored.length < limit - found.length ? to : after(stored);
      for (const [key, text] of merge(stored, this.writes.entries(start, horizon))) {
        if (text !== null) found.push([key, decodeRow(codec, key, text)]);
        if (found.length === limit) return found;
      }
      start = horizon;
    }
    return found;
  }

  /** Caches the first row of a span: choosing a free value and taking it read the same extent. */
  async #stored(from: string, to: string, limit: number, expectEmpty?: boolean): Promise<Row[]> {
    const seen = limit === 1 ? this.#firstRows.get(to) : undefined;
    if (seen && seen.from <= from && from <= seen.row[0]) return [seen.row];
    const rows = await this.tx.range(from, to, limit, expectEmpty);
    if (rows[0]) this.#firstRows.set(to, { from, row: rows[0] });
    return rows;
  }

  /** Keeps the writes up to now. */
  savepoint(): void {
    this.#before = [];
    this.#expiredBefore = this.expired;
    this.#eventsBefore = this.events.length;
  }

  /** Discards the writes since the last savepoint. */
  rollback(): void {
    for (const [key, text] of this.#before.reverse()) {
      if (text === undefined) this.writes.delete(key);
      else this.writes.set(key, text);
    }
    this.expired = this.#expiredBefore;
    this.events.length = this.#eventsBefore;
    this.savepoint();
  }

  get hasWrites(): boolean {
    return this.writes.size > 0;
  }

  async flush(): Promise<void> {
    if (this.writes.size > 0) await this.tx.write([...this.writes.entries()]);
  }
}

/** Runs `work` with a buffer on the transaction. `writes`: the buffer starts with them and adds to them. */
export async function withBuffer<T>(
  tx: Tx,
  options: PoolOptions,
  work: (buffer: WriteBuffer) => Promise<T>,
  writes?: SortedMap<string | null>,
): Promise<T> {
  const now = await tx.now();
  return await work(new WriteBuffer(now, options, tx, writes));
}

const PAGE = 500;

/** The next key after these rows. Not with NUL: it ends a text in SQLite, and PostgreSQL rejects it. */
const after = (rows: [string, unknown][]): string => `${rows.at(-1)![0]}\u0001`;

/** Merges two ordered lists; if both have a key, the second list counts. */
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
