import { Address4, Address6 } from "ip-address";
import { OverlayError } from "../errors";

/**
 * Both address families on one 128-bit line: IPv4 a.b.c.d lies at ::ffff:a.b.c.d, the place that IPv6 itself keeps for
 * it. Ranges, pools and overlap checks then need to know nothing about families.
 */
export const V4_START = 0xffff_0000_0000n;
const V4_END = 0xffff_ffff_ffffn;
export const MAX_IP = (1n << 128n) - 1n;

export type Family = 4 | 6;

export interface Extent {
  first: bigint;
  last: bigint;
}

export const familyOf = (value: bigint): Family => (value >= V4_START && value <= V4_END ? 4 : 6);

/** Of an address, with or without a prefix. */
export const familyOfIp = (ip: string): Family => (ip.includes(":") ? 6 : 4);

/** All of a family; of IPv6 what lies behind IPv4, where every address in use is. */
export const familyExtent = (family: Family): Extent =>
  family === 4 ? { first: V4_START, last: V4_END } : { first: V4_END + 1n, last: MAX_IP };

export const addressBits = (family: Family): 32 | 128 => (family === 4 ? 32 : 128);

/** The point of an address, or undefined when the text is not exactly one address. */
export function tryParseIp(text: string): bigint | undefined {
  if (!/^[0-9a-fA-F.:]+$/.test(text)) return undefined;
  try {
    return text.includes(":") ? new Address6(text).bigInt() : V4_START + new Address4(text).bigInt();
  } catch {
    return undefined;
  }
}

export function parseIp(text: string): bigint {
  const point = tryParseIp(text);
  if (point === undefined) {
    throw new OverlayError("SUBNET_FORMAT", `'${text}' is not an IP address.`, "Write it like 10.128.0.1 or fd00::1.");
  }
  return point;
}

export function formatIp(value: bigint): string {
  return familyOf(value) === 4
    ? Address4.fromBigInt(value - V4_START).correctForm()
    : Address6.fromBigInt(value).correctForm();
}

/** `10.128.64.0/18` for a block that starts at `first` and is `prefix` bits long in its own family. */
export const formatCidr = (first: bigint, prefix: number): string => `${formatIp(first)}/${prefix}`;

export const overlaps = (a: Extent, b: Extent): boolean => a.first <= b.last && b.first <= a.last;

/** A count as JSON can carry it: a number, or its digits where a number would lose some. */
export const exactNumber = (value: bigint): number | string =>
  value > BigInt(Number.MAX_SAFE_INTEGER) ? String(value) : Number(value);
