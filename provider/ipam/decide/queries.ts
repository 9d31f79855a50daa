import { MAX_IP } from "../../addressing/ip";
import { fullnessWarning } from "../errors";
import { capacityOf, fits, freeIn, intersect, positionOf, single, zonesOf } from "../ranges";
import { KEPT_MS } from "../store/store";
import type { Lease, LeaseFilter, LeaseKey, PoolPage, PoolSpec, Usage, ValueRange } from "../types";
import { findCurrent } from "./change";
import { expireOverdue } from "./lease";
import { countHeld } from "./limits";
import { specOf } from "./pools";
import {
  isLive,
  type LeaseRow,
  newPoolRow,
  type OfferRow,
  offerIdOf,
  offerToLease,
  sharingKeyOf,
  toLease,
} from "./rows";
import type { State } from "./state";

/** Reads. They do not return leases that have expired, even if those are still in the store: a read ends them in its state, which is not stored. */

const EVERY = 1_000_000;

export function find(state: State, pool: string, by: LeaseKey): Lease | undefined {
  const { now } = state;
  if (!specOf(state, pool)) return undefined;
  if ("leaseId" in by) {
    const lease = findCurrent(state, pool, by.leaseId);
    return lease ? toLease(lease, now) : findOffer(state, pool, (offer) => offerIdOf(offer) === by.leaseId);
  }
  if ("uid" in by) {
    const lease = state.lease(by.uid);
    if (lease && lease.pool === pool && isLive(lease, now)) return toLease(lease, now);
    return findOffer(state, pool, ({ uid }) => uid === by.uid);
  }
  const leases =
    "owner" in by
      ? state.leasesOf(pool, by.owner)
      : "name" in by
        ? [state.leaseNamed(by.name)].filter((lease) => lease !== undefined && lease.pool === pool)
        : state.holdersOf(pool, [single(by.value)]);
  const live = (leases as LeaseRow[]).filter((lease) => isLive(lease, now)).sort((a, b) => b.createdAt - a.createdAt);
  if (live[0]) return toLease(live[0], now);
  return findOffer(state, pool, ({ owner, names, ranges }) =>
    "owner" in by
      ? owner === by.owner
      : "name" in by
        ? names?.includes(by.name) === true
        : ranges.some(({ first, last }) => first <= by.value && by.value <= last),
  );
}

/** The newest offer in the pool that this holds for. */
function findOffer(state: State, pool: string, isIt: (offer: OfferRow) => boolean): Lease | undefined {
  const [newest] = offersIn(state, pool, isIt).sort((a, b) => b.createdAt - a.createdAt);
  return newest && offerToLease(newest);
}

/** Live offers. One that the pool cannot give since it has changed is only a record. */
function offersIn(state: State, pool: string, isIt: (offer: OfferRow) => boolean = () => true): OfferRow[] {
  const spec = state.pool(pool)?.spec;
  return state.offersIn(pool).filter((offer) => isIt(offer) && (!spec || fits(spec, offer)));
}

/** The lease or offer that has this name, in any pool. */
export function findByName(state: State, name: string): Lease | undefined {
  const lease = state.leaseNamed(name);
  if (lease && isLive(lease, state.now)) return toLease(lease, state.now);
  const [offer] = state.offersNamed(name).sort((a, b) => b.createdAt - a.createdAt);
  return offer && offerToLease(offer);
}

/** What this program was shown for the owner, also if that has expired. */
export function findOfferOf(state: State, owner: string, program: string): Lease | undefined {
  const offer = state.offer(owner, program);
  return offer && offerToLease(offer);
}

/** How the lease with this uid ended. */
export function findEnded(state: State, pool: string, uid: string): Lease | undefined {
  const lease = state.lease(uid);
  if (lease?.pool !== pool || isLive(lease, state.now)) return undefined;
  if ((lease.endedAt ?? lease.expiresAt!) + KEPT_MS < state.now) return undefined;
  const freeAt = (lease.endedAt ?? lease.expiresAt!) + state.terms.quarantine * 1000;
  const rests = lease.endedAt === undefined ? { resting: lease.ranges, freeAt } : {};
  return toLease({ ...lease, ...rests }, state.now);
}

/** Leases, offers included, in the order of their values. Those that share a value are returned together, even past the limit. */
export function listLeases(
  state: State,
  pool: string,
  { owner, after = -1n, limit = Infinity }: LeaseFilter = {},
): Lease[] {
  if (!specOf(state, pool)) return [];
  expireAll(state, pool);
  const offers = offersIn(state, pool).filter((offer) => !isHeld(state, offer));
  const leases = owner === undefined ? state.page(pool, after, Math.min(limit, EVERY)) : state.leasesOf(pool, owner);
  const listed = leases
    .filter(({ endedAt, resting }) => endedAt === undefined || resting)
    .map((row) => toLease(row, state.now));
  const offered = offers.filter((row) => owner === undefined || row.owner === owner).map(offerToLease);
  const taken = offered.flatMap(({ ranges }) => ranges);
  const isHidden = ({ state: has, ranges }: Lease) => has === "quarantined" && intersect(ranges, taken).length > 0;
  const all = [...listed.filter((lease) => !isHidden(lease)), ...offered]
    .filter((lease) => owner !== undefined || positionOf(lease) > after)
    .sort((a, b) => (positionOf(a) < positionOf(b) ? -1 : positionOf(a) > positionOf(b) ? 1 : 0));
  if (all.length <= limit) return all;
  const last = positionOf(all[limit - 1]!);
  return all.filter((lease) => positionOf(lease) <= last);
}

/** Whether leases hold the values of an offer, and do not share them with it. */
function isHeld(state: State, offer: OfferRow): boolean {
  const key = sharingKeyOf(offer);
  return state.holdersOf(offer.pool, offer.ranges).some((lease) => {
    return isLive(lease, state.now) && (key === undefined || sharingKeyOf(lease) !== key);
  });
}

/** Ends what is overdue in the state of a read. */
function expireAll(state: State, pool: string): void {
  while (expireOverdue(state, pool, EVERY));
}

export function listPools(state: State, prefix = "", { after = "", limit = Infinity }: PoolPage = {}): PoolSpec[] {
  const stored = state.poolsFrom(prefix, after, Math.min(limit, EVERY)).flatMap(({ spec }) => spec ?? []);
  const offered = state
    .offersWithPool(prefix)
    .filter(({ childPool }) => childPool!.name > after && !state.pool(childPool!.name)?.spec)
    .flatMap(({ childPool }) => specOf(state, childPool!.name) ?? []);
  const byName = new Map([...offered, ...stored].map((spec) => [spec.name, spec]));
  return [...byName.values()].sort((a, b) => (a.name < b.name ? -1 : 1)).slice(0, limit);
}

/** What the pool can give to a request without values, in order; not what is quarantined or offered. */
export function listFree(
  state: State,
  pool: string,
  { range: bounds = ALL, limit = Infinity }: { range?: ValueRange; limit?: number } = {},
): ValueRange[] {
  const spec = specOf(state, pool);
  if (!spec) return [];
  expireAll(state, pool);
  const offered = state.offersIn(pool).flatMap(({ ranges }) => ranges);
  const free = state.pool(pool)?.spec ? state.space(pool, "a").from(bounds.first) : zonesOf(spec).automatic;
  const found: ValueRange[] = [];
  for (const range of free) {
    if (range.first > bounds.last || found.length >= limit) break;
    found.push(...freeIn(spec, intersect([range], [bounds]), offered));
  }
  return found.slice(0, limit);
}

const ALL: ValueRange = { first: 0n, last: MAX_IP };

export function usage(state: State, pool: string): Usage | undefined {
  const spec = specOf(state, pool);
  if (!spec) return undefined;
  expireAll(state, pool);
  const { reserved, used, resting } = state.pool(pool) ?? newPoolRow(pool);
  const offers = offersIn(state, pool);
  const held = countHeld(state, { spec });
  const warning = fullnessWarning(spec, held);
  const hidden =
    offers.length > 0
      ? countHidden(
          state,
          pool,
          offers.flatMap(({ ranges }) => ranges),
        )
      : 0;
  const counts = { held, offered: offers.length, reserved, used, quarantined: resting - hidden };
  return { capacity: capacityOf(spec), ...counts, ...(warning && { warning }) };
}

/** Leases in quarantine whose values are offered count as offers. */
const countHidden = (state: State, pool: string, offered: ValueRange[]): number =>
  state.restingOn(pool, offered).length;

export function listUsages(state: State, prefix: string, page: PoolPage): { spec: PoolSpec; usage: Usage }[] {
  const active = state.activePools(prefix);
  return listPools(state, prefix, page).map((spec) => ({
    spec,
    usage: active.has(spec.name) ? usage(state, spec.name)! : plainUsage(state, spec),
  }));
}

/** The usage of a pool whose counters are all of the truth. */
function plainUsage(state: State, spec: PoolSpec): Usage {
  const { held, reserved, used } = state.pool(spec.name) ?? newPoolRow(spec.name);
  const warning = fullnessWarning(spec, held);
  return { capacity: capacityOf(spec), held, offered: 0, reserved, used, quarantined: 0, ...(warning && { warning }) };
}
