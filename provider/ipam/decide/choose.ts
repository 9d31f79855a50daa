import { hash } from "node:crypto";
import type { OverlayError } from "../../errors";
import { isSameStack, isStackOwner } from "../../owner";
import { SPACES } from "../../pool-names";
import {
  exhaustedError,
  noBlocksError,
  notRequestedError,
  outsideError,
  planStaleError,
  quarantineWarning,
  rangePromisedWarning,
  reservedError,
  sharingConflictError,
  takenError,
} from "../errors";
import {
  automaticZone,
  covers,
  equalRanges,
  fits,
  intersect,
  isAvoided,
  isBoundary,
  max,
  mergeRanges,
  min,
  overlapsAny,
  sizeOf,
  subtract,
  total,
  valueAtIndex,
  zonesOf,
} from "../ranges";
import { KEPT_MS } from "../store/store";
import type { PoolSpec, Request, ValueRange } from "../types";
import { givesWay, isOwnHolder, isPromisedInRun, mayChange, programOf, show } from "./access";
import { endLease } from "./lease";
import { findPortHolder } from "./limits";
import { heldLeases, isEndable, type Pool } from "./pools";
import {
  answers,
  type Holder,
  isInactive,
  isLive,
  isOffer,
  isOverdue,
  type LeaseRow,
  mayTake,
  type OfferRow,
  sharingKeyOf,
  touches,
  type Zone,
} from "./rows";
import type { State } from "./state";

/** Which values a request gets. */
export interface Choice {
  ranges: ValueRange[];
  /** Leases that end when it is claimed, and why. */
  evicted: LeaseRow[];
  reason: "handed over" | "reclaimed";
  /** The values are in the free space of the pool. */
  isFree: boolean;
  warnings: string[];
}

export const choiceOf = (ranges: ValueRange[], more: Partial<Choice> = {}): Choice => ({
  ranges,
  evicted: [],
  reason: "handed over",
  isFree: false,
  warnings: [],
  ...more,
});

/** A request with its pool. */
export interface Ask {
  state: State;
  pool: Pool;
  request: Request;
  isClaim: boolean;
  /** A preview has shown the values: if they are taken, the error is `PLAN_STALE`. */
  wasShown: boolean;
  /** What the program of the request was shown. */
  shown?: OfferRow | undefined;
}

export function choose(ask: Ask): Choice {
  const { request } = ask;
  const { spec } = ask.pool;
  if ((request.size ?? 1n) > 1n && spec.avoidBoundaryIps) throw noBlocksError(spec);
  if (request.values) return chooseByValue(ask, request.values);
  const found = chooseShared(ask) ?? chooseHeldBefore(ask);
  if (found) return found;
  if (spec.autoAssign === false || spec.allocation === "external") throw notRequestedError(spec);
  const choice = choiceOf([], { isFree: ask.pool.stored === spec });
  for (const range of [request.range, ...(request.secondRange ?? [])]) chooseAutomatic(ask, range, choice);
  return choice;
}

// By value

function chooseByValue(ask: Ask, values: ValueRange[]): Choice {
  const { state, request, wasShown } = ask;
  const { spec } = ask.pool;
  if (values.some((range) => sizeOf(range) > 1n) && spec.avoidBoundaryIps) throw noBlocksError(spec);
  for (const range of values) mustBeGivable(spec, range);
  endOverdue(state, request.pool, values);
  const choice = choiceOf(values);
  for (const holder of findBlockers(ask, values)) {
    const reason = isOffer(holder) ? undefined : mayEvict(ask, holder);
    if (!reason) throw heldError(spec, ask, values, holder, wasShown ? planStaleError : takenError);
    choice.evicted.push(holder as LeaseRow);
    choice.reason = reason;
  }
  choice.warnings.push(...warnOfPromised(ask, values));
  for (const lease of state.restingOn(request.pool, values)) {
    const shares = request.sharingKey !== undefined && isSameStack(lease.owner, request.owner);
    if (!isOwnHolder(state, request, lease) && !shares) choice.warnings.push(restingWarning(ask, lease));
  }
  return choice;
}

/** Rejects a request for a value that is reserved, or not in the pool. */
export function mustBeGivable(spec: PoolSpec, range: ValueRange): void {
  if (!covers(spec.ranges, [range])) throw outsideError(spec, range);
  if (isAvoided(spec, range) || overlapsAny(spec.reserved ?? [], range)) throw reservedError(spec, range);
}

function endOverdue(state: State, pool: string, ranges: ValueRange[]): void {
  for (const lease of state.holdersOf(pool, ranges))
    if (isOverdue(lease, state.now)) endLease(state, lease, "expired", { at: lease.expiresAt! });
}

/** Ranges of an address space that another run was shown. */
function warnOfPromised({ state, pool, request }: Ask, values: ValueRange[]): string[] {
  if (!request.pool.startsWith(SPACES)) return [];
  const offers = state.offersIn(request.pool).filter((offer) => touches(offer.ranges, values));
  const others = offers.filter((offer) => !isOwnHolder(state, request, offer) && !givesWay(state, offer, request));
  return others.slice(0, 1).map((offer) => rangePromisedWarning(pool.spec, values, show(state, offer)));
}

/** Leases and offers that keep these values from the request. */
export function findBlockers({ state, request }: Ask, ranges: ValueRange[]): Holder[] {
  const key = sharingKeyOf(request);
  const isInWay = (holder: Holder) => {
    const shares = key !== undefined && key === sharingKeyOf(holder) && equalRanges(holder.ranges, ranges);
    return touches(holder.ranges, ranges) && !shares && !isOwnHolder(state, request, holder);
  };
  const leases = state.holdersOf(request.pool, ranges).filter((lease) => isLive(lease, state.now) && isInWay(lease));
  const isFirstCome = request.pool.startsWith(SPACES);
  const offers = state
    .offersIn(request.pool)
    .filter(
      (offer) => isInWay(offer) && (isFirstCome ? isPromisedInRun(offer, request) : !givesWay(state, offer, request)),
    );
  return [...leases, ...offers];
}

/** Why the request may end this lease; undefined: it may not. Throws if the run is to say whether the lease ends. */
export function mayEvict(ask: Ask, lease: LeaseRow): Choice["reason"] | undefined {
  const { state, request, isClaim, shown } = ask;
  if (!mayChange(state, lease)) return isReclaimable(ask, lease) ? "reclaimed" : undefined;
  if (mayTake(request, lease) || request.mayEnd?.includes(lease.uid))
    return isEndable(state, lease) ? "handed over" : undefined;
  if (isReclaimable(ask, lease)) {
    const wasShown = isClaim && shown?.afterLease.includes(lease.uid);
    if (wasShown || !pickFree(ask, request.range, obstaclesOf(ask))) return "reclaimed";
  }
  return undefined;
}

/** A lease that was not seen for long, with nothing in its child pool, also in quarantine, and with no offer that waits for it. */
function isReclaimable({ state, pool, request }: Ask, lease: LeaseRow): boolean {
  if (!isInactive(pool.spec, lease, state.now)) return false;
  if (lease.childPool !== undefined && !isEmpty(state, lease.childPool)) return false;
  const waiting = state.offersIn(lease.pool).filter(({ afterLease }) => afterLease.includes(lease.uid));
  return waiting.every((offer) => isOwnHolder(state, request, offer) || givesWay(state, offer, request));
}

const isEmpty = (state: State, pool: string): boolean =>
  heldLeases(state, pool, 1).length === 0 &&
  state.restingIn(pool, Number.MAX_SAFE_INTEGER).every(({ freeAt = 0 }) => freeAt <= state.now) &&
  state.offersIn(pool).length === 0;

type HeldError = typeof takenError;

/** The error names the holder, so that the run can say whether its resource ends it. */
export function heldError(
  spec: PoolSpec,
  { state, request }: Ask,
  ranges: ValueRange[],
  holder: Holder,
  error: HeldError,
): OverlayError {
  const lease = show(state, holder);
  const range = ranges.find((each) => overlapsAny(holder.ranges, each))!;
  if (holder.sharingKey !== undefined && request.sharingKey !== undefined)
    return sharingConflictError(spec, range, request.sharingKey, lease).heldBy(lease);
  return error(spec, range, lease, request.owner).heldBy(lease);
}

// Shared values

/** The lowest value under the key of the request on which its ports are free. */
function chooseShared(ask: Ask): Choice | undefined {
  const { state, pool, request } = ask;
  const key = sharingKeyOf(request);
  if (key === undefined) return undefined;
  const holders: Holder[] = [
    ...state.sharersOf(request.pool, key).filter((lease) => isLive(lease, state.now)),
    ...state.offersIn(request.pool).filter((offer) => sharingKeyOf(offer) === key && !givesWay(state, offer, request)),
  ];
  const places = holders
    .filter((holder) => holder.owner !== request.owner && answers(holder, request) && fits(pool.spec, holder))
    .map(({ ranges }) => ranges)
    .sort(([a], [b]) => (a!.first < b!.first ? -1 : 1));
  // A value may be offered with the key in one program of a stack, and without it in another one.
  const isOpen = (ranges: ValueRange[]) => findBlockers(ask, ranges).length === 0;
  const free = places.find((ranges) => !findPortHolder(state, request, ranges, request.ports ?? []) && isOpen(ranges));
  const found = free ?? (request.onPortConflict === "anotherAddress" ? undefined : places.find(isOpen));
  return found && choiceOf(found);
}

// What the owner had

/** Ended leases of a resource whose values are tried again. */
export const REMEMBERED = 8;

/**
 * What the owner holds under its former name; what it held last, which is remembered for resources of stacks and else while it rests; what other
 * programs of its stack were offered.
 */
function chooseHeldBefore(ask: Ask): Choice | undefined {
  const { state, pool, request } = ask;
  const { owner, formerOwner, declared = [], onPortConflict, ports = [] } = request;
  const owners = [owner, ...(formerOwner === undefined ? [] : [formerOwner])];
  const isOwn = (lease: LeaseRow) => isOwnHolder(state, request, lease);
  const leases = owners.flatMap((each) => state.leasesOf(request.pool, each)).filter(isOwn);
  const former = leases.filter((lease) => lease.owner === formerOwner && isLive(lease, state.now));
  const remembered = owners
    .filter(isStackOwner)
    .flatMap((each) => state.endedOf(request.pool, each, REMEMBERED))
    .filter((lease) => isOwn(lease) && lease.endedAt! + KEPT_MS >= state.now);
  const ended = [...leases.filter(({ endedAt }) => endedAt !== undefined), ...remembered];
  const offered = state.offersOf(owner).filter((offer) => !offer.byValue && offer.expiresAt >= state.now);
  const candidates = [
    ...former,
    ...(request.preferred ? [{ pool: request.pool, ranges: request.preferred }] : []),
    ...ended.sort((a, b) => b.endedAt! - a.endedAt!),
    ...offered.sort((a, b) => b.updatedAt - a.updatedAt),
  ];
  const found = candidates.find(
    ({ pool: name, ranges }) =>
      answers({ pool: name, ranges }, request) &&
      mayAssign(pool.spec, ranges) &&
      !touches(ranges, declared) &&
      !(onPortConflict === "anotherAddress" && findPortHolder(state, request, ranges, ports)) &&
      findBlockers(ask, ranges).length === 0 &&
      state
        .restingOn(request.pool, ranges)
        .every((lease) => isOwnHolder(state, request, lease) || isOfSharer(lease, request)),
  );
  return found && choiceOf(found.ranges);
}

/** The last of the resources that shared the value has released it, and shares it again. */
const isOfSharer = (lease: LeaseRow, request: Request): boolean =>
  request.sharingKey !== undefined && isSameStack(lease.owner, request.owner);

/** Whether the pool gives these values to a request without values. */
export const mayAssign = (spec: PoolSpec, ranges: ValueRange[]): boolean =>
  fits(spec, { ranges }) &&
  spec.autoAssign !== false &&
  spec.allocation !== "external" &&
  covers(zonesOf(spec).automatic, ranges);

// Automatic choice

/** Adds a value to the choice: a free one, that which rests longest, one offered to other programs, or that of an inactive lease. */
function chooseAutomatic(ask: Ask, range: ValueRange | undefined, choice: Choice): void {
  const { state, pool, request } = ask;
  const zone = automaticZone(pool.spec, range);
  const isTaken = (ranges: ValueRange[]) => touches(ranges, [...choice.ranges, ...(request.declared ?? [])]);
  const free = pickFree(ask, range, [...obstaclesOf(ask), ...choice.ranges]);
  if (free) return void choice.ranges.push(free);
  choice.isFree = false;
  const rested = pickResting(ask, zone, isTaken);
  if (rested) {
    if (!isOwnHolder(state, request, rested.lease)) choice.warnings.push(restingWarning(ask, rested.lease));
    return void choice.ranges.push(rested.range);
  }
  const shownElsewhere = pickFree(ask, range, [...obstaclesOf(ask, true), ...choice.ranges]);
  if (shownElsewhere) return void choice.ranges.push(shownElsewhere);
  const inactive = findInactive(ask, zone, isTaken);
  if (!inactive) {
    // A declared value may be of another pool.
    const declared = pickFree(ask, range, [...offeredIn(ask, true), ...choice.ranges]);
    if (!declared) throw exhausted(ask);
    return void choice.ranges.push(declared);
  }
  choice.ranges.push(inactive.ranges[0]!);
  choice.evicted.push(inactive);
  choice.reason = "reclaimed";
}

/** Values that are not chosen: offered to others, and requested elsewhere in the program. `isLast`: offers to other programs do not count. */
const obstaclesOf = (ask: Ask, isLast = false): ValueRange[] => {
  const { declared = [] } = ask.request;
  const offered = offeredIn(ask, isLast);
  return declared.length === 0 ? offered : mergeRanges([...offered, ...declared]);
};

function offeredIn({ state, request }: Ask, isLast: boolean): ValueRange[] {
  const program = programOf(request);
  const all = state.offersIn(request.pool);
  const offers = all.filter((offer) => {
    const isOwn = offer.program === program && isOwnHolder(state, request, offer);
    return !isOwn && !(isLast && givesWay(state, offer, request));
  });
  return offers.length === all.length
    ? state.offeredRanges(request.pool)
    : mergeRanges(offers.flatMap(({ ranges }) => ranges));
}

function pickFree(ask: Ask, range: ValueRange | undefined, obstacles: ValueRange[]): ValueRange | undefined {
  const { spec } = ask.pool;
  const zone = automaticZone(spec, range);
  if (zone.length === 0) return undefined;
  const { first } = zone[0]!;
  const start = startOfSearch(zone, ask);
  return (
    lowestFree(ask, zone, start, obstacles) ?? (start > first ? lowestFree(ask, zone, first, obstacles) : undefined)
  );
}

/** With `hashed`, an owner gets the same value again while it is free, and two owners rarely start at the same value. */
function startOfSearch(zone: ValueRange[], { state, pool, request }: Ask): bigint {
  const { allocation } = pool.spec;
  if (allocation !== "hashed" && allocation !== "random") return zone[0]!.first;
  const seed = allocation === "hashed" ? request.owner : `${state.terms.seed} ${request.owner}`;
  return valueAtIndex(zone, BigInt(`0x${hash("sha256", seed, "hex")}`) % total(zone));
}

/** The lowest free values of the size of the request, aligned to it, not before `from`. */
function lowestFree(ask: Ask, zone: ValueRange[], from: bigint, obstacles: ValueRange[]): ValueRange | undefined {
  const { size = 1n } = ask.request;
  const end = zone.at(-1)!.last;
  for (const free of freeRanges(ask, from)) {
    if (free.first > end) return undefined;
    for (const part of subtract(intersect([free], zone), obstacles)) {
      const first = alignUp(ask.pool.spec, max(part.first, from), size);
      if (first + size - 1n <= min(part.last, end)) return { first, last: first + size - 1n };
    }
  }
  return undefined;
}

/**
 * Free ranges for any request that end at `from` or later. If the program changes the pool, they are those of both zones, and what only the
 * changed pool has.
 */
function* freeRanges({ state, pool, request }: Ask, from: bigint): Generator<ValueRange> {
  const { spec, stored } = pool;
  const { automatic } = zonesOf(spec);
  if (!stored) return yield* automatic.filter(({ last }) => last >= from);
  const freeFrom = (zone: Zone) => state.space(request.pool, zone).from(from);
  if (stored === spec) return yield* freeFrom("a");
  const { automatic: before, onRequest } = zonesOf(stored);
  const added = subtract(automatic, [...before, ...onRequest]);
  yield* mergeRanges([...freeFrom("a"), ...freeFrom("r"), ...added]).filter(({ last }) => last >= from);
}

export function alignUp(spec: PoolSpec, value: bigint, size: bigint): bigint {
  let first = ((value + size - 1n) / size) * size;
  while (size === 1n && spec.avoidBoundaryIps && isBoundary(first)) first++;
  return first;
}

/** Leases that are read at once to find one that can be given up. */
const PAGE = 64;

/** The values that are longest in quarantine. */
function pickResting(
  ask: Ask,
  zone: ValueRange[],
  isTaken: (ranges: ValueRange[]) => boolean,
): { lease: LeaseRow; range: ValueRange } | undefined {
  const { state, pool, request } = ask;
  const { size = 1n } = request;
  for (let page = PAGE; ; page *= 8) {
    const leases = state.restingIn(request.pool, page);
    for (const lease of leases) {
      const range = lease.resting!.find(
        (each) => sizeOf(each) === size && covers(zone, [each]) && !isAvoided(pool.spec, each),
      );
      if (range && !isTaken([range]) && findBlockers(ask, [range]).length === 0) return { lease, range };
    }
    if (leases.length < page) return undefined;
  }
}

/** The inactive lease that was not seen for longest. */
function findInactive(ask: Ask, zone: ValueRange[], isTaken: (ranges: ValueRange[]) => boolean): LeaseRow | undefined {
  const { state, pool, request } = ask;
  if (pool.spec.reclaimAfter === undefined) return undefined;
  const serves = ({ ranges }: LeaseRow) =>
    covers(zone, [ranges[0]!]) && sizeOf(ranges[0]!) === (request.size ?? 1n) && !isTaken(ranges);
  for (let page = PAGE; ; page *= 8) {
    const leases = state.idlest(request.pool, page);
    const found = leases.find((lease) => serves(lease) && isReclaimable(ask, lease));
    // After the first active lease, all are active.
    if (found || leases.length < page || leases.some((lease) => !isInactive(pool.spec, lease, state.now))) return found;
  }
}

function exhausted({ state, pool, request }: Ask): OverlayError {
  const holders: Holder[] = [...heldLeases(state, request.pool, 5), ...state.offersIn(request.pool)];
  return exhaustedError(
    pool.spec,
    holders.slice(0, 5).map((holder) => show(state, holder)),
  );
}

const restingWarning = ({ state, pool }: Ask, lease: LeaseRow): string =>
  quarantineWarning(pool.spec, lease.ranges, show(state, lease));
