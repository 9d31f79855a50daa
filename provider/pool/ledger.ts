import { randomUUID } from "node:crypto";
import { OverlayError } from "../errors";
import { capitalize, describePool } from "../pool-names";
import type { Draft } from "./draft";
import { total, without } from "./extents";
import { give, take } from "./free";
import { markOf } from "./ids";
import {
  countsKey,
  eventKey,
  eventLines,
  goneKey,
  gonePools,
  leaseKey,
  leasesMarked,
  ownedBy,
  poolKey,
  seatKey,
  seatsFrom,
  sharersOf,
} from "./keys";
import { type Gone, given, type Seat } from "./records";
import { counted, noCounts, occupies, rowsOf, sharedAs } from "./rows";
import type { Event, Extent, Lease, PoolSpec } from "./types";

/** Leases in and out of the store, each with all its rows, its free space and its counts. */

/** For those who already hold something in it. */
export async function specOf(tx: Draft, name: string): Promise<PoolSpec> {
  const pool = await tx.get(poolKey(name));
  if (pool) return pool.spec;
  throw new OverlayError(
    "STORE_CORRUPT",
    `${capitalize(describePool(name))} is gone, but has leases.`,
    "Run `overlayctl store check`.",
  );
}

/** Puts `after` in the place of `before`; either may be missing. */
export async function record(tx: Draft, before: Lease | undefined, after: Lease | undefined): Promise<void> {
  const { pool } = (after ?? before)!;
  const spec = await specOf(tx, pool);
  // Values that others share with it stay taken when it leaves, and are taken already when it comes.
  const left = before && (await hasFellows(tx, before));
  const joined = after && (await hasFellows(tx, after));
  const lost = before && occupies(before) && !left ? before.extents : [];
  const gained = after && occupies(after) && !joined ? after.extents : [];
  await give(tx, spec, without(lost, gained));
  await take(tx, spec, without(gained, lost));
  const seats =
    left && occupies(before) ? new Set(before.extents.map(({ last }) => seatKey(pool, last).at)) : undefined;
  replaceRows(tx, before && [before, spec], after && [after, spec], seats);
  let counts = (await tx.get(countsKey(pool))) ?? noCounts();
  if (before) counts = counted(counts, before, -1, total(lost));
  if (after) counts = counted(counts, after, 1, total(gained));
  tx.put(countsKey(pool), counts);
}

type InPool = [lease: Lease, spec: Pick<PoolSpec, "reclaimAfter">];

/** Writes what is different between the rows of two leases; either may be missing. */
export function replaceRows(tx: Draft, before?: InPool, after?: InPool, kept?: Set<string>): void {
  const [old, next] = [before, after].map((lease) => (lease ? rowsOf(...lease) : new Map<string, string>()));
  for (const key of old!.keys()) if (!next!.has(key) && !kept?.has(key)) tx.set(key, null);
  for (const [key, text] of next!) if (old!.get(key) !== text) tx.set(key, text);
}

/** Whether somebody else shares its values. */
export async function hasFellows(tx: Draft, lease: Lease): Promise<boolean> {
  const key = sharedAs(lease);
  if (key === undefined) return false;
  const sharers = await tx.range(sharersOf(lease.pool, key, lease.extents[0]!.last), 2);
  return sharers.some((uid) => uid !== lease.uid);
}

/** The leases that index rows point to. */
export async function leasesIn(tx: Draft, pool: string, uids: string[]): Promise<Lease[]> {
  const leases: Lease[] = [];
  await tx.prefetch(uids.map((uid) => leaseKey(pool, uid)));
  for (const uid of uids) {
    const lease = await tx.get(leaseKey(pool, uid));
    if (lease) leases.push(lease);
  }
  return leases;
}

export async function leasesOfOwner(tx: Draft, pool: string, owner: string): Promise<Lease[]> {
  const made = await tx.all(leasesMarked(pool, markOf(owner)));
  const came = await leasesIn(tx, pool, await tx.all(ownedBy(pool, owner)));
  return [...made.filter((lease) => lease.owner === owner), ...came];
}

/** Everybody who sits on some part of an extent, expired or not. */
export async function sitting(tx: Draft, pool: string, { first, last }: Extent): Promise<Lease[]> {
  const leases: Lease[] = [];
  for (let at = first; at <= last; ) {
    const seat = await tx.first(seatsFrom(pool, at));
    if (!seat || seat.extent.first > last) break;
    for (const lease of await sitters(tx, pool, seat)) {
      if (!leases.some(({ uid }) => uid === lease.uid)) leases.push(lease);
    }
    at = seat.extent.last + 1n;
  }
  return leases;
}

export async function sitters(tx: Draft, pool: string, { extent, uid, sharedAs }: Seat): Promise<Lease[]> {
  const uids = uid === undefined ? await tx.all(sharersOf(pool, sharedAs!, extent.last)) : [uid];
  return await leasesIn(tx, pool, uids);
}

/** So many lines of a pool's history are kept; then the oldest go, some at a time, so that few writes have to look. */
const [KEPT, SPARE] = [10_000, 50];

export async function log(
  tx: Draft,
  what: Event["what"],
  lease: Lease,
  cause: Pick<Event, "takenBy" | "formerOwner"> = {},
): Promise<void> {
  const { pool, owner, uid, leaseId, extents, usedBy } = lease;
  const by = what === "expired" ? undefined : (tx.terms.actor ?? lease.by);
  const event = given<Event>({ at: tx.now, what, pool, owner, uid, leaseId, extents, usedBy, by, ...cause });
  tx.put(eventKey(pool, tx.now, randomUUID()), event);
  const counts = (await tx.get(countsKey(pool))) ?? noCounts();
  const events = (counts.events ?? 0) + 1;
  const oldest = events < KEPT + SPARE ? [] : await tx.rows(eventLines(pool), SPARE);
  for (const [key] of oldest) tx.set(key, null);
  tx.put(countsKey(pool), { ...counts, events: events - oldest.length });
}

/** How long the history of a pool is that is opened; mostly it is new. */
export async function eventsIn(tx: Draft, pool: string): Promise<number> {
  return (await tx.rows({ ...eventLines(pool), expectEmpty: true }, KEPT + SPARE)).length;
}

/** Of so many pools that went last the history stays. */
const GONE = 100;
/** So many lines go at once. */
const LINES = 1000;

/** Notes that a pool went, and lets go what is left of the one that went longest ago. */
export async function noteGone(tx: Draft, pool: string): Promise<void> {
  tx.put(goneKey({ pool, at: tx.now }), { pool, at: tx.now });
  const gone = await tx.range(gonePools, GONE + 1);
  if (gone.length <= GONE) return;
  const [oldest] = gone as [Gone];
  // Opened again, it looks after its history itself.
  const isBack = await tx.get(poolKey(oldest.pool));
  const lines = isBack ? [] : await tx.rows(eventLines(oldest.pool, oldest.at), LINES);
  for (const [key] of lines) tx.set(key, null);
  if (lines.length < LINES) tx.delete(goneKey(oldest));
}
