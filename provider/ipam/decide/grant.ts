import { isSameTenant } from "../../owner";
import {
  alreadyHeldError,
  fullnessWarning,
  planStaleError,
  promiseBrokenError,
  promiseBrokenWarning,
  promiseMovedError,
  promiseMovedWarning,
} from "../errors";
import { equalRanges, fits, sizeOf } from "../ranges";
import { KEPT_MS } from "../store/store";
import { detailsOf, type Lease, type OfferRequest, type PoolSpec, type Request } from "../types";
import { isOwnHolder, leasesOfRequester, mustBeHoldable, programOf, show } from "./access";
import { change } from "./change";
import { openChildPool } from "./child-pools";
import { type Ask, type Choice, choiceOf, choose, findBlockers, heldError, mayAssign, mayEvict } from "./choose";
import { endLease, expireOverdue, newLeaseId, newUid, putLease, record } from "./lease";
import { countHeld, findPortHolder, mustKeepKey, mustKeepQuota, mustKeepShare, takeNames, takePorts } from "./limits";
import { requirePool } from "./pools";
import {
  answers,
  type Holder,
  isLive,
  isOffer,
  type LeaseRow,
  type OfferRow,
  offerKey,
  offerToLease,
  omitUndefined,
  sharingKeyOf,
  toLease,
  touches,
} from "./rows";
import type { State } from "./state";

/**
 * Offers and claims: which values a request gets, in this order.
 *
 *   what the owner holds, if that answers the request
 *   what its program was shown (the row of this owner and program): exactly that, or an up stops, and a preview warns
 *   the values that it names, or what the pool chooses (choose.ts)
 */

/** What the owner has, or would get. Writes what is shown, so that an up of the same program gives it. */
export function offer(state: State, request: OfferRequest): Lease {
  const pool = requirePool(state, request, false);
  expireOverdue(state, request.pool);
  const program = programOf(request);
  const shown = state.offer(request.owner, program);
  const ask: Ask = { state, pool, request, isClaim: false, wasShown: false, shown };
  const own = findHeld(ask, false);
  if (own) return offerHeld(ask, own, shown);
  const recalled = shown && recall(ask, shown, request.inUp === true);
  const choice = recalled?.choice ?? choose(ask);
  takePorts(state, pool.spec, request, choice.ranges, undefined, choice.evicted);
  const same = shown?.pool === request.pool && equalRanges(shown.ranges, choice.ranges) ? shown : undefined;
  const row = buildOffer(ask, choice, program, same);
  const promised = takeNames(state, request, offerToLease(row), false);
  mustBeHoldable(state, row);
  state.offers.put(row);
  mustKeepQuota(ask, row);
  mustKeepShare(ask, row);
  return withWarnings(ask, offerToLease(row), [...(recalled?.warnings ?? []), ...choice.warnings, ...promised]);
}

/** The live lease of the owner that answers the request. With `onPortConflict: anotherAddress`, one whose ports are free. */
function findHeld({ state, request }: Ask, withFormer: boolean): LeaseRow | undefined {
  const owners =
    withFormer && request.formerOwner !== undefined ? [request.owner, request.formerOwner] : [request.owner];
  const held = owners.flatMap((owner) => leasesOfRequester(state, request.pool, owner));
  const found = held.filter((lease) => isLive(lease, state.now) && answers(lease, request));
  const { values, onPortConflict, ports = [] } = request;
  const mayMove = !values && onPortConflict === "anotherAddress";
  return found
    .sort((a, b) => b.createdAt - a.createdAt)
    .find((lease) => !mayMove || !findPortHolder(state, request, lease.ranges, ports, lease.uid));
}

/** A preview does not change a lease; it checks whether the changes of the request are possible. */
function offerHeld(ask: Ask, own: LeaseRow, shown: OfferRow | undefined): Lease {
  const { state, pool, request } = ask;
  const lease = toLease(own, state.now);
  const isOther = shown && !request.values && shown.pool === own.pool && !equalRanges(shown.ranges, own.ranges);
  if (isOther && (request as OfferRequest).inUp) throw planStaleError(pool.spec, own.ranges[0]!, lease, request.owner);
  takeNames(state, request, lease, false);
  mustKeepKey(state, pool.spec, own, sharingKeyOf(request));
  takePorts(state, pool.spec, request, own.ranges, own.uid);
  if (shown) state.offers.delete(offerKey(shown));
  return withWarnings(ask, lease, []);
}

/**
 * What the program of the request was shown. undefined: it answers another request. If its values cannot be given, an up stops, and a preview
 * gets a warning.
 */
function recall(ask: Ask, shown: OfferRow, inUp: boolean): { choice?: Choice; warnings: string[] } | undefined {
  const { state, pool, request } = ask;
  const { spec } = pool;
  const isOther = request.values ? !answers(shown, request) : sizeOf(shown.ranges[0]!) !== (request.size ?? 1n);
  if (isOther) return undefined;
  if (state.now > shown.expiresAt + KEPT_MS) return undefined;
  const { onPortConflict, ports = [] } = request;
  if (onPortConflict === "anotherAddress" && findPortHolder(state, request, shown.ranges, ports)) return undefined;
  if (shown.pool !== request.pool) {
    const lease = offerToLease(shown);
    if (inUp) throw promiseMovedError(spec, lease);
    return { warnings: [promiseMovedWarning(spec, lease)] };
  }
  const evicted: LeaseRow[] = [];
  const inWay: Holder[] = [];
  for (const holder of findBlockers(ask, shown.ranges)) {
    const isExpected = !isOffer(holder) && shown.afterLease.includes(holder.uid);
    if (isExpected && mayEvict({ ...ask, isClaim: true }, holder)) evicted.push(holder);
    else inWay.push(holder);
  }
  const undecided = inWay.find((holder) => mayBeEnded(ask, shown, holder));
  if (undecided) throw heldError(spec, ask, shown.ranges, undecided, planStaleError);
  const isGivable =
    answers(shown, request) &&
    fits(spec, shown) &&
    (shown.byValue || sharingKeyOf(request) !== undefined || mayAssign(spec, shown.ranges));
  const isProtected = shown.expiresAt >= state.now;
  const rests = state.restingOn(request.pool, shown.ranges).some((lease) => !isOwnHolder(state, request, lease));
  if (isGivable && inWay.length === 0 && (isProtected || !rests)) {
    const isInactive = evicted.some(({ uid }) => !request.mayEnd?.includes(uid));
    return {
      choice: choiceOf(shown.ranges, { evicted, reason: isInactive ? "reclaimed" : "handed over" }),
      warnings: [],
    };
  }
  const lost = offerToLease(shown);
  const holder = inWay[0] && show(state, inWay[0]);
  if (inUp) throw promiseBrokenError(spec, lost, holder);
  return { warnings: request.values ? [] : [promiseBrokenWarning(spec, lost, holder)] };
}

/** Whether the run is to say if the resource of this lease ends it: the offer was made for when it has. */
const mayBeEnded = ({ request }: Ask, shown: OfferRow, holder: Holder): boolean =>
  request.run !== undefined &&
  !isOffer(holder) &&
  shown.afterLease.includes(holder.uid) &&
  !request.mayEnd?.includes(holder.uid) &&
  !request.stays?.includes(holder.uid);

/** Offers younger than this part of their lifetime are not written again: preview, the preview of up, and up follow each other. */
const REWRITES_PER_TTL = 60;

function buildOffer(
  { state, request }: Ask,
  { ranges, evicted }: Choice,
  program: string,
  same: OfferRow | undefined,
): OfferRow {
  const { now, terms } = state;
  const { owner, pool, values } = request;
  const lifetime = terms.offerTtl * 1000;
  const isFresh = same && same.expiresAt >= now && now - same.updatedAt < lifetime / REWRITES_PER_TTL;
  const at = isFresh ? same.updatedAt : now;
  // An offer in a pool that is only offered ends with that.
  const around = state.pool(pool)?.spec ? [] : state.offersOfPool(pool);
  const end = around.length > 0 ? Math.max(...around.map(({ expiresAt }) => expiresAt)) : Infinity;
  return omitUndefined<OfferRow>({
    owner,
    program,
    run: request.run ?? "",
    pool,
    ...detailsOf({ ...(terms.actor !== undefined && { by: terms.actor }), ...request }),
    ranges,
    childPool: request.childPool,
    byValue: values !== undefined,
    afterLease: evicted.map(({ uid }) => uid),
    uid: same?.uid ?? newUid(owner),
    createdAt: same?.createdAt ?? now,
    updatedAt: at,
    expiresAt: Math.min(at + lifetime, end),
  });
}

/** Commits a lease, with a new lease id. With `values` exactly these values, or `PLAN_STALE`. */
export function claim(state: State, request: Request): Lease {
  const pool = requirePool(state, request, true);
  expireOverdue(state, request.pool);
  const owners = request.formerOwner === undefined ? [request.owner] : [request.owner, request.formerOwner];
  const mine = owners
    .flatMap((owner) => leasesOfRequester(state, request.pool, owner))
    .filter((lease) => isLive(lease, state.now));
  if (request.idempotent && mine[0]) return claimAgain(state, pool.spec, request, mine[0]);
  const shown = findAnswered(state, request);
  const ask: Ask = { state, pool, request, isClaim: true, wasShown: request.run !== undefined, shown };
  const own = findHeld(ask, true) ?? findResized(request, mine);
  const keeps = own !== undefined && answers(own, request);
  if (own) mustKeepKey(state, pool.spec, own, keeps ? sharingKeyOf(request) : undefined);
  const choice = keeps ? choiceOf(own.ranges) : choose(ask);
  const evicted = [...choice.evicted, ...takePorts(state, pool.spec, request, choice.ranges, own?.uid, choice.evicted)];
  for (const lease of evicted) {
    const current = state.leases.get(lease.uid)!;
    if (current.endedAt === undefined)
      endLease(state, current, choice.evicted.includes(lease) ? choice.reason : "handed over", {
        takenBy: request.owner,
      });
  }
  const before = own && state.leases.get(own.uid)!;
  const lease = buildLease(ask, choice, before, shown);
  takeNames(state, request, toLease(lease, state.now), true);
  putLease(state, pool.stored!, before, lease, choice.isFree && !before);
  if (request.childPool) openChildPool(state, request.childPool, lease);
  for (const each of state.offersOf(request.owner))
    if (each === shown || each.program === programOf(request)) state.offers.delete(offerKey(each));
  record(state, before ? "renewed" : "claimed", lease);
  mustKeepQuota(ask, lease, before !== undefined || shown?.afterLease.length === 0);
  return withWarnings(ask, toLease(state.leases.get(lease.uid)!, state.now), choice.warnings);
}

/** The offer that the claim answers: that of its program, or else the newest for these values. */
function findAnswered(state: State, request: Request): OfferRow | undefined {
  const rows = state.offersOf(request.owner).filter((row) => answers(row, request) && isOwnHolder(state, request, row));
  const own = rows.find((row) => row.program === programOf(request));
  return own ?? (request.values ? rows.sort((a, b) => b.updatedAt - a.updatedAt)[0] : undefined);
}

/** The block of the owner that gets other bounds. */
const findResized = ({ values = [] }: Request, mine: LeaseRow[]): LeaseRow | undefined =>
  mine.find((lease) => values.some(({ first, last }) => first !== last) && touches(lease.ranges, values));

/** The answer to a claim that is repeated: the lease of the first one, if it still answers the request. */
function claimAgain(state: State, spec: PoolSpec, request: Request, held: LeaseRow): Lease {
  const { values = [], ttl, usedBy, labels } = request;
  const isAskedFor = values.every((range) => held.ranges.some((other) => equalRanges([range], [other])));
  const isInUse = held.state === "used" && held.usedBy !== usedBy;
  const lease = toLease(held, state.now);
  if (!isAskedFor || isInUse || !isSameTenant(held.tenant, request.tenant)) throw alreadyHeldError(spec, lease);
  if (held.state === "used") return lease;
  const use = usedBy === undefined ? {} : ({ state: "used", usedBy } as const);
  return change(state, held.pool, held.leaseId, { ttl: ttl ?? null, ...use, ...(labels && { labels }) });
}

function buildLease(
  { state, request }: Ask,
  { ranges }: Choice,
  before: LeaseRow | undefined,
  shown: OfferRow | undefined,
): LeaseRow {
  const { now, terms } = state;
  const { pool, owner, ttl, childPool } = request;
  const isUsed = before?.state === "used";
  const usedBy = request.usedBy ?? (isUsed ? before.usedBy : undefined);
  const used = isUsed || usedBy !== undefined;
  const users = isUsed ? (before.names ?? []).filter((name) => name.startsWith("user/")) : [];
  const names = [...new Set([...(request.names ?? []), ...users])];
  const uid = before?.uid ?? shown?.uid ?? newUid(owner);
  return omitUndefined<LeaseRow>({
    uid,
    leaseId: newLeaseId(uid),
    pool,
    owner,
    ...detailsOf({ ...(terms.actor !== undefined && { by: terms.actor }), ...request }),
    ranges,
    usedBy,
    ttl,
    state: used ? "used" : "reserved",
    names: names.length > 0 ? names : undefined,
    childPool: childPool?.name ?? before?.childPool,
    createdAt: before?.createdAt ?? now,
    updatedAt: now,
    lastSeen: now,
    expiresAt: used || ttl === undefined ? undefined : now + ttl * 1000,
  });
}

/** Warns of a pool that is nearly full. Offers count, so that a preview sees its own requests. */
function withWarnings({ state, pool }: Ask, lease: Lease, warnings: string[]): Lease {
  const warning =
    pool.spec.warnAtPercent === undefined ? undefined : fullnessWarning(pool.spec, countHeld(state, pool));
  const all = [...warnings, ...(warning ? [warning] : [])];
  return all.length > 0 ? { ...lease, warnings: all } : lease;
}
