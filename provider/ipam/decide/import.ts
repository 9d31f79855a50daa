import { isOverlayError, OverlayError } from "../../errors";
import { formatRangesOf, nameTakenError, outsideError, takenError } from "../errors";
import { equalRanges, fits } from "../ranges";
import { detailsOf, type ExistingLease, type ImportResult, type Lease, type PoolSpec, type Request } from "../types";
import { mayChange, mustBeChangeable, show } from "./access";
import { openChildPool } from "./child-pools";
import { endLease, newLeaseId, newUid, putLease, record } from "./lease";
import { mustKeepQuota, takeNames, takePorts } from "./limits";
import { mustBeOfTenant, requirePool } from "./pools";
import {
  isLive,
  isOverdue,
  isOwned,
  type LeaseRow,
  offerKey,
  omitUndefined,
  sharingKeyOf,
  toLease,
  touches,
} from "./rows";
import type { State } from "./state";

/**
 * Adds leases that exist outside the store: from Pulumi's state after a loss, or from a list of addresses in use. Their values are given,
 * quotas hold only for users with bounds, and offers and quarantined leases on them give way. A conflict with a live lease stops the whole import, and so does a
 * lease that the user may not have.
 */
export function importLeases(state: State, leases: ExistingLease[]): ImportResult {
  const start = state.mark;
  const result: ImportResult = { added: [], unchanged: [], conflicts: [] };
  for (const existing of leases) {
    const mark = state.mark;
    try {
      const same = findMatching(state, existing);
      if (same) result.unchanged.push(toLease(same, state.now));
      else result.added.push(importLease(state, existing));
    } catch (error) {
      if (!isOverlayError(error) || error.code === "ACCESS_DENIED") throw error;
      state.rollBack(mark);
      result.conflicts.push({ lease: existing, error });
    }
  }
  if (result.conflicts.length > 0) state.rollBack(start);
  return result;
}

/** The same lease in the store; rejects if the store has it with other values. */
function findMatching(state: State, { pool, owner, values, identity }: ExistingLease): LeaseRow | undefined {
  const known = identity && state.lease(identity.uid);
  const candidates = identity
    ? known
      ? [known]
      : []
    : state.leasesOf(pool, owner).filter((lease) => equalRanges(lease.ranges, values) && mayChange(state, lease));
  const held = candidates.find((lease) => isLive(lease, state.now));
  const lease = held ?? known;
  if (!lease || !identity) return held;
  mustBeChangeable(state, lease);
  if (held && lease.leaseId === identity.leaseId && lease.owner === owner && equalRanges(lease.ranges, values))
    return lease;
  const { spec } = requirePool(state, { pool, owner, type: "" }, true);
  throw new OverlayError(
    "STORE_CONFLICT",
    `The store has lease ${lease.leaseId} of ${lease.owner} on ${formatRangesOf(spec.kind, lease.ranges)} (${toLease(lease, state.now).state}); here it is ${identity.leaseId} of ${owner} on ${formatRangesOf(spec.kind, values)}.`,
    "The store knows something newer: export the stack again.",
  );
}

function importLease(state: State, existing: ExistingLease): Lease {
  const found = requirePool(
    state,
    { ...existing, tenant: existing.tenant ?? specTenant(state, existing.pool)! } as Request,
    true,
  );
  const { spec } = found;
  const tenant = existing.tenant ?? spec.tenant;
  mustBeOfTenant(spec, tenant);
  const request = { ...existing, ...(tenant && { tenant }) } as Request & ExistingLease;
  makeRoom(state, spec, request);
  const lease = toRow(state, request);
  takePorts(state, spec, request, existing.values);
  endOfferedNames(state, request);
  takeNames(state, request, toLease(lease, state.now), true);
  putLease(state, spec, undefined, lease);
  if (existing.childPool) openChildPool(state, existing.childPool, lease);
  record(state, "imported", lease);
  if (state.terms.access) mustKeepQuota({ state, pool: found, request, isClaim: true, wasShown: false }, lease);
  return toLease(lease, state.now);
}

const specTenant = (state: State, pool: string) => state.pool(pool)?.spec?.tenant;

/** Ends what is in the way and not held: overdue leases, and offers. Those of strangers stay. */
function makeRoom(state: State, spec: PoolSpec, { pool, values = [], sharingKey, tenant, owner }: Request): void {
  const key = sharingKeyOf({ ...(sharingKey !== undefined && { sharingKey }), ...(tenant && { tenant }) });
  const shares = (other: LeaseRow) =>
    key !== undefined && sharingKeyOf(other) === key && equalRanges(other.ranges, values);
  for (const range of values) if (!fits(spec, { ranges: [range] })) throw outsideError(spec, range);
  for (const holder of state.holdersOf(pool, values)) {
    if (isOverdue(holder, state.now)) endLease(state, holder, "expired", { at: holder.expiresAt! });
    else if (!shares(holder)) throw takenError(spec, values[0]!, show(state, holder), owner);
  }
  for (const offer of state.offersIn(pool)) {
    if (!touches(offer.ranges, values)) continue;
    if (!mayChange(state, offer)) throw takenError(spec, values[0]!, show(state, offer), owner);
    state.offers.delete(offerKey(offer));
  }
}

/** Ends offers with a name of the lease, or with its child pool. */
function endOfferedNames(state: State, { names = [], childPool, owner, formerOwner }: Request): void {
  const found = [
    ...names.flatMap((name) => state.offersNamed(name)),
    ...(childPool ? state.offersOfPool(childPool.name) : []),
  ];
  for (const offer of found) {
    if (isOwned(offer, { owner, ...(formerOwner !== undefined && { formerOwner }) })) continue;
    if (!mayChange(state, offer)) throw nameTakenError(names[0] ?? childPool!.name, show(state, offer), offer.pool);
    state.offers.delete(offerKey(offer));
  }
}

function toRow(state: State, existing: ExistingLease): LeaseRow {
  const { pool, owner, values, identity, names = [], childPool, usedBy } = existing;
  const uid = identity?.uid ?? newUid(owner);
  return omitUndefined<LeaseRow>({
    ...detailsOf(existing),
    ...{ pool, owner, ranges: values, uid },
    leaseId: identity?.leaseId ?? newLeaseId(uid),
    state: existing.state ?? (usedBy === undefined ? "reserved" : "used"),
    names: names.length > 0 ? names : undefined,
    childPool: childPool?.name,
    createdAt: state.now,
    updatedAt: state.now,
    lastSeen: state.now,
  });
}
