import { addressBits, type Extent, familyOf, formatCidr, formatIp, parseIp, tryParseIp } from "./ip";

/** Ranges as people write them: `10.0.0.0/24`, `10.0.0.5`, `10.0.0.5-10.0.0.9`, and plain numbers for ports. */

/** undefined when the text is not exactly one range of addresses. */
export function parseRange(text: string): Extent | undefined {
  if (text.includes("/")) return parseCidr(text);
  const [first, last, ...rest] = text.split("-").map((part) => tryParseIp(part.trim()));
  if (first === undefined || rest.length > 0) return undefined;
  const end = text.includes("-") ? last : first;
  return end !== undefined && first <= end && familyOf(first) === familyOf(end) ? { first, last: end } : undefined;
}

/** Whether an address lies in a range, both as text that was checked. */
export function isIpInRange(ip: string, range: string): boolean {
  const { first, last } = parseRange(range)!;
  return first <= parseIp(ip) && parseIp(ip) <= last;
}

/** Without host bits: `10.0.0.1/24` is more likely a mistake than a range. */
function parseCidr(text: string): Extent | undefined {
  const [, base = "", bits = ""] = /^([^/]+)\/(0|[1-9]\d{0,2})$/.exec(text) ?? [];
  const first = tryParseIp(base);
  if (first === undefined || Number(bits) > addressBits(familyOf(first))) return undefined;
  const size = 1n << BigInt(addressBits(familyOf(first)) - Number(bits));
  return first % size === 0n ? { first, last: first + size - 1n } : undefined;
}

/** As a CIDR where it is one. */
export function formatRange(range: Extent): string {
  const { first, last } = range;
  if (first === last) return formatIp(first);
  const size = last - first + 1n;
  const bits = size.toString(2).length - 1;
  const isBlock = size === 1n << BigInt(bits) && first % size === 0n;
  return isBlock ? formatCidr(first, addressBits(familyOf(first)) - bits) : `${formatIp(first)}-${formatIp(last)}`;
}

export const formatNumberRange = ({ first, last }: Extent): string =>
  first === last ? `${first}` : `${first}-${last}`;

export function parseNumberRange(text: string): Extent | undefined {
  const [, first, last = first] = /^(\d{1,9})(?:-(\d{1,9}))?$/.exec(text) ?? [];
  if (first === undefined || Number(first) > Number(last)) return undefined;
  return { first: BigInt(first), last: BigInt(last!) };
}

/** Sorted, disjoint, and never touching each other. */
export function mergeExtents(ranges: Extent[]): Extent[] {
  const result: Extent[] = [];
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
