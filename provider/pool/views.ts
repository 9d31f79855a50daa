import { current } from "./changing";
import type { Draft } from "./draft";
import { sweep } from "./endings";
import { capacityOf, single } from "./extents";
import { countsFrom, countsKey, eventsFrom, leaseKey, nameKey, poolIn, poolsFrom, seatsFrom } from "./keys";
import { leasesOfOwner, sitters, sitting } from "./ledger";
import { poolOf } from "./pools";
import { isLive, noCounts } from "./rows";
import type { Rule } from "./rule";
import { type By, type Event, type Extent, isFirm, type Lease, type PoolSpec, type Usage } from "./types";
import { nearlyFull } from "./wording";

/** Looking without touching. What is over is not seen, whether or not anybody has cleaned it up. */

export function* find(tx: Draft, pool: string, by: By): Rule<Lease | undefined> {
  if (!(yield* poolOf(tx, pool))) return undefined;
  if ("leaseId" in by) return yield* current(tx, pool, by.leaseId);
  if ("uid" in by) {
    const lease = yield* tx.get(leaseKey(pool, by.uid));
    return lease && isLive(lease, tx.now) ? lease : undefined;
  }
  const leases =
    "owner" in by
      ? yield* leasesOfOwner(tx, pool, by.owner)
      : "name" in by
        ? yield* leasesNamed(tx, pool, by.name)
        : yield* sitting(tx, pool, single(by.value));
  return newest(leases.filter((lease) => isLive(lease, tx.now)));
}

export function* endOf(tx: Draft, pool: string, uid: string): Rule<Lease | undefined> {
  const lease = yield* tx.get(leaseKey(pool, uid));
  return lease?.state === "ended" || lease?.state === "resting" ? lease : undefined;
}

function* leasesNamed(tx: Draft, pool: string, name: string): Rule<Lease[]> {
  const lease = yield* holder(tx, name);
  return lease?.pool === pool ? [lease] : [];
}

export function* holder(tx: Draft, name: string): Rule<Lease | undefined> {
  const place = yield* tx.get(nameKey(name));
  const lease = place && (yield* tx.get(leaseKey(place.pool, place.uid)));
  return lease && isLive(lease, tx.now) ? lease : undefined;
}

/** A firm one before an offer: what a preview asked for is not yet what its owner has. */
const newest = (leases: Lease[]): Lease | undefined =>
  leases.sort((a, b) => Number(isFirm(b)) - Number(isFirm(a)) || b.createdAt - a.createdAt)[0];

export function* spec(tx: Draft, pool: string): Rule<PoolSpec | undefined> {
  return structuredClone((yield* poolOf(tx, pool))?.spec);
}

/**
 * In the order of their values, offers and resting ones too; `after` is the last value that the caller has seen. All who
 * share a value come together, even past the limit.
 */
export function* leases(tx: Draft, pool: string, { after = -1n, limit = Infinity } = {}): Rule<Lease[]> {
  const found: Lease[] = [];
  if (!(yield* poolOf(tx, pool))) return found;
  yield* cleanedUp(tx, pool);
  for (let at = after + 1n; found.length < limit; ) {
    const page = yield* tx.range(seatsFrom(pool, at), Math.min(limit, PAGE));
    yield* tx.foresee(page.flatMap(({ uid }) => (uid === undefined ? [] : [leaseKey(pool, uid)])));
    for (const seat of page) {
      for (const lease of yield* sitters(tx, pool, seat)) if (begins(lease, seat.extent)) found.push(lease);
    }
    if (page.length === 0) break;
    at = page.at(-1)!.extent.last + 1n;
  }
  return found;
}

const PAGE = 500;

/** A lease with several extents is listed where it begins. */
const begins = ({ extents }: Lease, { first }: Extent): boolean => extents.every((extent) => extent.first >= first);

/** What the next operation would clean up, cleaned up in this view of the store alone. */
function* cleanedUp(tx: Draft, pool: string): Rule<void> {
  while (yield* sweep(tx, pool));
}

export function* pools(tx: Draft, prefix: string): Rule<PoolSpec[]> {
  const records = yield* tx.all(poolsFrom(prefix));
  return records.filter(({ until }) => until === undefined || tx.now <= until).map(({ spec }) => structuredClone(spec));
}

export function* usage(tx: Draft, pool: string): Rule<Usage | undefined> {
  const record = yield* poolOf(tx, pool);
  if (!record) return undefined;
  yield* cleanedUp(tx, pool);
  const { soonest: _, events: __, ...counts } = (yield* tx.get(countsKey(pool))) ?? noCounts();
  const warning = nearlyFull(record.spec, counts.held);
  return { capacity: capacityOf(record.spec), ...counts, ...(warning && { warning }) };
}

/** Two looks for all of them; only where something is over, one more. */
export function* usages(tx: Draft, prefix: string): Rule<Map<string, Usage>> {
  const counts = new Map((yield* tx.allRows(countsFrom(prefix))).map(([key, each]) => [poolIn(key), each]));
  const found = new Map<string, Usage>();
  for (const spec of yield* pools(tx, prefix)) {
    const { soonest = Infinity, events: _, ...now } = counts.get(spec.name) ?? noCounts();
    const current = tx.now > soonest ? yield* usage(tx, spec.name) : { capacity: capacityOf(spec), ...now };
    found.set(spec.name, current!);
  }
  return found;
}

export function* history(tx: Draft, pool: string, { after = -1, limit = 1000 } = {}): Rule<Event[]> {
  return yield* tx.range(eventsFrom(pool, after + 1), limit);
}
