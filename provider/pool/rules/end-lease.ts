import { byTime, countsKey, dueBy, leaseKey, type TimeClass, waiterKey } from "../storage/keys";
import { appendHistory, getLeases, holdersOf, isShared, replaceLease } from "../storage/leases";
import { isExpired, occupies, sharingKeyOf } from "../storage/rows";
import type { WriteBuffer } from "../storage/write-buffer";
import { isCommitted, type Lease, type LeaseEnd, type PreviousHolder } from "../types";
import { toEndRecord } from "./end-records";
import { dropPool } from "./pools";

/** How leases end: given up, taken away, or simply over. */

export const NO_QUARANTINE = 0;

/** Until when its values rest if a lease ends at this time: an offer leaves them as it found them. */
export const quarantineEnd = ({ options, now }: WriteBuffer, lease: Lease, end = now): number =>
  isCommitted(lease) ? end + options.quarantine * 1000 : (lease.quarantinedUntil ?? NO_QUARANTINE);

/**
 * Ends a lease, and the pool that it opened. Its values go to the offer that waits for them; else they rest until `rest`, unless
 * another lease shares them. `end` is recorded for its owner's next run; without it, no record is kept.
 */
export async function endLease(tx: WriteBuffer, lease: Lease, rest = NO_QUARANTINE, end?: LeaseEnd): Promise<void> {
  if (lease.childPool) await dropPool(tx, lease.childPool);
  const waiter = occupies(lease) ? await waiterOf(tx, lease) : undefined;
  const rests = rest > tx.now && !waiter && occupies(lease) && !(await isShared(tx, lease));
  if (rests) await dropEndRecord(tx, lease.pool, previousHolder(lease).uid, lease.uid);
  await replaceLease(tx, lease, rests ? toQuarantined(lease, tx.now, rest) : toEndRecord(tx, lease, end));
  if (waiter) await grantToWaiter(tx, waiter, lease, rest);
}

/** A lease whose values rest again is not over. */
async function dropEndRecord(tx: WriteBuffer, pool: string, uid: string, unless: string): Promise<void> {
  const before = uid === unless ? undefined : await tx.get(leaseKey(pool, uid));
  if (before) await replaceLease(tx, before, undefined);
}

/** The live offer that waits for this lease to end. */
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

/** Gives the values of a lease that has ended to the offer that waited for it, unless that waits for others, too. */
async function grantToWaiter(tx: WriteBuffer, waiter: Lease, left: Lease, rest: number): Promise<void> {
  const { waitsFor = [], ...offer } = waiter;
  const others = waitsFor.filter((uid) => uid !== left.uid);
  const isFree = await canOccupy(tx, waiter);
  if (others.length > 0) await replaceLease(tx, waiter, { ...offer, waitsFor: others });
  else if (!isFree) await endLease(tx, waiter, NO_QUARANTINE, { reason: "taken" });
  else
    await replaceLease(tx, waiter, {
      ...offer,
      ...(rest > tx.now && {
        quarantinedUntil: rest,
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

/** What is left of a lease: who had which values, for its owner to come back to. */
const toQuarantined = (lease: Lease, now: number, rest: number): Lease => ({
  pool: lease.pool,
  extents: lease.extents,
  ...previousHolder(lease),
  state: "quarantined",
  updatedAt: now,
  expiresAt: rest,
});

/** For whom the values of a lease rest when it ends. */
export function previousHolder({
  quarantinedFor,
  owner,
  type,
  uid,
  leaseId,
  createdAt,
  lastSeen,
}: Lease): PreviousHolder {
  return quarantinedFor ?? { owner, type, uid, leaseId, createdAt, lastSeen };
}

/** Ends a lease whose time is over. One that was reserved rests from its end on, as if it had been released then. */
export async function expireLease(
  tx: WriteBuffer,
  lease: Lease,
  rest = quarantineEnd(tx, lease, lease.expiresAt),
  takenBy?: string,
): Promise<void> {
  if (isCommitted(lease)) await appendHistory(tx, "expired", lease);
  const end = { reason: "expired" as const, ...(takenBy !== undefined && { takenBy }) };
  await endLease(tx, lease, rest, lease.state === "quarantined" ? undefined : end);
}

/** Classes of leases that end by themselves. */
export const EXPIRING: TimeClass[] = ["o", "r", "t", "e"];
const EXPIRE_BATCH = 200;

/**
 * Cleans up what is over, some of it at a time: by the way in each transaction, except what `owner` may come back to; and
 * once more for whoever finds no room.
 */
export async function expireOverdue(tx: WriteBuffer, pool: string, owner?: string): Promise<boolean> {
  const counts = await tx.get(countsKey(pool));
  const most = owner === undefined ? EXPIRE_BATCH : EXPIRE_BATCH - tx.expired;
  if (counts?.soonest === undefined || tx.now <= counts.soonest || most <= 0) return false;
  const due: string[] = [];
  for (const type of EXPIRING) {
    if (due.length < most) due.push(...(await tx.range(dueBy(pool, type, tx.now), most - due.length)));
  }
  const over = (await getLeases(tx, pool, due)).filter((lease) => lease.owner !== owner);
  for (const lease of over) await expireLease(tx, lease);
  tx.expired += over.length;
  await updateSoonest(tx, pool);
  return over.length > 0;
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
 * Whether a lease ends in favour of a request that has no other choice, or asks for its very values: a resting one, and an offer
 * of an earlier run of the same stack to a resource that this run has not met. Other offers hold until they expire.
 */
export const isPreemptible = ({ options }: WriteBuffer, lease: Lease, to?: string): boolean =>
  lease.state === "quarantined" ||
  (lease.state === "offered" && to !== undefined && options.isAbandoned?.(lease, to) === true);
