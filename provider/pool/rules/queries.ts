import { MAX_IP } from "../../addressing/ip";
import { fullnessWarning } from "../errors";
import { capacityOf, intersect, single } from "../extents";
import {
  allocationsFrom,
  countsFrom,
  countsKey,
  eventsFrom,
  freeFrom,
  leaseKey,
  leasesOf,
  poolOfKey,
  poolsFrom,
  type Span,
} from "../storage/keys";
import {
  holdersOf,
  isLive,
  leaseNamed,
  leasesAt,
  leasesOfOwner,
  noCounts,
  occupies,
  wasOffer,
} from "../storage/leases";
import type { PoolRecord } from "../storage/records";
import type { WriteBuffer } from "../storage/write-buffer";
import {
  type By,
  type Event,
  type Extent,
  isCommitted,
  type Lease,
  type LeaseFilter,
  type PoolPage,
  type PoolSpec,
  type Usage,
} from "../types";
import { findCurrent } from "./amend";
import { expireOverdue } from "./end-lease";
import { isPastEnd } from "./end-records";
import { findPool } from "./pools";

/** Read-only queries. Except where they say so, they do not return expired leases, even if those are still in the store. */

export async function find(tx: WriteBuffer, pool: string, by: By): Promise<Lease | undefined> {
  if (!(await findPool(tx, pool))) return undefined;
  if ("leaseId" in by) return await findCurrent(tx, pool, by.leaseId);
  if ("uid" in by) {
    const lease = await tx.get(leaseKey(pool, by.uid));
    return lease && isLive(lease, tx.now) ? lease : undefined;
  }
  const leases =
    "owner" in by
      ? await leasesOfOwner(tx, pool, by.owner)
      : "name" in by
        ? await leasesNamed(tx, pool, by.name)
        : await holdersOf(tx, pool, single(by.value));
  return newest(leases.filter((lease) => isLive(lease, tx.now)));
}

export async function endOf(tx: WriteBuffer, pool: string, uid: string): Promise<Lease | undefined> {
  const lease = await tx.get(leaseKey(pool, uid));
  return lease?.state === "ended" || lease?.state === "quarantined" ? lease : undefined;
}

async function leasesNamed(tx: WriteBuffer, pool: string, name: string): Promise<Lease[]> {
  const lease = await holder(tx, name);
  return lease?.pool === pool ? [lease] : [];
}

export async function holder(tx: WriteBuffer, name: string): Promise<Lease | undefined> {
  const lease = await leaseNamed(tx, name);
  return lease && isLive(lease, tx.now) ? lease : undefined;
}

export async function findPromise(tx: WriteBuffer, name: string): Promise<Lease | undefined> {
  const lease = await leaseNamed(tx, name);
  return lease && wasOffer(lease) && !isPastEnd(lease, tx.now) ? lease : undefined;
}

/** A committed lease before an offer. */
const newest = (leases: Lease[]): Lease | undefined =>
  leases.sort((a, b) => Number(isCommitted(b)) - Number(isCommitted(a)) || b.createdAt - a.createdAt)[0];

export async function spec(tx: WriteBuffer, pool: string): Promise<PoolSpec | undefined> {
  return structuredClone((await findPool(tx, pool))?.spec);
}

/**
 * In the order of their values, offers and quarantined leases included; `after` is the last value that the caller has. Leases that share a
 * value are returned together, even past the limit.
 */
export async function leases(
  tx: WriteBuffer,
  pool: string,
  { after = -1n, limit = Infinity, owner }: LeaseFilter = {},
): Promise<Lease[]> {
  const found: Lease[] = [];
  if (!(await findPool(tx, pool))) return found;
  await expireInView(tx, pool);
  if (owner !== undefined)
    return (await leasesOfOwner(tx, pool, owner)).filter((lease) => occupies(lease)).sort(compareValues);
  for (let at = after + 1n; found.length < limit; ) {
    const page = await tx.range(allocationsFrom(pool, at), Math.min(limit, PAGE));
    await tx.prefetch(page.flatMap(({ uid }) => (uid === undefined ? [] : [leaseKey(pool, uid)])));
    for (const allocation of page) {
      for (const lease of await leasesAt(tx, pool, allocation)) if (begins(lease, allocation.extent)) found.push(lease);
    }
    if (page.length === 0) break;
    at = page.at(-1)!.extent.last + 1n;
  }
  return found;
}

const PAGE = 500;

const compareValues = (a: Lease, b: Lease): number => (a.extents[0]!.first < b.extents[0]!.first ? -1 : 1);

/** A lease with several extents is listed with the first of them. */
const begins = ({ extents }: Lease, { first }: Extent): boolean => extents.every((extent) => extent.first >= first);

/** Expires overdue leases in the buffer only: nothing is written. */
async function expireInView(tx: WriteBuffer, pool: string): Promise<void> {
  while (await expireOverdue(tx, pool));
}

export async function pools(
  tx: WriteBuffer,
  prefix: string,
  { after, limit = Infinity }: PoolPage = {},
): Promise<PoolSpec[]> {
  const found: PoolSpec[] = [];
  let rest: Span<PoolRecord> | undefined = poolsFrom(prefix, after);
  while (rest && found.length < limit) {
    const page: [PoolRecord[], Span<PoolRecord> | undefined] = await tx.page(
      rest,
      Math.min(PAGE, limit - found.length),
    );
    const open = page[0].filter(({ until }) => until === undefined || tx.now <= until);
    found.push(...open.map(({ spec }) => structuredClone(spec)));
    rest = page[1];
  }
  return found;
}

export async function freeExtents(
  tx: WriteBuffer,
  pool: string,
  { within = ALL, limit = Infinity }: { within?: Extent; limit?: number } = {},
): Promise<Extent[]> {
  const found: Extent[] = [];
  if (!(await findPool(tx, pool))) return found;
  await expireInView(tx, pool);
  let rest: Span<Extent> | undefined = freeFrom("f", pool, within.first);
  while (rest && found.length < limit) {
    const page: [Extent[], Span<Extent> | undefined] = await tx.page(rest, Math.min(PAGE, limit - found.length));
    found.push(...intersect(page[0], [within]));
    rest = page[0].some(({ last }) => last > within.last) ? undefined : page[1];
  }
  return found;
}

const ALL: Extent = { first: 0n, last: MAX_IP };

export async function usage(tx: WriteBuffer, pool: string): Promise<Usage | undefined> {
  const record = await findPool(tx, pool);
  if (!record) return undefined;
  await expireInView(tx, pool);
  const { soonest: _, events: __, ...counts } = (await tx.get(countsKey(pool))) ?? noCounts();
  const warning = fullnessWarning(record.spec, counts.held);
  return { capacity: capacityOf(record.spec), ...counts, ...(warning && { warning }) };
}

/** Reads all counts at once; only pools with overdue leases are read one by one. */
export async function usages(tx: WriteBuffer, prefix: string): Promise<Map<string, Usage>> {
  const counts = new Map((await tx.allRows(countsFrom(prefix))).map(([key, each]) => [poolOfKey(key), each]));
  const found = new Map<string, Usage>();
  for (const spec of await pools(tx, prefix)) {
    const { soonest = Infinity, events: _, ...now } = counts.get(spec.name) ?? noCounts();
    const current = tx.now > soonest ? await usage(tx, spec.name) : { capacity: capacityOf(spec), ...now };
    found.set(spec.name, current!);
  }
  return found;
}

export async function history(tx: WriteBuffer, pool: string, { after = -1, limit = 1000 } = {}): Promise<Event[]> {
  return await tx.range(eventsFrom(pool, after + 1), limit);
}

/** A pool and the child pools of its leases, which end with it, and the committed leases in each. */
export async function poolsEndingWith(tx: WriteBuffer, root: string): Promise<{ spec: PoolSpec; held: Lease[] }[]> {
  const found: { spec: PoolSpec; held: Lease[] }[] = [];
  for (const names = [root]; names.length > 0; ) {
    const name = names.shift()!;
    const pool = await findPool(tx, name);
    if (!pool) continue;
    const held = (await tx.all(leasesOf(name))).filter((lease) => isCommitted(lease) && isLive(lease, tx.now));
    found.push({ spec: pool.spec, held });
    names.push(...held.flatMap(({ childPool }) => childPool ?? []));
  }
  return found;
}
