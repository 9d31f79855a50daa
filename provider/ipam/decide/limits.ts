import { SPACES } from "../../pool-names";
import {
  namePromisedWarning,
  nameTakenError,
  offerShareError,
  offersTooLargeError,
  portConflictError,
  quotaError,
  sharingConflictError,
  ttlWithPoolError,
} from "../errors";
import { capacityOf, fits, max, mergeRanges, subtract, total } from "../ranges";
import { isWithinQuota, type Lease, type PoolSpec, type Port, type Request, type ValueRange } from "../types";
import { givesWay, isOwnHolder, isPromisedInRun, mayChange, mustBeNameable, mustBeOpenable, show } from "./access";
import type { Ask } from "./choose";
import { endLease, mustFit } from "./lease";
import type { Pool } from "./pools";
import {
  type Holder,
  isLive,
  isOffer,
  isOverdue,
  type LeaseRow,
  mayTake,
  newPoolRow,
  type OfferRow,
  offerToLease,
  portText,
  sharingKeyOf,
  touches,
} from "./rows";
import type { State } from "./state";

/** What a request keeps besides its values: ports of shared values, names, and the quota of its pool. */

// Shared values: leases with the same key and tenant share a value if no two of them have the same protocol and port

/** The holder of one of these ports on these values, and the port. */
export function findPortHolder(
  state: State,
  request: Request,
  ranges: ValueRange[],
  ports: Port[],
  own?: string,
  except: LeaseRow[] = [],
): { holder: Holder; port: Port } | undefined {
  if (ports.length === 0) return undefined;
  const leases = state.portHolders(request.pool, ranges, ports).filter((lease) => {
    return (
      isLive(lease, state.now) && lease.uid !== own && !except.includes(lease) && !isOwnHolder(state, request, lease)
    );
  });
  const offers = state.offersIn(request.pool).filter((offer) => {
    return touches(offer.ranges, ranges) && !isOwnHolder(state, request, offer) && !givesWay(state, offer, request);
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
  ranges: ValueRange[],
  own?: string,
  evicted: LeaseRow[] = [],
): LeaseRow[] {
  const taken: LeaseRow[] = [];
  for (;;) {
    const found = findPortHolder(state, request, ranges, request.ports ?? [], own, [...evicted, ...taken]);
    if (!found) return taken;
    const { holder, port } = found;
    if (isOffer(holder) || !mayTake(request, holder) || !mayChange(state, holder))
      throw portConflictError(spec, ranges[0]!, port, show(state, holder));
    taken.push(holder);
  }
}

/** Rejects a change of the sharing key, or of shared values, while another lease or an offer shares them. */
export function mustKeepKey(state: State, spec: PoolSpec, lease: LeaseRow, key: string | undefined): void {
  const old = sharingKeyOf(lease);
  if (old === undefined || old === key) return;
  const shares = (other: Holder) => other.owner !== lease.owner && touches(other.ranges, lease.ranges);
  const leases = state.sharersOf(lease.pool, old).filter((other) => isLive(other, state.now) && shares(other));
  const offers = state.offersIn(lease.pool).filter((offer) => sharingKeyOf(offer) === old && shares(offer));
  const coHolder = [...leases, ...offers][0];
  if (coHolder) throw sharingConflictError(spec, lease.ranges[0]!, key, show(state, coHolder));
}

// Names of leases and of their child pools: each has one holder in the whole store

/**
 * Takes the names of a request, and that of its child pool, from leases of its own owner. Rejects if another owner has one. Returns a warning
 * for each name that another run was shown: the first claim gets it.
 */
export function takeNames(state: State, request: Request, lease: Lease, isClaim: boolean): string[] {
  const warnings: string[] = [];
  for (const name of request.names ?? []) {
    const holder = state.leaseNamed(name);
    if (holder?.uid !== lease.uid) mustBeNameable(state, name, lease);
    if (holder && holder.uid !== lease.uid) takeName(state, request, holder, name, isClaim);
    warnings.push(...findPromised(state, request, name, state.offersNamed(name)));
  }
  const { childPool } = request;
  if (!childPool) return warnings;
  mustBeOpenable(state, childPool, lease);
  if (request.ttl !== undefined) throw ttlWithPoolError(lease, childPool);
  const row = state.pool(childPool.name);
  const opener = row?.opener === undefined ? undefined : state.lease(row.opener);
  if (opener && isOverdue(opener, state.now)) endLease(state, opener, "expired", { at: opener.expiresAt! });
  else if (opener && opener.uid !== lease.uid && isLive(opener, state.now) && !isOwnHolder(state, request, opener))
    throw nameTakenError(childPool.name, show(state, opener), request.pool);
  warnings.push(...findPromised(state, request, childPool.name, state.offersOfPool(childPool.name)));
  return [...new Set(warnings)];
}

function takeName(state: State, request: Request, holder: LeaseRow, name: string, isClaim: boolean): void {
  if (isOverdue(holder, state.now)) endLease(state, holder, "expired", { at: holder.expiresAt! });
  else if (!isOwnHolder(state, request, holder)) throw nameTakenError(name, show(state, holder), request.pool);
  else if (isClaim) state.leases.put({ ...holder, names: holder.names!.filter((other) => other !== name) });
}

/** Rejects a name that another resource of the same run was shown. */
function findPromised(state: State, request: Request, name: string, offers: OfferRow[]): string[] {
  const others = offers.filter((offer) => !isOwnHolder(state, request, offer));
  const shown = others.find((offer) => isPromisedInRun(offer, request)) ?? others[0];
  if (!shown) return [];
  const lease = show(state, shown);
  if (isPromisedInRun(shown, request)) throw nameTakenError(name, lease, request.pool);
  return [namePromisedWarning(name, lease)];
}

// Quotas of pools, and how full they are. Offers count.

/**
 * Rejects a lease or an offer that was just put if the pool now exceeds its quota. Offers count, so that preview finds it; leases that end
 * before an offer is claimed do not. `wasCounted`: the offer that the claim answers, or the lease that it renews, has counted it.
 */
export function mustKeepQuota({ state, pool, request, isClaim }: Ask, put: Holder, wasCounted = false): void {
  const { spec } = pool;
  if (!spec.quota) return;
  const counted = state.offersIn(spec.name).filter((row) => {
    if (row === put) return true;
    const isOther = !isOwnHolder(state, request, row) && !givesWay(state, row, request);
    return isOther && !(isClaim && wasCounted) && fits(spec, row);
  });
  const owners = isClaim
    ? []
    : [...new Set([...counted.map(({ owner }) => owner), ...(request.formerOwner ? [request.formerOwner] : [])])];
  const moving = owners
    .flatMap((owner) => state.leasesOf(spec.name, owner))
    .filter((lease) => isLive(lease, state.now));
  const offered = mergeRanges(counted.flatMap(({ ranges }) => ranges));
  const staying =
    offered.length > 0 ? state.holdersOf(spec.name, offered).filter((lease) => !moving.includes(lease)) : [];
  const { reserved, used, held } = state.pool(spec.name) ?? newPoolRow(spec.name);
  const leases = reserved + used - moving.length + counted.length;
  const gone = moving.reduce((sum, lease) => sum + state.countOwn(lease), 0n);
  const values =
    held -
    gone +
    total(
      subtract(
        offered,
        staying.flatMap(({ ranges }) => ranges),
      ),
    );
  if (!isWithinQuota(spec, leases, values)) throw quotaError(spec, { leases, values });
}

/** An offer may have this many bytes, divided by the number of offers of its user in the pool: all requests there read them. */
const MOST_OFFERED_BYTES = 2 * 1024 * 1024;

/** Offers of a user with bounds hold at most half of a pool that others use, too. In address spaces, offers keep nothing from others. */
export function mustKeepShare({ state, pool: { spec } }: Ask, put: OfferRow): void {
  const bytes = mustFit(put, put.childPool);
  const { access } = state.terms;
  if (!access) return;
  const own = state.offersIn(spec.name).filter((row) => access.hasOffered(offerToLease(row)));
  if (own.length * bytes > MOST_OFFERED_BYTES) throw offersTooLargeError(spec, own.length, bytes);
  if (!access.isShared(spec) || spec.name.startsWith(SPACES)) return;
  const held = total(mergeRanges(own.flatMap(({ ranges }) => ranges)));
  const most = max(capacityOf(spec) / 2n, 1n);
  if (held > most) throw offerShareError(spec, held, most);
}

/** Values that are held or offered. */
export function countHeld(state: State, { spec }: Pick<Pool, "spec">): bigint {
  const offers = state.offersIn(spec.name);
  const offered = mergeRanges(offers.flatMap(({ ranges }) => ranges));
  const mayBeHeld = offers.some((row) => row.afterLease.length > 0 || row.sharingKey !== undefined);
  const held = mayBeHeld ? state.holdersOf(spec.name, offered).flatMap(({ ranges }) => ranges) : [];
  return (state.pool(spec.name)?.held ?? 0n) + total(subtract(offered, held));
}
