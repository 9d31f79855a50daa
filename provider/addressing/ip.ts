import { Address4, Address6 } from "ip-address";
import { OverlayError } from "../errors";

/**
 * Addresses of both families as 128-bit integers: IPv4 a.b.c.d is ::ffff:a.b.c.d, its IPv4-mapped IPv6 address (RFC 4291,
 * 2.5.5.2). Ranges, pools and overlap checks do not depend on the family.
 */
export const V4_START = 0xffff_0000_0000n;
const V4_END = 0xffff_ffff_ffffn;
export const MAX_IP = (1n << 128n) - 1n;

export type Family = 4 | 6;
export const FAMILIES: Family[] = [4, 6];

/** A range of integers, inclusive at both ends. */
export interface Extent {
  first: bigint;
  last: bigint;
}

export const familyOf = (value: bigint): Family => (value >= V4_START && value <= V4_END ? 4 : 6);

/** Of an address, with or without a prefix. */
export const familyOfIp = (ip: string): Family => (ip.includes(":") ? 6 : 4);

/** All addresses of a family; for IPv6 those after the IPv4-mapped ones, which includes every address in use. */
export const familyExtent = (family: Family): Extent =>
  family === 4 ? { first: V4_START, last: V4_END } : { first: V4_END + 1n, last: MAX_IP };

export const addressBits = (family: Family): 32 | 128 => (family === 4 ? 32 : 128);

/** undefined if the text is not exactly one address. */
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

/** `10.128.64.0/18` for the subnet that starts at `first`, with a prefix length of its own family. */
export const formatCidr = (first: bigint, prefix: number): string => `${formatIp(first)}/${prefix}`;

export const overlaps = (a: Extent, b: Extent): boolean => a.first <= b.last && b.first <= a.last;

/** A count as JSON can carry it: a number, or its digits where a number would lose some. */
export const exactNumber = (value: bigint): number | string =>
  value > BigInt(Number.MAX_SAFE_INTEGER) ? String(value) : Number(value);
