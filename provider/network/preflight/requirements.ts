import { type Extent, overlaps, parseRange } from "../../addressing/ip";
import { OverlayError } from "../../errors";
import type { Facts } from "../model/facts";
import type { DesiredState, Item, Link } from "../model/items";
import { isOverlayRoute, refuseForeignRoutes } from "./foreign-routes";

export function refuseUnmetRequirements(desired: DesiredState, facts: Facts): void {
  refuseMissingFeatures(desired.items, facts);
  refuseSmallMtu(desired.items);
  const ranges = desired.items.flatMap((item) =>
    isOverlayRoute(item) ? [{ text: item.dst, extent: parseRange(item.dst)! }] : [],
  );
  for (const range of ranges) {
    refuseUnderlayInRange(range, desired.items, facts);
    refuseDockerNetworks(range, desired, facts);
  }
  refuseForeignRoutes(desired, facts);
}

interface OverlayRange {
  text: string;
  extent: Extent;
}

function refuseMissingFeatures(items: Item[], { missingFeatures, links }: Facts): void {
  const missing = items.find(
    (item): item is Link => item.kind === "link" && !links.has(item.name) && missingFeatures.includes(item.type),
  );
  if (missing) {
    throw new OverlayError(
      "HOST_TOOL_MISSING",
      `The kernel has no ${missing.type} devices, and ${missing.name} must be one.`,
      `Load the module there (modprobe ${missing.type}), or install the kernel package that has it.`,
    );
  }
  if (missingFeatures.includes("ip6tables-restore") && items.some((item) => "table" in item && item.family === 6)) {
    throw new OverlayError(
      "HOST_TOOL_MISSING",
      "There is no 'ip6tables-restore'.",
      "Install it there (Debian: apt-get install iptables).",
    );
  }
}

/** The least MTU is 1280 for IPv6 (RFC 8200), and 576 for IPv4 (RFC 791). */
function refuseSmallMtu(items: Item[]): void {
  const v6 = items.some((item) => item.kind === "address" && item.address.includes(":"));
  const least = v6 ? 1280 : 576;
  const small = items.find((item): item is Link => item.kind === "link" && item.mtu !== undefined && item.mtu < least);
  if (!small) return;
  throw new OverlayError(
    "MTU_TOO_SMALL",
    `${small.name} would have an MTU of ${small.mtu}, and IPv${v6 ? 6 : 4} needs at least ${least}.`,
    "Give the network below a larger MTU: the overlay's is smaller by 50, or by 70 over IPv6.",
  );
}

/** The addresses of tunnels and SSH must not be in the overlay's range, or they would be routed into the overlay. */
function refuseUnderlayInRange(range: OverlayRange, items: Item[], { ssh }: Facts): void {
  const tunnels = items.flatMap((item) => (item.kind === "link" && item.vxlan ? [item.vxlan] : []));
  const ends: [what: string, address: string | undefined][] = [
    ["the address from which SSH reaches it", ssh?.client],
    ["the address at which SSH reaches it", ssh?.server],
    ...tunnels.flatMap(({ local, remote }): [string, string][] => [
      ["its own underlay address", local],
      ["its peer's underlay address", remote],
    ]),
  ];
  for (const [what, address] of ends) {
    const place = address ? parseRange(address) : undefined;
    if (!place || !overlaps(place, range.extent)) continue;
    throw new OverlayError(
      "ROUTE_OVERLAP",
      `${address}, ${what}, lies in the overlay's range ${range.text}: the overlay would cut the way that it is reached by. Nothing was changed.`,
      "Choose another range for the network (subnets), or reach the machine by another address.",
    );
  }
}

/** Docker networks with the desired name are checked in preflight.ts. */
function refuseDockerNetworks({ text, extent }: OverlayRange, desired: DesiredState, { docker, records }: Facts): void {
  const ours = [desired, ...records].flatMap(({ items }) =>
    items.flatMap((item) => (item.kind === "docker" ? [item.name] : [])),
  );
  for (const { name, bridge, subnets } of docker?.networks ?? []) {
    const subnet = subnets.find(
      (each) => each.subnet && parseRange(each.subnet) && overlaps(parseRange(each.subnet)!, extent),
    );
    if (!subnet || ours.includes(name)) continue;
    throw new OverlayError(
      "ROUTE_OVERLAP",
      `Docker network ${name} (${subnet.subnet}${bridge ? ` on ${bridge}` : ""}) overlaps the overlay's range ${text}. It was left as it is.`,
      "Remove that Docker network, or choose another range for the network (subnets).",
    );
  }
}
