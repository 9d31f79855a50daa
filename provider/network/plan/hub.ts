import { addressBits, FAMILIES, type Family, familyOfIp } from "../../addressing/ip";
import { deviceMac, dockerRange, type Layout, runnerLayout, tunnelName } from "../../addressing/layout";
import {
  acceptPeerRule,
  dropVxlanRule,
  ECHO_REQUEST,
  FORWARD,
  GUARD,
  ICMP_REDIRECT,
  INPUT,
  markUsersRule,
  NAT,
  OUT,
  PRE,
  planChainRules,
} from "../kinds/firewall";
import {
  type DockerNetwork,
  FORWARDING,
  type Item,
  itemKey,
  type Link,
  type Vxlan,
  vxlanOverhead,
  type ZoneEntry,
} from "../model/items";

/**
 * Hub topology. One VXLAN device per runner on the hub, whose other end is a port of the runner's bridge:
 *
 *   hub   hubInterface hubIp/32 · unreachable CIDR · ovl1 .254 ═══ VXLAN ═══ ovl1 ─ bridge .1   runner 1
 *                                                  · ovl2 .254 ═══ VXLAN ═══ ovl2 ─ bridge .1   runner 2
 *
 * The hub routes between subnets; subnets that no runner has are unreachable at once. A planner returns the items that a host
 * must have and contacts no host: addresses and MTU of the underlay are arguments.
 */
export interface Network extends Isolation {
  networkName: string;
  vniBase: number;
  vxlanPort: number;
  mtu: number | "auto";
  masquerade: boolean;
  bridgeName: string;
  hubInterface: string;
  /** Absent: no Docker network is planned. */
  docker?: DockerPlan;
}

/** The underlay of a host: its address there, and that device's MTU. */
export interface Underlay {
  underlayIp: string;
  underlayMtu: number;
  /** The device whose subnet contains the static address in question, if there is one. */
  uplink?: string;
}

const UNREACHABLE_METRIC = 4096;

export const effectiveMtu = (network: Pick<Network, "mtu">, ...ends: Underlay[]): number =>
  network.mtu === "auto"
    ? Math.min(...ends.map(({ underlayIp, underlayMtu }) => underlayMtu - vxlanOverhead(underlayIp)))
    : network.mtu;

export function planHub(network: Network): Item[] {
  return uniqueByKey([
    { kind: "link", name: network.hubInterface, type: "anchor", mac: deviceMac(network.networkName, 0, "hub") },
    ...network.layouts.flatMap((layout): Item[] => [
      { kind: "address", dev: network.hubInterface, address: `${layout.hubIp}/${layout.family === 4 ? 32 : 128}` },
      { kind: "route", family: layout.family, dst: layout.cidr, metric: UNREACHABLE_METRIC },
      forwardingSysctl(layout),
    ]),
    ...planHubRules(network),
  ]);
}

/** The hub's end of one runner's tunnel. */
export function planTunnel(network: Network, runnerId: number, hub: Underlay, runner: Underlay): Item[] {
  const dev = tunnelName(network.devicePrefix, runnerId);
  const link = {
    ...vxlanLink(network, runnerId, hub, runner),
    name: dev,
    mac: deviceMac(network.networkName, runnerId, "hub"),
  };
  return uniqueByKey([
    link,
    ...planTunnelRules(network, runnerId, dev, link.vxlan),
    ...planZone(network),
    ...planZoneDevice(link),
    ...network.layouts.map((layout): Item => {
      const { hubIp } = runnerLayout(layout, runnerId);
      return { kind: "address", dev, address: `${hubIp}/${layout.runnerPrefix}` };
    }),
  ]);
}

export function planRunner(
  network: Network,
  runnerId: number,
  runnerDevice: string,
  hub: Underlay,
  runner: Underlay,
): Item[] {
  const mtu = effectiveMtu(network, hub, runner);
  const bridge = network.bridgeName;
  const mac = deviceMac(network.networkName, runnerId, "bridge");
  const over: Link = { kind: "link", name: bridge, type: "bridge", mtu, mac };
  const link = {
    ...vxlanLink(network, runnerId, runner, hub),
    name: runnerDevice,
    master: bridge,
    mac: deviceMac(network.networkName, runnerId, "runner"),
  };
  return uniqueByKey([
    over,
    link,
    ...planRunnerRules(network, runnerId, bridge, link.vxlan),
    ...planZone(network),
    ...planZoneDevice(over, network.docker !== undefined),
    ...planZoneDevice(link),
    ...network.layouts.flatMap((layout): Item[] => {
      const { subnet, gateway, hubIp } = runnerLayout(layout, runnerId);
      return [
        { kind: "address", dev: bridge, address: `${gateway}/${layout.runnerPrefix}` },
        { kind: "route", family: layout.family, dst: layout.cidr, via: hubIp, dev: bridge },
        forwardingSysctl(layout),
        ...(network.masquerade ? planMasquerade(layout, subnet) : []),
      ];
    }),
    ...(network.docker ? [planDocker(network.docker, network.layouts, runnerId, bridge, mtu)] : []),
  ]);
}

/** Items that several parts of a plan need are listed once. */
const uniqueByKey = (items: Item[]): Item[] => [...new Map(items.map((item) => [itemKey(item), item])).values()];

function vxlanLink(network: Network, runnerId: number, here: Underlay, there: Underlay) {
  return {
    kind: "link" as const,
    type: "vxlan" as const,
    mtu: effectiveMtu(network, here, there),
    vxlan: {
      vni: network.vniBase + runnerId,
      port: network.vxlanPort,
      remote: there.underlayIp,
      local: here.underlayIp,
    },
  };
}

const forwardingSysctl = ({ family }: Layout): Item => ({ kind: "sysctl", key: FORWARDING[family], value: "1" });

const planMasquerade = ({ family, cidr }: Layout, subnet: string): Item[] =>
  planChainRules(NAT, family, [`-s ${subnet} ! -d ${cidr} -j MASQUERADE`]);

/** The Docker network of a runner; see kinds/docker.ts. */
export interface DockerPlan {
  name: string;
  required: boolean;
  /** Docker has the last `1/share` of the subnet. */
  share: number;
}

export const planDocker = (
  { name, required, share }: DockerPlan,
  layouts: Layout[],
  runnerId: number,
  bridge: string,
  mtu: number,
): DockerNetwork => ({
  kind: "docker",
  name,
  bridge,
  mtu,
  required,
  subnets: layouts.map((layout) => {
    const runner = runnerLayout(layout, runnerId);
    const { subnet, gateway, hubIp } = runner;
    return { subnet, gateway, hub: hubIp, range: dockerRange(layout, runner, share).cidr };
  }),
});

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
const planHubRules = (network: Isolation): Item[] =>
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

/** One tunnel on the hub: from it only its runner's addresses are accepted, and over it only packets of the overlay and replies. */
function planTunnelRules(network: Isolation, runnerId: number, device: string, tunnel: Vxlan): Item[] {
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

/**
 * A runner: its bridge sends with addresses of its subnet, and receives from elsewhere only replies and packets with DNAT.
 *
 * What workloads send to other runners leaves by the bridge on which it arrived. For that the kernel would send them ICMP redirects, and for
 * 300 s they would send to the hub themselves, past the rules of the runner.
 */
function planRunnerRules(network: Isolation, runnerId: number, bridge: string, tunnel: Vxlan): Item[] {
  return [
    ...planPeer(tunnel),
    ...planTunnelPort(network, bridge, tunnel),
    ...planHubAddress(network, runnerId, bridge, tunnel),
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
