/** Local engines answer at once, server engines with a promise. */
export type Awaitable<T> = T | Promise<T>;

/** The interface of an engine: ordered keys, and serializable transactions. All rules are written once, on top of it. */
export interface Store {
  /** true: `transact` always fails, and previews cannot offer values. */
  readonly readOnly: boolean;
  /**
   * Commits all writes of `work` or none. `work` may run again after a conflict, so it must have no effect but on its `tx`. The commit is
   * durable when the promise resolves, unless it is `promised`: then a power cut may lose it.
   */
  transact<T>(work: (tx: Tx) => Promise<T>, promised?: boolean): Promise<T>;
  /** A consistent read that does not wait for writers. */
  read<T>(work: (tx: Tx) => Promise<T>): Promise<T>;
  /** What is wrong with the clock of the store, if anything; `repair`: accepts its present time. */
  checkClock?(repair: boolean): Promise<ClockFinding | undefined>;
  close(): Promise<void>;
}

export interface ClockFinding {
  problem: string;
  /** false: the clock of a machine must be set first. */
  repairable: boolean;
}

export type Row = [key: string, value: string];
/** null deletes. */
export type Write = [key: string, value: string | null];

export interface Tx {
  /** The store's clock, which decides about expiry; milliseconds. */
  now(): Awaitable<number>;
  /** `expectEmpty`: the row is nearly always absent. A server engine may assume so, and verifies it when it commits. */
  get(key: string, expectEmpty?: boolean): Awaitable<string | undefined>;
  /** The first `limit` rows with `from` ≤ key < `to`, in order. */
  range(from: string, to: string, limit: number, expectEmpty?: boolean): Awaitable<Row[]>;
  /** These keys will be read one by one: a server engine reads them together. */
  prefetch?(keys: string[]): Awaitable<void>;
  write(writes: Write[]): Awaitable<void>;
}

/** A failure of the engine. It concerns all operations of the transaction, not only the one that met it. */
export class EngineFault extends Error {
  constructor(override readonly cause: unknown) {
    super("the engine failed");
  }
}
/** Runs one piece of work at a time, in the order of the calls. */
export type Mutex = <T>(work: () => Promise<T>) => Promise<T>;

export function createMutex(): Mutex {
  let last: Promise<unknown> = Promise.resolve();
  return (work) => {
    const result = last.then(work);
    last = result.catch(() => {});
    return result;
  };
}
