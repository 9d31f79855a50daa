import { OverlayError } from "../errors";
import {
  addressBits,
  type Extent,
  type Family,
  familyOf,
  formatCidr,
  formatIp,
  overlaps,
  parseIp,
  tryParseIp,
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
  extent: Extent;
  cidr: string;
  hubIp: string;
  maxRunners: number;
  ipsPerRunner: bigint;
  runnerPrefix: number;
}

export interface RunnerLayout {
  runnerId: number;
  extent: Extent;
  subnet: string;
  gateway: string;
  hubIp: string;
  firstIp: string;
  lastIp: string;
  /** What may be given out, in order: all but network, gateway, hub and the last address. */
  usable: Extent[];
}

const GATEWAY = 1n;
const HUB = 254n;
const EXAMPLE = "Write BASE/PREFIX/NODE_BITS/SUBNET_BITS, for example 10.128.0.0/12/6/14.";

const FORBIDDEN: [what: string, first: string, last: string][] = [
  ["loopback", "127.0.0.0", "127.255.255.255"],
  ["multicast", "224.0.0.0", "239.255.255.255"],
  ["loopback", "::1", "::1"],
  ["unassigned", "8000::", "fbff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
  ["link-local or unassigned", "fe00::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
  ["multicast", "ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
];

export function parseLayout(text: string): Layout {
  const { base, prefix, nodeBits, subnetBits } = splitLayout(text);
  const family = familyOf(base);
  checkBits(text, family, prefix, nodeBits, subnetBits);
  const extent = { first: base, last: base + (1n << BigInt(nodeBits + subnetBits)) - 1n };
  checkRange(text, prefix, extent);
  return {
    text: `${formatIp(base)}/${prefix}/${nodeBits}/${subnetBits}`,
    family,
    base,
    prefix,
    nodeBits,
    subnetBits,
    extent,
    cidr: formatCidr(base, prefix),
    hubIp: formatIp(base + GATEWAY),
    maxRunners: 2 ** nodeBits - 1,
    ipsPerRunner: (1n << BigInt(subnetBits)) - 4n,
    runnerPrefix: prefix + nodeBits,
  };
}

/** Of a runner's subnet. */
export const gatewayOf = ({ first }: Pick<Extent, "first">): string => formatIp(first + GATEWAY);

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
  ].filter((extent) => extent.first <= extent.last);
  return {
    runnerId,
    extent: { first, last },
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

function checkRange(text: string, prefix: number, extent: Extent): void {
  const size = extent.last - extent.first + 1n;
  const aligned = extent.first - (extent.first % size);
  if (aligned !== extent.first) {
    throw new OverlayError(
      "SUBNET_NOT_ALIGNED",
      `Layout '${text}' has host bits set: ${formatIp(extent.first)} is not the first address of its /${prefix}.`,
      `Did you mean ${formatIp(aligned)}?`,
    );
  }
  const bad = FORBIDDEN.find(([, first, last]) => overlaps(extent, { first: parseIp(first), last: parseIp(last) }));
  if (bad) {
    const [what, first, last] = bad;
    throw new OverlayError(
      "SUBNET_RANGE",
      `Layout '${text}' covers ${what} addresses (${first} to ${last}).`,
      "Choose a range without them, for example in 10.0.0.0/8 or fd00::/8.",
    );
  }
}
