import { hash, randomUUID } from "node:crypto";
import { OverlayError } from "../../errors";
import { capitalize, describePool } from "../../pool-names";
import { isIpv4, subtract, total } from "../extents";
import { type Event, type Extent, isCommitted, type Lease, type PoolSpec, type Request, type Tenant } from "../types";
import { addFree, takeFree } from "./free-space";
import {
  allocationKey,
  allocationsFrom,
  countsKey,
  deletedPoolKey,
  deletedPools,
  eventKey,
  eventLines,
  type Key,
  leaseKey,
  leasesMovedTo,
  leasesWithHash,
  nameKey,
  ownerKey,
  poolKey,
  portKey,
  sharerKey,
  sharersOf,
  type TimeClass,
  timeKey,
  waiterKey,
} from "./keys";
import { type Allocation, type Counts, type DeletedPool, omitUndefined } from "./records";
import type { WriteBuffer } from "./write-buffer";

/** Leases as rows: reading them, and replacing one with all its derived rows, its free space, its counts and its history. */

/** The spec of a pool that must exist, because it has leases. */
export async function specOf(tx: WriteBuffer, name: string): Promise<PoolSpec> {
  const pool = await tx.get(poolKey(name));
  if (pool) return pool.spec;
  throw new OverlayError(
    "STORE_CORRUPT",
    `${capitalize(describePool(name))} is gone, but has leases.`,
    "Run `overlayctl store check`.",
  );
}

/** Replaces the lease `before` by `after`; either may be missing. */
export async function replaceLease(
  tx: WriteBuffer,
  before: Lease | undefined,
  after: Lease | undefined,
): Promise<void> {
  const { pool } = (after ?? before)!;
  const spec = await specOf(tx, pool);
  if (before) refuseChangeOfStranger(tx, spec, before);
  // Shared values stay taken when one of their leases ends, and are taken already when one is added.
  const left = before && (await isShared(tx, before));
  const joined = after && (await isShared(tx, after));
  const lost = before && occupies(before) && !left ? before.extents : [];
  const gained = after && occupies(after) && !joined ? after.extents : [];
  await addFree(tx, spec, subtract(lost, gained));
  await takeFree(tx, spec, subtract(gained, lost));
  const kept =
    left && occupies(before) ? new Set(before.extents.map(({ last }) => allocationKey(pool, last).at)) : undefined;
  replaceRows(tx, before && [before, spec], after && [after, spec], kept);
  let counts = (await tx.get(countsKey(pool))) ?? noCounts();
  if (before) counts = countLease(counts, before, -1, total(lost));
  if (after) counts = countLease(counts, after, 1, total(gained));
  tx.put(countsKey(pool), counts);
}

/** Leases of strangers change only if they give way to every request, or wait for a lease that ends. */
function refuseChangeOfStranger(tx: WriteBuffer, spec: PoolSpec, lease: Lease): void {
  const { access } = tx.options;
  if (!access || access.mayHold(lease) || !isLive(lease, tx.now) || !occupies(lease) || isInactive(tx, spec, lease))
    return;
  throw access.denied(`a lease in ${describePool(lease.pool)} that is not its own`);
}

type InPool = [lease: Lease, spec: Pick<PoolSpec, "reclaimAfter">];

/** Writes the difference between the rows of two leases; either may be missing. */
export function replaceRows(tx: WriteBuffer, before?: InPool, after?: InPool, kept?: Set<string>): void {
  const [old, next] = [before, after].map((lease) => (lease ? rowsOf(...lease) : new Map<string, string>()));
  for (const key of old!.keys()) if (!next!.has(key) && !kept?.has(key)) tx.set(key, null);
  for (const [key, text] of next!) if (old!.get(key) !== text) tx.set(key, text);
}

/** Whether another lease shares its values. */
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

/** The lease that has this name, whether or not it is live. */
export async function leaseNamed(tx: WriteBuffer, name: string): Promise<Lease | undefined> {
  const place = await tx.get(nameKey(name));
  return place && (await tx.get(leaseKey(place.pool, place.uid)));
}

export async function leasesOfOwner(tx: WriteBuffer, pool: string, owner: string): Promise<Lease[]> {
  const made = await tx.all(leasesWithHash(pool, ownerHash(owner)));
  const moved = await getLeases(tx, pool, await tx.all(leasesMovedTo(pool, owner)));
  return [...made.filter((lease) => lease.owner === owner), ...moved];
}

/** Leases that hold some part of an extent, expired ones included. */
export async function holdersOf(tx: WriteBuffer, pool: string, { first, last }: Extent): Promise<Lease[]> {
  const leases: Lease[] = [];
  for (let at = first; at <= last; ) {
    const allocation = await tx.first(allocationsFrom(pool, at));
    if (!allocation || allocation.extent.first > last) break;
    for (const lease of await leasesAt(tx, pool, allocation)) {
      if (!leases.some(({ uid }) => uid === lease.uid)) leases.push(lease);
    }
    at = allocation.extent.last + 1n;
  }
  return leases;
}

export async function leasesAt(tx: WriteBuffer, pool: string, { extent, uid, sharedAs }: Allocation): Promise<Lease[]> {
  const uids = uid === undefined ? await tx.all(sharersOf(pool, sharedAs!, extent.last)) : [uid];
  return await getLeases(tx, pool, uids);
}

/** Rows of history that a pool keeps, and how many more it may have before the oldest are deleted: so few writes have to look for them. */
const [KEPT, SPARE] = [10_000, 50];

export async function appendHistory(
  tx: WriteBuffer,
  what: Event["what"],
  lease: Lease,
  cause: Pick<Event, "takenBy" | "formerOwner"> = {},
): Promise<void> {
  const { pool, owner, uid, leaseId, extents, usedBy, tenant } = lease;
  const by = what === "expired" ? undefined : (tx.options.actor ?? lease.by);
  const place = { pool, owner, uid, leaseId, extents };
  const event = omitUndefined<Event>({ at: tx.now, what, ...place, tenant, usedBy, by, ...cause });
  tx.events.push(event);
  tx.put(eventKey(pool, tx.now, randomUUID()), event);
  const counts = (await tx.get(countsKey(pool))) ?? noCounts();
  const events = (counts.events ?? 0) + 1;
  const oldest = events < KEPT + SPARE ? [] : await tx.rows(eventLines(pool), SPARE);
  for (const [key] of oldest) tx.set(key, null);
  tx.put(countsKey(pool), { ...counts, events: events - oldest.length });
}

/** Rows of history of an earlier pool of this name. */
export async function countEvents(tx: WriteBuffer, pool: string): Promise<number> {
  return (await tx.rows({ ...eventLines(pool), expectEmpty: true }, KEPT + SPARE)).length;
}

/** The history is kept of this many pools that were deleted last. */
const KEPT_POOLS = 100;
/** Rows of history that are deleted in one transaction. */
const LINES = 1000;

/** Records that a pool was deleted, and deletes the history of the pool that was deleted longest ago. */
export async function recordDeletedPool(tx: WriteBuffer, pool: string): Promise<void> {
  tx.put(deletedPoolKey({ pool, at: tx.now }), { pool, at: tx.now });
  const gone = await tx.range(deletedPools, KEPT_POOLS + 1);
  if (gone.length <= KEPT_POOLS) return;
  const [oldest] = gone as [DeletedPool];
  // A pool that exists again deletes its own history.
  const isBack = await tx.get(poolKey(oldest.pool));
  const lines = isBack ? [] : await tx.rows(eventLines(oldest.pool, oldest.at), LINES);
  for (const [key] of lines) tx.set(key, null);
  if (lines.length < LINES) tx.delete(deletedPoolKey(oldest));
}

/** A lease is still valid in the millisecond of its end. */
export const isExpired = ({ expiresAt }: { expiresAt?: number }, now: number): boolean =>
  expiresAt !== undefined && now > expiresAt;
/** Whether it is held or offered, and has not expired. */
export const isLive = (lease: Lease, now: number): boolean =>
  lease.state !== "quarantined" && lease.state !== "ended" && !isExpired(lease, now);
/** An offer, or the record of one that has ended. */
export const wasOffer = ({ state, end }: Lease): boolean => state === "offered" || end?.wasOffer === true;
/** Whether it takes its values: not while it waits for other leases to end, and not after its own end. */
export const occupies = ({ state, waitsFor }: Pick<Lease, "state" | "waitsFor">): boolean =>
  state !== "ended" && waitsFor === undefined;

/** Whether its pool may give its values to another owner when the pool is full. */
export const isInactive = ({ now }: WriteBuffer, { reclaimAfter }: PoolSpec, lease: Lease): boolean =>
  reclaimAfter !== undefined &&
  isCommitted(lease) &&
  lease.expiresAt === undefined &&
  now - lease.lastSeen >= reclaimAfter * 1000;

/** The sharing key with its tenant: the same word of another tenant is another key. */
export const sharingKeyOf = ({ sharingKey, tenant }: { sharingKey?: string; tenant?: Tenant }): string | undefined =>
  sharingKey === undefined ? undefined : `${tenant ? `${tenant.org}/${tenant.project}` : ""}/${sharingKey}`;

function timeClassOf(
  { state, expiresAt, lastSeen }: Lease,
  { reclaimAfter }: Pick<PoolSpec, "reclaimAfter">,
): [TimeClass, number] | undefined {
  if (state === "offered") return ["o", expiresAt!];
  if (state === "quarantined") return ["r", expiresAt!];
  if (state === "ended") return ["e", expiresAt!];
  if (expiresAt !== undefined) return ["t", expiresAt];
  return reclaimAfter === undefined ? undefined : ["h", lastSeen];
}

/** `spec` is that of its pool. */
export function rowsOf(lease: Lease, spec: Pick<PoolSpec, "reclaimAfter">): Map<string, string> {
  const { pool, uid } = lease;
  const rows = new Map<string, string>();
  const put = <T>({ at, codec }: Key<T>, value: T) => rows.set(at, codec.encode(value));
  put(leaseKey(pool, uid), lease);
  if (!uid.startsWith(ownerHash(lease.owner))) put(ownerKey(pool, lease.owner, uid), uid);
  const time = timeClassOf(lease, spec);
  if (time) put(timeKey(pool, ...time, uid), uid);
  for (const name of lease.names ?? []) put(nameKey(name), { pool, uid });
  for (const other of lease.waitsFor ?? []) put(waiterKey(pool, other), uid);
  if (!occupies(lease)) return rows;
  const key = sharingKeyOf(lease);
  for (const extent of lease.extents) {
    put(allocationKey(pool, extent.last), key === undefined ? { extent, uid } : { extent, sharedAs: key });
    if (key !== undefined) put(sharerKey(pool, key, extent.last, uid), uid);
    for (const port of lease.ports ?? []) put(portKey(pool, extent.last, port), uid);
  }
  return rows;
}

export const noCounts = (): Counts => ({ offered: 0, reserved: 0, used: 0, quarantined: 0, held: 0n });

/** Adds a lease to the counts, or removes it. `values`: how many values only this lease holds. */
export function countLease(counts: Counts, lease: Lease, sign: 1 | -1, values: bigint): Counts {
  const { state } = lease;
  const held = state === "quarantined" ? counts.held : counts.held + BigInt(sign) * values;
  const next: Counts = { ...counts, ...(state !== "ended" && { [state]: counts[state] + sign }), held };
  if (sign === 1 && lease.expiresAt !== undefined) next.soonest = Math.min(counts.soonest ?? Infinity, lease.expiresAt);
  return next;
}

/**
 * A uid begins with a hash of the owner that it was made for, so that one range read finds all leases of an owner without an index. Only a
 * lease that was moved to another owner has an index row (`ownerKey`).
 */
function ownerHash(owner: string): string {
  if (owner !== last.owner) last = { owner, mark: hash("sha256", owner, "hex").slice(0, 8) };
  return last.mark;
}
/** An operation needs the hash of its owner several times. */
let last = { owner: "", mark: hash("sha256", "", "hex").slice(0, 8) };

export const newUid = (owner: string): string => ownerHash(owner) + randomUUID().slice(0, 8);

/** A lease id begins with the uid, which is where the lease is found. */
export const newLeaseId = (uid: string): string => `${uid}.${randomDigits()}`;
export const uidOf = (leaseId: string): string => leaseId.split(".")[0]!;

/** 16 hexadecimal digits; the version in the middle of a UUID is left out. */
const randomDigits = (): string => randomUUID().replace(/-.*-/, "").slice(0, 16);

/**
 * The id of the request that an offer answers. The requests of an owner may differ between branches of its program; each gets its own offer,
 * so that a preview of one branch does not change another. Ranges count by their families: they change with the pool.
 */
export function requestId(request: Request): string {
  const { want, size = 1n, within, also = [] } = request;
  if (want) return `=${digest(want.map(({ first, last }) => `${first}-${last}`))}`;
  const shared = sharingKeyOf(request);
  const families = [within, ...also].map((range) => (range ? (isIpv4(range.first) ? "4" : "6") : ""));
  return `*${digest([`${size}`, ...families, ...(shared === undefined ? [] : [shared])])}`;
}

/** Whether the offer answers a request for exactly these values. */
export const isByValue = ({ request }: Pick<Lease, "request">): boolean => request?.startsWith("=") === true;

const digest = (parts: string[]): string => hash("sha256", JSON.stringify(parts), "hex").slice(0, 12);
