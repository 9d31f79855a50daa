import { intersect } from "../extents";
import {
  allocationsFrom,
  byTime,
  countsKey,
  dueBy,
  leaseKey,
  type Span,
  type TimeClass,
  waiterKey,
} from "../storage/keys";
import {
  appendHistory,
  getLeases,
  holdersOf,
  isExpired,
  isShared,
  leasesAt,
  occupies,
  replaceLease,
  sharingKeyOf,
} from "../storage/leases";
import type { Allocation } from "../storage/records";

import type { WriteBuffer } from "../storage/write-buffer";
import { type Extent, isCommitted, type Lease, type LeaseEnd, type PreviousHolder } from "../types";
import { mayChange, show } from "./access";
import { toEndRecord } from "./end-records";
import { dropPool } from "./pools";

/** Ends leases: by release, by eviction, or because they expired. Values of ended committed leases are quarantined first. */

export const NO_QUARANTINE = 0;

/** When the quarantine ends of a lease that ends at `end`. An offer restores the quarantine that its values had before. */
export const quarantineEnd = ({ options, now }: WriteBuffer, lease: Lease, end = now): number =>
  isCommitted(lease) ? end + options.quarantine * 1000 : (lease.quarantinedUntil ?? NO_QUARANTINE);

/**
 * Ends a lease and its child pool. Its values go to the offer that waits for them; else they are quarantined until `until`, unless another
 * lease shares them. `end` is recorded for the owner's next run; without it, no record is kept.
 */
export async function endLease(tx: WriteBuffer, lease: Lease, until = NO_QUARANTINE, end?: LeaseEnd): Promise<void> {
  if (lease.childPool) await dropPool(tx, lease.childPool);
  const waiter = occupies(lease) ? await waiterOf(tx, lease) : undefined;
  const wasShared = occupies(lease) && (await isShared(tx, lease));
  const isQuarantined = until > tx.now && !waiter && occupies(lease) && !wasShared;
  if (isQuarantined) await dropEndRecord(tx, lease.pool, previousHolder(lease).uid, lease.uid);
  const record = isQuarantined
    ? toQuarantined(lease, tx.now, until)
    : toEndRecord(tx, lease, end, waiter || wasShared ? until : undefined);
  await replaceLease(tx, lease, record);
  if (waiter) await grantToWaiter(tx, waiter, lease, until);
}

/** Removes the end record of a lease whose values return to quarantine. */
async function dropEndRecord(tx: WriteBuffer, pool: string, uid: string, unless: string): Promise<void> {
  const before = uid === unless ? undefined : await tx.get(leaseKey(pool, uid));
  if (before) await replaceLease(tx, before, undefined);
}

/** The offer that waits for this lease to end, unless it has expired. */
export async function waiterOf(
  tx: WriteBuffer,
  { pool, uid }: Pick<Lease, "pool" | "uid">,
): Promise<Lease | undefined> {
  const waiter = await tx.get(waiterKey(pool, uid));
  const lease = waiter === undefined ? undefined : await tx.get(leaseKey(pool, waiter));
  if (!lease || !isExpired(lease, tx.now)) return lease;
  await expireLease(tx, lease);
  return undefined;
}

/** Gives the values of an ended lease to the offer that waited for it, unless the offer waits for other leases, too. */
async function grantToWaiter(tx: WriteBuffer, waiter: Lease, left: Lease, until: number): Promise<void> {
  const { waitsFor = [], ...offer } = waiter;
  const others = waitsFor.filter((uid) => uid !== left.uid);
  const isFree = await canOccupy(tx, waiter);
  if (others.length > 0) await replaceLease(tx, waiter, { ...offer, waitsFor: others });
  else if (!isFree) await endLease(tx, waiter, NO_QUARANTINE, { reason: "taken" });
  else
    await replaceLease(tx, waiter, {
      ...offer,
      ...(until > tx.now && {
        quarantinedUntil: until,
        ...(left.owner !== offer.owner && { quarantinedFor: previousHolder(left) }),
      }),
    });
}

async function canOccupy(tx: WriteBuffer, { pool, uid, extents, ...lease }: Lease): Promise<boolean> {
  const key = sharingKeyOf(lease);
  for (const extent of extents) {
    for (const other of await holdersOf(tx, pool, extent))
      if (other.uid !== uid && (key === undefined || sharingKeyOf(other) !== key)) return false;
  }
  return true;
}

/** A quarantined lease: its values and its previous holder, which can get them again. */
const toQuarantined = (lease: Lease, now: number, until: number): Lease => ({
  pool: lease.pool,
  extents: lease.extents,
  ...previousHolder(lease),
  state: "quarantined",
  updatedAt: now,
  expiresAt: until,
});

/** The owner that can get the values again while they are quarantined. */
export function previousHolder({
  quarantinedFor,
  owner,
  type,
  uid,
  leaseId,
  createdAt,
  lastSeen,
  tenant,
}: Lease): PreviousHolder {
  return quarantinedFor ?? { owner, type, uid, leaseId, createdAt, lastSeen, ...(tenant && { tenant }) };
}

/** Ends an expired lease. Its quarantine counts from the moment of expiry, not from now. */
export async function expireLease(
  tx: WriteBuffer,
  lease: Lease,
  until = quarantineEnd(tx, lease, lease.expiresAt),
  takenBy?: string,
): Promise<void> {
  if (isCommitted(lease)) await appendHistory(tx, "expired", lease);
  const end = { reason: "expired" as const, ...(takenBy !== undefined && { takenBy }) };
  await endLease(tx, lease, until, lease.state === "quarantined" ? undefined : end);
}

/** Classes of leases that expire. */
const EXPIRING: TimeClass[] = ["o", "r", "t", "e"];
const EXPIRE_BATCH = 200;

/**
 * Expires up to `EXPIRE_BATCH` overdue leases of a pool, and returns whether it found any. Runs in every grant, and again when a pool looks
 * full. Leases of `keepOwner` are skipped: that owner may be about to renew them.
 */
export async function expireOverdue(tx: WriteBuffer, pool: string, keepOwner?: string): Promise<boolean> {
  const counts = await tx.get(countsKey(pool));
  const most = keepOwner === undefined ? EXPIRE_BATCH : EXPIRE_BATCH - tx.expired;
  if (counts?.soonest === undefined || tx.now <= counts.soonest || most <= 0) return false;
  const due: string[] = [];
  for (const type of EXPIRING) {
    if (due.length < most) due.push(...(await tx.range(dueBy(pool, type, tx.now), most - due.length)));
  }
  const overdue = (await getLeases(tx, pool, due)).filter((lease) => lease.owner !== keepOwner);
  for (const lease of overdue) await expireLease(tx, lease);
  tx.expired += overdue.length;
  await updateSoonest(tx, pool);
  return overdue.length > 0;
}

async function updateSoonest(tx: WriteBuffer, pool: string): Promise<void> {
  const { soonest: _, ...counts } = (await tx.get(countsKey(pool)))!;
  const ends: number[] = [];
  for (const type of EXPIRING) {
    const [lease] = await getLeases(tx, pool, await tx.range(byTime(pool, type), 1));
    if (lease) ends.push(lease.expiresAt!);
  }
  tx.put(countsKey(pool), ends.length ? { ...counts, soonest: Math.min(...ends) } : counts);
}

/**
 * Whether a lease may be ended in favour of a request for its values, or if the pool is full: a quarantined lease, or an offer of an earlier
 * run of the same stack to a resource that this run has not checked. Other offers are kept until they expire.
 */
export const isPreemptible = (tx: WriteBuffer, lease: Lease, to?: string): boolean =>
  lease.state === "quarantined" ||
  (lease.state === "offered" &&
    to !== undefined &&
    mayChange(tx, lease) &&
    tx.options.isAbandoned?.(show(tx, lease), to) === true);

/** Leases, and rows of the expiry index, that are read at once. */
const OVERDUE_PAGE = 100;

/**
 * The overdue lease with the lowest value in `zone` below `limit` whose end makes that value free; undefined if there is none.
 * Expiry is bounded per transaction, so overdue leases may have values below the lowest value that is recorded as free.
 *
 * Reads pages of the leases by value and of the expiry index alternately, and stops when either has the answer: the first is short if the
 * lowest values are overdue, the second if few leases are overdue.
 */
export async function lowestOverdue(
  tx: WriteBuffer,
  pool: string,
  zone: Extent[],
  limit: bigint,
): Promise<Lease | undefined> {
  const counts = await tx.get(countsKey(pool));
  if (counts?.soonest === undefined || tx.now <= counts.soonest || zone.length === 0) return undefined;
  const valueIn = ({ extents }: Lease): bigint | undefined =>
    intersect(zone, extents).find(({ first }) => first < limit)?.first;
  const becomesFree = (lease: Lease): boolean =>
    occupies(lease) &&
    isExpired(lease, tx.now) &&
    quarantineEnd(tx, lease, lease.expiresAt) <= tx.now &&
    valueIn(lease) !== undefined;

  // To the end of the pool, so that a server engine fetches whole pages, which the next claims need, too.
  let allocations: Span<Allocation> = allocationsFrom(pool, zone[0]!.first);
  const due = EXPIRING.map((type) => dueBy(pool, type, tx.now));
  let lowest: Lease | undefined;
  while (due.length > 0) {
    const [page, others]: [Allocation[], Span<Allocation> | undefined] = await tx.page(allocations, OVERDUE_PAGE);
    for (const allocation of page) {
      if (allocation.extent.last >= limit) return undefined;
      const overdue = (await leasesAt(tx, pool, allocation)).find(becomesFree);
      if (overdue) return overdue;
    }
    if (!others) return undefined;
    allocations = others;
    const [uids, later]: [string[], Span<string> | undefined] = await tx.page(due[0]!, OVERDUE_PAGE);
    for (const lease of (await getLeases(tx, pool, uids)).filter(becomesFree)) {
      if (!lowest || valueIn(lease)! < valueIn(lowest)!) lowest = lease;
    }
    if (later) due[0] = later;
    else due.shift();
  }
  return lowest;
}
