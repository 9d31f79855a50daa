import { mergeRanges, overlaps, V4_START } from "../addressing/ip";
import type { PoolSpec, ValueRange } from "./types";

export { mergeRanges };

/** Arithmetic of ranges. Lists that are returned are sorted, disjoint and not adjacent. */

export const single = (value: bigint): ValueRange => ({ first: value, last: value });
export const sizeOf = ({ first, last }: ValueRange): bigint => last - first + 1n;
export const total = (ranges: ValueRange[]): bigint => ranges.reduce((sum, range) => sum + sizeOf(range), 0n);
export const overlapsAny = (ranges: ValueRange[], other: ValueRange): boolean =>
  ranges.some((range) => overlaps(range, other));

/** For many comparisons with the same ranges: whether one of others overlaps one of them. */
export function overlapWith(ranges: ValueRange[]): (others: ValueRange[]) => boolean {
  const merged = ranges.length > 1 ? mergeRanges(ranges) : ranges;
  return (others) =>
    others.some(({ first, last }) => {
      let [low, high] = [0, merged.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (merged[middle]!.last < first) low = middle + 1;
        else high = middle;
      }
      return low < merged.length && merged[low]!.first <= last;
    });
}

export const max = (a: bigint, b: bigint): bigint => (a > b ? a : b);
export const min = (a: bigint, b: bigint): bigint => (a < b ? a : b);

/** Where a lease is in a list of leases: the next page is `after` this value. */
export const positionOf = ({ ranges }: { ranges: ValueRange[] }): bigint =>
  ranges.map(({ last }) => last).reduce((a, b) => min(a, b));

export const equalRanges = (a: ValueRange[], b: ValueRange[]): boolean =>
  a.length === b.length && a.every((range, i) => range.first === b[i]!.first && range.last === b[i]!.last);

export function intersect(some: ValueRange[], others: ValueRange[]): ValueRange[] {
  const [a, b] = [mergeRanges(some), mergeRanges(others)];
  const result: ValueRange[] = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    const [x, y] = [a[i]!, b[j]!];
    if (overlaps(x, y)) result.push({ first: max(x.first, y.first), last: min(x.last, y.last) });
    if (x.last < y.last) i++;
    else j++;
  }
  return result;
}

export function subtract(ranges: ValueRange[], holes: ValueRange[]): ValueRange[] {
  const gaps = mergeRanges(holes);
  const result: ValueRange[] = [];
  let next = 0;
  for (const { first, last } of mergeRanges(ranges)) {
    while (next < gaps.length && gaps[next]!.last < first) next++;
    let from = first;
    for (let i = next; i < gaps.length && gaps[i]!.first <= last; i++) {
      if (gaps[i]!.first > from) result.push({ first: from, last: gaps[i]!.first - 1n });
      from = gaps[i]!.last + 1n;
    }
    if (from <= last) result.push({ first: from, last });
  }
  return result;
}

export const covers = (ranges: ValueRange[], parts: ValueRange[]): boolean => subtract(parts, ranges).length === 0;

/** The value at `index` when all values of the ranges are counted through from 0. */
export function valueAtIndex(ranges: ValueRange[], index: bigint): bigint {
  let rest = index;
  for (const range of ranges) {
    if (rest < sizeOf(range)) return range.first + rest;
    rest -= sizeOf(range);
  }
  throw new RangeError(`index ${index} is past the end of the ranges`);
}

const V4: ValueRange = { first: V4_START, last: V4_START + 0xffff_ffffn };

export const isIpv4 = (value: bigint): boolean => value >= V4.first && value <= V4.last;

/** IPv4 addresses that end in .0 or .255, which some old clients refuse. */
export const isBoundary = (value: bigint): boolean => ((value + 1n) & 0xfen) === 0n && isIpv4(value);

/** How many of them the ranges have: two in each 256. */
function countBoundaries(ranges: ValueRange[]): bigint {
  const below = (value: bigint): bigint => ((value + 255n) >> 8n) + (value >> 8n);
  return intersect(ranges, [V4]).reduce((sum, { first, last }) => sum + below(last + 1n) - below(first), 0n);
}

/** The values of a pool: `automatic` for any request, `onRequest` for requests by value only. */
export interface Zones {
  automatic: ValueRange[];
  onRequest: ValueRange[];
}

const zones = new WeakMap<PoolSpec, Zones>();

export function zonesOf(spec: PoolSpec): Zones {
  const known = zones.get(spec) ?? computeZones(spec);
  zones.set(spec, known);
  return known;
}

/** The values that a request without values can get, within these bounds. */
export const automaticZone = (spec: PoolSpec, within: ValueRange | undefined): ValueRange[] =>
  within ? intersect(zonesOf(spec).automatic, [within]) : zonesOf(spec).automatic;

function computeZones(spec: PoolSpec): Zones {
  const usable = subtract(spec.ranges, spec.reserved ?? []);
  const onRequest = intersect(usable, spec.staticOnly ?? []);
  return { automatic: subtract(usable, onRequest), onRequest };
}

/** Whether `avoidBoundaryIps` excludes it. */
export const isAvoided = ({ avoidBoundaryIps }: PoolSpec, range: ValueRange): boolean =>
  avoidBoundaryIps === true && (sizeOf(range) > 1n || isBoundary(range.first));

/** Whether these values belong to the pool. */
export function fits(spec: PoolSpec, { ranges }: { ranges: ValueRange[] }): boolean {
  const { automatic, onRequest } = zonesOf(spec);
  return !ranges.some((range) => isAvoided(spec, range)) && covers([...automatic, ...onRequest], ranges);
}

export function capacityOf(spec: PoolSpec): bigint {
  const usable = subtract(spec.ranges, spec.reserved ?? []);
  return total(usable) - (spec.avoidBoundaryIps ? countBoundaries(usable) : 0n);
}

/**
 * A free range as it is stored. With `avoidBoundaryIps`, .0 and .255 are cut from both ends, so that every stored range has a value to give
 * and one seek finds that a pool is full. Between the ends they stay.
 */
export function trimBoundaries(spec: PoolSpec, { first, last }: ValueRange): ValueRange | undefined {
  let [from, to] = [first, last];
  while (spec.avoidBoundaryIps && from <= to && isBoundary(from)) from++;
  while (spec.avoidBoundaryIps && from <= to && isBoundary(to)) to--;
  return from <= to ? { first: from, last: to } : undefined;
}

/** The opposite of `trimBoundaries`: adds adjacent values that are avoided. */
export function addBoundaries(spec: PoolSpec, { first, last }: ValueRange, zone: ValueRange[]): ValueRange {
  const avoided = (value: bigint) => isBoundary(value) && overlapsAny(zone, single(value));
  let [from, to] = [first, last];
  while (spec.avoidBoundaryIps && avoided(from - 1n)) from--;
  while (spec.avoidBoundaryIps && avoided(to + 1n)) to++;
  return { first: from, last: to };
}

export const freeIn = (spec: PoolSpec, zone: ValueRange[], taken: ValueRange[]): ValueRange[] =>
  subtract(zone, taken).flatMap((range) => trimBoundaries(spec, range) ?? []);
