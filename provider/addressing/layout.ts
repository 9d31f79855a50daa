import { createHash } from "node:crypto";
import { OverlayError } from "../errors";
import {
  addressBits,
  type Family,
  familyOf,
  formatCidr,
  formatIp,
  overlaps,
  parseIp,
  tryParseIp,
  type ValueRange,
} from "./ip";

/**
 * `BASE/PREFIX/NODE_BITS/SUBNET_BITS`: how an overlay's range is cut into one subnet per runner. Runner i owns
 * base + (i << SUBNET_BITS); id 0 is the hub's. In every subnet .0 and the last address are unusable, .1 is the gateway
 * (the runner's bridge) and .254 the hub's end of the tunnel; IPv6 uses the same offsets.
 */
export interface Layout {
  text: string;
  family: Family;
  base: bigint;
  prefix: number;
  nodeBits: number;
  subnetBits: number;
  range: ValueRange;
  cidr: string;
  hubIp: string;
  maxRunners: number;
  ipsPerRunner: bigint;
  runnerPrefix: number;
}

export interface RunnerLayout {
  runnerId: number;
  range: ValueRange;
  subnet: string;
  gateway: string;
  hubIp: string;
  firstIp: string;
  lastIp: string;
  /** What may be given out, in order: all but network, gateway, hub and the last address. */
  usable: ValueRange[];
}

const GATEWAY = 1n;
const HUB = 254n;
const EXAMPLE = "Write BASE/PREFIX/NODE_BITS/SUBNET_BITS, for example 10.128.0.0/12/6/14.";

const FORBIDDEN: (ValueRange & { what: string })[] = (
  [
    ["loopback", "127.0.0.0", "127.255.255.255"],
    ["multicast", "224.0.0.0", "239.255.255.255"],
    ["loopback", "::1", "::1"],
    ["unassigned", "8000::", "fbff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
    ["link-local or unassigned", "fe00::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
    ["multicast", "ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
  ] as const
).map(([what, first, last]) => ({ what, first: parseIp(first), last: parseIp(last) }));

export function parseLayout(text: string): Layout {
  const { base, prefix, nodeBits, subnetBits } = splitLayout(text);
  const family = familyOf(base);
  checkBits(text, family, prefix, nodeBits, subnetBits);
  const range = { first: base, last: base + (1n << BigInt(nodeBits + subnetBits)) - 1n };
  checkRange(text, prefix, range);
  return {
    text: `${formatIp(base)}/${prefix}/${nodeBits}/${subnetBits}`,
    family,
    base,
    prefix,
    nodeBits,
    subnetBits,
    range,
    cidr: formatCidr(base, prefix),
    hubIp: formatIp(base + GATEWAY),
    maxRunners: 2 ** nodeBits - 1,
    ipsPerRunner: (1n << BigInt(subnetBits)) - 4n,
    runnerPrefix: prefix + nodeBits,
  };
}

/** Of a runner's subnet. */
export const gatewayOf = ({ first }: Pick<ValueRange, "first">): string => formatIp(first + GATEWAY);

export function runnerLayout(layout: Layout, runnerId: number): RunnerLayout {
  if (!Number.isInteger(runnerId) || runnerId < 1 || runnerId > layout.maxRunners) {
    throw new OverlayError(
      "SUBNET_RANGE",
      `Runner id ${runnerId} is outside 1 to ${layout.maxRunners}, which is what ${layout.text} has room for.`,
      "Ask for an id in that range, or give the network more NODE_BITS.",
    );
  }
  const size = 1n << BigInt(layout.subnetBits);
  const first = layout.base + BigInt(runnerId) * size;
  const last = first + size - 1n;
  const usable = [
    { first: first + GATEWAY + 1n, last: first + HUB - 1n },
    { first: first + HUB + 1n, last: last - 1n },
  ].filter((range) => range.first <= range.last);
  return {
    runnerId,
    range: { first, last },
    subnet: formatCidr(first, layout.runnerPrefix),
    gateway: gatewayOf({ first }),
    hubIp: formatIp(first + HUB),
    firstIp: formatIp(first + GATEWAY + 1n),
    lastIp: formatIp(usable.at(-1)!.last),
    usable,
  };
}

function splitLayout(text: string) {
  const parts = text.split("/");
  const [baseText = "", ...numbers] = parts;
  const base = tryParseIp(baseText);
  if (parts.length !== 4 || base === undefined || !numbers.every((n) => /^-?(0|[1-9]\d{0,3})$/.test(n))) {
    const what =
      parts.length !== 4
        ? `has ${parts.length} of 4 parts`
        : base === undefined
          ? `does not start with an IP address ('${baseText}')`
          : `needs whole numbers without leading zeros after the address`;
    throw new OverlayError("SUBNET_FORMAT", `Layout '${text}' ${what}.`, EXAMPLE);
  }
  const [prefix, nodeBits, subnetBits] = numbers.map(Number) as [number, number, number];
  return { base, prefix, nodeBits, subnetBits };
}

function checkBits(text: string, family: Family, prefix: number, nodeBits: number, subnetBits: number): void {
  const width = addressBits(family);
  const sum = prefix + nodeBits + subnetBits;
  if (family === 6 && sum === 32) {
    throw new OverlayError(
      "SUBNET_FORMAT",
      `Layout '${text}' has an IPv6 base and the bits of an IPv4 layout.`,
      EXAMPLE,
    );
  }
  if (sum !== width) {
    throw new OverlayError(
      "SUBNET_BITS",
      `Layout '${text}': ${prefix} + ${nodeBits} + ${subnetBits} = ${sum} bits, but an IPv${family} address has ${width}.`,
      `Make PREFIX + NODE_BITS + SUBNET_BITS equal ${width}.`,
    );
  }
  const limits: [name: string, value: number, min: number, max: number][] = [
    ["PREFIX", prefix, 1, width - 8],
    ["NODE_BITS", nodeBits, 1, 16],
    ["SUBNET_BITS", subnetBits, 8, width],
  ];
  for (const [name, value, min, max] of limits) {
    if (value >= min && value <= max) continue;
    const range = name === "SUBNET_BITS" ? `at least ${min}` : `${min} to ${max}`;
    throw new OverlayError("SUBNET_RANGE", `Layout '${text}': ${name} is ${value}.`, `It must be ${range}.`);
  }
}

function checkRange(text: string, prefix: number, range: ValueRange): void {
  const size = range.last - range.first + 1n;
  const aligned = range.first - (range.first % size);
  if (aligned !== range.first) {
    throw new OverlayError(
      "SUBNET_NOT_ALIGNED",
      `Layout '${text}' has host bits set: ${formatIp(range.first)} is not the first address of its /${prefix}.`,
      `Did you mean ${formatIp(aligned)}?`,
    );
  }
  const bad = FORBIDDEN.find((each) => overlaps(range, each));
  if (bad) {
    const [first, last] = [formatIp(bad.first), formatIp(bad.last)];
    throw new OverlayError(
      "SUBNET_RANGE",
      `Layout '${text}' covers ${bad.what} addresses (${first} to ${last}).`,
      "Choose a range without them, for example in 10.0.0.0/8 or fd00::/8.",
    );
  }
}

/**
 * Docker assigns addresses itself to containers without a fixed one. It uses the end of a runner's subnet, and the pool
 * excludes that part, so the two need no coordination. The part is a share, not a range, so that one setting fits every
 * runner and both address families.
 */
export interface DockerRange {
  range: ValueRange;
  cidr: string;
}

/**
 * The last `1/share` of a runner's subnet. In a /64 the one before: Docker counts to 2^64 - 1, and fails at a range that ends
 * there ("invalid bit range").
 */
export function dockerRange(layout: Layout, { range }: RunnerLayout, share: number): DockerRange {
  const size = (1n << BigInt(layout.subnetBits)) / BigInt(share);
  const last = layout.subnetBits === 64 ? range.last - size : range.last;
  const first = last - size + 1n;
  return { range: { first, last }, cidr: formatCidr(first, layout.runnerPrefix + Math.log2(share)) };
}

/** Below eight addresses too few would be usable, without network, hub and broadcast. */
export const maxDockerShare = ({ subnetBits }: Layout): number => 2 ** Math.min(subnetBits - 3, 30);

/**
 * Whether a Docker network can have these layouts: it must have IPv4, and it counts addresses in 64 bits, so that
 * in a larger IPv6 subnet it would assign wrong addresses. A network without IPv6 is no solution: Docker removes
 * the IPv6 addresses from the bridge of such a network.
 */
export const canUseDocker = (layouts: Layout[]): boolean =>
  layouts.some(({ family }) => family === 4) && layouts.every(({ subnetBits }) => subnetBits <= 64);

/** The runner's subnet without Docker's range, as the pool allocates from it. */
export function withoutDockerRange(runner: RunnerLayout, range: DockerRange | undefined): RunnerLayout {
  if (!range) return runner;
  const { first, last } = range.range;
  const usable = runner.usable
    .flatMap((range) => [
      { first: range.first, last: range.last < first ? range.last : first - 1n },
      { first: range.first > last ? range.first : last + 1n, last: range.last },
    ])
    .filter((range) => range.first <= range.last);
  return { ...runner, usable, lastIp: formatIp(usable.at(-1)!.last) };
}

/** Device of a runner on the hub: prefix + id in base 36, so that 65,535 runners need four characters. */
export const tunnelName = (prefix: string, runnerId: number): string => prefix + runnerId.toString(36);

/** Only the canonical form is one of our names: `ovlA`, `ovl0a` and `ovl1_0` are not. */
export function parseTunnelName(prefix: string, device: string, maxRunners: number): number | undefined {
  if (!device.startsWith(prefix)) return undefined;
  const id = Number.parseInt(device.slice(prefix.length), 36);
  return id >= 1 && id <= maxRunners && tunnelName(prefix, id) === device ? id : undefined;
}

/** Whether it can be a device's name in a command. The kernel allows nearly any name of up to 15 bytes. */
export const isInterfaceName = (text: string): boolean => /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$/.test(text);

/** The MAC of a VM with this address: the same on any host and at any time. */
export const vmMac = (network: string, ip: string): string => formatLocalMac(sha256Of(network, ip, "vm"));

/** The name of a VM's tap device. Ten digits are enough to distinguish those of a host; a name has at most 15 characters. */
export const tapName = (network: string, ip: string): string =>
  `tap${sha256Of(network, ip, "tap").toString("hex").slice(0, 10)}`;

const sha256Of = (...parts: (string | number)[]): Buffer => createHash("sha256").update(parts.join("\n")).digest();

const formatLocalMac = (bytes: Buffer): string =>
  ["02", ...[...bytes.subarray(0, 5)].map((byte) => byte.toString(16).padStart(2, "0"))].join(":");

/**
 * A fixed, locally administered MAC. A re-created device with a random one is unreachable until its neighbours' ARP
 * entries age (17 to 36 s were seen); with a fixed one nothing is lost.
 */
export const deviceMac = (
  network: string,
  runnerId: number,
  role: "hub" | "runner" | "bridge" | "temporary hub" | "temporary runner",
): string => formatLocalMac(sha256Of(network, runnerId, role));

/** The VNI of a runner's temporary tunnel. */
export const temporaryVni = (network: string, runnerId: number): number =>
  sha256Of(network, runnerId, "temporary").readUIntBE(0, 3);

/**
 * That of a runner's VXLAN device in a mesh, unique among the runners of a network. It has no letters: rules name it, and versions of
 * iptables-save print them in upper or in lower case.
 */
export function meshMac(network: string, runnerId: number): string {
  const hash = sha256Of(network, "mesh").readUIntBE(0, 4) % 100_000;
  const digits = `02${String(hash).padStart(5, "0")}${String(runnerId).padStart(5, "0")}`;
  return digits.match(/../g)!.join(":");
}

/** The number of a network's routing table on its runners, far from the numbers that administrators use. */
export const routingTableId = (network: string): number => 0xb7000000 + sha256Of(network).readUIntBE(0, 3);

const DNS_LABEL = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/;

/** A word as a DNS label: itself if it is one, else 24 letters and digits of its hash. */
export function dnsLabel(word: string): string {
  if (DNS_LABEL.test(word)) return word;
  return BigInt(`0x${sha256Of(word).toString("hex", 0, 15)}`)
    .toString(32)
    .padStart(24, "0");
}
