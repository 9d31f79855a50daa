import { hash, randomUUID } from "node:crypto";
import { nameTakenError, portConflictError, sharingConflictError, ttlWithPoolError } from "../errors";
import { subtract } from "../extents";
import type { Event, Extent, Lease, PoolSpec, Port, Request } from "../types";
import { mayChange, mayHold, mustBeHoldable, mustBeNameable, mustBeOpenable, show } from "./access";
import { addFree, takeFree } from "./free-space";
import { givesWay } from "./offers";
import { dropPool, freeResting, openPool, setResting } from "./pools";
import {
  type EndReason,
  type Holder,
  isLive,
  isOffer,
  isOverdue,
  isOwned,
  type LeaseRow,
  mayTake,
  omitUndefined,
  portText,
  sharingKeyOf,
  toLease,
  toPublic,
  touches,
} from "./rows";
import type { State } from "./state";

/** The life of a lease: it is put, and it ends. Both keep free space, counters, quarantine and history in step. */

/** A uid begins with a hash of the owner that it was made for. */
export const newUid = (owner: string): string => hash("sha256", owner, "hex").slice(0, 8) + randomUUID().slice(0, 8);
/** A lease id begins with the uid, which is where the lease is found. */
export const newLeaseId = (uid: string): string => `${uid}.${randomUUID().replace(/-.*-/, "").slice(0, 16)}`;
export const uidOf = (leaseId: string): string => leaseId.split(".")[0]!;

/** Puts `after` in the place of `before`. Its values must be free, in quarantine, shared with it, or those of `before`. */
export function putLease(
  state: State,
  spec: PoolSpec,
  before: LeaseRow | undefined,
  after: LeaseRow,
  isFree = false,
): void {
  mustBeHoldable(state, toLease(after, state.now));
  const space = state.space(after.pool);
  const { extents } = after;
  const held = isFree ? [] : state.holdersOf(after.pool, extents).flatMap((lease) => lease.extents);
  const resting = isFree ? [] : state.restingOn(after.pool, extents);
  takeFree(spec, space, subtract(extents, [...held, ...resting.flatMap((lease) => lease.resting!)]));
  for (const lease of resting) setResting(state, lease, subtract(lease.resting!, extents));
  replaceLease(state, before, after);
  if (before) addFree(spec, space, subtract(ownExtents(state, before), extents));
}

/** Writes the row of a lease, and the counters of its pool. */
export function replaceLease(state: State, before: LeaseRow | undefined, after: LeaseRow): void {
  const left = before?.endedAt === undefined ? before : undefined;
  const lost = left ? state.countOwn(left) : 0n;
  state.leases.put(after);
  const joined = after.endedAt === undefined ? after : undefined;
  const gained = joined ? state.countOwn(joined) : 0n;
  if (left?.state === joined?.state && lost === gained) return;
  const row = { ...state.pool(after.pool)! };
  if (left) row[left.state]--;
  if (joined) row[joined.state]++;
  state.pools.put({ ...row, held: row.held - lost + gained });
}

/** The values of a lease that no other lease shares. */
function ownExtents(state: State, lease: LeaseRow): Extent[] {
  const others = state.holdersOf(lease.pool, lease.extents).filter(({ uid }) => uid !== lease.uid);
  return subtract(
    lease.extents,
    others.flatMap(({ extents }) => extents),
  );
}

interface End {
  /** When it ended. Default: now. */
  at?: number;
  /** The owner that gets its values in the same decision. */
  takenBy?: string;
}

/** Ends a lease and its child pool. Values that no other lease shares are quarantined, and then free. */
export function endLease(
  state: State,
  lease: LeaseRow,
  reason: EndReason,
  { at = state.now, takenBy }: End = {},
): void {
  const { childPool } = lease;
  const child = childPool === undefined ? undefined : state.pool(childPool);
  if (child?.spec && child.opener === lease.uid) dropPool(state, child);
  const own = sharingKeyOf(lease) === undefined ? lease.extents : ownExtents(state, lease);
  const freeAt = at + state.terms.quarantine * 1000;
  const rests = own.length > 0 && (freeAt > state.now || takenBy !== undefined);
  const ended = omitUndefined<LeaseRow>({
    ...lease,
    updatedAt: at,
    endedAt: at,
    endReason: reason,
    takenBy,
    freeAt: takenBy === undefined ? freeAt : state.now,
    resting: rests ? own : undefined,
  });
  record(
    state,
    reason === "out of range" || reason === "pool deleted" ? "released" : reason,
    ended,
    takenBy === undefined ? {} : { takenBy },
  );
  replaceLease(state, lease, ended);
  const row = state.pool(lease.pool)!;
  if (rests) state.pools.put({ ...row, resting: row.resting + 1 });
  else if (row.spec) addFree(row.spec, state.space(lease.pool), own);
}

export function record(
  state: State,
  what: Event["what"],
  lease: LeaseRow,
  cause: Pick<Event, "takenBy" | "formerOwner"> = {},
): void {
  const { pool, owner, uid, leaseId, extents, tenant, usedBy } = lease;
  const by = what === "expired" ? undefined : (state.terms.actor ?? lease.by);
  const place = { pool, owner, uid, leaseId, extents };
  state.record(omitUndefined<Event>({ at: state.now, what, ...place, tenant, usedBy, by, ...cause }));
}

/** Leases that one decision ends because they are overdue. */
export const DUE = 100;

/** Ends overdue leases, and returns values whose quarantine is over. Returns whether there were any. */
export function expireOverdue(state: State, pool: string, most = DUE): boolean {
  const due = state.pool(pool) ? state.due(pool, most).slice(0, 2 * most) : [];
  for (const lease of due) {
    if (lease.endedAt !== undefined) freeResting(state, lease);
    else endLease(state, lease, "expired", { at: lease.expiresAt! });
  }
  return due.length > 0;
}

// Names

/** Takes the names of a request, and that of its child pool, from leases of its own owner. Rejects if another owner has one. */
export function takeNames(state: State, request: Request, lease: Lease, isClaim: boolean): void {
  for (const name of request.names ?? []) {
    const holder = state.leaseNamed(name);
    if (holder?.uid !== lease.uid) mustBeNameable(state, name, lease);
    if (holder && holder.uid !== lease.uid) takeName(state, request, holder, name, isClaim);
    refuseOffered(state, request, name, state.offersNamed(name));
  }
  const { childPool } = request;
  if (!childPool) return;
  mustBeOpenable(state, childPool, lease);
  if (request.ttl !== undefined) throw ttlWithPoolError(lease, childPool);
  const row = state.pool(childPool.name);
  const opener = row?.opener === undefined ? undefined : state.lease(row.opener);
  if (opener && isOverdue(opener, state.now)) endLease(state, opener, "expired", { at: opener.expiresAt! });
  else if (opener && opener.uid !== lease.uid && isLive(opener, state.now) && !isOwnHolder(state, request, opener))
    throw nameTakenError(childPool.name, show(state, toLease(opener, state.now)));
  refuseOffered(state, request, childPool.name, state.offersOfPool(childPool.name));
}

function takeName(state: State, request: Request, holder: LeaseRow, name: string, isClaim: boolean): void {
  if (isOverdue(holder, state.now)) endLease(state, holder, "expired", { at: holder.expiresAt! });
  else if (!isOwnHolder(state, request, holder)) throw nameTakenError(name, show(state, toLease(holder, state.now)));
  else if (isClaim) state.leases.put({ ...holder, names: holder.names!.filter((other) => other !== name) });
}

function refuseOffered(state: State, request: Request, name: string, offers: Holder[]): void {
  const other = offers.find(
    (offer) => isOffer(offer) && !isOwnHolder(state, request, offer) && !givesWay(state, offer, request),
  );
  if (other) throw nameTakenError(name, show(state, toPublic(other, state.now)));
}

/** Whether the request may dispose of a lease or an offer as its own. */
export const isOwnHolder = (state: State, request: Request, holder: Holder): boolean =>
  isOwned(holder, request) && mayHold(state, toPublic(holder, state.now));

/** Makes or changes the child pool that a lease was claimed with. */
export function openChildPool(state: State, spec: PoolSpec, lease: LeaseRow): void {
  if (lease.expiresAt !== undefined) throw ttlWithPoolError(toLease(lease, state.now), spec);
  openPool(state, spec, lease);
}

// Shared values

/** The holder of one of these ports on these values, and the port. */
export function findPortHolder(
  state: State,
  request: Request,
  extents: Extent[],
  ports: Port[],
  own?: string,
  except: LeaseRow[] = [],
): { holder: Holder; port: Port } | undefined {
  if (ports.length === 0) return undefined;
  const leases = state.portHolders(request.pool, extents, ports).filter((lease) => {
    return (
      isLive(lease, state.now) && lease.uid !== own && !except.includes(lease) && !isOwnHolder(state, request, lease)
    );
  });
  const offers = state.offersIn(request.pool).filter((offer) => {
    return touches(offer.extents, extents) && !isOwnHolder(state, request, offer) && !givesWay(state, offer, request);
  });
  for (const holder of [...leases, ...offers]) {
    const port = ports.find((each) => holder.ports?.some((other) => portText(other) === portText(each)));
    if (port) return { holder, port };
  }
  return undefined;
}

/** The leases that must end so that the request gets its ports, besides those that are `evicted`; rejects if one may not be ended. */
export function takePorts(
  state: State,
  spec: PoolSpec,
  request: Request,
  extents: Extent[],
  own?: string,
  evicted: LeaseRow[] = [],
): LeaseRow[] {
  const taken: LeaseRow[] = [];
  for (;;) {
    const found = findPortHolder(state, request, extents, request.ports ?? [], own, [...evicted, ...taken]);
    if (!found) return taken;
    const { holder, port } = found;
    const lease = toPublic(holder, state.now);
    if (isOffer(holder) || !mayTake(request, holder) || !mayChange(state, lease))
      throw portConflictError(spec, extents[0]!, port, show(state, lease));
    taken.push(holder);
  }
}

/** Rejects a change of the sharing key, or of shared values, while another lease or an offer shares them. */
export function mustKeepKey(state: State, spec: PoolSpec, lease: LeaseRow, key: string | undefined): void {
  const old = sharingKeyOf(lease);
  if (old === undefined || old === key) return;
  const shares = (other: Holder) => other.owner !== lease.owner && touches(other.extents, lease.extents);
  const leases = state.sharersOf(lease.pool, old).filter((other) => isLive(other, state.now) && shares(other));
  const offers = state.offersIn(lease.pool).filter((offer) => sharingKeyOf(offer) === old && shares(offer));
  const coHolder = [...leases, ...offers][0];
  if (coHolder) throw sharingConflictError(spec, lease.extents[0]!, key, show(state, toPublic(coHolder, state.now)));
}
