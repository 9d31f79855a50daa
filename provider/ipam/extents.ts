import { mergeExtents, overlaps, V4_START } from "../addressing/ip";
import type { Extent, PoolSpec } from "./types";

export { mergeExtents };

/** Arithmetic of extents. Lists that are returned are sorted, disjoint and not adjacent. */

export const single = (value: bigint): Extent => ({ first: value, last: value });
export const sizeOf = ({ first, last }: Extent): bigint => last - first + 1n;
export const total = (extents: Extent[]): bigint => extents.reduce((sum, extent) => sum + sizeOf(extent), 0n);
export const overlapsAny = (extents: Extent[], other: Extent): boolean =>
  extents.some((extent) => overlaps(extent, other));
export const max = (a: bigint, b: bigint): bigint => (a > b ? a : b);
export const min = (a: bigint, b: bigint): bigint => (a < b ? a : b);

/** Where a lease is in a list of leases: the next page is `after` this value. */
export const positionOf = ({ extents }: { extents: Extent[] }): bigint =>
  extents.map(({ last }) => last).reduce((a, b) => min(a, b));

export const sameExtents = (a: Extent[], b: Extent[]): boolean =>
  a.length === b.length && a.every((extent, i) => extent.first === b[i]!.first && extent.last === b[i]!.last);

export function intersect(some: Extent[], others: Extent[]): Extent[] {
  const [a, b] = [mergeExtents(some), mergeExtents(others)];
  const result: Extent[] = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    const [x, y] = [a[i]!, b[j]!];
    if (overlaps(x, y)) result.push({ first: max(x.first, y.first), last: min(x.last, y.last) });
    if (x.last < y.last) i++;
    else j++;
  }
  return result;
}

export function subtract(extents: Extent[], holes: Extent[]): Extent[] {
  const gaps = mergeExtents(holes);
  const result: Extent[] = [];
  let next = 0;
  for (const { first, last } of mergeExtents(extents)) {
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

export const covers = (extents: Extent[], parts: Extent[]): boolean => subtract(parts, extents).length === 0;

/** The value at `index` when all values of the extents are counted through from 0. */
export function valueAtIndex(extents: Extent[], index: bigint): bigint {
  let rest = index;
  for (const extent of extents) {
    if (rest < sizeOf(extent)) return extent.first + rest;
    rest -= sizeOf(extent);
  }
  throw new RangeError(`index ${index} is past the end of the extents`);
}

const V4: Extent = { first: V4_START, last: V4_START + 0xffff_ffffn };

export const isIpv4 = (value: bigint): boolean => value >= V4.first && value <= V4.last;

/** IPv4 addresses that end in .0 or .255, which some old clients refuse. */
export const isBoundary = (value: bigint): boolean => ((value + 1n) & 0xfen) === 0n && isIpv4(value);

/** How many of them the extents have: two in each 256. */
function countBoundaries(extents: Extent[]): bigint {
  const below = (value: bigint): bigint => ((value + 255n) >> 8n) + (value >> 8n);
  return intersect(extents, [V4]).reduce((sum, { first, last }) => sum + below(last + 1n) - below(first), 0n);
}

/** The values of a pool: `automatic` for any request, `onRequest` for requests by value only. */
export interface Zones {
  automatic: Extent[];
  onRequest: Extent[];
}

const zones = new WeakMap<PoolSpec, Zones>();

export function zonesOf(spec: PoolSpec): Zones {
  const known = zones.get(spec) ?? computeZones(spec);
  zones.set(spec, known);
  return known;
}

/** The values that a request without values can get, within these bounds. */
export const automaticZone = (spec: PoolSpec, within: Extent | undefined): Extent[] =>
  within ? intersect(zonesOf(spec).automatic, [within]) : zonesOf(spec).automatic;

function computeZones(spec: PoolSpec): Zones {
  const usable = subtract(spec.extents, spec.reserved ?? []);
  const onRequest = intersect(usable, spec.staticOnly ?? []);
  return { automatic: subtract(usable, onRequest), onRequest };
}

/** Whether `avoidBoundaryIps` excludes it. */
export const isAvoided = ({ avoidBoundaryIps }: PoolSpec, extent: Extent): boolean =>
  avoidBoundaryIps === true && (sizeOf(extent) > 1n || isBoundary(extent.first));

/** Whether these values belong to the pool. */
export function fits(spec: PoolSpec, { extents }: { extents: Extent[] }): boolean {
  const { automatic, onRequest } = zonesOf(spec);
  return !extents.some((extent) => isAvoided(spec, extent)) && covers([...automatic, ...onRequest], extents);
}

export function capacityOf(spec: PoolSpec): bigint {
  const usable = subtract(spec.extents, spec.reserved ?? []);
  return total(usable) - (spec.avoidBoundaryIps ? countBoundaries(usable) : 0n);
}

/**
 * A free extent as it is stored. With `avoidBoundaryIps`, .0 and .255 are cut from both ends, so that every stored extent has a value to give
 * and one seek finds that a pool is full. Between the ends they stay.
 */
export function trimBoundaries(spec: PoolSpec, { first, last }: Extent): Extent | undefined {
  let [from, to] = [first, last];
  while (spec.avoidBoundaryIps && from <= to && isBoundary(from)) from++;
  while (spec.avoidBoundaryIps && from <= to && isBoundary(to)) to--;
  return from <= to ? { first: from, last: to } : undefined;
}

/** The opposite of `trimBoundaries`: adds adjacent values that are avoided. */
export function addBoundaries(spec: PoolSpec, { first, last }: Extent, zone: Extent[]): Extent {
  const avoided = (value: bigint) => isBoundary(value) && overlapsAny(zone, single(value));
  let [from, to] = [first, last];
  while (spec.avoidBoundaryIps && avoided(from - 1n)) from--;
  while (spec.avoidBoundaryIps && avoided(to + 1n)) to++;
  return { first: from, last: to };
}

export const freeIn = (spec: PoolSpec, zone: Extent[], taken: Extent[]): Extent[] =>
  subtract(zone, taken).flatMap((extent) => trimBoundaries(spec, extent) ?? []);
