/** Local engines answer at once, server engines with a promise. */
export type Awaitable<T> = T | Promise<T>;

/**
 * What an engine must be: ordered keys, and transactions that behave as if they ran one after another, whatever keys
 * they touch. Everything else is built above it, once.
 */
export interface Store {
  /** true: `transact` always fails, and previews choose without writing. */
  readonly readOnly: boolean;
  /**
   * All of `work` or nothing. It may be run again after a conflict, so it must not act on anything but its `tx`. Once it is
   * answered it outlasts a power cut, unless it is only `promised`.
   */
  transact<T>(work: (tx: Tx) => Promise<T>, promised?: boolean): Promise<T>;
  /** One consistent look that waits for no writer. */
  read<T>(work: (tx: Tx) => Promise<T>): Promise<T>;
  /** What is wrong with the store's time, if anything is; `repair`: from now on its clock counts as it is. */
  checkClock?(repair: boolean): Promise<ClockFinding | undefined>;
  close(): Promise<void>;
}

export interface ClockFinding {
  problem: string;
  /** Not where a clock has to be set first. */
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

/** What an engine's own failures are wrapped in: they concern everybody in the transaction, not the one who asked. */
export class EngineFault extends Error {
  constructor(override readonly cause: unknown) {
    super("the engine failed");
  }
}
