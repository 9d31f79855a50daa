import { current } from "./changing";
import type { Draft } from "./draft";
import { capacityOf, single } from "./extents";
import { countsKey, dueBy, eventsFrom, poolsFrom, seatsFrom } from "./keys";
import { leasesIn, leasesOfOwner, sitting } from "./ledger";
import { poolOf } from "./pools";
import { counted, isFirm, isLive, isOver, noCounts } from "./rows";
import type { Rule } from "./rule";
import type { Event, Lease, Pool, PoolSpec, Usage } from "./types";

/** Looking without touching. What is over is not seen, whether or not anybody has cleaned it up. */

export function* find(tx: Draft, pool: string, by: Parameters<Pool["find"]>[1]): Rule<Lease | undefined> {
  if (!(yield* poolOf(tx, pool))) return undefined;
  if ("leaseId" in by) return yield* current(tx, pool, by.leaseId);
  const leases = "owner" in by ? yield* leasesOfOwner(tx, pool, by.owner) : yield* sitting(tx, pool, single(by.value));
  return newest(leases.filter((lease) => isLive(lease, tx.now)));
}

/** A firm one before an offer: what a preview asked for is not yet what its owner has. */
const newest = (leases: Lease[]): Lease | undefined =>
  leases.sort((a, b) => Number(isFirm(b)) - Number(isFirm(a)) || b.createdAt - a.createdAt)[0];

export function* spec(tx: Draft, pool: string): Rule<PoolSpec | undefined> {
  return structuredClone((yield* poolOf(tx, pool))?.spec);
}

/** In the order of their values, offers and resting ones too; `after` is the last value that the caller has seen. */
export function* leases(tx: Draft, pool: string, { after = -1n, limit = Infinity } = {}): Rule<Lease[]> {
  const found = new Map<string, Lease>();
  if (!(yield* poolOf(tx, pool))) return [];
  for (let at = after + 1n; found.size < limit; ) {
    const seat = yield* tx.first(seatsFrom(pool, at));
    if (!seat) break;
    for (const lease of yield* sitting(tx, pool, seat.extent)) {
      // A lease with several extents is listed where it begins.
      const begins = lease.extents.every(({ first }) => first >= seat.extent.first);
      if (begins && !isOver(lease, tx.now)) found.set(lease.uid, lease);
    }
    at = seat.extent.last + 1n;
  }
  return [...found.values()];
}

export function* pools(tx: Draft, prefix: string): Rule<PoolSpec[]> {
  const records = yield* tx.all(poolsFrom(prefix));
  return records.filter(({ until }) => until === undefined || tx.now <= until).map(({ spec }) => structuredClone(spec));
}

export function* usage(tx: Draft, pool: string): Rule<Usage | undefined> {
  const record = yield* poolOf(tx, pool);
  if (!record) return undefined;
  let counts = (yield* tx.get(countsKey(pool))) ?? noCounts();
  for (const type of ["o", "r", "t"] as const) {
    const over = yield* leasesIn(tx, pool, yield* tx.all(dueBy(pool, type, tx.now)));
    for (const lease of over)
      counts = counted(
        counts,
        lease,
        -1,
        lease.extents.reduce((sum, e) => sum + e.last - e.first + 1n, 0n),
      );
  }
  const { soonest: _, ...now } = counts;
  return { capacity: capacityOf(record.spec), ...now };
}

export function* history(tx: Draft, pool: string, { after = -1, limit = 1000 } = {}): Rule<Event[]> {
  return yield* tx.range(eventsFrom(pool, after + 1), limit);
}
