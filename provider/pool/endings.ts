import type { Draft } from "./draft";
import { endRecord } from "./ends";
import { byTime, type Class, countsKey, dueBy, leaseKey, waiterKey } from "./keys";
import { hasFellows, leasesIn, log, record, sitting } from "./ledger";
import { vanish } from "./pools";
import { isOver, occupies, sharedAs } from "./rows";
import { type Former, isFirm, type Lease, type LeaseEnd } from "./types";

/** How leases end: given up, taken away, or simply over. */

export const NO_REST = 0;

/** Until when its values rest if a lease ends at this time: an offer leaves them as it found them. */
export const restOf = ({ terms, now }: Draft, lease: Lease, end = now): number =>
  isFirm(lease) ? end + terms.quarantine * 1000 : (lease.restsUntil ?? NO_REST);

/**
 * Ends a lease, and the pool that it opened. Its values go to the offer that waits for them; else they rest until `rest`, unless
 * another lease shares them. `end` is recorded for its owner's next run; without it, no record is kept.
 */
export async function vacate(tx: Draft, lease: Lease, rest = NO_REST, end?: LeaseEnd): Promise<void> {
  if (lease.opens) await vanish(tx, lease.opens);
  const waiter = occupies(lease) ? await waiterOf(tx, lease) : undefined;
  const rests = rest > tx.now && !waiter && occupies(lease) && !(await hasFellows(tx, lease));
  if (rests) await dropEnd(tx, lease.pool, formerOf(lease).uid, lease.uid);
  await record(tx, lease, rests ? atRest(lease, tx.now, rest) : endRecord(tx, lease, end));
  if (waiter) await seatWaiter(tx, waiter, lease, rest);
}

/** A lease whose values rest again is not over. */
async function dropEnd(tx: Draft, pool: string, uid: string, unless: string): Promise<void> {
  const before = uid === unless ? undefined : await tx.get(leaseKey(pool, uid));
  if (before) await record(tx, before, undefined);
}

/** The live offer that waits for this lease to end. */
export async function waiterOf(tx: Draft, { pool, uid }: Pick<Lease, "pool" | "uid">): Promise<Lease | undefined> {
  const waiter = await tx.get(waiterKey(pool, uid));
  const lease = waiter === undefined ? undefined : await tx.get(leaseKey(pool, waiter));
  if (!lease || !isOver(lease, tx.now)) return lease;
  await lapse(tx, lease);
  return undefined;
}

/** Gives the values of a lease that has ended to the offer that waited for it, unless that waits for others, too. */
async function seatWaiter(tx: Draft, waiter: Lease, left: Lease, rest: number): Promise<void> {
  const { waitsFor = [], ...offer } = waiter;
  const others = waitsFor.filter((uid) => uid !== left.uid);
  const isFree = await canOccupy(tx, waiter);
  if (others.length > 0) await record(tx, waiter, { ...offer, waitsFor: others });
  else if (!isFree) await vacate(tx, waiter, NO_REST, { reason: "taken" });
  else
    await record(tx, waiter, {
      ...offer,
      ...(rest > tx.now && { restsUntil: rest, ...(left.owner !== offer.owner && { restsFor: formerOf(left) }) }),
    });
}

async function canOccupy(tx: Draft, { pool, uid, extents, ...lease }: Lease): Promise<boolean> {
  const key = sharedAs(lease);
  for (const extent of extents) {
    for (const other of await sitting(tx, pool, extent))
      if (other.uid !== uid && (key === undefined || sharedAs(other) !== key)) return false;
  }
  return true;
}

/** What is left of a lease: who had which values, for its owner to come back to. */
const atRest = (lease: Lease, now: number, rest: number): Lease => ({
  pool: lease.pool,
  extents: lease.extents,
  ...formerOf(lease),
  state: "resting",
  updatedAt: now,
  expiresAt: rest,
});

/** For whom the values of a lease rest when it ends. */
export function formerOf({ restsFor, owner, type, uid, leaseId, createdAt, lastSeen }: Lease): Former {
  return restsFor ?? { owner, type, uid, leaseId, createdAt, lastSeen };
}

/** Ends a lease whose time is over. One that was reserved rests from its end on, as if it had been released then. */
export async function lapse(
  tx: Draft,
  lease: Lease,
  rest = restOf(tx, lease, lease.expiresAt),
  takenBy?: string,
): Promise<void> {
  if (isFirm(lease)) await log(tx, "expired", lease);
  const end = { reason: "expired" as const, ...(takenBy !== undefined && { takenBy }) };
  await vacate(tx, lease, rest, lease.state === "resting" ? undefined : end);
}

/** Classes of leases that end by themselves. */
export const ENDING: Class[] = ["o", "r", "t", "e"];
const BATCH = 200;

/**
 * Cleans up what is over, some of it at a time: by the way in each transaction, except what `owner` may come back to; and
 * once more for whoever finds no room.
 */
export async function sweep(tx: Draft, pool: string, owner?: string): Promise<boolean> {
  const counts = await tx.get(countsKey(pool));
  const most = owner === undefined ? BATCH : BATCH - tx.swept;
  if (counts?.soonest === undefined || tx.now <= counts.soonest || most <= 0) return false;
  const due: string[] = [];
  for (const type of ENDING) {
    if (due.length < most) due.push(...(await tx.range(dueBy(pool, type, tx.now), most - due.length)));
  }
  const over = (await leasesIn(tx, pool, due)).filter((lease) => lease.owner !== owner);
  for (const lease of over) await lapse(tx, lease);
  tx.swept += over.length;
  await renewSoonest(tx, pool);
  return over.length > 0;
}

async function renewSoonest(tx: Draft, pool: string): Promise<void> {
  const { soonest: _, ...counts } = (await tx.get(countsKey(pool)))!;
  const ends: number[] = [];
  for (const type of ENDING) {
    const [lease] = await leasesIn(tx, pool, await tx.range(byTime(pool, type), 1));
    if (lease) ends.push(lease.expiresAt!);
  }
  tx.put(countsKey(pool), ends.length ? { ...counts, soonest: Math.min(...ends) } : counts);
}

/**
 * Whether a lease ends in favour of a request that has no other choice, or asks for its very values: a resting one, and an offer
 * of an earlier run of the same stack to a resource that this run has not met. Other offers hold until they expire.
 */
export const givesWay = ({ terms }: Draft, lease: Lease, to?: string): boolean =>
  lease.state === "resting" || (lease.state === "offered" && to !== undefined && terms.abandoned?.(lease, to) === true);
