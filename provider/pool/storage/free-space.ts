import { hash } from "node:crypto";
import { OverlayError } from "../../errors";
import { capitalize, describePool } from "../../pool-names";
import {
  addBoundaries,
  automaticZone,
  intersect,
  isBoundary,
  max,
  min,
  subtract,
  total,
  trimBoundaries,
  valueAtIndex,
  zonesOf,
} from "../extents";
import type { Extent, PoolSpec } from "../types";
import { freeFrom, freeKey, type Tree } from "./keys";
import type { WriteBuffer } from "./write-buffer";

/** Free space: two ordered indexes of extents, keyed by their end, so that each query is one seek in a full pool, too. */
export const freeTrees = (spec: PoolSpec): [Tree, Extent[]][] => {
  const { automatic, onRequest } = zonesOf(spec);
  return [
    ["f", automatic],
    ["g", onRequest],
  ];
};

/** Removes values from the free space. They must be free. */
export async function takeFree(tx: WriteBuffer, spec: PoolSpec, extents: Extent[]): Promise<void> {
  for (const [tree, zone] of freeTrees(spec)) {
    for (const piece of intersect(extents, zone)) await cutFree(tx, spec, tree, piece);
  }
}

async function cutFree(tx: WriteBuffer, spec: PoolSpec, tree: Tree, piece: Extent): Promise<void> {
  const free = await tx.first(freeFrom(tree, spec.name, piece.last));
  if (!free || free.first > piece.first) {
    throw new OverlayError(
      "STORE_CORRUPT",
      `${capitalize(describePool(spec.name))} has no record of its free space around ${piece.first}.`,
      "Run `overlayctl store check --repair`.",
    );
  }
  tx.delete(freeKey(tree, spec.name, free.last));
  for (const rest of subtract([free], [piece])) putFree(tx, spec, tree, rest);
}

/** Adds values to the free space, and merges adjacent extents. */
export async function addFree(tx: WriteBuffer, spec: PoolSpec, extents: Extent[]): Promise<void> {
  for (const [tree, zone] of freeTrees(spec)) {
    for (const piece of intersect(extents, zone)) await mergeFree(tx, spec, tree, addBoundaries(spec, piece, zone));
  }
}

async function mergeFree(tx: WriteBuffer, spec: PoolSpec, tree: Tree, piece: Extent): Promise<void> {
  const { name } = spec;
  const before = piece.first > 0n ? await tx.get(freeKey(tree, name, piece.first - 1n)) : undefined;
  const next = await tx.first(freeFrom(tree, name, piece.last + 1n));
  const behind = next?.first === piece.last + 1n ? next : undefined;
  // The extent behind has the same key, and is overwritten.
  if (before) tx.delete(freeKey(tree, name, before.last));
  putFree(tx, spec, tree, { first: before?.first ?? piece.first, last: behind?.last ?? piece.last });
}

function putFree(tx: WriteBuffer, spec: PoolSpec, tree: Tree, extent: Extent): void {
  const kept = trimBoundaries(spec, extent);
  if (kept) tx.put(freeKey(tree, spec.name, kept.last), kept);
}

/** What the choice of a free value depends on. */
export interface Picker {
  owner: string;
  /** Of random choices. Drawn once per operation: a retry searches the same place, whose rows are cached by then. */
  seed: string;
  /** Never chosen. */
  avoid?: Extent[] | undefined;
}

/** A free extent by the allocation of the pool; undefined if there is none. */
export async function pickFree(
  tx: WriteBuffer,
  spec: PoolSpec,
  picker: Picker,
  size: bigint,
  within?: Extent,
): Promise<Extent | undefined> {
  const whole = automaticZone(spec, within);
  const zone = subtract(whole, picker.avoid ?? []);
  if (zone.length === 0) return undefined;
  const { first } = zone[0]!;
  const start = startOfSearch(whole, spec.allocation, picker);
  return (
    (await lowestFree(tx, spec, zone, start, size)) ??
    (start > first ? await lowestFree(tx, spec, zone, first, size) : undefined)
  );
}

/** With `hashed`, an owner gets the same value again while it is free, and two owners rarely start at the same value. */
function startOfSearch(zone: Extent[], allocation: PoolSpec["allocation"], { owner, seed }: Picker): bigint {
  if (allocation !== "hashed" && allocation !== "random") return zone[0]!.first;
  const digits = hash("sha256", allocation === "hashed" ? owner : seed, "hex");
  return valueAtIndex(zone, BigInt(`0x${digits}`) % total(zone));
}

/**
 * The lowest free extent of this size in the zone, not before `from`. One seek for single values; only aligned blocks in a fragmented pool may
 * need several.
 */
async function lowestFree(
  tx: WriteBuffer,
  spec: PoolSpec,
  zone: Extent[],
  from: bigint,
  size: bigint,
): Promise<Extent | undefined> {
  let at = from;
  let free: Extent | undefined;
  for (const part of zone) {
    at = max(at, part.first);
    while (at <= part.last) {
      if (!free || free.last < at) free = await tx.first(freeFrom("f", spec.name, at));
      if (!free) return undefined;
      const start = alignUp(spec, max(free.first, at), size);
      const last = min(free.last, part.last);
      if (start + size - 1n <= last) return { first: start, last: start + size - 1n };
      at = last + 1n;
    }
  }
  return undefined;
}

export function alignUp(spec: PoolSpec, value: bigint, size: bigint): bigint {
  let start = ((value + size - 1n) / size) * size;
  while (size === 1n && spec.avoidBoundaryIps && isBoundary(start)) start++;
  return start;
}
