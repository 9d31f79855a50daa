import { isOverlayError, OverlayError } from "../../errors";
import { formatExtents, nameTakenError, outsideError, takenError } from "../errors";
import { fits, sameExtents } from "../extents";
import { leaseKey, nameKey, poolKey } from "../storage/keys";
import {
  appendHistory,
  getLeases,
  holdersOf,
  isExpired,
  isLive,
  newLeaseId,
  newUid,
  sharingKeyOf,
} from "../storage/leases";

import { omitUndefined } from "../storage/records";

import type { WriteBuffer } from "../storage/write-buffer";
import {
  type ExistingLease,
  type ImportResult,
  isCommitted,
  type Lease,
  type MissingPool,
  type PoolSpec,
} from "../types";
import { mayChange, mustBeChangeable, ownLeases, show } from "./access";
import { amend } from "./amend";
import { endLease, expireLease } from "./end-lease";
import { mustBeOfTenant, requirePool } from "./pools";
import { putLease } from "./put-lease";
import { takePorts } from "./share";

/**
 * Adds leases that exist outside the store: from Pulumi's state after a loss, or from a list of addresses in use. Their values are given,
 * quotas do not apply, and offers and quarantined leases on them are ended. A conflict with a committed lease stops the whole import, and so does a
 * lease that the user may not have.
 */
export async function importLeases(
  tx: WriteBuffer,
  leases: ExistingLease[],
  missing: MissingPool[] = [],
): Promise<ImportResult> {
  const result: ImportResult = { added: [], unchanged: [], conflicts: [] };
  for (const { pool, leaseId, childPool } of missing) await amend(tx, pool, leaseId, { childPool });
  for (const existing of leases) {
    try {
      const same = await findMatching(tx, existing);
      if (same) result.unchanged.push(same);
      else result.added.push(await importLease(tx, existing));
    } catch (error) {
      if (!isOverlayError(error) || error.code === "ACCESS_DENIED") throw error;
      result.conflicts.push({ lease: existing, error });
    }
  }
  if (result.conflicts.length > 0) tx.rollback();
  return result;
}

/** The same lease in the store; rejects if the store has it with other values. */
async function findMatching(
  tx: WriteBuffer,
  { pool, owner, want, identity }: ExistingLease,
): Promise<Lease | undefined> {
  const candidates = identity
    ? await getLeases(tx, pool, [identity.uid])
    : (await ownLeases(tx, pool, owner)).filter(({ extents }) => sameExtents(extents, want));
  const held = candidates.find((lease) => isCommitted(lease) && isLive(lease, tx.now));
  const lease = held ?? (identity && candidates[0]);
  if (!lease || !identity) return lease;
  mustBeChangeable(tx, lease);
  const same = held && lease.leaseId === identity.leaseId && lease.owner === owner && sameExtents(lease.extents, want);
  if (same) return lease;
  const { spec } = await requirePool(tx, pool, true);
  throw new OverlayError(
    "STORE_CONFLICT",
    `The store has lease ${lease.leaseId} of ${lease.owner} on ${formatExtents(spec.kind, lease.extents)} (${lease.state}); here it is ${identity.leaseId} of ${owner} on ${formatExtents(spec.kind, want)}.`,
    "The store knows something newer: export the stack again.",
  );
}

async function importLease(tx: WriteBuffer, existing: ExistingLease): Promise<Lease> {
  const { spec } = await requirePool(tx, existing.pool, true);
  const tenant = existing.tenant ?? spec.tenant;
  mustBeOfTenant(spec, tenant);
  const conflicting = [...(await conflictingHolders(tx, spec, existing)), ...(await nameHolders(tx, existing))];
  for (const { uid, pool } of conflicting) {
    const [lease] = await getLeases(tx, pool, [uid]);
    if (lease) await (isExpired(lease, tx.now) ? expireLease(tx, lease, tx.now) : endLease(tx, lease));
  }
  await takePorts(tx, spec, existing.want, existing.ports ?? []);
  const lease = await putLease(tx, undefined, toLease(tx, { ...existing, ...(tenant && { tenant }) }), existing);
  await appendHistory(tx, "imported", lease);
  return lease;
}

/** An import ends offers, but not those that its user may not change. */
const isHeldNow = (tx: WriteBuffer, lease: Lease): boolean =>
  isLive(lease, tx.now) && (isCommitted(lease) || !mayChange(tx, lease));

/** Holders of its values that must be ended for it. Leases that share the value with it are not among them. */
async function conflictingHolders(tx: WriteBuffer, spec: PoolSpec, existing: ExistingLease): Promise<Lease[]> {
  const found: Lease[] = [];
  for (const extent of existing.want) {
    if (!fits(spec, { extents: [extent] })) throw outsideError(spec, extent);
    const strangers = (await holdersOf(tx, spec.name, extent)).filter((lease) => !isSharedWith(lease, existing));
    const holder = strangers.find((lease) => isHeldNow(tx, lease));
    if (holder) throw takenError(spec, extent, show(tx, holder), existing.owner);
    found.push(...strangers);
  }
  return found;
}

const isSharedWith = (lease: Lease, existing: ExistingLease): boolean =>
  existing.sharingKey !== undefined &&
  sharingKeyOf(lease) === sharingKeyOf(existing) &&
  sameExtents(lease.extents, existing.want);

/** Holders of its names and of its child pool. */
async function nameHolders(tx: WriteBuffer, { names = [], childPool }: ExistingLease): Promise<Lease[]> {
  const found: Lease[] = [];
  const claims = names.map((name) => ({ name, at: nameKey(name) }));
  for (const { name, at } of claims) found.push(...(await holderOf(tx, name, await tx.get(at))));
  if (childPool) found.push(...(await holderOf(tx, childPool.name, (await tx.get(poolKey(childPool.name)))?.opener)));
  return found;
}

async function holderOf(tx: WriteBuffer, name: string, place?: { pool: string; uid: string }): Promise<Lease[]> {
  const holder = place && (await tx.get(leaseKey(place.pool, place.uid)));
  if (holder && isHeldNow(tx, holder)) throw nameTakenError(name, show(tx, holder));
  return holder && holder.state !== "ended" ? [holder] : [];
}

function toLease(tx: WriteBuffer, existing: ExistingLease): Lease {
  const { pool, owner, type, want, identity, tenant, labels, usedBy, data, by, sharingKey, ports, state } = existing;
  const uid = identity?.uid ?? newUid(owner);
  return omitUndefined<Lease>({
    pool,
    owner,
    type,
    extents: want,
    state: state ?? (usedBy === undefined ? "reserved" : "used"),
    uid,
    leaseId: identity?.leaseId ?? newLeaseId(uid),
    createdAt: tx.now,
    updatedAt: tx.now,
    lastSeen: tx.now,
    tenant,
    labels,
    usedBy,
    data,
    by,
    sharingKey,
    ports,
  });
}
