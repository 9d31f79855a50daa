import type { OverlayError } from "../../errors";
import type { Row, Tx, Write } from "../storage/store";
import type { KeyRange } from "./execute";

/** What `optimistic.ts` needs of a server: rows, and one version of all of them that each commit compares and replaces. */

export interface Version {
  number: number;
  /** Random, so that versions of a restored backup differ from those that were lost. */
  id: string;
  /** The time of its commit, in milliseconds. Later transactions have no earlier time. */
  at: number;
}

/** Without `writes` if they are too many for the log, or secret. */
export type Commit = Version & { writes?: Write[] };

export interface LogUpdate {
  head: Version;
  /** All commits after the version that was asked about, oldest first; undefined if they are too many. */
  commits?: Commit[];
}

/** A process that missed more commits than this clears its cache instead. */
export const MAX_UPDATE = 64;

/** The server's time in milliseconds; undefined if it has not been read for too long. */
export type Clock = () => number | undefined;

/** Each call throws `Conflict` if it needs a version that is not the newest, `StoreUnavailable` if the server does not answer. */
/** Keys and ranges are byte strings, see `toBytes` in execute.ts. */
export interface CommitLog {
  readUpdate(since?: Version): Promise<LogUpdate>;
  /** The id of the commit with this number; undefined if the log does not have it. */
  findId(number: number): Promise<string | undefined>;
  readRows(at: Version, ranges: KeyRange[]): Promise<Row[][]>;
  /**
   * Returns undefined if it was made. Returns an update, and writes nothing, if `from` is not the newest version, if another process
   * holds the lock, or if one of the ranges in `assertEmpty` has rows. Its first request is the commit itself: a request before it would
   * cost a round trip.
   */
  commit(from: Version, commit: Required<Commit>, assertEmpty: KeyRange[]): Promise<LogUpdate | undefined>;
}

export interface ServerEngine extends CommitLog {
  readonly readOnly: boolean;
  /** For messages. */
  readonly place: string;
  readonly clock: Clock;
  /** This machine's time, by which a leap of the server's clock is noticed. */
  readonly machineTime: () => number;
  /**
   * Throws `Conflict` after the timeout. Until `unlock` other processes do not commit, and commits that they sent before fail. Must succeed
   * while others commit without a pause: it cannot be part of a value that each commit replaces.
   */
  lock(timeoutMs: number, since?: Version): Promise<LockedLog>;
  read<T>(work: (tx: Tx) => Promise<T>): Promise<T>;
  close(): Promise<void>;
}

export interface LockedLog extends CommitLog {
  /** Since the version that was given to `lock`. */
  readonly update: LogUpdate;
  /** Whether the lock can be kept over several commits. */
  readonly canKeep: boolean;
  /** Releases the lock if the commit is made, unless `keepLock`. */
  commit(
    from: Version,
    commit: Required<Commit>,
    assertEmpty: KeyRange[],
    keepLock?: boolean,
  ): Promise<LogUpdate | undefined>;
  /** Never rejects. */
  unlock(): Promise<void>;
}

/** Another process has committed first. The transaction runs again. */
export class Conflict extends Error {}

/** The server does not answer now, but may come back. */
export class StoreUnavailable extends Error {
  constructor(override readonly cause: OverlayError) {
    super(cause.message);
  }
}
