import { isOverlayError, OverlayError } from "../../errors";
import { formatExtents, nameTakenError, outsideError, takenError } from "../errors";
import { fits, sameExtents } from "../extents";
import { newLeaseId, newUid } from "../storage/ids";
import { leaseKey, nameKey, poolKey } from "../storage/keys";
import { appendHistory, getLeases, holdersOf, leasesOfOwner } from "../storage/leases";
import { omitUndefined } from "../storage/records";
import { isExpired, isLive, sharingKeyOf } from "../storage/rows";
import type { WriteBuffer } from "../storage/write-buffer";
import {
  type ExistingLease,
  type ImportResult,
  isCommitted,
  type Lease,
  type MissingPool,
  type PoolSpec,
} from "../types";
import { amend } from "./amend";
import { endLease, expireLease } from "./end-lease";
import { mustBeOfTenant, requirePool } from "./pools";
import { putLease } from "./put-lease";
import { takePorts } from "./share";

/**
 * Leases that stand already and must be in the store: after a loss, from Pulumi's state; at the start, from a list of
 * addresses in use. Facts are not requests: nothing is chosen for them, no quota stops them, and promises and resting
 * leases give way to them. What contradicts another fact or a firm lease stops them all.
 */
export async function importLeases(
  tx: WriteBuffer,
  facts: ExistingLease[],
  opening: MissingPool[] = [],
): Promise<ImportResult> {
  const result: ImportResult = { added: [], unchanged: [], conflicts: [] };
  for (const { pool, leaseId, childPool } of opening) await amend(tx, pool, leaseId, { childPool });
  for (const fact of facts) {
    try {
      const known = await findMatching(tx, fact);
      if (known) result.unchanged.push(known);
      else result.added.push(await importLease(tx, fact));
    } catch (error) {
      if (!isOverlayError(error)) throw error;
      result.conflicts.push({ lease: fact, error });
    }
  }
  if (result.conflicts.length > 0) tx.rollback();
  return result;
}

/** The lease that the fact speaks of, if the store has it just so. */
async function findMatching(
  tx: WriteBuffer,
  { pool, owner, want, identity }: ExistingLease,
): Promise<Lease | undefined> {
  const candidates = identity
    ? await getLeases(tx, pool, [identity.uid])
    : (await leasesOfOwner(tx, pool, owner)).filter(({ extents }) => sameExtents(extents, want));
  const held = candidates.find((lease) => isCommitted(lease) && isLive(lease, tx.now));
  const lease = held ?? (identity && candidates[0]);
  if (!lease || !identity) return lease;
  const same = held && lease.leaseId === identity.leaseId && lease.owner === owner && sameExtents(lease.extents, want);
  if (same) return lease;
  const { spec } = await requirePool(tx, pool, true);
  throw new OverlayError(
    "STORE_CONFLICT",
    `The store has lease ${lease.leaseId} of ${lease.owner} on ${formatExtents(spec.kind, lease.extents)} (${lease.state}); here it is ${identity.leaseId} of ${owner} on ${formatExtents(spec.kind, want)}.`,
    "The store knows something newer: export the stack again.",
  );
}

async function importLease(tx: WriteBuffer, fact: ExistingLease): Promise<Lease> {
  const { spec } = await requirePool(tx, fact.pool, true);
  const tenant = fact.tenant ?? spec.tenant;
  mustBeOfTenant(spec, tenant);
  const inTheWay = [...(await conflictingHolders(tx, spec, fact)), ...(await nameHolders(tx, fact))];
  for (const { uid, pool } of inTheWay) {
    const [lease] = await getLeases(tx, pool, [uid]);
    if (lease) await (isExpired(lease, tx.now) ? expireLease(tx, lease, tx.now) : endLease(tx, lease));
  }
  await takePorts(tx, spec, fact.want, fact.ports ?? []);
  const lease = await putLease(tx, undefined, toLease(tx, { ...fact, ...(tenant && { tenant }) }), fact);
  await appendHistory(tx, "imported", lease);
  return lease;
}

const isHeld = (tx: WriteBuffer, lease: Lease): boolean => isCommitted(lease) && isLive(lease, tx.now);

/** Who has to go for it. Those who share the value with it stay. */
async function conflictingHolders(tx: WriteBuffer, spec: PoolSpec, fact: ExistingLease): Promise<Lease[]> {
  const found: Lease[] = [];
  for (const extent of fact.want) {
    if (!fits(spec, { extents: [extent] })) throw outsideError(spec, extent);
    const strangers = (await holdersOf(tx, spec.name, extent)).filter((lease) => !isSharedWith(lease, fact));
    const holder = strangers.find((lease) => isHeld(tx, lease));
    if (holder) throw takenError(spec, extent, holder, fact.owner);
    found.push(...strangers);
  }
  return found;
}

const isSharedWith = (lease: Lease, fact: ExistingLease): boolean =>
  fact.sharingKey !== undefined && sharingKeyOf(lease) === sharingKeyOf(fact) && sameExtents(lease.extents, fact.want);

/** Who has one of its names, or has its pool open. */
async function nameHolders(tx: WriteBuffer, { names = [], childPool }: ExistingLease): Promise<Lease[]> {
  const found: Lease[] = [];
  const claims = names.map((name) => ({ name, at: nameKey(name) }));
  for (const { name, at } of claims) found.push(...(await holderOf(tx, name, await tx.get(at))));
  if (childPool) found.push(...(await holderOf(tx, childPool.name, (await tx.get(poolKey(childPool.name)))?.opener)));
  return found;
}

async function holderOf(tx: WriteBuffer, name: string, place?: { pool: string; uid: string }): Promise<Lease[]> {
  const holder = place && (await tx.get(leaseKey(place.pool, place.uid)));
  if (holder && isHeld(tx, holder)) throw nameTakenError(name, holder);
  return holder ? [holder] : [];
}

function toLease(tx: WriteBuffer, fact: ExistingLease): Lease {
  const { pool, owner, type, want, identity, tenant, labels, usedBy, data, by, sharingKey, ports, state } = fact;
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
