import type { LoggedEvent } from "./types";

/** What metrics count in a process that serves a pool. */
export interface Observer {
  /** After each commit: the changes that it has made. */
  committed?(events: LoggedEvent[]): void;
  /** A claim in this pool has failed. */
  claimFailed?(pool: string, error: unknown): void;
  /** An operation has failed: the rules have refused it, or the store has failed. */
  operationFailed?(error: unknown): void;
  /** After each transaction of the store, which may serve many operations. */
  transaction?(kind: "read" | "write", seconds: number): void;
  /** A transaction is tried again, because another process was first or has a lock. */
  conflict?(): void;
}
