import { hash, randomUUID } from "node:crypto";
import { tooLargeError } from "../errors";
import { subtract } from "../ranges";
import { type Details, detailsOf, type Event, type PoolSpec, type Request, type ValueRange } from "../types";
import { mustBeHoldable } from "./access";
import { addFree, takeFree, zonesIn } from "./free-space";
import { freeResting, mustBeUnused, setResting } from "./pools";
import {
  type EndReason,
  type LeaseRow,
  newPoolRow,
  offerKey,
  omitUndefined,
  type PoolRow,
  portText,
  sharingKeyOf,
} from "./rows";
import type { State } from "./state";

/** The life of a lease: it is put, and it ends. Both keep free space, counters, quarantine and history in step. */

/** A uid begins with a hash of the owner that it was made for. */
export const newUid = (owner: string): string => hash("sha256", owner, "hex").slice(0, 8) + randomUUID().slice(0, 8);
/** A lease id begins with the uid, which is where the lease is found. */
export const newLeaseId = (uid: string): string => `${uid}.${randomUUID().replace(/-.*-/, "").slice(0, 16)}`;
export const uidOf = (leaseId: string): string => leaseId.split(".")[0]!;

/** For what a lease keeps besides its values, and for the data of its child pool. Other requests in the pool read them, too. */
const MOST_BYTES = 16 * 1024;
const MOST_POOL_BYTES = 64 * 1024;

const bytesOf = (kept: unknown): number => Buffer.byteLength(JSON.stringify(kept) ?? "");

/** Rejects more than a lease may keep. Returns how many bytes it keeps. */
export function mustFit(lease: Details & Pick<Request, "pool">, childPool?: PoolSpec): number {
  const own = bytesOf({ ...detailsOf(lease), ports: lease.ports?.map(portText) });
  const ofPool = bytesOf(childPool?.data);
  if (own > MOST_BYTES) throw tooLargeError(lease.pool, own, MOST_BYTES);
  if (ofPool > MOST_POOL_BYTES) throw tooLargeError(lease.pool, ofPool, MOST_POOL_BYTES);
  return own + ofPool;
}

/** Puts `after` in the place of `before`. Its values must be free, in quarantine, shared with it, or those of `before`. */
export function putLease(
  state: State,
  spec: PoolSpec,
  before: LeaseRow | undefined,
  after: LeaseRow,
  isFree = false,
): void {
  mustBeHoldable(state, after);
  const { ranges } = after;
  const held = isFree ? [] : state.holdersOf(after.pool, ranges).flatMap((lease) => lease.ranges);
  const resting = isFree ? [] : state.restingOn(after.pool, ranges);
  takeFree(state, spec, subtract(ranges, [...held, ...resting.flatMap((lease) => lease.resting!)]));
  for (const lease of resting) setResting(state, lease, subtract(lease.resting!, ranges));
  replaceLease(state, before, after);
  if (before) addFree(state, spec, subtract(ownRanges(state, before), ranges));
}

/** Writes the row of a lease, and the counters of its pool. */
export function replaceLease(state: State, before: LeaseRow | undefined, after: LeaseRow): void {
  if (after.endedAt === undefined) mustFit(after);
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
function ownRanges(state: State, lease: LeaseRow): ValueRange[] {
  const others = state.holdersOf(lease.pool, lease.ranges).filter(({ uid }) => uid !== lease.uid);
  return subtract(
    lease.ranges,
    others.flatMap(({ ranges }) => ranges),
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
  const own = sharingKeyOf(lease) === undefined ? lease.ranges : ownRanges(state, lease);
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
  else if (row.spec) addFree(state, row.spec, own);
}

export function record(
  state: State,
  what: Event["what"],
  lease: LeaseRow,
  cause: Pick<Event, "takenBy" | "formerOwner"> = {},
): void {
  const { pool, owner, uid, leaseId, ranges, tenant, usedBy } = lease;
  const by = what === "expired" ? undefined : (state.terms.actor ?? lease.by);
  const place = { pool, owner, uid, leaseId, ranges };
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

/** Leases, and offers, that are deleted at once. */
const PAST = 100;

/** Deletes leases that ended, and offers that expired, more than thirty days ago, and the rows of their pools that are only locks. */
export function forgetPast(state: State): void {
  const { leases, offers } = state.past(PAST);
  const pools = new Set([...leases, ...offers].map(({ pool }) => pool));
  state.lock([...pools]);
  for (const { uid } of leases) state.leases.delete(uid);
  for (const offer of offers) state.offers.delete(offerKey(offer));
  for (const name of pools) if (!state.pool(name)?.spec) state.pools.delete(name);
}

/** Ends an unused pool. Its ended leases and its offers stay as long as those of other pools. */
export function dropPool(state: State, row: PoolRow): void {
  mustBeUnused(state, row.name);
  while (expireOverdue(state, row.name));
  for (const lease of state.restingIn(row.name, Number.MAX_SAFE_INTEGER)) setResting(state, lease, []);
  state.pools.put(newPoolRow(row.name));
  for (const [zone] of zonesIn(row.spec!)) state.space(row.name, zone).clear();
}
