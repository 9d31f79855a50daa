import { randomUUID } from "node:crypto";
import { type Asking, type Choice, choose, mustKeepQuota } from "./choice";
import type { Draft } from "./draft";
import { sweep, vacate } from "./endings";
import { covers, meetsAny, sameExtents, sizeOf, zonesOf } from "./extents";
import { leaseKey } from "./keys";
import { leasesOfOwner, log, record, specOf } from "./ledger";
import { takeNames } from "./names";
import { mayOpen, open } from "./openings";
import { poolFor, shut, vanish } from "./pools";
import type { PoolRecord } from "./records";
import { isFirm, isLive, isOver, sharedAs } from "./rows";
import type { Rule } from "./rule";
import { mayChangeKey, takePorts } from "./sharing";
import type { Changes, Details, Event, Extent, Lease, PoolSpec, Request } from "./types";
import { fenced, leaseOver, opensForever } from "./wording";

/** What can be asked of the pool: each a rule that either throws or comes to a whole new state. */

export function* offer(tx: Draft, asking: Asking): Rule<Lease> {
  const { opens: _, ...request } = asking.request;
  const pool = yield* poolFor(tx, request.pool, false);
  const own = yield* ownLease(tx, pool.spec, request);
  if (own && isFirm(own) && isLive(own, tx.now)) return yield* keptInPreview(tx, request, own);
  const grown = own ? undefined : yield* outgrown(tx, request);
  if (!grown) return yield* grant(tx, pool, asking, own);
  // Its own block with other bounds, which only a claim can give it. What is in its pool may be replaced before that.
  tx.onlyImagined = true;
  return yield* grant(tx, pool, { ...asking, request }, grown);
}

/** A preview changes nothing about a lease that is firm; it only finds out whether its new names are free. */
function* keptInPreview(tx: Draft, { names = [] }: Request, own: Lease): Rule<Lease> {
  yield* takeNames(tx, { ...own, names });
  tx.discard();
  return own;
}

export function* claim(tx: Draft, asking: Asking): Rule<Lease> {
  const { request } = asking;
  const pool = yield* poolFor(tx, request.pool, true);
  const own = (yield* ownLease(tx, pool.spec, request)) ?? (yield* outgrown(tx, request));
  const lease = yield* grant(tx, pool, asking, own);
  log(tx, own && isFirm(own) ? "renewed" : "claimed", lease);
  for (const other of yield* leasesOfOwner(tx, request.pool, request.owner)) {
    if (other.state === "offered") yield* vacate(tx, other);
  }
  return lease;
}

/** The lease of this owner that answers the request: firm before offered before past ones, then the newest. */
function* ownLease(tx: Draft, spec: PoolSpec, request: Request): Rule<Lease | undefined> {
  const isPast = (lease: Lease) => lease.state !== "offered" && !isLive(lease, tx.now);
  const rank = (lease: Lease) => (isPast(lease) ? 2 : isFirm(lease) ? 0 : 1);
  const leases = (yield* leasesOfOwner(tx, request.pool, request.owner)).filter(
    (lease) => answers(lease, request) && (!isPast(lease) || comesBack(spec, lease, request)),
  );
  return leases.sort((a, b) => rank(a) - rank(b) || b.createdAt - a.createdAt)[0];
}

function answers({ extents }: Lease, { want, size = 1n, within, also = [] }: Request): boolean {
  if (want) return sameExtents(extents, want);
  const ranges = [within, ...also];
  return (
    extents.length === ranges.length &&
    extents.every((extent, i) => sizeOf(extent) === size && (!ranges[i] || covers([ranges[i]], [extent])))
  );
}

/** Whether an owner finds what it had before: if asked for, or if the pool could have chosen it. */
const comesBack = (spec: PoolSpec, { extents }: Lease, { want, sharingKey }: Request): boolean =>
  want !== undefined ||
  (sharingKey === undefined && spec.autoAssign !== false && covers(zonesOf(spec).automatic, extents));

/** A block that is claimed larger or smaller than its owner has it: the same lease, with other bounds. */
function* outgrown(tx: Draft, { pool, owner, want = [] }: Request): Rule<Lease | undefined> {
  const leases = yield* leasesOfOwner(tx, pool, owner);
  return leases.find((lease) => isFirm(lease) && lease.extents.some((extent) => meetsAny(want, extent)));
}

function* grant(tx: Draft, { spec, until }: PoolRecord, asking: Asking, own?: Lease): Rule<Lease> {
  const { request, firm } = asking;
  yield* sweep(tx, request.pool, request.owner);
  const { extents, warnings } = yield* seat(tx, spec, asking, own);
  const lease = newLease(tx, asking, extents, own);
  const ends = firm ? undefined : Math.min(lease.expiresAt!, until ?? Infinity);
  // Read again: to find it a seat, its own past lease may have been cleared away.
  const before = own && (yield* tx.get(leaseKey(own.pool, own.uid)));
  const after = yield* enter(tx, before, lease, request, ends);
  yield* mustKeepQuota(tx, spec);
  return warnings.length ? { ...after, warnings } : after;
}

function* seat(tx: Draft, spec: PoolSpec, asking: Asking, own?: Lease): Rule<Choice> {
  const keeps = own && answers(own, asking.request);
  if (own) yield* mayChangeKey(tx, spec, own, keeps ? sharedAs(asking.request) : undefined);
  if (!keeps) return yield* choose(tx, spec, asking, own);
  yield* takePorts(tx, spec, own.extents, asking.request.ports ?? [], own.uid);
  return { extents: own.extents, warnings: [] };
}

/** Puts a lease in the place of an older version of it, with the names that it can have and the pool that it can open. */
function* enter(
  tx: Draft,
  before: Lease | undefined,
  lease: Lease,
  { names, opens }: Pick<Details, "names" | "opens">,
  ends?: number,
): Rule<Lease> {
  const after = { ...lease };
  if (names) after.names = yield* takeNames(tx, { ...lease, names });
  const spec = opens ?? (lease.opens === undefined ? undefined : yield* specOf(tx, lease.opens));
  if (spec) {
    if (isFirm(lease) && lease.expiresAt !== undefined) throw opensForever(lease, spec);
    if (lease.opens !== undefined && lease.opens !== spec.name) yield* vanish(tx, lease.opens);
    delete after.opens;
    if (yield* mayOpen(tx, lease, spec.name)) after.opens = spec.name;
  }
  yield* record(tx, before, after);
  if (spec && after.opens) yield* open(tx, after, spec, ends);
  return after;
}

/** 16 hexadecimal digits; the version in the middle of a UUID is left out. */
const newId = (): string => randomUUID().replace(/-.*-/, "").slice(0, 16);
/** A lease id begins with the uid, which is where the lease is found. */
const uidOf = (leaseId: string): string => leaseId.split(".")[0]!;

function newLease(tx: Draft, { request, firm }: Asking, extents: Extent[], own?: Lease): Lease {
  const { pool, owner, type, tenant, labels, data, by, sharingKey, ports, ttl } = request;
  const wasUsed = own?.state === "used";
  const usedBy = request.usedBy ?? (wasUsed ? own.usedBy : undefined);
  const uid = own?.uid ?? newId();
  const state = !firm ? "offered" : wasUsed || usedBy !== undefined ? "used" : "reserved";
  const seconds = { offered: tx.terms.offerTtl, reserved: ttl, used: undefined }[state];
  return given<Lease>({
    pool,
    owner,
    type,
    extents,
    state,
    uid,
    leaseId: own?.state === "offered" && !firm ? own.leaseId : `${uid}.${newId()}`,
    createdAt: own && isLive(own, tx.now) ? own.createdAt : tx.now,
    updatedAt: tx.now,
    lastSeen: tx.now,
    expiresAt: seconds === undefined ? undefined : tx.now + seconds * 1000,
    tenant,
    labels,
    usedBy,
    data,
    by,
    sharingKey,
    ports,
    opens: own?.opens,
  });
}

/** Optional fields are there or not, never undefined. */
const given = <T extends object>(fields: { [K in keyof T]: T[K] | undefined }): T =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as T;

/** undefined when it is not the current lease, or its time is over. */
export function* current(tx: Draft, pool: string, leaseId: string): Rule<Lease | undefined> {
  const lease = yield* tx.get(leaseKey(pool, uidOf(leaseId)));
  return lease?.leaseId === leaseId && isLive(lease, tx.now) ? lease : undefined;
}

function* mustBeCurrent(tx: Draft, pool: string, leaseId: string): Rule<Lease> {
  const lease = yield* tx.get(leaseKey(pool, uidOf(leaseId)));
  if (lease?.leaseId !== leaseId || lease.state === "resting") throw fenced(pool, leaseId);
  if (isOver(lease, tx.now)) throw leaseOver(lease);
  return lease;
}

export function* amend(tx: Draft, pool: string, leaseId: string, changes: Changes): Rule<Lease> {
  const lease = yield* mustBeCurrent(tx, pool, leaseId);
  const spec = yield* specOf(tx, pool);
  const changed = amended(tx, lease, changes);
  yield* mayChangeKey(tx, spec, lease, changes.extents ? undefined : sharedAs(changed));
  if (changes.extents) yield* choose(tx, spec, resizing(changed), lease);
  yield* takePorts(tx, spec, changed.extents, changed.ports ?? [], lease.uid);
  const after = yield* enter(tx, lease, changed, changes, isFirm(lease) ? undefined : lease.expiresAt);
  log(tx, eventOf(lease, after), after);
  yield* mustKeepQuota(tx, spec);
  return after;
}

const resizing = (lease: Lease): Asking => ({
  request: { pool: lease.pool, owner: lease.owner, type: lease.type, want: lease.extents },
  firm: true,
  planned: false,
  leaves: () => false,
});

function amended(tx: Draft, lease: Lease, { names: _, opens: __, ttl, sharingKey, ...changes }: Changes): Lease {
  const state = changes.state ?? lease.state;
  const usedBy = changes.usedBy ?? (state === "used" ? lease.usedBy : undefined);
  const ends = ttl === undefined ? lease.expiresAt : ttl === null ? undefined : tx.now + ttl * 1000;
  return given<Lease>({
    ...lease,
    ...changes,
    state,
    usedBy,
    updatedAt: tx.now,
    expiresAt: state === "used" ? undefined : ends,
    sharingKey: sharingKey === undefined ? lease.sharingKey : (sharingKey ?? undefined),
  });
}

const eventOf = (before: Lease, after: Lease): Event["what"] =>
  before.owner !== after.owner ? "renamed" : before.state !== "used" && after.state === "used" ? "used" : "amended";

export function* close(tx: Draft, pool: string, leaseId: string): Rule<void> {
  const { opens } = yield* mustBeCurrent(tx, pool, leaseId);
  if (opens) yield* shut(tx, opens);
}

export function* release(tx: Draft, pool: string, leaseId: string): Rule<boolean> {
  const lease = yield* current(tx, pool, leaseId);
  if (!lease) return false;
  if (isFirm(lease)) log(tx, "released", lease);
  yield* vacate(tx, lease, tx.now + tx.terms.quarantine * 1000);
  return true;
}

export function* touch(tx: Draft, pool: string, leaseId: string): Rule<void> {
  const lease = yield* mustBeCurrent(tx, pool, leaseId);
  yield* record(tx, lease, { ...lease, lastSeen: tx.now });
}
