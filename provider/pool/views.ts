import { current } from "./changing";
import type { Draft } from "./draft";
import { sweep } from "./endings";
import { capacityOf, single } from "./extents";
import { countsFrom, countsKey, eventsFrom, leaseKey, nameKey, poolIn, poolsFrom, seatsFrom } from "./keys";
import { leasesOfOwner, sitters, sitting } from "./ledger";
import { poolOf } from "./pools";
import { isLive, noCounts } from "./rows";
import { type By, type Event, type Extent, isFirm, type Lease, type PoolSpec, type Usage } from "./types";
import { nearlyFull } from "./wording";

/** Looking without touching. What is over is not seen, whether or not anybody has cleaned it up. */

export async function find(tx: Draft, pool: string, by: By): Promise<Lease | undefined> {
  if (!(await poolOf(tx, pool))) return undefined;
  if ("leaseId" in by) return await current(tx, pool, by.leaseId);
  if ("uid" in by) {
    const lease = await tx.get(leaseKey(pool, by.uid));
    return lease && isLive(lease, tx.now) ? lease : undefined;
  }
  const leases =
    "owner" in by
      ? await leasesOfOwner(tx, pool, by.owner)
      : "name" in by
        ? await leasesNamed(tx, pool, by.name)
        : await sitting(tx, pool, single(by.value));
  return newest(leases.filter((lease) => isLive(lease, tx.now)));
}

export async function endOf(tx: Draft, pool: string, uid: string): Promise<Lease | undefined> {
  const lease = await tx.get(leaseKey(pool, uid));
  return lease?.state === "ended" || lease?.state === "resting" ? lease : undefined;
}

async function leasesNamed(tx: Draft, pool: string, name: string): Promise<Lease[]> {
  const lease = await holder(tx, name);
  return lease?.pool === pool ? [lease] : [];
}

export async function holder(tx: Draft, name: string): Promise<Lease | undefined> {
  const place = await tx.get(nameKey(name));
  const lease = place && (await tx.get(leaseKey(place.pool, place.uid)));
  return lease && isLive(lease, tx.now) ? lease : undefined;
}

/** A firm one before an offer: what a preview asked for is not yet what its owner has. */
const newest = (leases: Lease[]): Lease | undefined =>
  leases.sort((a, b) => Number(isFirm(b)) - Number(isFirm(a)) || b.createdAt - a.createdAt)[0];

export async function spec(tx: Draft, pool: string): Promise<PoolSpec | undefined> {
  return structuredClone((await poolOf(tx, pool))?.spec);
}

/**
 * In the order of their values, offers and resting ones too; `after` is the last value that the caller has seen. All who
 * share a value come together, even past the limit.
 */
export async function leases(tx: Draft, pool: string, { after = -1n, limit = Infinity } = {}): Promise<Lease[]> {
  const found: Lease[] = [];
  if (!(await poolOf(tx, pool))) return found;
  await cleanedUp(tx, pool);
  for (let at = after + 1n; found.length < limit; ) {
    const page = await tx.range(seatsFrom(pool, at), Math.min(limit, PAGE));
    await tx.prefetch(page.flatMap(({ uid }) => (uid === undefined ? [] : [leaseKey(pool, uid)])));
    for (const seat of page) {
      for (const lease of await sitters(tx, pool, seat)) if (begins(lease, seat.extent)) found.push(lease);
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
async function cleanedUp(tx: Draft, pool: string): Promise<void> {
  while (await sweep(tx, pool));
}

export async function pools(tx: Draft, prefix: string): Promise<PoolSpec[]> {
  const records = await tx.all(poolsFrom(prefix));
  return records.filter(({ until }) => until === undefined || tx.now <= until).map(({ spec }) => structuredClone(spec));
}

export async function usage(tx: Draft, pool: string): Promise<Usage | undefined> {
  const record = await poolOf(tx, pool);
  if (!record) return undefined;
  await cleanedUp(tx, pool);
  const { soonest: _, events: __, ...counts } = (await tx.get(countsKey(pool))) ?? noCounts();
  const warning = nearlyFull(record.spec, counts.held);
  return { capacity: capacityOf(record.spec), ...counts, ...(warning && { warning }) };
}

/** Two looks for all of them; only where something is over, one more. */
export async function usages(tx: Draft, prefix: string): Promise<Map<string, Usage>> {
  const counts = new Map((await tx.allRows(countsFrom(prefix))).map(([key, each]) => [poolIn(key), each]));
  const found = new Map<string, Usage>();
  for (const spec of await pools(tx, prefix)) {
    const { soonest = Infinity, events: _, ...now } = counts.get(spec.name) ?? noCounts();
    const current = tx.now > soonest ? await usage(tx, spec.name) : { capacity: capacityOf(spec), ...now };
    found.set(spec.name, current!);
  }
  return found;
}

export async function history(tx: Draft, pool: string, { after = -1, limit = 1000 } = {}): Promise<Event[]> {
  return await tx.range(eventsFrom(pool, after + 1), limit);
}
