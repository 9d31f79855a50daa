import { hash } from "node:crypto";
import { OverlayError } from "../errors";
import { capitalize, describePool } from "../pool-names";
import type { Draft } from "./draft";
import { common, isBoundary, larger, smaller, total, trimmed, valueAt, widened, without, zonesOf } from "./extents";
import { freeFrom, freeKey, type Tree } from "./keys";
import type { Extent, PoolSpec } from "./types";

/** Free space: two trees of extents keyed by their end, so that every question is one seek, full or empty. */
export const trees = (spec: PoolSpec): [Tree, Extent[]][] => {
  const { automatic, onRequest } = zonesOf(spec);
  return [
    ["f", automatic],
    ["g", onRequest],
  ];
};

/** Takes values that are known to be free. */
export async function take(tx: Draft, spec: PoolSpec, extents: Extent[]): Promise<void> {
  for (const [tree, zone] of trees(spec)) {
    for (const piece of common(extents, zone)) await cut(tx, spec, tree, piece);
  }
}

async function cut(tx: Draft, spec: PoolSpec, tree: Tree, piece: Extent): Promise<void> {
  const free = await tx.first(freeFrom(tree, spec.name, piece.last));
  if (!free || free.first > piece.first) {
    throw new OverlayError(
      "STORE_CORRUPT",
      `${capitalize(describePool(spec.name))} has no record of its free space around ${piece.first}.`,
      "Run `overlayctl store check --repair`.",
    );
  }
  tx.delete(freeKey(tree, spec.name, free.last));
  for (const rest of without([free], [piece])) putFree(tx, spec, tree, rest);
}

/** Gives values back, and joins them with their free neighbours. */
export async function give(tx: Draft, spec: PoolSpec, extents: Extent[]): Promise<void> {
  for (const [tree, zone] of trees(spec)) {
    for (const piece of common(extents, zone)) await join(tx, spec, tree, widened(spec, piece, zone));
  }
}

async function join(tx: Draft, spec: PoolSpec, tree: Tree, piece: Extent): Promise<void> {
  const { name } = spec;
  const before = piece.first > 0n ? await tx.get(freeKey(tree, name, piece.first - 1n)) : undefined;
  const next = await tx.first(freeFrom(tree, name, piece.last + 1n));
  const behind = next?.first === piece.last + 1n ? next : undefined;
  // The neighbour behind has the same end, and is overwritten.
  if (before) tx.delete(freeKey(tree, name, before.last));
  putFree(tx, spec, tree, { first: before?.first ?? piece.first, last: behind?.last ?? piece.last });
}

function putFree(tx: Draft, spec: PoolSpec, tree: Tree, extent: Extent): void {
  const kept = trimmed(spec, extent);
  if (kept) tx.put(freeKey(tree, spec.name, kept.last), kept);
}

/** For whom a value is picked. */
export interface Picker {
  owner: string;
  /** What random picks go by. Drawn once for an operation: run again, it looks in the same place, where all is known by then. */
  chance: string;
}

/** Where the pool would let somebody sit if it had the choice; undefined when nothing is free. */
export async function pick(
  tx: Draft,
  spec: PoolSpec,
  picker: Picker,
  size: bigint,
  within?: Extent,
): Promise<Extent | undefined> {
  const zone = within ? common(zonesOf(spec).automatic, [within]) : zonesOf(spec).automatic;
  if (zone.length === 0) return undefined;
  const bounds = { first: zone[0]!.first, last: zone.at(-1)!.last };
  const start = startIn(zone, spec.allocation, picker);
  return (
    (await lowest(tx, spec, { ...bounds, first: start }, size)) ??
    (start > bounds.first ? await lowest(tx, spec, bounds, size) : undefined)
  );
}

/** Hashed picks give an owner the same value again wherever it is still free, and two previews rarely the same one. */
function startIn(zone: Extent[], allocation: PoolSpec["allocation"], { owner, chance }: Picker): bigint {
  if (allocation !== "hashed" && allocation !== "random") return zone[0]!.first;
  const digits = hash("sha256", allocation === "hashed" ? owner : chance, "hex");
  return valueAt(zone, BigInt(`0x${digits}`) % total(zone));
}

/** One seek for single values; only aligned blocks in a fragmented pool may need several. */
async function lowest(tx: Draft, spec: PoolSpec, { first, last }: Extent, size: bigint): Promise<Extent | undefined> {
  for (let at = first; ; ) {
    const free = await tx.first(freeFrom("f", spec.name, at));
    if (!free || free.first > last) return undefined;
    const start = aligned(spec, larger(free.first, at), size);
    if (start + size - 1n <= smaller(free.last, last)) return { first: start, last: start + size - 1n };
    at = free.last + 1n;
  }
}

function aligned(spec: PoolSpec, value: bigint, size: bigint): bigint {
  let start = ((value + size - 1n) / size) * size;
  while (size === 1n && spec.avoidBoundaryIps && isBoundary(start)) start++;
  return start;
}
