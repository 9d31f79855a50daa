import { hash } from "node:crypto";
import { OverlayError } from "../../errors";
import { capitalize, describePool } from "../../pool-names";
import {
  addBoundaries,
  intersect,
  isBoundary,
  max,
  min,
  subtract,
  total,
  trimBoundaries,
  valueAt,
  zonesOf,
} from "../extents";
import type { Extent, PoolSpec } from "../types";
import { freeFrom, freeKey, type Tree } from "./keys";
import type { WriteBuffer } from "./write-buffer";

/** Free space: two trees of extents keyed by their end, so that every question is one seek, full or empty. */
export const freeTrees = (spec: PoolSpec): [Tree, Extent[]][] => {
  const { automatic, onRequest } = zonesOf(spec);
  return [
    ["f", automatic],
    ["g", onRequest],
  ];
};

/** Takes values that are known to be free. */
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

/** Gives values back, and joins them with their free neighbours. */
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
  // The neighbour behind has the same end, and is overwritten.
  if (before) tx.delete(freeKey(tree, name, before.last));
  putFree(tx, spec, tree, { first: before?.first ?? piece.first, last: behind?.last ?? piece.last });
}

function putFree(tx: WriteBuffer, spec: PoolSpec, tree: Tree, extent: Extent): void {
  const kept = trimBoundaries(spec, extent);
  if (kept) tx.put(freeKey(tree, spec.name, kept.last), kept);
}

/** For whom a value is picked. */
export interface Picker {
  owner: string;
  /** What random picks go by. Drawn once for an operation: run again, it looks in the same place, where all is known by then. */
  seed: string;
}

/** Where the pool would let somebody sit if it had the choice; undefined when nothing is free. */
export async function pickFree(
  tx: WriteBuffer,
  spec: PoolSpec,
  picker: Picker,
  size: bigint,
  within?: Extent,
): Promise<Extent | undefined> {
  const zone = within ? intersect(zonesOf(spec).automatic, [within]) : zonesOf(spec).automatic;
  if (zone.length === 0) return undefined;
  const bounds = { first: zone[0]!.first, last: zone.at(-1)!.last };
  const start = startOfSearch(zone, spec.allocation, picker);
  return (
    (await lowestFree(tx, spec, { ...bounds, first: start }, size)) ??
    (start > bounds.first ? await lowestFree(tx, spec, bounds, size) : undefined)
  );
}

/** Hashed picks give an owner the same value again wherever it is still free, and two previews rarely the same one. */
function startOfSearch(zone: Extent[], allocation: PoolSpec["allocation"], { owner, seed: chance }: Picker): bigint {
  if (allocation !== "hashed" && allocation !== "random") return zone[0]!.first;
  const digits = hash("sha256", allocation === "hashed" ? owner : chance, "hex");
  return valueAt(zone, BigInt(`0x${digits}`) % total(zone));
}

/** One seek for single values; only aligned blocks in a fragmented pool may need several. */
async function lowestFree(
  tx: WriteBuffer,
  spec: PoolSpec,
  { first, last }: Extent,
  size: bigint,
): Promise<Extent | undefined> {
  for (let at = first; ; ) {
    const free = await tx.first(freeFrom("f", spec.name, at));
    if (!free || free.first > last) return undefined;
    const start = alignUp(spec, max(free.first, at), size);
    if (start + size - 1n <= min(free.last, last)) return { first: start, last: start + size - 1n };
    at = free.last + 1n;
  }
}

function alignUp(spec: PoolSpec, value: bigint, size: bigint): bigint {
  let start = ((value + size - 1n) / size) * size;
  while (size === 1n && spec.avoidBoundaryIps && isBoundary(start)) start++;
  return start;
}
