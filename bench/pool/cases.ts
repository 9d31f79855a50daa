import { createHash, randomBytes } from "node:crypto";
import { parseIp } from "../../provider/addressing/ip";
import type { Ipam, PoolSpec, ValueRange } from "../../provider/ipam";
import { zonesIn } from "../../provider/ipam/decide/free-space";
import type { LeaseRow } from "../../provider/ipam/decide/rows";
import { freeIn } from "../../provider/ipam/ranges";
import type { Content, Engine } from "../engines";

/** A pool, and how full it is when claims in it are timed. */
export interface Case {
  name: string;
  cidr: string;
  spec: PoolSpec;
  leases: number;
  /** From the first address on, as with "lowest"; or at random, with a gap after every lease. */
  filled: "from the bottom" | "at random";
}

const of18 = (share: number, name: string, network: string): Case => ({
  name: `/18, ${name}`,
  ...pool(`${network}/18`, "lowest"),
  leases: Math.floor((1 << 14) * share),
  filled: "from the bottom",
});

const large = (leases: number, cidr: string): Case => ({
  name: `${cidr.slice(cidr.indexOf("/"))}, ${leases.toLocaleString("en")} leases`,
  ...pool(cidr, "random"),
  leases,
  filled: "at random",
});

function pool(cidr: string, allocation: PoolSpec["allocation"]): Pick<Case, "cidr" | "spec"> {
  const [network, prefix] = cidr.split("/") as [string, string];
  const first = parseIp(network);
  const last = first + (1n << BigInt((network.includes(":") ? 128 : 32) - Number(prefix))) - 1n;
  return { cidr, spec: { name: `pool/${cidr}`, kind: "address", ranges: [{ first, last }], allocation } };
}

export const EMPTY = "/18, empty";
export const NEARLY_FULL = "/18, 90 %";

export const casesWith = (many: number): Case[] => [
  of18(0, "empty", "172.16.0.0"),
  of18(0.9, "90 %", "172.17.0.0"),
  of18(0.999, "99.9 %", "172.18.0.0"),
  large(many, "10.0.0.0/8"),
  large(many, "fd00::/64"),
];

/** How many more leases fit, at most a million. */
export const roomIn = ({ spec: { ranges }, leases }: Case): number =>
  Math.min(1e6, Number(ranges[0]!.last - ranges[0]!.first) + 1 - leases);

/** Creates the pool of a case as users do. */
export async function openCase(on: Ipam, { spec }: Case): Promise<void> {
  const request = { pool: "space/default", owner: `opener of ${spec.name}`, type: "IPPool", values: spec.ranges };
  await on.claim([{ ...request, childPool: spec }]);
}

/** Fills it with rows instead of claims, which takes a hundredth of the time. `fsck` finds no fault in them. */
export const fillCase = (engine: Engine, one: Case): Promise<void> => engine.load(contentOf(one));

export function contentOf({ spec, leases: count, filled }: Case): Content {
  const range = largest(spec.ranges);
  const values = filled === "at random" ? scatter(range, count) : fromBottom(range, count);
  const leases = values.map((value, i) => leaseOn(spec.name, value, i));
  const taken = leases.flatMap(({ ranges }) => ranges);
  const free = zonesIn(spec).flatMap(([zone, all]) =>
    freeIn(spec, all, taken).map((each) => ({ pool: spec.name, zone, ...each })),
  );
  const counters = { reserved: count, used: 0, resting: 0, held: BigInt(count) };
  return { pool: { name: spec.name, ...counters }, leases, free };
}

const largest = (ranges: ValueRange[]): ValueRange =>
  ranges.reduce((most, each) => (each.last - each.first > most.last - most.first ? each : most));

const fromBottom = ({ first }: ValueRange, count: number): bigint[] =>
  Array.from({ length: count }, (_, i) => first + BigInt(i));

function scatter({ first, last }: ValueRange, count: number): bigint[] {
  const values = new Set<bigint>();
  // Not the last value: the row of its free space exists already, and would have to be deleted.
  while (values.size < count) values.add(first + (randomBytes(8).readBigUInt64BE() % (last - first)));
  return [...values];
}

function leaseOn(pool: string, value: bigint, i: number): LeaseRow {
  // Unique in the whole store.
  const uid = createHash("sha256").update(`${pool} ${i}`).digest("hex").slice(0, 16);
  const at = Date.now();
  const times = { createdAt: at, updatedAt: at, lastSeen: at };
  const ranges = [{ first: value, last: value }];
  const holder = { pool, owner: `filler ${i}`, type: "IPReservation" };
  return { ...holder, ranges, state: "reserved", uid, leaseId: `${uid}.${uid}`, ...times };
}
