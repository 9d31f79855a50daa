import { SortedMap } from "../storage/sorted-map";
import { type Awaitable, EngineFault, type Row, type Tx, type Write } from "../storage/store";
import { keyAfter, type RowCache } from "./row-cache";
import type { KeyRange } from "./server-engine";

/** Reads ranges at the version that the transaction runs on. */
export type Fetch = (ranges: KeyRange[]) => Promise<Row[][]>;

/** Rows that are read at once. */
const PAGE_SIZE = 1000;
/** After so many runs a transaction waits at each cache miss instead of stopping there. */
const MAX_RERUNS = 4;
/** etcd takes 128 comparisons in a commit. */
const MAX_ASSUMPTIONS = 100;

export type Outcome<T> = { value: T } | { error: unknown };

export const unwrap = <T>(outcome: Outcome<T>): T => {
  if ("error" in outcome) throw outcome.error;
  return outcome.value;
};

export interface Execution<T> {
  outcome: Outcome<T>;
  writes: Write[];
  /** Ranges that were not read. The outcome is valid if they have no rows, which the commit verifies. */
  assumedEmpty: KeyRange[];
}

export interface TxContext {
  cache: RowCache;
  now: number;
  fetch: Fetch;
  /** Ranges marked `expectEmpty` are assumed to have no rows if the transaction writes. */
  assumeEmpty?: boolean;
  /** Writes of the commit at this version that are not in their places yet. */
  pendingWrites?: Write[];
}

/**
 * Runs a transaction on the row cache. At a cache miss the operation stops, and the other operations of the transaction go on. Then
 * all missing ranges are read together, and the transaction runs again. So 64 claims need hardly more round trips than one.
 */
export async function execute<T>(context: TxContext, work: (tx: Tx) => Promise<T>): Promise<Execution<T>> {
  for (let run = 0; ; run++) {
    const tx = new CachedTx(context, run < MAX_RERUNS);
    const outcome = await outcomeOf(work(tx));
    if (tx.failure) throw tx.failure.cause;
    const [misses, assumedEmpty] = [[...tx.misses.values()], [...tx.assumedEmpty.values()]];
    const writes = "error" in outcome ? [] : tx.writes;
    const canVerify = context.assumeEmpty && writes.length > 0 && assumedEmpty.length <= MAX_ASSUMPTIONS;
    if (misses.length === 0 && (assumedEmpty.length === 0 || canVerify)) return { outcome, writes, assumedEmpty };
    const missing = [...misses, ...assumedEmpty];
    addToCache(context.cache, missing, await context.fetch(missing));
  }
}

async function outcomeOf<T>(work: Promise<T>): Promise<Outcome<T>> {
  try {
    return { value: await work };
  } catch (error) {
    return { error };
  }
}

function addToCache(cache: RowCache, ranges: KeyRange[], answers: Row[][]): void {
  for (const [i, { from, to, limit }] of ranges.entries()) {
    const rows = answers[i]!;
    cache.addRange(from, rows.length < limit ? to : keyAfter(rows.at(-1)![0]), rows);
  }
}

/** Ends an operation at a range that is not in the cache. */
class CacheMiss extends Error {}

/** One run of a transaction, on the cache. Keys inside are bytes. */
class CachedTx implements Tx {
  readonly #writes = new SortedMap<string | null>();
  /** Ranges that were needed: if there are any, this run has no result. */
  readonly misses = new Map<string, KeyRange>();
  readonly assumedEmpty = new Map<string, KeyRange>();
  /** The first failure of the engine: with it the run has no result, whether a rule caught it or not. */
  failure: EngineFault | undefined;

  /** `stopAtMiss`: otherwise it waits there for the engine. */
  constructor(
    private readonly context: TxContext,
    private readonly stopAtMiss: boolean,
  ) {
    for (const [key, value] of context.pendingWrites ?? []) this.#writes.set(key, value);
  }

  get writes(): Write[] {
    return [...this.#writes.entries()];
  }

  now(): number {
    return this.context.now;
  }

  get(key: string, expectEmpty = false): Awaitable<string | undefined> {
    const at = toBytes(key);
    const own = this.#writes.get(at);
    if (own !== undefined) return own ?? undefined;
    const stored = this.context.cache.get(at);
    if (stored !== undefined) return stored;
    const first = (rows: Row[]) => rows[0]?.[1];
    const rows = this.#stored(at, keyAfter(at), 1, expectEmpty);
    return rows instanceof Promise ? rows.then(first) : first(rows);
  }

  range(from: string, to: string, limit: number, expectEmpty = false): Awaitable<Row[]> {
    const [end, found]: [string, Row[]] = [toBytes(to), []];
    for (let at = toBytes(from); at < end && found.length < limit; ) {
      const wanted = Math.min(limit - found.length, PAGE_SIZE);
      const stored = this.#stored(at, end, wanted, expectEmpty);
      // It is in the cache now.
      if (stored instanceof Promise) return stored.then(() => this.range(from, to, limit, expectEmpty));
      // All stored rows up to here were read. If own deletions leave too few, it goes on from there.
      const horizon = stored.length < wanted ? end : keyAfter(stored.at(-1)![0]);
      for (const [key, value] of this.#merge(stored, at, horizon)) {
        if (value !== null && found.length < limit) found.push([toText(key), value]);
      }
      at = horizon;
    }
    return found;
  }

  async prefetch(keys: string[]): Promise<void> {
    const unknown = keys.map(toBytes).filter((at) => this.context.cache.coveredUntil(at) === at && !this.#has(at));
    const missing = unknown.map((at) => ({ from: at, to: keyAfter(at), limit: 1 }));
    if (missing.length === 0) return;
    if (!this.stopAtMiss) return this.#fetch(missing);
    for (const range of missing) this.misses.set(rangeId(range), range);
    throw new CacheMiss();
  }

  #has(at: string): boolean {
    return this.#writes.get(at) !== undefined || this.context.cache.get(at) !== undefined;
  }

  write(writes: Write[]): void {
    for (const [key, value] of writes) this.#writes.set(toBytes(key), value);
  }

  #merge(stored: Row[], from: string, to: string): Write[] {
    const own = [...this.#writes.entries(from, to)];
    if (own.length === 0) return stored;
    return [...new Map<string, string | null>([...stored, ...own])].sort(([a], [b]) => (a < b ? -1 : 1));
  }

  #stored(from: string, to: string, limit: number, expectEmpty: boolean): Awaitable<Row[]> {
    const { cache } = this.context;
    const found: Row[] = [];
    for (let at = from; at < to && found.length < limit; ) {
      const end = cache.coveredUntil(at);
      if (end === at) return this.#miss(found, { from: at, to, limit: limit - found.length }, expectEmpty);
      found.push(...cache.range(at, end < to ? end : to, limit - found.length));
      at = end;
    }
    return found;
  }

  #miss(found: Row[], missing: KeyRange, expectEmpty: boolean): Awaitable<Row[]> {
    if (expectEmpty) {
      this.assumedEmpty.set(rangeId(missing), missing);
      return found;
    }
    if (this.stopAtMiss) {
      this.misses.set(rangeId(missing), missing);
      throw new CacheMiss();
    }
    return this.#fetch([missing]).then(async () => [
      ...found,
      ...(await this.#stored(missing.from, missing.to, missing.limit, expectEmpty)),
    ]);
  }

  async #fetch(ranges: KeyRange[]): Promise<void> {
    try {
      addToCache(this.context.cache, ranges, await this.context.fetch(ranges));
    } catch (error) {
      this.failure ??= new EngineFault(error);
      throw this.failure;
    }
  }
}

const rangeId = ({ from, to, limit }: KeyRange): string => `${from} ${to} ${limit}`;

/**
 * JavaScript orders text by UTF-16 units, engines by bytes. With one character for each byte of UTF-8, both agree; plain
 * ASCII is its own bytes.
 */
const PLAIN = /^[\0-\x7f]*$/;
export const toBytes = (text: string): string => (PLAIN.test(text) ? text : Buffer.from(text).toString("latin1"));
export const toText = (bytes: string): string => (PLAIN.test(bytes) ? bytes : Buffer.from(bytes, "latin1").toString());
