import type { OverlayError } from "../../errors";
import type { Row, Write } from "../storage/store";

/**
 * What an engine on a server implements, and `optimistic.ts` makes a `Store` of: rows, and one version of all of them that each commit
 * compares and replaces. `serverContract` in test/contract/servers tests what is demanded here.
 */

/** The first `limit` rows from `from` on and before `to`. */
export interface KeyRange {
  from: string;
  to: string;
  limit: number;
}

export interface Version {
  number: number;
  /** Random, so that versions of a restored backup differ from those that were lost. */
  id: string;
  /** The time of its commit, in milliseconds. Later transactions have no earlier time. */
  at: number;
}

/** Without `writes` if they are too many for the log, or if one of them is a secret (`hasSecret`). */
export type Commit = Version & { writes?: Write[] };

export interface LogUpdate {
  head: Version;
  /** All commits after the version that was asked about, oldest first. Undefined if they are too many, or if the engine does not keep them. */
  commits?: Commit[];
}

/** A process that missed more commits than this clears its cache instead. */
export const MAX_UPDATE = 64;

/**
 * The server's time in milliseconds; undefined if it has not been read for too long. `readUpdate`, `lock` and `openSnapshot` read it again: while it
 * stays undefined, transactions fail with `STORE_CONFLICT`. See `ServerClock`.
 */
export type Clock = () => number | undefined;

/**
 * Each call throws `Conflict` if it needs a version that is not the newest, and `StoreUnavailable` if the server does not answer. Keys and
 * ranges are byte strings: one character for each byte of UTF-8, see `toBytes` in execute.ts.
 */
export interface CommitLog {
  /** The newest version. An empty store has version `{ number: 0, id: "", at: 0 }`, or what the engine writes when it creates the store. */
  readUpdate(since?: Version): Promise<LogUpdate>;
  /** The id of the commit with this number; undefined if the log does not have it. */
  findId(number: number): Promise<string | undefined>;
  /** One answer for each range. */
  readRows(at: Version, ranges: KeyRange[]): Promise<Row[][]>;
  /**
   * Returns undefined if it was made: all writes are durable, and the log has its number and id. Returns an update, and writes nothing, if
   * `from` is not the newest version (also if that is the version of an empty store), if another process holds the lock, or if one of the
   * ranges in `assertEmpty` has rows.
   *
   * Its first request is the commit itself. A request before it would cost a round trip, and `serverContract` relies on it: the first
   * request after the work of a transaction is the one whose answer it loses.
   */
  commit(from: Version, commit: Required<Commit>, assertEmpty: KeyRange[]): Promise<LogUpdate | undefined>;
}

export interface ServerEngine extends CommitLog {
  readonly readOnly: boolean;
  /** No request is sent twice: a commit that was refused was not made by an earlier copy of the same request. */
  readonly sendsOnce?: boolean;
  /** For messages. */
  readonly place: string;
  readonly clock: Clock;
  /** This machine's time, by which a leap of the server's clock is noticed. */
  readonly machineTime: () => number;
  /**
   * Waits for the lock. Throws `Conflict` after the timeout. Until `unlock`, commits of other processes fail, also those that were sent
   * before this process got the lock and arrive later. The lock is given while others commit without a pause, so it cannot be part of a
   * value that each commit replaces. A process that dies loses it after some seconds.
   *
   * It is for progress only, because commits compare the version anyway. Two holders for a moment do no harm, and neither does a commit of a
   * process that has not noticed the lock yet, if the next one of that process fails.
   */
  lock(timeoutMs: number, since?: Version): Promise<LockedLog>;
  openSnapshot(): Promise<Snapshot>;
  close(): Promise<void>;
}

export interface LockedLog extends CommitLog {
  /** Since the version that was given to `lock`. */
  readonly update: LogUpdate;
  /** Whether the lock can be kept over several commits: true for a lock that does not end with a commit. */
  readonly canKeep: boolean;
  /** Releases the lock if the commit is made, unless `keepLock`, or leaves that to `unlock`, which is always called. */
  commit(
    from: Version,
    commit: Required<Commit>,
    assertEmpty: KeyRange[],
    keepLock?: boolean,
  ): Promise<LogUpdate | undefined>;
  /** Never rejects. */
  unlock(): Promise<void>;
}

/** All rows at one version, whatever is committed meanwhile. It waits for no other process, and needs no right to write. */
export interface Snapshot {
  readonly version: Version;
  /** Writes of the commit of this version that are not in their places yet. */
  readonly pendingWrites?: Write[];
  readRows(ranges: KeyRange[]): Promise<Row[][]>;
  /** Never rejects. */
  close(): Promise<void>;
}

/** Another process has committed first. The transaction runs again. */
export class Conflict extends Error {}

/** The server does not answer now, but may come back. */
export class StoreUnavailable extends Error {
  constructor(override readonly cause: OverlayError) {
    super(cause.message);
  }
}
