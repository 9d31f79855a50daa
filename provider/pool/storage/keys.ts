import type { AccessToken, Delivery, Event, Extent, Lease, Port, Webhook } from "../types";
import {
  type Allocation,
  accessTokenCodec,
  allocationCodec,
  type Codec,
  type Counts,
  countsCodec,
  type DeletedPool,
  deletedPoolCodec,
  deliveryCodec,
  type Epoch,
  epochCodec,
  eventCodec,
  eventsCodec,
  extentCodec,
  headCodec,
  idsCodec,
  type LeaseRef,
  leaseCodec,
  leaseRefCodec,
  type PoolRecord,
  poolCodec,
  type StoreHead,
  textCodec,
  uidCodec,
  webhookCodec,
} from "./records";

/**
 * The keys of the store. `p/` and `l/` are the source data; the rest is derived from them (`rowsOf`), and `fsck` can rebuild it.
 *
 *   p/POOL                        a pool              l/POOL/UID              a lease
 *   a/POOL/END                    holders of an       f|g/POOL/END            free extents: for any request | only by value
 *                                 extent
 *   o/POOL/OWNER/UID              leases that were    x/POOL/CLASS/TIME/UID   leases by time, see `timeClassOf`
 *                                 moved to an owner
 *   s/POOL/KEY/END/UID            leases that share   q/POOL/END/PROTO/PORT   ports of a shared value
 *                                 a value
 *   u/NAME                        names in use        c/POOL                  counts
 *   h/POOL/TIME-RANDOM            history             v                       layout of the store
 *   d/TIME/POOL                   deleted pools       v/move                  where a closed store was moved to, or is moved from
 *   v/head                        version of the      v/epoch/LAST            epochs of the store, see `identity.ts`
 *                                 store               v/recovered             ids of stores whose leases were recovered into it
 *   k/NAME                        secrets, which no dump shows; see `secrets.ts`
 *   k/access/ID                   access tokens of the service
 *   k/webhook/ID                  webhooks            r/ID                    how far a webhook has come
 *   n/LAST                        event log: the changes of one commit, by the id of the last of them
 *   w/POOL/UID                    the offer that waits for this lease to end
 *   e/TIME/POOL                   deleted pools with end records in l/, which are kept until then
 *
 * Extents are keyed by their END, so that one seek for the first key from VALUE on answers where a value lies, whether it
 * is free, and what the next free one is. Keys are not parsed, except for the name of a pool (`poolOfKey`), the id in the event log,
 * and the id of a webhook.
 */
export interface Key<T> {
  at: string;
  codec: Codec<T>;
  /** The row is nearly always absent; see `Tx.get`. */
  expectEmpty?: boolean;
}

/** Keys with from ≤ key < to. */
export interface Span<T> extends Omit<Key<T>, "at"> {
  from: string;
  to: string;
}

/** One part of a key, without slashes, so that keys of two pools do not mix. Cached, because every key has a pool. */
const part = (text: string): string => parts.get(text) ?? escaped(text);
const parts = new Map<string, string>();

function escaped(text: string): string {
  if (parts.size > 1000) parts.clear();
  const result = text.replaceAll("%", "%25").replaceAll("/", "%2F");
  parts.set(text, result);
  return result;
}

const digits = (value: bigint): string => value.toString(16).padStart(32, "0");
/** Whole milliseconds: a fraction would sort behind everything. */
const moment = (time: number): string => Math.floor(time).toString(16).padStart(12, "0");

const counter = (count: number): string => String(count).padStart(16, "0");

const key = <T>(codec: Codec<T>, ...parts: string[]): Key<T> => ({ at: parts.join("/"), codec });
/** `0` is the character after `/`. */
const under = <T>(codec: Codec<T>, ...parts: string[]): Span<T> => {
  const prefix = parts.join("/");
  return { from: `${prefix}/`, to: `${prefix}0`, codec };
};
const from = <T>(span: Span<T>, text: string): Span<T> => ({ ...span, from: span.from + text });

export type Tree = "f" | "g";

/**
 * Leases by time: `o`ffered, quarantined (`r`), with a `t`tl and `e`nded by when they expire; `h`eld ones by `lastSeen`, in pools with
 * `reclaimAfter`.
 */
export type TimeClass = "o" | "r" | "t" | "h" | "e";

export const layoutKey: Key<string> = key(textCodec, "v");
export const moveKey: Key<string> = key(textCodec, "v", "move");
export const headKey: Key<StoreHead> = key(headCodec, "v", "head");
export const epochKey = (last: number): Key<Epoch> => key(epochCodec, "v", "epoch", counter(last));
export const epochsFrom = (version: number): Span<Epoch> => from(under(epochCodec, "v", "epoch"), counter(version));
export const recoveredIds: Key<string[]> = key(idsCodec, "v", "recovered");
export const poolKey = (pool: string): Key<PoolRecord> => key(poolCodec, "p", part(pool));
/** All pools whose name begins so. */
const between = (letter: string, prefix: string) => ({
  from: `${letter}/${part(prefix)}`,
  to: `${letter}/${part(prefix)}\u{10ffff}`,
});
/** `after`: those behind the pool of this name. */
export function poolsFrom(prefix: string, after?: string): Span<PoolRecord> {
  const span = { ...between("p", prefix), codec: poolCodec };
  const next = after === undefined ? "" : `p/${part(after)}\u0001`;
  return next > span.from ? { ...span, from: next } : span;
}

export const leaseKey = (pool: string, uid: string): Key<Lease> => key(leaseCodec, "l", part(pool), uid);
/** Those whose uid begins so. */
export const leasesWithHash = (pool: string, mark: string): Span<Lease> => ({
  from: `l/${part(pool)}/${mark}`,
  to: `l/${part(pool)}/${mark}~`,
  codec: leaseCodec,
  expectEmpty: true,
});
export const leasesOf = (pool: string): Span<Lease> => under(leaseCodec, "l", part(pool));

export const allocationKey = (pool: string, last: bigint): Key<Allocation> =>
  key(allocationCodec, "a", part(pool), digits(last));
export const allocationsFrom = (pool: string, value: bigint): Span<Allocation> =>
  from(under(allocationCodec, "a", part(pool)), digits(value));
export const freeKey = (tree: Tree, pool: string, last: bigint): Key<Extent> =>
  key(extentCodec, tree, part(pool), digits(last));
export const freeFrom = (tree: Tree, pool: string, value: bigint): Span<Extent> =>
  from(under(extentCodec, tree, part(pool)), digits(value));

export const ownerKey = (pool: string, owner: string, uid: string): Key<string> =>
  key(uidCodec, "o", part(pool), part(owner), uid);
export const leasesMovedTo = (pool: string, owner: string): Span<string> => ({
  ...under(uidCodec, "o", part(pool), part(owner)),
  expectEmpty: true,
});

export const timeKey = (pool: string, type: TimeClass, time: number, uid: string): Key<string> =>
  key(uidCodec, "x", part(pool), type, moment(time), uid);
export const byTime = (pool: string, type: TimeClass): Span<string> => under(uidCodec, "x", part(pool), type);
/** Those that have expired. A lease is still valid in its last millisecond. */
export const dueBy = (pool: string, type: TimeClass, now: number): Span<string> => ({
  ...byTime(pool, type),
  to: `${byTime(pool, type).from}${moment(now)}`,
});

export const sharerKey = (pool: string, sharedAs: string, last: bigint, uid: string): Key<string> =>
  key(uidCodec, "s", part(pool), part(sharedAs), digits(last), uid);
export const sharersOf = (pool: string, sharedAs: string, last?: bigint): Span<string> =>
  under(uidCodec, "s", part(pool), part(sharedAs), ...(last === undefined ? [] : [digits(last)]));
export const portKey = (pool: string, last: bigint, { protocol, port }: Port): Key<string> =>
  key(uidCodec, "q", part(pool), digits(last), protocol, String(port));

export const waiterKey = (pool: string, uid: string): Key<string> => ({
  ...key(uidCodec, "w", part(pool), uid),
  expectEmpty: true,
});

export const secretKey = (name: string): Key<string> => key(textCodec, "k", part(name));
export const accessTokenKey = (id: string): Key<AccessToken> => key(accessTokenCodec, "k", "access", part(id));
export const accessTokens: Span<AccessToken> = under(accessTokenCodec, "k", "access");
export const webhookKey = (id: string): Key<Webhook> => key(webhookCodec, "k", "webhook", part(id));
export const webhooks: Span<Webhook> = under(webhookCodec, "k", "webhook");
/** Not a secret: the log of a server engine has no secrets, so each change of one makes other processes read their rows again. */
export const deliveryKey = (id: string): Key<Delivery> => key(deliveryCodec, "r", part(id));
export const deliveries: Span<Delivery> = under(deliveryCodec, "r");
export const webhookOfDelivery = (key: string): string => key.slice("r/".length);
export const nameKey = (name: string): Key<LeaseRef> => ({ ...key(leaseRefCodec, "u", part(name)), expectEmpty: true });
export const countsKey = (pool: string): Key<Counts> => key(countsCodec, "c", part(pool));
export const countsFrom = (prefix: string): Span<Counts> => ({ ...between("c", prefix), codec: countsCodec });

export const eventKey = (pool: string, time: number, random: string): Key<Event> =>
  key(eventCodec, "h", part(pool), `${moment(time)}-${random}`);
export const eventsFrom = (pool: string, time: number): Span<Event> =>
  from(under(eventCodec, "h", part(pool)), moment(time));
/** As raw text: to be counted or deleted. */
export const eventLines = (pool: string, until?: number): Span<string> => ({
  ...under(textCodec, "h", part(pool)),
  ...(until !== undefined && { to: eventsFrom(pool, until + 1).from }),
});

export const loggedEventsKey = (last: number): Key<Event[]> => key(eventsCodec, "n", counter(last));
export const loggedEventsFrom = (id: number): Span<Event[]> => from(under(eventsCodec, "n"), counter(id));
/** As raw text: to be deleted. */
export const loggedEventsUntil = (id: number): Span<string> => ({
  ...under(textCodec, "n"),
  to: loggedEventsFrom(id + 1).from,
});
export const lastIdOfKey = (key: string): number => Number(key.slice("n/".length));

export const deletedPoolKey = ({ at, pool }: DeletedPool): Key<DeletedPool> =>
  key(deletedPoolCodec, "d", moment(at), part(pool));
export const deletedPools: Span<DeletedPool> = under(deletedPoolCodec, "d");

/** A deleted pool, and when its last end record is due for removal. */
export const endRecordsKey = ({ at, pool }: DeletedPool): Key<DeletedPool> =>
  key(deletedPoolCodec, "e", moment(at), part(pool));
export const endRecordsDue = (now: number): Span<DeletedPool> => ({
  ...under(deletedPoolCodec, "e"),
  to: `e/${moment(now)}`,
  expectEmpty: true,
});

/** All derived rows of a pool, as raw text. */
export const derivedOf = (pool: string): Span<string>[] =>
  DERIVED.map((letter) => under(textCodec, letter, part(pool)));
const DERIVED = ["a", "f", "g", "o", "x", "s", "q", "w"];

/** Rows of leases, counts and history, as raw text: for the migration to layout 4. */
export const renamedRows: Span<string>[] = ["l", "c", "h"].map((letter) => under(textCodec, letter));

export const names: Span<string> = under(textCodec, "u");

/** To find rows of pools that do not exist: all leases and derived rows behind those of `pool`, by kind. */
export const rowsBehind = (pool?: string): Span<string>[] =>
  ["l", "c", ...DERIVED].map((letter) => ({
    ...under(textCodec, letter),
    ...(pool !== undefined && { from: `${letter}/${part(pool)}0` }),
  }));
export const poolOfKey = (key: string): string => key.split("/")[1]!.replaceAll("%2F", "/").replaceAll("%25", "%");
