import { MAX_IP } from "../../addressing/ip";
import { isSameTenant } from "../../owner";
import { PORT_SPACES, SPACES } from "../../pool-names";
import {
  noBlocksError,
  notRequestedError,
  outsideError,
  poolInUseError,
  poolMissingError,
  reservedError,
  tenantError,
} from "../errors";
import { covers, fits, freeIn, isAvoided, overlapsAny, sizeOf, zonesOf } from "../extents";
import { freeTrees } from "../storage/free-space";
import { countsKey, freeFrom, freeKey, leasesOf, poolKey, type Span } from "../storage/keys";
import { countEvents, isLive, noCounts, occupies, recordDeletedPool, specOf } from "../storage/leases";
import { extentCodec, type PoolRecord } from "../storage/records";

import type { WriteBuffer } from "../storage/write-buffer";
import { type Extent, isCommitted, type Lease, type PoolSpec, type Request, type Tenant } from "../types";
import { mustBeUsable, show } from "./access";
import { firstEndRecord, keepEndRecords } from "./end-records";

/** Pools: each is the child pool of a lease and is dropped with it. Only address spaces have no such lease. */

const addressSpaceRecord = (name: string): PoolRecord => {
  const kind = name.startsWith(PORT_SPACES) ? "port" : "space";
  return { spec: { name, kind, extents: [{ first: 0n, last: MAX_IP }], allocation: "external" } };
};

/** undefined, too, if the offer that it belongs to has expired. */
export async function findPool(tx: WriteBuffer, name: string): Promise<PoolRecord | undefined> {
  const pool = await tx.get(poolKey(name));
  if (!pool) return name.startsWith(SPACES) ? addressSpaceRecord(name) : undefined;
  return pool.until !== undefined && tx.now > pool.until ? undefined : pool;
}

/** The pool for a request; rejects if there is none. */
export async function requirePool(tx: WriteBuffer, name: string, forClaim: boolean): Promise<PoolRecord> {
  const pool = await findPool(tx, name);
  mustBeUsable(tx, name, pool?.spec);
  if (!pool) throw poolMissingError(name);
  if (forClaim && pool.closing) throw poolMissingError(name, "is being deleted");
  if (forClaim && pool.until !== undefined) throw poolMissingError(name, "exists only in a preview so far");
  if (!pool.opener && !(await tx.get(poolKey(name)))) await createPool(tx, pool);
  return pool;
}

/** A tenant's pool serves that tenant only. A request without a tenant is refused, too. */
export function mustBeOfTenant(spec: PoolSpec, tenant: Tenant | undefined): void {
  if (spec.tenant && !isSameTenant(spec.tenant, tenant)) throw tenantError(spec, spec.tenant, tenant);
}

/** Rejects a request for a block in a pool that gives none. */
export function mustAllowBlocks(spec: PoolSpec, { want, size = 1n }: Request): void {
  const isForBlock = want ? want.some((extent) => sizeOf(extent) > 1n) : size > 1n;
  if (spec.avoidBoundaryIps && isForBlock) throw noBlocksError(spec);
}

/** Rejects a request for a value that is reserved, or not in the pool. */
export function mustBeGivable(spec: PoolSpec, extent: Extent): void {
  if (!covers(spec.extents, [extent])) throw outsideError(spec, extent);
  if (isAvoided(spec, extent) || overlapsAny(spec.reserved ?? [], extent)) throw reservedError(spec, extent);
}

/** Rejects a request that the pool never allows, also if its values are free. */
export function mustAllow(spec: PoolSpec, request: Request): void {
  mustAllowBlocks(spec, request);
  for (const extent of request.want ?? []) mustBeGivable(spec, extent);
}

/** Whether the pool can give these values: to a request without values only those that it chooses from. */
export const canGive = (spec: PoolSpec, { want }: Request, extents: Extent[]): boolean =>
  fits(spec, { extents }) && (want !== undefined || covers(zonesOf(spec).automatic, extents));

/** Rejects a request without values in a pool that chooses none. */
export function mustAssign(spec: PoolSpec): void {
  if (spec.allocation === "external" || spec.autoAssign === false) throw notRequestedError(spec);
}

export async function createPool(tx: WriteBuffer, pool: PoolRecord): Promise<void> {
  const { name } = pool.spec;
  tx.put(poolKey(name), pool);
  const soonest = await firstEndRecord(tx, name);
  const events = await countEvents(tx, name);
  tx.put(countsKey(name), { ...noCounts(), events, ...(soonest !== undefined && { soonest }) });
  for (const [key, text] of freeRows(pool.spec, [])) tx.set(key, text);
}

/** The rows of free space that a pool with these leases must have. */
export function freeRows(spec: PoolSpec, leases: Lease[]): Map<string, string> {
  const taken = leases.filter(occupies).flatMap(({ extents }) => extents);
  const rows = freeTrees(spec).flatMap(([tree, zone]) =>
    freeIn(spec, zone, taken).map((free): [string, string] => [
      freeKey(tree, spec.name, free.last).at,
      extentCodec.encode(free),
    ]),
  );
  return new Map(rows);
}

/** Leases that are read at once to find held ones. */
const HELD_PAGE = 1000;

/** Committed leases of a pool, longest unseen first; with `withOffers`, offers too. The first page that has any. */
export async function heldLeases(tx: WriteBuffer, pool: string, limit: number, withOffers = false): Promise<Lease[]> {
  let held: Lease[] = [];
  for (let rest: Span<Lease> | undefined = leasesOf(pool); rest && held.length === 0; ) {
    const [leases, next]: [Lease[], Span<Lease> | undefined] = await tx.page(rest, HELD_PAGE);
    held = leases.filter((lease) => (withOffers || isCommitted(lease)) && isLive(lease, tx.now));
    rest = next;
  }
  return held
    .sort((a, b) => Number(isCommitted(b)) - Number(isCommitted(a)) || a.lastSeen - b.lastSeen)
    .slice(0, limit);
}

export async function mustBeUnused(tx: WriteBuffer, name: string): Promise<void> {
  const holders = await heldLeases(tx, name, 10);
  if (holders.length === 0) return;
  const shown = holders.map((lease) => show(tx, lease));
  throw poolInUseError(await specOf(tx, name), shown, "still has leases");
}

/** Removes an unused pool, with its offers and quarantined leases. Its history is kept for some time, and so are end records. */
export async function dropPool(tx: WriteBuffer, name: string): Promise<void> {
  const pool = await tx.get(poolKey(name));
  if (!pool) return;
  const { events } = (await tx.get(countsKey(name))) ?? noCounts();
  await mustBeUnused(tx, name);
  const leases = await tx.all(leasesOf(name));
  for (const { childPool } of leases) if (childPool) await dropPool(tx, childPool);
  await keepEndRecords(tx, pool.spec, leases);
  await dropFreeRows(tx, name);
  tx.delete(countsKey(name));
  tx.delete(poolKey(name));
  if (events) await recordDeletedPool(tx, name);
}

export async function dropFreeRows(tx: WriteBuffer, name: string): Promise<void> {
  for (const tree of ["f", "g"] as const) {
    for (const free of await tx.all(freeFrom(tree, name, 0n))) tx.delete(freeKey(tree, name, free.last));
  }
}
