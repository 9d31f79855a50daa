import { randomBytes } from "node:crypto";
import { toLine } from "../../provider/addressing/line";
import { countsKey, poolKey, timeKey } from "../../provider/pool/keys";
import { freeRows } from "../../provider/pool/pools";
import { rowsOf } from "../../provider/pool/rows";
import type { Row } from "../../provider/pool/store";
import type { Extent, Lease, Pool, PoolSpec } from "../../provider/pool/types";
import type { Engine } from "../engines";

/** A pool, and how full it is when claims in it are timed. */
export interface Case {
  name: string;
  spec: PoolSpec;
  leases: number;
}

const block = (network: string, prefix: number): Extent => {
  const first = toLine(network);
  return { first, last: first + (1n << BigInt((network.includes(":") ? 128 : 32) - prefix)) - 1n };
};
const CAPACITY = 1 << 14;

const of18 = (name: string, network: string, share: number): Case => ({
  name: `/18, ${name}`,
  spec: { name: `pool/${name}`, kind: "address", extents: [block(network, 18)], allocation: "lowest" },
  leases: Math.floor(CAPACITY * share),
});
const large = (name: string, network: string, prefix: number, leases: number): Case => ({
  name: `/${prefix}, ${leases.toLocaleString("en")} leases`,
  spec: { name: `pool/${name}`, kind: "address", extents: [block(network, prefix)], allocation: "random" },
  leases,
});

/** A /18 is filled from the bottom, as "lowest" leaves it; the large ones at random, with a gap behind every lease. */
export const cases = (many: number): Case[] => [
  of18("empty", "172.16.0.0", 0),
  of18("90 %", "172.17.0.0", 0.9),
  of18("99.9 %", "172.18.0.0", 0.999),
  large("v4", "10.0.0.0", 8, many),
  large("v6", "fd00::", 64, many),
];

/** How many more it can take, as far as that matters. */
export const roomIn = ({ spec: { extents }, leases }: Case): number =>
  Math.min(1e6, Number(extents[0]!.last - extents[0]!.first) + 1 - leases);

/** Opens the pool of a case the way users do. */
export async function openCase(pool: Pool, { spec }: Case): Promise<void> {
  const request = { pool: "space/default", owner: `opener of ${spec.name}`, type: "IPPool", want: spec.extents };
  await pool.claim({ ...request, opens: spec });
}

/** Fills it with rows instead of claims: all that `fsck` wants to see, in a hundredth of the time. */
export const fillCase = (engine: Engine, one: Case): Promise<void> => engine.load(rowsFor(one));

export function rowsFor({ spec, leases: count }: Case): Row[] {
  const values = spec.allocation === "random" ? scattered(spec.extents[0]!, count) : fromBottom(spec.extents[0]!, count);
  const leases = values.map((value, i) => leaseOn(spec.name, value, i));
  const counts = { offered: 0, reserved: leases.length, used: 0, resting: 0, held: BigInt(leases.length) };
  const rows: Row[] = leases.flatMap((lease) => [...rowsOf(lease)]);
  return [...rows, ...freeRows(spec, leases), [countsKey(spec.name).at, countsKey(spec.name).codec.encode(counts)]];
}

const fromBottom = ({ first }: Extent, count: number): bigint[] => Array.from({ length: count }, (_, i) => first + BigInt(i));

function scattered({ first, last }: Extent, count: number): bigint[] {
  const values = new Set<bigint>();
  while (values.size < count) values.add(first + (randomBytes(8).readBigUInt64BE() % (last - first + 1n)));
  return [...values];
}

function leaseOn(pool: string, value: bigint, i: number): Lease {
  const uid = i.toString(16).padStart(16, "0");
  const at = Date.now();
  const times = { createdAt: at, updatedAt: at, lastSeen: at };
  const extents = [{ first: value, last: value }];
  const who = { pool, owner: `filler ${i}`, type: "IPReservation" };
  return { ...who, extents, state: "reserved", uid, leaseId: `${uid}.${uid}`, ...times };
}
