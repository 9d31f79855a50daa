import { isDeepStrictEqual } from "node:util";
import { type Asking, choose, mustKeepQuota, takingFor } from "./choice";
import type { Draft } from "./draft";
import { lapse, restOf, vacate } from "./endings";
import { enter } from "./entering";
import { uidOf } from "./ids";
import { leaseKey, leasesOf, poolKey } from "./keys";
import { log, record, specOf } from "./ledger";
import { mustBeOfTenant, mustBeUnused } from "./pools";
import { given } from "./records";
import { isLive, isOver, sharedAs } from "./rows";
import { mayChangeKey, takePorts } from "./sharing";
import { type Changes, type Condition, dataEntries, type Event, isFirm, type Lease } from "./types";
import { fenced, leaseChanged, leaseOver, onlyOffered } from "./wording";

/** What the holder of a lease id can do with its lease. */

/** undefined when it is not the current lease, or its time is over. */
export async function current(tx: Draft, pool: string, leaseId: string): Promise<Lease | undefined> {
  const lease = await tx.get(leaseKey(pool, uidOf(leaseId)));
  return lease?.leaseId === leaseId && isLive(lease, tx.now) ? lease : undefined;
}

async function mustBeCurrent(tx: Draft, pool: string, leaseId: string): Promise<Lease> {
  const lease = await tx.get(leaseKey(pool, uidOf(leaseId)));
  if (lease?.leaseId !== leaseId || ["resting", "ended"].includes(lease.state)) throw fenced(pool, leaseId);
  if (isOver(lease, tx.now)) throw leaseOver(lease);
  return lease;
}

const meets = (lease: Lease, { state, usedBy, data }: Condition): boolean =>
  (state === undefined || lease.state === state) &&
  (usedBy === undefined || lease.usedBy === usedBy) &&
  Object.entries(data ?? {}).every(([key, value]) => isDeepStrictEqual(dataEntries(lease)[key], value));

export async function amend(
  tx: Draft,
  pool: string,
  leaseId: string,
  changes: Changes,
  onlyIf?: Condition,
): Promise<Lease> {
  const lease = await mustBeCurrent(tx, pool, leaseId);
  if (!isFirm(lease)) throw onlyOffered(lease);
  if (onlyIf && !meets(lease, onlyIf)) throw leaseChanged(lease, onlyIf);
  const spec = await specOf(tx, pool);
  if (changes.tenant !== undefined) mustBeOfTenant(spec, changes.tenant ?? undefined);
  const changed = amended(tx, lease, changes);
  await mayChangeKey(tx, spec, lease, changes.extents ? undefined : sharedAs(changed));
  if (changes.extents) await choose(tx, spec, resizing(changed), lease);
  const taking = takingFor(tx, spec, resizing(changed, changes.takes));
  await takePorts(tx, spec, changed.extents, changed.ports ?? [], lease.uid, taking);
  const after = await enter(tx, lease, changed, changes);
  await log(tx, eventOf(lease, after), after, lease.owner === after.owner ? {} : { formerOwner: lease.owner });
  if (changes.extents) await mustKeepQuota(tx, spec, lease);
  return after;
}

const resizing = ({ pool, owner, type, extents, tenant }: Lease, takes = false): Asking => ({
  request: { pool, owner, type, want: extents, takes, ...(tenant && { tenant }) },
  firm: true,
  planned: false,
  inUp: true,
  offerTtl: 0,
  chance: "",
  leaves: () => false,
});

function amended(
  tx: Draft,
  lease: Lease,
  { names: _, opens: __, takes: ___, ttl, sharingKey, tenant, deleting, ...changes }: Changes,
): Lease {
  const state = changes.state ?? lease.state;
  const usedBy = changes.usedBy ?? (state === "used" ? lease.usedBy : undefined);
  const seconds = ttl === undefined ? lease.ttl : (ttl ?? undefined);
  // The ttl starts again when it is changed, and when a lease that was used is only reserved again.
  const starts = ttl !== undefined || lease.state === "used";
  const ends = starts ? seconds && tx.now + seconds * 1000 : lease.expiresAt;
  return given<Lease>({
    ...lease,
    ...changes,
    state,
    usedBy,
    updatedAt: tx.now,
    ttl: seconds,
    deletingSince: deleting ? (lease.deletingSince ?? tx.now) : deleting === false ? undefined : lease.deletingSince,
    expiresAt: state === "used" ? undefined : ends,
    tenant: tenant === undefined ? lease.tenant : (tenant ?? undefined),
    sharingKey: sharingKey === undefined ? lease.sharingKey : (sharingKey ?? undefined),
  });
}

function eventOf(before: Lease, after: Lease): Event["what"] {
  if (before.owner !== after.owner) return "renamed";
  if (before.state === after.state) return "amended";
  return after.state === "used" ? "used" : "unused";
}

export async function close(tx: Draft, pool: string, leaseId: string, onlyIf?: Condition): Promise<void> {
  const lease = await mustBeCurrent(tx, pool, leaseId);
  if (onlyIf && !meets(lease, onlyIf)) throw leaseChanged(lease, onlyIf);
  if (lease.opens) await shut(tx, lease.opens);
}

/** Refuses claims in it from now on. Offers and resting leases in it stay until it is deleted: the delete may be taken back. */
async function shut(tx: Draft, name: string): Promise<void> {
  const pool = await tx.get(poolKey(name));
  if (!pool) return;
  await mustBeUnused(tx, name);
  for (const { uid } of await tx.all(leasesOf(name))) {
    const lease = await tx.get(leaseKey(name, uid)); // the end of another one may have changed it
    if (lease && isOver(lease, tx.now)) await lapse(tx, lease);
  }
  tx.put(poolKey(name), { ...pool, closing: true });
}

export async function release(tx: Draft, pool: string, leaseId: string, onlyIf?: Condition): Promise<boolean> {
  const lease = await current(tx, pool, leaseId);
  if (!lease || (onlyIf && !meets(lease, onlyIf))) return false;
  if (isFirm(lease)) await log(tx, "released", lease);
  await vacate(tx, lease, restOf(tx, lease));
  return true;
}

export async function touch(tx: Draft, pool: string, leaseId: string, ttl?: number): Promise<void> {
  const lease = await mustBeCurrent(tx, pool, leaseId);
  const ends = ttl !== undefined && lease.expiresAt !== undefined ? { expiresAt: tx.now + ttl * 1000 } : {};
  await record(tx, lease, { ...lease, lastSeen: tx.now, ...ends });
}
