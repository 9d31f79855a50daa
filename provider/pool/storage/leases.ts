import { randomUUID } from "node:crypto";
import { OverlayError } from "../../errors";
import { capitalize, describePool } from "../../pool-names";
import { subtract, total } from "../extents";
import type { Event, Extent, Lease, PoolSpec } from "../types";
import { addFree, takeFree } from "./free-space";
import { ownerHash } from "./ids";
import {
  allocationKey,
  allocationsFrom,
  countsKey,
  deletedPoolKey,
  deletedPools,
  eventKey,
  eventLines,
  leaseKey,
  leasesMovedTo,
  leasesWithHash,
  poolKey,
  sharersOf,
} from "./keys";
import { type Allocation, type DeletedPool, omitUndefined } from "./records";
import { countLease, noCounts, occupies, rowsOf, sharingKeyOf } from "./rows";
import type { WriteBuffer } from "./write-buffer";

/** Leases in and out of the store, each with all its rows, its free space and its counts. */

/** For those who already hold something in it. */
export async function specOf(tx: WriteBuffer, name: string): Promise<PoolSpec> {
  const pool = await tx.get(poolKey(name));
  if (pool) return pool.spec;
  throw new OverlayError(
    "STORE_CORRUPT",
    `${capitalize(describePool(name))} is gone, but has leases.`,
    "Run `overlayctl store check`.",
  );
}

/** Puts `after` in the place of `before`; either may be missing. */
export async function replaceLease(
  tx: WriteBuffer,
  before: Lease | undefined,
  after: Lease | undefined,
): Promise<void> {
  const { pool } = (after ?? before)!;
  const spec = await specOf(tx, pool);
  // Values that others share with it stay taken when it leaves, and are taken already when it comes.
  const left = before && (await isShared(tx, before));
  const joined = after && (await isShared(tx, after));
  const lost = before && occupies(before) && !left ? before.extents : [];
  const gained = after && occupies(after) && !joined ? after.extents : [];
  await addFree(tx, spec, subtract(lost, gained));
  await takeFree(tx, spec, subtract(gained, lost));
  const seats =
    left && occupies(before) ? new Set(before.extents.map(({ last }) => allocationKey(pool, last).at)) : undefined;
  replaceRows(tx, before && [before, spec], after && [after, spec], seats);
  let counts = (await tx.get(countsKey(pool))) ?? noCounts();
  if (before) counts = countLease(counts, before, -1, total(lost));
  if (after) counts = countLease(counts, after, 1, total(gained));
  tx.put(countsKey(pool), counts);
}

type InPool = [lease: Lease, spec: Pick<PoolSpec, "reclaimAfter">];

/** Writes what is different between the rows of two leases; either may be missing. */
export function replaceRows(tx: WriteBuffer, before?: InPool, after?: InPool, kept?: Set<string>): void {
  const [old, next] = [before, after].map((lease) => (lease ? rowsOf(...lease) : new Map<string, string>()));
  for (const key of old!.keys()) if (!next!.has(key) && !kept?.has(key)) tx.set(key, null);
  for (const [key, text] of next!) if (old!.get(key) !== text) tx.set(key, text);
}

/** Whether somebody else shares its values. */
export async function isShared(tx: WriteBuffer, lease: Lease): Promise<boolean> {
  const key = sharingKeyOf(lease);
  if (key === undefined) return false;
  const sharers = await tx.range(sharersOf(lease.pool, key, lease.extents[0]!.last), 2);
  return sharers.some((uid) => uid !== lease.uid);
}

/** The leases that index rows point to. */
export async function getLeases(tx: WriteBuffer, pool: string, uids: string[]): Promise<Lease[]> {
  const leases: Lease[] = [];
  await tx.prefetch(uids.map((uid) => leaseKey(pool, uid)));
  for (const uid of uids) {
    const lease = await tx.get(leaseKey(pool, uid));
    if (lease) leases.push(lease);
  }
  return leases;
}

export async function leasesOfOwner(tx: WriteBuffer, pool: string, owner: string): Promise<Lease[]> {
  const made = await tx.all(leasesWithHash(pool, ownerHash(owner)));
  const came = await getLeases(tx, pool, await tx.all(leasesMovedTo(pool, owner)));
  return [...made.filter((lease) => lease.owner === owner), ...came];
}

/** Everybody who sits on some part of an extent, expired or not. */
export async function holdersOf(tx: WriteBuffer, pool: string, { first, last }: Extent): Promise<Lease[]> {
  const leases: Lease[] = [];
  for (let at = first; at <= last; ) {
    const seat = await tx.first(allocationsFrom(pool, at));
    if (!seat || seat.extent.first > last) break;
    for (const lease of await leasesAt(tx, pool, seat)) {
      if (!leases.some(({ uid }) => uid === lease.uid)) leases.push(lease);
    }
    at = seat.extent.last + 1n;
  }
  return leases;
}

export async function leasesAt(tx: WriteBuffer, pool: string, { extent, uid, sharedAs }: Allocation): Promise<Lease[]> {
  const uids = uid === undefined ? await tx.all(sharersOf(pool, sharedAs!, extent.last)) : [uid];
  return await getLeases(tx, pool, uids);
}

/** So many lines of a pool's history are kept; then the oldest go, some at a time, so that few writes have to look. */
const [KEPT, SPARE] = [10_000, 50];

export async function appendHistory(
  tx: WriteBuffer,
  what: Event["what"],
  lease: Lease,
  cause: Pick<Event, "takenBy" | "formerOwner"> = {},
): Promise<void> {
  const { pool, owner, uid, leaseId, extents, usedBy } = lease;
  const by = what === "expired" ? undefined : (tx.options.actor ?? lease.by);
  const event = omitUndefined<Event>({ at: tx.now, what, pool, owner, uid, leaseId, extents, usedBy, by, ...cause });
  tx.put(eventKey(pool, tx.now, randomUUID()), event);
  const counts = (await tx.get(countsKey(pool))) ?? noCounts();
  const events = (counts.events ?? 0) + 1;
  const oldest = events < KEPT + SPARE ? [] : await tx.rows(eventLines(pool), SPARE);
  for (const [key] of oldest) tx.set(key, null);
  tx.put(countsKey(pool), { ...counts, events: events - oldest.length });
}

/** How long the history of a pool is that is opened; mostly it is new. */
export async function countEvents(tx: WriteBuffer, pool: string): Promise<number> {
  return (await tx.rows({ ...eventLines(pool), expectEmpty: true }, KEPT + SPARE)).length;
}

/** Of so many pools that went last the history stays. */
const KEPT_POOLS = 100;
/** So many lines go at once. */
const LINES = 1000;

/** Notes that a pool went, and lets go what is left of the one that went longest ago. */
export async function recordDeletedPool(tx: WriteBuffer, pool: string): Promise<void> {
  tx.put(deletedPoolKey({ pool, at: tx.now }), { pool, at: tx.now });
  const gone = await tx.range(deletedPools, KEPT_POOLS + 1);
  if (gone.length <= KEPT_POOLS) return;
  const [oldest] = gone as [DeletedPool];
  // Opened again, it looks after its history itself.
  const isBack = await tx.get(poolKey(oldest.pool));
  const lines = isBack ? [] : await tx.rows(eventLines(oldest.pool, oldest.at), LINES);
  for (const [key] of lines) tx.set(key, null);
  if (lines.length < LINES) tx.delete(deletedPoolKey(oldest));
}
