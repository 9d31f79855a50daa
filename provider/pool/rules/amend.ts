import { isDeepStrictEqual } from "node:util";
import { fencedError, leaseChangedError, leaseExpiredError, notClaimedError } from "../errors";
import { leaseKey, leasesOf, poolKey } from "../storage/keys";
import {
  appendHistory,
  isByValue,
  isExpired,
  isLive,
  replaceLease,
  replaceRows,
  sharingKeyOf,
  specOf,
  uidOf,
  wasOffer,
} from "../storage/leases";

import { omitUndefined } from "../storage/records";

import type { WriteBuffer } from "../storage/write-buffer";
import { type Changes, type Condition, dataEntries, type Event, isCommitted, type Lease } from "../types";
import { leasesOfRequester, mayChange, mustBeChangeable } from "./access";
import { choose, type GrantContext, mustKeepQuota, portEvictor } from "./choose";
import { endLease, expireLease, quarantineEnd } from "./end-lease";
import { removeShownTo } from "./end-records";
import { mustBeOfTenant, mustBeUnused } from "./pools";
import { putLease } from "./put-lease";
import { mustKeepKey, takePorts } from "./share";

/** Changes of a lease by the holder of its lease id. */

/** undefined if the lease was renewed since, or has ended. */
export async function findCurrent(tx: WriteBuffer, pool: string, leaseId: string): Promise<Lease | undefined> {
  const lease = await tx.get(leaseKey(pool, uidOf(leaseId)));
  return lease?.leaseId === leaseId && isLive(lease, tx.now) ? lease : undefined;
}

/** The same for a change: rejects if the user may not change it. */
async function findChangeable(tx: WriteBuffer, pool: string, leaseId: string): Promise<Lease | undefined> {
  const lease = await findCurrent(tx, pool, leaseId);
  if (lease) mustBeChangeable(tx, lease);
  return lease;
}

async function mustBeCurrent(tx: WriteBuffer, pool: string, leaseId: string): Promise<Lease> {
  const lease = await tx.get(leaseKey(pool, uidOf(leaseId)));
  if (lease?.leaseId !== leaseId || ["quarantined", "ended"].includes(lease.state)) throw fencedError(pool, leaseId);
  mustBeChangeable(tx, lease);
  if (isExpired(lease, tx.now)) throw leaseExpiredError(lease);
  return lease;
}

const isMet = (lease: Lease, { state, usedBy, data }: Condition): boolean =>
  (state === undefined || lease.state === state) &&
  (usedBy === undefined || lease.usedBy === usedBy) &&
  Object.entries(data ?? {}).every(([key, value]) => isDeepStrictEqual(dataEntries(lease)[key], value));

export async function amend(
  tx: WriteBuffer,
  pool: string,
  leaseId: string,
  changes: Changes,
  onlyIf?: Condition,
): Promise<Lease> {
  const lease = await mustBeCurrent(tx, pool, leaseId);
  if (!isCommitted(lease)) throw notClaimedError(lease);
  if (onlyIf && !isMet(lease, onlyIf)) throw leaseChangedError(lease, onlyIf);
  const spec = await specOf(tx, pool);
  if (changes.tenant !== undefined) mustBeOfTenant(spec, changes.tenant ?? undefined);
  const changed = applyChanges(tx, lease, changes);
  await mustKeepKey(tx, spec, lease, changes.extents ? undefined : sharingKeyOf(changed));
  if (changes.extents) await choose(tx, spec, contextFor(changed), lease);
  const taking = portEvictor(tx, spec, contextFor(changed, changes.takes));
  await takePorts(tx, spec, changed.extents, changed.ports ?? [], lease.uid, taking);
  const after = await putLease(tx, lease, changed, changes);
  await appendHistory(
    tx,
    eventOf(lease, after),
    after,
    lease.owner === after.owner ? {} : { formerOwner: lease.owner },
  );
  if (changes.extents) await mustKeepQuota(tx, spec, lease);
  return after;
}

const contextFor = ({ pool, owner, type, extents, tenant }: Lease, takes = false): GrantContext => ({
  request: { pool, owner, type, want: extents, takes, ...(tenant && { tenant }) },
  isClaim: true,
  wasPreviewed: false,
  inUp: true,
  offerTtl: 0,
  seed: "",
  willRelease: () => false,
});

function applyChanges(
  tx: WriteBuffer,
  lease: Lease,
  { names: _, childPool: __, takes: ___, ttl, sharingKey, tenant, deleting, ...changes }: Changes,
): Lease {
  const state = changes.state ?? lease.state;
  const usedBy = changes.usedBy ?? (state === "used" ? lease.usedBy : undefined);
  const seconds = ttl === undefined ? lease.ttl : (ttl ?? undefined);
  // The ttl restarts when it is changed, and when a used lease is reserved again.
  const starts = ttl !== undefined || lease.state === "used";
  const ends = starts ? seconds && tx.now + seconds * 1000 : lease.expiresAt;
  return omitUndefined<Lease>({
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

export async function closeChildPool(
  tx: WriteBuffer,
  pool: string,
  leaseId: string,
  onlyIf?: Condition,
): Promise<void> {
  const lease = await mustBeCurrent(tx, pool, leaseId);
  if (onlyIf && !isMet(lease, onlyIf)) throw leaseChangedError(lease, onlyIf);
  if (lease.childPool) await freezePool(tx, lease.childPool);
}

/** Refuses claims in the pool from now on. Its offers and quarantined leases are kept until it is deleted: the delete may be cancelled. */
async function freezePool(tx: WriteBuffer, name: string): Promise<void> {
  const pool = await tx.get(poolKey(name));
  if (!pool) return;
  await mustBeUnused(tx, name);
  for (const { uid } of await tx.all(leasesOf(name))) {
    const lease = await tx.get(leaseKey(name, uid)); // Read again: the end of another lease may have changed it.
    if (lease && isExpired(lease, tx.now)) await expireLease(tx, lease);
  }
  tx.put(poolKey(name), { ...pool, closing: true });
}

export async function release(tx: WriteBuffer, pool: string, leaseId: string, onlyIf?: Condition): Promise<boolean> {
  const lease = await findChangeable(tx, pool, leaseId);
  if (!lease || (onlyIf && !isMet(lease, onlyIf))) return false;
  if (isCommitted(lease)) await appendHistory(tx, "released", lease);
  await endLease(tx, lease, quarantineEnd(tx, lease));
  return true;
}

/** Ends an offer. false: it is not one any more. */
export async function withdraw(tx: WriteBuffer, pool: string, leaseId: string): Promise<boolean> {
  const lease = await findChangeable(tx, pool, leaseId);
  if (lease?.state !== "offered") return false;
  await endLease(tx, lease, quarantineEnd(tx, lease));
  return true;
}

/**
 * Removes a program from offers to this owner that it was shown, and from their records: it is promised nothing any more. The same in the
 * child pools of these offers. Requests by value stay. The pool may be deleted: records of its offers are kept.
 */
export async function retractOffers(
  tx: WriteBuffer,
  pool: string,
  owner: string,
  program: string | undefined,
): Promise<void> {
  for (const lease of await leasesOfRequester(tx, pool, owner)) await retractOffer(tx, lease, program);
}

export async function retractOffer(tx: WriteBuffer, lease: Lease, program: string | undefined): Promise<void> {
  const wasShown = program === undefined ? lease.shownTo === undefined : lease.shownTo?.includes(program);
  if (!wasOffer(lease) || isByValue(lease) || !wasShown) return;
  for (const inside of lease.childPool ? await tx.all(leasesOf(lease.childPool)) : [])
    if (mayChange(tx, inside)) await retractOffer(tx, inside, program);
  const rest = removeShownTo(lease, program);
  if (lease.state === "ended") replaceRows(tx, [lease, {}], rest && [rest, {}]);
  else if (rest) await replaceLease(tx, lease, rest);
  else await endLease(tx, lease, quarantineEnd(tx, lease));
}

export async function touch(tx: WriteBuffer, pool: string, leaseId: string, ttl?: number): Promise<void> {
  const lease = await mustBeCurrent(tx, pool, leaseId);
  const ends = ttl !== undefined && lease.expiresAt !== undefined ? { expiresAt: tx.now + ttl * 1000 } : {};
  await replaceLease(tx, lease, { ...lease, lastSeen: tx.now, ...ends });
}
