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
export interface ValueRange {
  first: bigint;
  last: bigint;
}

export const familyOf = (value: bigint): Family => (value >= V4_START && value <= V4_END ? 4 : 6);

/** Of an address, with or without a prefix. */
export const familyOfIp = (ip: string): Family => (ip.includes(":") ? 6 : 4);

/** All addresses of a family; for IPv6 those after the IPv4-mapped ones, which includes every address in use. */
export const familyRange = (family: Family): ValueRange =>
  family === 4 ? { first: V4_START, last: V4_END } : { first: V4_END + 1n, last: MAX_IP };

export const addressBits = (family: Family): 32 | 128 => (family === 4 ? 32 : 128);

/** undefined if the text is not exactly one address. */
export function tryParseIp(text: string): bigint | undefined {
  if (!/^[0-9a-fA-F.:]{2,45}$/.test(text)) return undefined;
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

export const overlaps = (a: ValueRange, b: ValueRange): boolean => a.first <= b.last && b.first <= a.last;

/** A count as JSON can carry it: a number, or its digits where a number would lose some. */
export const exactNumber = (value: bigint): number | string =>
  value > BigInt(Number.MAX_SAFE_INTEGER) ? String(value) : Number(value);

/** `10.0.0.0/24`, `10.0.0.5` or `10.0.0.5-10.0.0.9`; undefined when the text is not exactly one range of addresses. */
export function parseRange(text: string): ValueRange | undefined {
  if (text.includes("/")) return parseCidr(text);
  const [first, last, ...rest] = text.split("-", 3).map((part) => tryParseIp(part.trim()));
  if (first === undefined || rest.length > 0) return undefined;
  const end = text.includes("-") ? last : first;
  return end !== undefined && first <= end && familyOf(first) === familyOf(end) ? { first, last: end } : undefined;
}

/** Whether an address lies in a range. Both are texts that were checked. */
export function isIpInRange(ip: string, range: string): boolean {
  const { first, last } = parseRange(range)!;
  return first <= parseIp(ip) && parseIp(ip) <= last;
}

/** Without host bits: `10.0.0.1/24` is more likely a mistake than a range. */
function parseCidr(text: string): ValueRange | undefined {
  const [, base = "", bits = ""] = /^([^/]+)\/(0|[1-9]\d{0,2})$/.exec(text) ?? [];
  const first = tryParseIp(base);
  if (first === undefined || Number(bits) > addressBits(familyOf(first))) return undefined;
  const size = 1n << BigInt(addressBits(familyOf(first)) - Number(bits));
  return first % size === 0n ? { first, last: first + size - 1n } : undefined;
}

/** As a CIDR where it is one. */
export function formatRange(range: ValueRange): string {
  const { first, last } = range;
  if (first === last) return formatIp(first);
  const size = last - first + 1n;
  const bits = size.toString(2).length - 1;
  const isBlock = size === 1n << BigInt(bits) && first % size === 0n;
  return isBlock ? formatCidr(first, addressBits(familyOf(first)) - bits) : `${formatIp(first)}-${formatIp(last)}`;
}

/** Of ports and other plain numbers: `80-90`. */
export const formatNumberRange = ({ first, last }: ValueRange): string =>
  first === last ? `${first}` : `${first}-${last}`;

export function parseNumberRange(text: string): ValueRange | undefined {
  const [, first, last = first] = /^(\d{1,9})(?:-(\d{1,9}))?$/.exec(text) ?? [];
  if (first === undefined || Number(first) > Number(last)) return undefined;
  return { first: BigInt(first), last: BigInt(last!) };
}

/** Sorted, disjoint, and never touching each other. */
export function mergeRanges(ranges: ValueRange[]): ValueRange[] {
  const result: ValueRange[] = [];
  for (const { first, last } of [...ranges].sort((a, b) => (a.first < b.first ? -1 : 1))) {
    const before = result.at(-1);
    if (!before || first > before.last + 1n) result.push({ first, last });
    else if (last > before.last) before.last = last;
  }
  return result;
}

/** `10.128.64.1/18` → `10.128.64.0/18`. */
export function subnetOf(address: string): string {
  const [ip = "", prefix = ""] = address.split("/");
  const point = tryParseIp(ip)!;
  const size = 1n << BigInt(addressBits(familyOf(point)) - Number(prefix));
  return formatCidr(point - (point % size), Number(prefix));
}
