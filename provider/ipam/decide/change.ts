import { isDeepStrictEqual } from "node:util";
import { fencedError, leaseChangedError, leaseExpiredError, notClaimedError } from "../errors";
import { type Changes, type Condition, dataEntries, type Event, type Lease, type Request } from "../types";
import { forgetOffers, mustBeChangeable, mustBeHoldable, mustBeTouchable } from "./access";
import { openChildPool } from "./child-pools";
import { type Ask, choose } from "./choose";
import { dropPool, endLease, expireOverdue, putLease, record, replaceLease, uidOf } from "./lease";
import { mustKeepKey, mustKeepQuota, takeNames, takePorts } from "./limits";
import { mustBeEndable, mustBeOfTenant, mustBeUnused } from "./pools";
import { isLive, type LeaseRow, omitUndefined, sharingKeyOf, toLease } from "./rows";
import type { State } from "./state";

/** Changes of a lease by the holder of its lease id. */

export interface ChangeOptions {
  /** `LEASE_CHANGED` unless the lease meets it. */
  onlyIf?: Condition | undefined;
}

/** undefined if the lease was renewed since, or has ended. */
export function findCurrent(state: State, pool: string, leaseId: string): LeaseRow | undefined {
  const lease = state.lease(uidOf(leaseId));
  return lease?.leaseId === leaseId && lease.pool === pool && isLive(lease, state.now) ? lease : undefined;
}

function mustBeCurrent(state: State, pool: string, leaseId: string, mustBeAllowed = mustBeChangeable): LeaseRow {
  const lease = state.lease(uidOf(leaseId));
  if (!lease && state.offersIn(pool).some(({ uid }) => uid === uidOf(leaseId)))
    throw offeredError(state, pool, leaseId);
  if (lease?.leaseId !== leaseId || lease.pool !== pool) throw fencedError(pool, leaseId);
  if (lease.endedAt !== undefined && lease.endReason !== "expired") throw fencedError(pool, leaseId);
  mustBeAllowed(state, lease);
  if (!isLive(lease, state.now))
    throw leaseExpiredError({ ...toLease(lease, state.now), expiresAt: lease.endedAt ?? lease.expiresAt! });
  return lease;
}

const offeredError = (state: State, pool: string, leaseId: string) => {
  const row = state.offersIn(pool).find(({ uid }) => uid === uidOf(leaseId))!;
  return notClaimedError({ ...row, leaseId, state: "offered" } as unknown as Lease);
};

function mustMeet(state: State, row: LeaseRow, onlyIf: Condition | undefined): void {
  if (onlyIf && !isMet(row, onlyIf)) throw leaseChangedError(toLease(row, state.now), onlyIf);
}

const isMet = (lease: LeaseRow, { state, usedBy, data }: Condition): boolean =>
  (state === undefined || lease.state === state) &&
  (usedBy === undefined || lease.usedBy === usedBy) &&
  Object.entries(data ?? {}).every(([key, value]) => isDeepStrictEqual(dataEntries(lease)[key], value));

export function change(
  state: State,
  pool: string,
  leaseId: string,
  changes: Changes,
  { onlyIf }: ChangeOptions = {},
): Lease {
  const lease = mustBeCurrent(state, pool, leaseId);
  mustMeet(state, lease, onlyIf);
  expireOverdue(state, pool);
  const spec = state.pool(pool)!.spec!;
  if (changes.tenant !== undefined) mustBeOfTenant(spec, changes.tenant ?? undefined);
  const changed = applyChanges(state, lease, changes);
  const ask: Ask = {
    state,
    pool: { spec, stored: spec },
    request: requestFor(changed, lease, changes),
    isClaim: true,
    wasShown: false,
  };
  mustKeepKey(state, spec, lease, changes.ranges ? undefined : sharingKeyOf(changed));
  if (changes.ranges) choose(ask);
  if (changes.ports)
    for (const other of takePorts(state, spec, ask.request, changed.ranges, lease.uid))
      endLease(state, other, "handed over", { takenBy: changed.owner });
  mustBeHoldable(state, changed);
  takeNames(state, ask.request, toLease(changed, state.now), true);
  if (changes.ranges) putLease(state, spec, lease, changed);
  else replaceLease(state, lease, changed);
  const { childPool } = changes;
  if (childPool) {
    const old =
      lease.childPool === undefined || lease.childPool === childPool.name ? undefined : state.pool(lease.childPool);
    if (old) mustBeEndable(state, lease);
    if (old?.spec && old.opener === lease.uid) dropPool(state, old);
    openChildPool(state, childPool, changed);
  }
  record(state, eventOf(lease, changed), changed, lease.owner === changed.owner ? {} : { formerOwner: lease.owner });
  if (changes.ranges) mustKeepQuota(ask, changed);
  return toLease(state.leases.get(lease.uid)!, state.now);
}

const requestFor = (
  { pool, owner, type, ranges, tenant, ports }: LeaseRow,
  before: LeaseRow,
  { evictSameTenant, names, childPool, ranges: resized }: Changes,
): Request =>
  omitUndefined<Request>({
    pool,
    owner,
    type,
    values: resized && ranges,
    tenant,
    ports,
    evictSameTenant,
    names,
    childPool,
    formerOwner: before.owner,
  });

function applyChanges(
  state: State,
  lease: LeaseRow,
  { evictSameTenant: _, childPool, ttl, deleting, ...changes }: Changes,
): LeaseRow {
  const next = changes.state ?? lease.state;
  const usedBy = changes.usedBy ?? (next === "used" ? lease.usedBy : undefined);
  const seconds = ttl === undefined ? lease.ttl : (ttl ?? undefined);
  // The ttl restarts when it is changed, and when a used lease is reserved again.
  const starts = ttl !== undefined || lease.state === "used";
  const ends = starts ? seconds && state.now + seconds * 1000 : lease.expiresAt;
  return omitUndefined<LeaseRow>({
    ...lease,
    ...nullToUndefined(changes),
    state: next,
    usedBy,
    updatedAt: state.now,
    ttl: seconds,
    deletingSince: deleting ? (lease.deletingSince ?? state.now) : deleting === false ? undefined : lease.deletingSince,
    expiresAt: next === "used" ? undefined : ends,
    childPool: childPool?.name ?? lease.childPool,
  });
}

const nullToUndefined = <T extends object>(fields: T) =>
  Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, value ?? undefined])) as {
    [K in keyof T]: Exclude<T[K], null> | undefined;
  };

function eventOf(before: LeaseRow, after: LeaseRow): Event["what"] {
  if (before.owner !== after.owner) return "renamed";
  if (before.state === after.state) return "amended";
  return after.state === "used" ? "used" : "unused";
}

/** Before a delete: the child pool takes no claims from now on. `POOL_IN_USE` if it has leases. */
export function close(state: State, pool: string, leaseId: string, { onlyIf }: ChangeOptions = {}): void {
  const lease = mustBeCurrent(state, pool, leaseId);
  mustMeet(state, lease, onlyIf);
  mustBeEndable(state, lease);
  const child = lease.childPool === undefined ? undefined : state.pool(lease.childPool);
  if (!child?.spec || child.opener !== lease.uid) return;
  expireOverdue(state, child.name);
  mustBeUnused(state, child.name);
  state.pools.put({ ...state.pool(child.name)!, isClosing: true });
}

/** false: not the current lease, or it does not meet `onlyIf`. `program`: that of the run; its own offers stay for the create that follows. */
export function release(
  state: State,
  pool: string,
  leaseId: string,
  { onlyIf }: ChangeOptions = {},
  program?: string,
): boolean {
  const lease = findCurrent(state, pool, leaseId);
  if (lease) mustBeChangeable(state, lease);
  if (!lease || (onlyIf && !isMet(lease, onlyIf))) return false;
  mustBeEndable(state, lease);
  state.need({ of: "owner", pool, owner: lease.owner }, { of: "offersOf", owner: lease.owner });
  endLease(state, lease, "released");
  const isReplaced = state.leasesOf(pool, lease.owner).some((other) => isLive(other, state.now));
  if (!isReplaced) forgetOffers(state, lease.owner, program);
  return true;
}

/** A heartbeat. A lease that expires ends `ttl` seconds from now. */
export function touch(state: State, pool: string, leaseId: string, ttl?: number): void {
  const lease = mustBeCurrent(state, pool, leaseId, mustBeTouchable);
  const ends = ttl !== undefined && lease.expiresAt !== undefined ? { expiresAt: state.now + ttl * 1000 } : {};
  state.leases.put({ ...lease, lastSeen: state.now, ...ends });
}
