import { addressBits, FAMILIES, type Family, familyOfIp } from "../../addressing/ip";
import { type Layout, runnerLayout } from "../../addressing/layout";
import {
  ECHO_REQUEST,
  FORWARD,
  GUARD,
  ICMP_REDIRECT,
  INPUT,
  markUsersRule,
  OUT,
  PRE,
  planChainRules,
} from "../kinds/firewall";
import type { Item, Link, Route, ZoneEntry } from "../model/items";

/**
 * Which packets pass on hub and runners. Rules match the incoming device of a packet, never its source address alone, which
 * any sender can forge. docs/hosts.md lists the rules.
 *
 * The bridge of a VXLAN runner carries its workloads' frames and, by the tunnel, the hub's. If the kernel passes bridged frames to
 * iptables (br_netfilter, which Docker loads) both look like packets from the bridge to the bridge; the match that
 * distinguishes them (physdev) would load br_netfilter on hosts without it. Only the hub's rules can match
 * the runner that a packet comes from, by its tunnel device.
 */
export interface Isolation {
  layouts: Layout[];
  devicePrefix: string;
  hostAccess: HostAccess;
}

/** What workloads may reach on the hub and the runners themselves: everything, or pings and these ports. */
export type HostAccess = "all" | "ping" | HostPort[];

export interface HostPort {
  protocol: "tcp" | "udp" | "sctp";
  first: number;
  last: number;
}

export const layoutOfFamily = ({ layouts }: Pick<Isolation, "layouts">, family: Family): Layout | undefined =>
  layouts.find((layout) => layout.family === family);

/** Connections that were accepted before, and those that the host itself forwards by DNAT (StaticIP, published ports). */
const RETURN_TRACKED = "-m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j RETURN";
const MATCH_REPLIES = "-m conntrack --ctstate RELATED,ESTABLISHED";
const REJECT: Record<Family, string> = {
  4: "-j REJECT --reject-with icmp-port-unreachable",
  6: "-j REJECT --reject-with icmp6-port-unreachable",
};
/** Neighbour discovery uses link-local addresses, and the unspecified one for duplicate address detection. */
const ON_LINK = ["fe80::/10", "::/128"];
const NEIGHBOUR_TYPES = [135, 136];

/**
 * What a hub accepts for a network: packets between workloads, and what they may reach on the hub. Tunnels are matched by their prefix,
 * so that those which a runner's stack has not updated or adopted yet keep working. Every tunnel's record has these rules, too.
 */
export const planHubRules = (network: Isolation): Item[] =>
  network.layouts.flatMap(({ family, cidr }) => {
    const devices = `${network.devicePrefix}+`;
    const between = `-s ${cidr} -d ${cidr} -i ${devices} -o ${devices}`;
    return [
      ...planChainRules(PRE, family, family === 6 ? ON_LINK.map((from) => `-s ${from} -i ${devices} -j RETURN`) : []),
      ...planChainRules(GUARD, family, [RETURN_TRACKED, `${between} -j RETURN`]),
      ...planChainRules(FORWARD, family, [`${between} -j ACCEPT`]),
      ...planChainRules(INPUT, family, acceptsOnHost(network.hostAccess, family, cidr, devices)),
      ...planChainRules(OUT, family, [markUsersRule(devices)]),
    ];
  });

/** A tunnel's device on the hub: over it only packets of the overlay and replies are forwarded, of the families that the network has. */
export const planHubDeviceRules = (
  network: Isolation,
  device: string,
  dropForged: (family: Family) => string[],
): Item[] =>
  FAMILIES.flatMap((family) => {
    if (!layoutOfFamily(network, family)) return planChainRules(PRE, family, [`-i ${device} -j DROP`]);
    return [
      ...planChainRules(PRE, family, dropForged(family)),
      ...planChainRules(GUARD, family, [`-i ${device} -j DROP`, `-o ${device} -j DROP`]),
      ...rejectsOnHost(network.hostAccess, family, device),
    ];
  });

/**
 * A runner: its bridge sends with addresses of its subnet, and receives from elsewhere only replies and packets with DNAT.
 *
 * What workloads send to other runners leaves by the bridge on which it arrived. For that the kernel would send them ICMP redirects, and for
 * 300 s they would send to the hub themselves, past the rules of the runner.
 */
export function planBridgeRules(network: Isolation, runnerId: number, bridge: string, hubUnderlayIp: string): Item[] {
  return [
    ...planHubAddress(network, runnerId, bridge, hubUnderlayIp),
    ...FAMILIES.flatMap((family) => {
      const layout = layoutOfFamily(network, family);
      const dropFromOutside = `! -i ${bridge} -o ${bridge} -j DROP`;
      if (!layout) {
        const closed = planChainRules(GUARD, family, [`-i ${bridge} ! -o ${bridge} -j DROP`, dropFromOutside]);
        return [...closed, ...rejectsOnHost(network.hostAccess, family, bridge)];
      }
      const { subnet } = runnerLayout(layout, runnerId);
      const onLink = family === 6 ? ON_LINK.map((from) => `-s ${from} -i ${bridge} -o ${bridge} -j RETURN`) : [];
      return [
        ...planChainRules(GUARD, family, [
          RETURN_TRACKED,
          ...onLink,
          `! -s ${subnet} ! -d ${subnet} -i ${bridge} -o ${bridge} -j DROP`,
          `! -s ${subnet} -i ${bridge} ! -o ${bridge} -j DROP`,
          dropFromOutside,
        ]),
        ...planChainRules(OUT, family, [`-o ${bridge} ${ICMP_REDIRECT[family]} -j DROP`, markUsersRule(bridge)]),
        ...planChainRules(FORWARD, family, [
          `-i ${bridge} -o ${bridge} -j ACCEPT`,
          `-o ${bridge} ${MATCH_REPLIES} -j ACCEPT`,
        ]),
        ...planChainRules(INPUT, family, acceptsOnHost(network.hostAccess, family, layout.cidr, bridge)),
        ...rejectsOnHost(network.hostAccess, family, bridge),
      ];
    }),
  ];
}

/** The hub is also reachable at its underlay address; there, packets of workloads would arrive with their runner's address. */
function planHubAddress(network: Isolation, runnerId: number, bridge: string, hubUnderlayIp: string): Item[] {
  const family = familyOfIp(hubUnderlayIp);
  const layout = layoutOfFamily(network, family);
  if (!layout || network.hostAccess === "all") return [];
  const to = `-d ${hubUnderlayIp}/${addressBits(family)} -i ${bridge}`;
  const from = `-s ${runnerLayout(layout, runnerId).subnet} ${to}`;
  return planChainRules(GUARD, family, [
    ...hostAccessMatches(network.hostAccess, family).map((match) => `${from} ${match} -j RETURN`),
    `${to} -j DROP`,
  ]);
}

export function acceptsOnHost(access: HostAccess, family: Family, cidr: string, device: string): string[] {
  const from = `-s ${cidr} -i ${device}`;
  const neighbours = NEIGHBOUR_TYPES.map(
    (type) => `-i ${device} -p ipv6-icmp -m icmp6 --icmpv6-type ${type} -j ACCEPT`,
  );
  return [
    ...(family === 6 ? neighbours : []),
    ...(access === "all" ? [`${from} -j ACCEPT`] : []),
    `${from} ${MATCH_REPLIES} -j ACCEPT`,
    ...hostAccessMatches(access, family).map((match) => `${from} ${match} -j ACCEPT`),
  ];
}

/** Pings, and the ports that the user names. */
const hostAccessMatches = (access: HostAccess, family: Family): string[] => [
  ECHO_REQUEST[family],
  ...(typeof access === "string" ? [] : access).map(({ protocol, first, last }) => {
    const range = first === last ? first : `${first}:${last}`;
    return `-p ${protocol} -m ${protocol} --dport ${range}`;
  }),
];

export const rejectsOnHost = (access: HostAccess, family: Family, device: string): Item[] =>
  access === "all" ? [] : planChainRules(INPUT, family, [`-i ${device} ${REJECT[family]}`]);

/** Our zone, with what workloads of this network may reach on the host. */
export const planZone = ({ layouts, hostAccess }: Pick<Isolation, "layouts" | "hostAccess">): ZoneEntry[] => [
  { kind: "zone" },
  ...layouts.flatMap(({ family, cidr }) =>
    zoneAccessRules(hostAccess).map((access): ZoneEntry => {
      return { kind: "zone", rule: `rule family="ipv${family}" source address="${cidr}" ${access}` };
    }),
  ),
];

function zoneAccessRules(access: HostAccess): string[] {
  if (access === "all") return ["accept"];
  if (access === "ping") return [];
  return access.map(({ protocol, first, last }) => {
    const range = first === last ? first : `${first}-${last}`;
    return `port port="${range}" protocol="${protocol}" accept`;
  });
}

/** One device in our zone. */
export const planZoneDevice = ({ name }: Pick<Link, "name">, hasDocker = false): ZoneEntry[] => [
  { kind: "zone", interface: name, ...(hasDocker && { hasDocker: true as const }) },
];

const UNREACHABLE_METRIC = 4096;

/** Packets of the overlay's range that no other route takes are rejected, and do not leave by a default route. */
export const unreachableRoute = ({ family, cidr }: Layout): Route => ({
  kind: "route",
  family,
  dst: cidr,
  metric: UNREACHABLE_METRIC,
});
