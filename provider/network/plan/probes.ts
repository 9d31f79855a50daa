import {
  type Family,
  familyOf,
  familyOfIp,
  formatIp,
  parseRange,
  subnetOf,
  type ValueRange,
} from "../../addressing/ip";
import { runnerLayout } from "../../addressing/layout";
import type { Facts } from "../model/facts";
import type { DesiredState, Item } from "../model/items";
import type { Network } from "./hub";
import { meshOf, tunnelOf } from "./tunnels";
import { HUB, probeAddress } from "./tunnels/probe-address";
import type { MeshPeer } from "./tunnels/tunnel";

/** Pings that show whether packets pass, without fragmentation. An IP header and that of an ICMP message have 28 bytes, or 48 with IPv6. */

/** Scripts that prove that a resource works, and what must answer. */
export interface Probe {
  role: string;
  script: string;
  /** What the script shows, for the error when it fails. */
  shows: string;
  /** Other runners: of each group one must answer to the same host, if one of it answers to the host with the other role. */
  others?: { groups: string[][]; reachableFrom: string };
}

const headers = (family: Family): number => (family === 4 ? 28 : 48);

/**
 * Attempts of one second: the first packets through a new tunnel wait for neighbour resolution, and for a second handshake of WireGuard, which follows
 * after more than 5 s if those of both ends have crossed.
 */
const ping = (target: string, size: number): string =>
  `for i in 1 2 3 4 5 6 7; do ping -c 1 -W 1 -M do -s ${size} ${target} >/dev/null 2>&1 && break; [ $i -lt 7 ] && sleep 0.2 || exit 1; done`;

/**
 * From the runner to the hub, full-size in each family; and to other runners: to each one with a direct route, or else, by the hub, to one of a few in
 * each family.
 */
export function planProbe(
  { layouts }: Pick<Network, "layouts">,
  mtu: number,
  neighbours: string[],
  peers: MeshPeer[],
): Probe {
  const targets = layouts.map(({ hubIp }) => hubIp).join(" and ");
  const routed = peers.filter(({ isRouted }) => isRouted);
  const others = layouts.map((layout) =>
    routed.length > 0
      ? routed.map(({ id }) => [runnerLayout(layout, id).gateway])
      : [neighbours.filter((ip) => familyOfIp(ip) === layout.family)],
  );
  return {
    role: "runner",
    script: layouts.map(({ family, hubIp }) => ping(hubIp, mtu - headers(family))).join("\n"),
    shows: `full-size packets (MTU ${mtu}) from the runner to the hub's overlay address ${targets}`,
    others: { groups: others.flat().filter((group) => group.length > 0), reachableFrom: "hub" },
  };
}

/** Pings all at once, and prints those that do not answer. */
export const renderPings = (addresses: string[]): string =>
  `for ip in ${addresses.join(" ")}; do { ping -c 1 -W 1 $ip || ping -c 1 -W 1 $ip || echo $ip >&3; } >/dev/null 2>&1 & done 3>&1; wait`;

/** Over the mesh device, to all peers at once. Prints the ids of those that answer. */
export function renderPeerProbes(
  network: Pick<Network, "devicePrefix" | "keyGeneration" | "tunnel">,
  mtu: number,
  peers: MeshPeer[],
): string {
  const dev = meshOf(network).device(network);
  const probes = peers.map(({ id }) => `(${ping(`${probeAddress(id)}%${dev}`, mtu - headers(6))}; echo ${id}) &`);
  return [...probes, "wait"].join("\n");
}

/** Full-size packets from the runner to the hub and back, by the tunnel of this network, whatever the routes are. */
export function renderProbe(network: Network, mtu: number): string {
  const ping = `ping -6 -n -c 1 -W 1 -M do -s ${mtu - headers(6)} ${probeAddress(HUB)}%${tunnelOf(network).probeDevice(network)}`;
  return `for i in 1 2 3 4 5 6 7 8; do ${ping} >/dev/null 2>&1 && exit 0; sleep 0.2; done; exit 1`;
}

const MAX_NEIGHBOURS = 3;

/** On a runner the only peer, the hub, may send from everywhere. */
const subnetsOnTunnels = (items: Item[]): ValueRange[] =>
  items.flatMap((item) => {
    if (item.kind === "wgpeer")
      return item.allowedIps.filter((range) => !range.endsWith("/0")).map((range) => parseRange(range)!);
    const isTunnel = (each: Item): boolean =>
      item.kind === "address" && each.kind === "link" && each.name === item.dev && !!each.vxlan?.remote && !each.master;
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
