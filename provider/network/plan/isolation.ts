import { addressBits, FAMILIES, type Family, familyOfIp } from "../../addressing/ip";
import { type Layout, runnerLayout } from "../../addressing/layout";
import {
  acceptPeerRule,
  dropVxlanRule,
  ECHO_REQUEST,
  FORWARD,
  GUARD,
  INPUT,
  PRE,
  planChainRules,
} from "../kinds/firewall";
import type { Item, Link, Vxlan, ZoneEntry } from "../model/items";

/**
 * Which packets pass on hub and runners. Rules match the incoming device of a packet, never its source address alone, which
 * any sender can forge. docs/hosts.md lists the rules.
 *
 * A runner's bridge carries its workloads' frames and, by the tunnel, the hub's. If the kernel passes bridged frames to
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

const layoutOfFamily = ({ layouts }: Pick<Isolation, "layouts">, family: Family): Layout | undefined =>
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
    ];
  });

/** One tunnel on the hub: from it only its runner's addresses are accepted, and over it only packets of the overlay and replies. */
export function planTunnelRules(network: Isolation, runnerId: number, device: string, tunnel: Vxlan): Item[] {
  return [
    ...planHubRules(network),
    ...planPeer(tunnel),
    ...FAMILIES.flatMap((family) => {
      const layout = layoutOfFamily(network, family);
      if (!layout) return planChainRules(PRE, family, [`-i ${device} -j DROP`]);
      const { subnet } = runnerLayout(layout, runnerId);
      return [
        ...planChainRules(PRE, family, [`! -s ${subnet} -i ${device} -j DROP`]),
        ...planChainRules(GUARD, family, [`-i ${device} -j DROP`, `-o ${device} -j DROP`]),
        ...rejectsOnHost(network.hostAccess, family, device),
      ];
    }),
  ];
}

/** A runner: its bridge sends with addresses of its subnet, and receives from elsewhere only replies and packets with DNAT. */
export function planRunnerRules(network: Isolation, runnerId: number, bridge: string, tunnel: Vxlan): Item[] {
  return [
    ...planPeer(tunnel),
    ...planTunnelPort(network, bridge, tunnel),
    ...planHubAddress(network, runnerId, bridge, tunnel),
    ...FAMILIES.flatMap((family) => {
      const layout = layoutOfFamily(network, family);
      const strangers = `! -i ${bridge} -o ${bridge} -j DROP`;
      if (!layout) {
        const closed = planChainRules(GUARD, family, [`-i ${bridge} ! -o ${bridge} -j DROP`, strangers]);
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
          strangers,
        ]),
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

/** Accepts VXLAN from the peer, and drops it from all other hosts: the kernel does not compare the outer source with a device's remote. */
export function planPeer({ remote, port }: Pick<Vxlan, "remote" | "port">): Item[] {
  const family = familyOfIp(remote);
  return planChainRules(INPUT, family, [acceptPeerRule(remote, port), dropVxlanRule(port)]);
}

/**
 * A workload that sends to a tunnel port on the underlay would arrive with its runner's address, which is a peer's. Between
 * workloads the port is like any other.
 */
function planTunnelPort(network: Isolation, bridge: string, { remote, port }: Vxlan): Item[] {
  const family = familyOfIp(remote);
  const layout = layoutOfFamily(network, family);
  const outside = layout ? `! -d ${layout.cidr} ` : "";
  return planChainRules(PRE, family, [`${outside}-i ${bridge} -p udp -m udp --dport ${port} -j DROP`]);
}

/** The hub is also reachable at its underlay address; there, packets of workloads would arrive with their runner's address. */
function planHubAddress(network: Isolation, runnerId: number, bridge: string, { remote }: Vxlan): Item[] {
  const family = familyOfIp(remote);
  const layout = layoutOfFamily(network, family);
  if (!layout || network.hostAccess === "all") return [];
  const to = `-d ${remote}/${addressBits(family)} -i ${bridge}`;
  const from = `-s ${runnerLayout(layout, runnerId).subnet} ${to}`;
  return planChainRules(GUARD, family, [
    ...hostAccessMatches(network.hostAccess, family).map((match) => `${from} ${match} -j RETURN`),
    `${to} -j DROP`,
  ]);
}

function acceptsOnHost(access: HostAccess, family: Family, cidr: string, device: string): string[] {
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

const rejectsOnHost = (access: HostAccess, family: Family, device: string): Item[] =>
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
export const planZoneDevice = ({ name, vxlan }: Link, hasDocker = false): ZoneEntry[] => [
  { kind: "zone", interface: name, ...(hasDocker && { hasDocker: true as const }) },
  ...(vxlan ? [{ kind: "zone" as const, rule: zoneVxlanRule(vxlan.remote, vxlan.port), underlay: vxlan.local }] : []),
];

const zoneVxlanRule = (peer: string, port: number): string =>
  `rule family="ipv${peer.includes(":") ? 6 : 4}" source address="${peer}" port port="${port}" protocol="udp" accept`;
