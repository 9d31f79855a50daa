import { type Extent, familyOf, formatIp, parseRange, subnetOf } from "../../addressing/ip";
import type { Facts } from "../model/facts";
import type { DesiredState, Item } from "../model/items";

const MAX_NEIGHBOURS = 3;

/** On a runner the only peer, the hub, may send from everywhere. */
const subnetsOnTunnels = (items: Item[]): Extent[] =>
  items.flatMap((item) => {
    if (item.kind === "wgpeer")
      return item.allowedIps.filter((range) => !range.endsWith("/0")).map((range) => parseRange(range)!);
    const isTunnel = (each: Item): boolean =>
      item.kind === "address" && each.kind === "link" && each.name === item.dev && !!each.vxlan && !each.master;
    return item.kind === "address" && items.some(isTunnel) ? [parseRange(subnetOf(item.address))!] : [];
  });

/**
 * On a hub: the gateways of a few other runners of the network, by the records there. Each runner gets those after it, so that together they cover
 * all.
 */
export function findNeighbours({ items, record }: DesiredState, { records }: Facts): string[] {
  const others = records
    .filter(({ network, uid }) => network === record.network && uid !== record.uid)
    .flatMap((other) => subnetsOnTunnels(other.items));
  return subnetsOnTunnels(items).flatMap(({ first }) => {
    const sorted = others
      .filter((other) => familyOf(other.first) === familyOf(first))
      .sort((a, b) => (a.first < b.first ? -1 : 1));
    const start = sorted.findIndex((other) => other.first > first);
    const next = start < 0 ? sorted : [...sorted.slice(start), ...sorted.slice(0, start)];
    return next.slice(0, MAX_NEIGHBOURS).map((other) => formatIp(other.first + 1n));
  });
}
