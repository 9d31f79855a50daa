import { randomBytes } from "node:crypto";
import { OverlayError } from "../../errors";
import type { FreeRow, LeaseRow, OfferRow, PoolRow, Zone } from "../decide/rows";
import type { Event, LoggedEvent, StoreVersion } from "../types";

/**
 * What an engine implements: rows, found by queries, and transactions that lock the rows of pools. A transaction has two round trips: `begin`
 * locks and loads, `commit` writes. `transact.ts` runs decisions in it, `schema.ts` has the tables.
 */
export interface Engine {
  /** true: nothing can be written, and previews cannot offer values. */
  readonly readOnly: boolean;
  /** For messages. */
  readonly place: string;
  /**
   * Begins a transaction: locks the rows of these pools until its end, and loads what the queries find after that. Names without a row get one
   * (`PoolRow` without a spec) if the transaction writes. `locks` are sorted. Absent: a read without locks, of one moment. `all`: after all other
   * transactions that write have ended.
   */
  begin(queries: Query[], locks?: string[] | "all"): Awaitable<Transaction>;
  /** What is wrong with the clock of the store, if anything; `repair`: accepts its present time. */
  checkClock?(repair: boolean): Promise<ClockFinding | undefined>;
  close(): Promise<void>;
}

/** Local engines answer at once, server engines with a promise. */
export type Awaitable<T> = T | Promise<T>;

export interface Transaction {
  /** The store's clock, read after the locks were taken; milliseconds. */
  readonly now: number;
  readonly head: Head;
  /** The answer to the queries of `begin`; also the rows of locked pools. */
  readonly rows: Rows;
  load(queries: Query[]): Awaitable<Rows>;
  /** Writes the changes and ends the transaction. They are durable when it returns. `Conflict`: nothing was written. */
  commit(changes: Changes): Awaitable<Commit>;
  /** Ends it without changes. Never rejects. */
  rollBack(): Awaitable<void>;
}

/** The one row about the store itself. */
export interface Head {
  /** Random; stays when the store moves to another engine. */
  id: string;
  /** Of the tables. */
  layout: number;
  /** The number of commits. */
  version: number;
  /** The tag of the present epoch, and when it began. */
  epoch: string;
  epochSince: number;
  /** The id of the newest event. */
  lastEvent: number;
  /** The time of the last commit. */
  at: number;
  /** Why nothing may be written, as JSON: see `move.ts`. */
  move?: string | undefined;
}

/** Versions from `first` on were committed in this epoch. Every second with commits begins one. */
export interface EpochRow {
  first: number;
  tag: string;
}

/** Secrets, access tokens and deliveries to webhooks: text under a key. Engines with users keep secrets apart. */
export interface DocumentRow {
  kind: DocumentKind;
  key: string;
  value: string;
}
export type DocumentKind = "secret" | "accessToken" | "delivery" | "recovered";

/** `now` is the time of the transaction. Answers are complete, or the first `limit` rows in the order that is named. Leases come with all their fields. */
export type Query =
  | { of: "pool"; name: string }
  /** Pools with a spec, by name, after this one. */
  | { of: "pools"; prefix: string; after: string; limit: number }
  /** Pools with overdue or resting leases, or with offers: those whose counters are not all of the truth. */
  | { of: "activePools"; prefix: string }
  | { of: "lease"; uid: string }
  /** Leases of the owner that have not ended or rest. */
  | { of: "owner"; pool: string; owner: string }
  /** Leases of the owner that ended, the newest first. */
  | { of: "ended"; pool: string; owner: string; limit: number }
  /** Leases that have not ended and have this name. */
  | { of: "name"; name: string }
  /** Leases that hold, or rest on, a value of this range. */
  | { of: "values"; pool: string; first: bigint; last: bigint }
  /** Leases that have not ended and use these ports, as `tcp/80`, of this value. */
  | { of: "ports"; pool: string; value: bigint; ports: string[] }
  /** Leases that have not ended, with this key (`sharingKeyOf`). */
  | { of: "sharers"; pool: string; sharedAs: string }
  /** Leases that are overdue (`expiresAt`), and those that rest (`resting`) although their quarantine is over (`freeAt`): the oldest, at least `limit` of them. */
  | { of: "due"; pool: string; limit: number }
  /** Leases in quarantine (with `resting`), the longest ended first. */
  | { of: "resting"; pool: string; limit: number }
  /** Leases that have not ended, the longest unseen first. */
  | { of: "idle"; pool: string; limit: number }
  /** Leases that have not ended or rest, by their lowest value (`positionOf`), after this one. Those with equal values are not parted. */
  | { of: "page"; pool: string; after: bigint; limit: number }
  /** Leases that have not ended, with a child pool. */
  | { of: "parents"; pool: string }
  /** Free ranges that end at `from` or later. */
  | { of: "free"; pool: string; zone: Zone; from: bigint; limit: number }
  /** All offers of the owner, in any pool, also expired ones. */
  | { of: "offersOf"; owner: string }
  /** Offers in the pool that expire now or later. */
  | { of: "offersIn"; pool: string }
  /** The same, by name of a lease, and by name of a child pool. */
  | { of: "offersNamed"; name: string }
  | { of: "offersOfPool"; childName: string }
  | { of: "offersWithPool"; prefix: string }
  /** Leases that ended before this time and do not rest, and offers that expired before it: the oldest. */
  | { of: "pastLeases" | "pastOffers"; before: number; limit: number }
  /** The newest epoch that begins with this version or an earlier one. */
  | { of: "epoch"; version: number }
  | { of: "documents"; kind: DocumentKind }
  /** Events after this id; of one pool, from this time on. */
  | { of: "events"; after: number; limit: number; pool?: string; since?: number }
  /** For copies of a store: rows of a table, by key, after those of an earlier page (its `next`). */
  | { of: "table"; table: CopiedTable; after?: string; limit: number };

/** All tables but those that follow from them. */
export const COPIED = ["epoch", "pool", "lease", "free_range", "offer", "event", "document", "secret"] as const;
export type CopiedTable = (typeof COPIED)[number];

/** A row that several queries find may come several times. */
export interface Rows {
  pools?: PoolRow[];
  leases?: LeaseRow[];
  offers?: OfferRow[];
  documents?: DocumentRow[];
  epochs?: EpochRow[];
  events?: LoggedEvent[];
  /** One entry for each query of free ranges, in their order. */
  free?: { query: Query & { of: "free" }; rows: { first: bigint; last: bigint }[] }[];
  /** One entry for each query for active pools. */
  active?: string[];
  /** One entry for each query of a table. `next`: there may be more rows. */
  tables?: { rows: object[]; next?: string }[];
}

/** `deleted` rows are as the store has them. */
export interface Changed<R> {
  put: R[];
  deleted: R[];
}

export interface Changes {
  pools: Changed<PoolRow>;
  /** `before`: the row that a put replaces. */
  leases: Changed<LeaseRow> & { before(row: LeaseRow): LeaseRow | undefined };
  offers: Changed<OfferRow> & { before(row: OfferRow): OfferRow | undefined };
  documents: Changed<DocumentRow>;
  /** All ranges of `cleared` are deleted first, also those that were not loaded. */
  free: Changed<FreeRow> & { cleared: { pool: string; zone: Zone }[] };
  /** In order; the engine numbers them. */
  events: Event[];
  /** false: offers only, or what is not part of the history of the store: no new version. */
  isVersion: boolean;
  /** Begins if the present epoch is older than a second. */
  nextEpoch: string;
  /** Replaces these fields of the head. */
  head?: Partial<Head>;
  /** Removes all epochs, and begins this one. */
  resetEpochs?: EpochRow;
  /** Only the head of the store stays. */
  clear?: boolean;
  /** Rows of another store, as they are. */
  log?: { epochs: EpochRow[]; events: LoggedEvent[] };
}

export interface Commit extends StoreVersion {
  events: LoggedEvent[];
}

/** Another process was first. The transaction is tried again. */
export class Conflict extends Error {}

/** The server does not answer now, but may come back. `cause` is thrown if it does not in time. */
export class StoreUnavailable extends Error {}

export interface ClockFinding {
  problem: string;
  /** false: the clock of a machine must be set first. */
  repairable: boolean;
}

/** Events that are kept: at most so many, and none older than thirty days. */
export const KEPT_EVENTS = 20_000;
export const KEPT_MS = 30 * 24 * 3600 * 1000;
/** Epochs that are kept; versions before them are accepted. */
export const KEPT_EPOCHS = 50_000;
export const EPOCH_MS = 1000;
/** Of the tables. A change that older programs cannot read adds one. */
export const LAYOUT = 1;

/** Of a new store. */
export const emptyHead = (): Head => ({
  id: randomBytes(16).toString("hex"),
  layout: LAYOUT,
  version: 0,
  epoch: "",
  epochSince: 0,
  lastEvent: 0,
  at: 0,
});

/** Whether the commit changes the row of the store. */
export const changesHead = ({ isVersion, events, head, resetEpochs }: Changes): boolean =>
  isVersion || events.length > 0 || head !== undefined || resetEpochs !== undefined;

/** What a commit adds to the log: the row of the store after it, and its epochs and events. */
export function logOf(before: Head, changes: Changes, now: number) {
  const { isVersion, nextEpoch, events: made, head: given = {}, resetEpochs } = changes;
  const isNewEpoch = isVersion && Math.abs(now - before.epochSince) >= EPOCH_MS;
  const head: Head = !changesHead(changes)
    ? before
    : {
        ...before,
        ...(isVersion && { version: before.version + 1 }),
        ...(isNewEpoch && { epoch: nextEpoch, epochSince: now }),
        lastEvent: before.lastEvent + made.length,
        ...given,
        at: Math.max(before.at, now, given.at ?? 0),
      };
  const begun = head.epoch === nextEpoch ? { first: head.version, tag: nextEpoch } : undefined;
  const epoch: EpochRow | undefined = resetEpochs ?? begun;
  const events: LoggedEvent[] = made.map((event, i) => ({ ...event, id: before.lastEvent + 1 + i }));
  return { head, epoch, events };
}

/** One commit in so many deletes the events and epochs that are no longer kept: most need not look for them. */
const TRIM_EVERY = 500;

export const isTimeToTrim = (): boolean => Math.random() < 1 / TRIM_EVERY;

/** In SQL. `?`: the time before which events are deleted. Each statement looks only at what it deletes, and one row more. */
export const TRIM = [
  `DELETE FROM {event} WHERE id <= (SELECT last_event FROM {store}) - ${KEPT_EVENTS}`,
  "DELETE FROM {event} WHERE id < (SELECT id FROM {event} WHERE at >= ? ORDER BY id LIMIT 1)",
  `DELETE FROM {epoch} WHERE first < (SELECT first FROM {epoch} ORDER BY first DESC LIMIT 1 OFFSET ${KEPT_EPOCHS - 1})`,
];

export const unknownLayout = (place: string, layout: number): OverlayError => {
  const what = `The tables in ${place} have layout ${layout}; this program knows layouts up to ${LAYOUT}.`;
  return new OverlayError("STORE_VERSION", what, "Update pulumi-overlay.");
};

export const olderTables = (place: string): OverlayError =>
  new OverlayError(
    "STORE_VERSION",
    `${place} has the tables of an older release of pulumi-overlay, which this one cannot read.`,
    "Use a new store, and fill it with `overlayctl recover`.",
  );
