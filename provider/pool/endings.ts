import type { Draft } from "./draft";
import { byTime, type Class, countsKey, dueBy } from "./keys";
import { hasFellows, leasesIn, log, record } from "./ledger";
import { vanish } from "./pools";
import type { Rule } from "./rule";
import { type Former, isFirm, type Lease } from "./types";

/** How leases end: given up, taken away, or simply over. */

export const NO_REST = 0;

/** Until when its values rest if a lease ends at this time: an offer leaves them as it found them. */
export const restOf = ({ terms, now }: Draft, lease: Lease, end = now): number =>
  isFirm(lease) ? end + terms.quarantine * 1000 : (lease.restsUntil ?? NO_REST);

/** Ends a lease, and the pool that it opened. Its values rest until `rest` if nobody else uses them. */
export function* vacate(tx: Draft, lease: Lease, rest = NO_REST): Rule<void> {
  if (lease.opens) yield* vanish(tx, lease.opens);
  const rests = rest > tx.now && !(yield* hasFellows(tx, lease));
  yield* record(tx, lease, rests ? atRest(lease, tx.now, rest) : undefined);
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
export function* lapse(tx: Draft, lease: Lease, rest = restOf(tx, lease, lease.expiresAt)): Rule<void> {
  if (isFirm(lease)) yield* log(tx, "expired", lease);
  yield* vacate(tx, lease, rest);
}

/** Classes of leases that end by themselves. */
export const ENDING: Class[] = ["o", "r", "t"];
const BATCH = 200;

/**
 * Cleans up what is over, some of it at a time: by the way in each transaction, except what `owner` may come back to; and
 * once more for whoever finds no room.
 */
export function* sweep(tx: Draft, pool: string, owner?: string): Rule<boolean> {
  const counts = yield* tx.get(countsKey(pool));
  const most = owner === undefined ? BATCH : BATCH - tx.swept;
  if (counts?.soonest === undefined || tx.now <= counts.soonest || most <= 0) return false;
  const due: string[] = [];
  for (const type of ENDING) {
    if (due.length < most) due.push(...(yield* tx.range(dueBy(pool, type, tx.now), most - due.length)));
  }
  const over = (yield* leasesIn(tx, pool, due)).filter((lease) => lease.owner !== owner);
  for (const lease of over) yield* lapse(tx, lease);
  tx.swept += over.length;
  yield* renewSoonest(tx, pool);
  return over.length > 0;
}

function* renewSoonest(tx: Draft, pool: string): Rule<void> {
  const { soonest: _, ...counts } = (yield* tx.get(countsKey(pool)))!;
  const ends: number[] = [];
  for (const type of ENDING) {
    const [lease] = yield* leasesIn(tx, pool, yield* tx.range(byTime(pool, type), 1));
    if (lease) ends.push(lease.expiresAt!);
  }
  tx.put(countsKey(pool), ends.length ? { ...counts, soonest: Math.min(...ends) } : counts);
}

/** An offer is safe for as long as it takes to get from preview to up; then it gives way to whoever has no other choice. */
const SAFE_FOR = 10 * 60 * 1000;

export const givesWay = (tx: Draft, lease: Lease, to?: string): boolean =>
  lease.state === "resting" || (lease.state === "offered" && (isOld(tx, lease) || isAbandoned(tx, lease, to)));

const isOld = ({ now }: Draft, { updatedAt }: Lease): boolean => now - updatedAt >= SAFE_FOR;

/** What a preview offered to a resource that is no longer in the program must not be in the way of the next preview. */
const isAbandoned = ({ terms }: Draft, lease: Lease, to: string | undefined): boolean =>
  to !== undefined && terms.abandoned?.(lease, to) === true;
