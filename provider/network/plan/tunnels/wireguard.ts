import { addressBits, FAMILIES, type Family, familyOfIp } from "../../../addressing/ip";
import { type Layout, runnerLayout } from "../../../addressing/layout";
import { FORWARD, GUARD, ICMP_REDIRECT, INPUT, OUT, PRE, planChainRules } from "../../kinds/firewall";
import {
  type Item,
  type Key,
  type Link,
  type Route,
  type Wireguard,
  type WireguardPeer,
  wireguardOverhead,
} from "../../model/items";
import { deviceSysctl, keyPath } from "../../model/record";
import type { Network, Underlay } from "../hub";
import {
  acceptsOnHost,
  layoutOfFamily,
  planHubDeviceRules,
  planZone,
  planZoneDevice,
  rejectsOnHost,
  unreachableRoute,
} from "../isolation";
import { HUB, planProbeAddress, probeRange } from "./probe-address";
import type { Tunnel } from "./tunnel";

/**
 * WireGuard: one device on the hub, of which all runners are peers, and one on each runner. It routes, and is no port of the bridge:
 *
 *   hub   ovlW0, peers with their subnets · .254 of each runner on hubInterface ═══ WireGuard ═══ ovlW0 │ bridge .1   runner
 *
 * A peer can send only from its subnets (allowed IPs), so no rule compares sources. For the workloads the hub's address .254 is on-link: the
 * runner answers for it. Each device has an address of the overlay, and loose reverse path filtering: packets may come by it while the route
 * back leads elsewhere. Without a device, a key or a firewall the unreachable route takes over: nothing leaves in clear.
 */
export const wireguard: Tunnel = {
  isRouted: true,
  overhead: wireguardOverhead,
  hubDevice: deviceName,
  planHub(network, hub) {
    const dev = deviceName(network);
    const shared: Network = { ...network, mtu: network.hubMtu ?? network.mtu };
    const link: Link = { ...planLink(shared, dev, hub, mtuOver(hub)), shared: true };
    return [
      planKey(network, hub),
      link,
      looseFiltering(dev),
      ...planProbeAddress(link, HUB),
      ...network.layouts.map(({ hubIp, family }): Item => ({ kind: "address", dev, address: hostCidr(hubIp, family) })),
      ...planHubDeviceRules(network, dev, () => []),
      ...dropRedirects(network, dev),
      ...planPort(network, hub),
      ...planZone(network),
      ...planZoneDevice(link),
    ];
  },
  planHubEnd(network, runnerId, hub, runner) {
    const dev = deviceName(network);
    const subnets = network.layouts.map((layout) => runnerLayout(layout, runnerId).subnet);
    return [
      ...wireguard.planHub(network, hub), // the device stays as long as one runner has a tunnel of it
      ...planPeer(network, dev, runner, [...subnets, probeRange(runnerId)]),
      ...planRoutesToRunner(network, runnerId, { dev }),
    ];
  },
  planRunnerEnd(network, runnerId, _device, hub, runner) {
    const dev = deviceName(network);
    const link = planLink(network, dev, runner, Math.min(mtuOver(hub), mtuOver(runner)));
    return [
      planKey(network, runner),
      ...planRoutedEnd(network, runnerId, link),
      // The hub sends for all other runners and, for static addresses, for clients outside.
      ...planPeer(network, dev, hub, [...network.layouts.map(({ family }) => ANY[family]), probeRange(HUB)]),
      ...planPort(network, runner),
    ];
  },
  planTransition: () => ({ hub: [], runner: [] }),
  probeDevice: deviceName,
  nextHop: (network) => ({ dev: deviceName(network) }),
  planRunnerRoutes: (network, runnerId) => planRoutesToHub(network, runnerId, { dev: deviceName(network) }),
};

// What all tunnels have that route

/** The device of a runner, which answers for the hub's address on its bridge. */
export const planRoutedEnd = (network: Network, runnerId: number, link: Link): Item[] => [
  link,
  looseFiltering(link.name),
  ...planProbeAddress(link, runnerId),
  ...network.layouts.flatMap((layout): Item[] => {
    const { gateway, hubIp } = runnerLayout(layout, runnerId);
    const bridge = network.bridgeName;
    return [
      { kind: "address", dev: link.name, address: hostCidr(gateway, layout.family) },
      { kind: "neighbour", dev: bridge, ip: hubIp },
      ...(layout.family === 6
        ? [{ kind: "sysctl" as const, key: deviceSysctl(6, bridge, "proxy_ndp"), value: "1" }]
        : []),
    ];
  }),
  ...planRunnerDeviceRules(network, runnerId, link.name),
  ...dropRedirects(network, link.name),
  ...planZoneDevice(link),
];

type NextHop = Pick<Route, "via" | "dev">;

export const planRoutesToHub = (network: Network, runnerId: number, nextHop: NextHop): Item[] =>
  network.layouts.flatMap((layout): Item[] => {
    const { gateway, hubIp } = runnerLayout(layout, runnerId);
    const route = { kind: "route", family: layout.family, ...nextHop, src: gateway } as const;
    return [
      { ...route, dst: layout.cidr },
      { ...route, dst: hostCidr(hubIp, layout.family) },
      unreachableRoute(layout),
    ];
  });

/** On the hub, with its address in the runner's subnet, which no change of devices removes. */
export const planRoutesToRunner = (network: Network, runnerId: number, nextHop: NextHop): Item[] =>
  network.layouts.flatMap((layout): Item[] => {
    const { subnet, hubIp } = runnerLayout(layout, runnerId);
    const { family } = layout;
    const metric = family === 6 ? { metric: BEFORE_SUBNETS } : {};
    return [
      { kind: "address", dev: network.hubInterface, address: hostCidr(hubIp, family) },
      { kind: "route", family, dst: subnet, ...nextHop, src: hubIp, ...metric },
    ];
  });

/**
 * A rotation has two devices at once, each with its own key and port. So generations take turns: even ones have the first, odd ones
 * the second.
 */
export const slotOf = ({ keyGeneration = 0 }: Pick<Network, "keyGeneration">): number => keyGeneration % 2;

/** Ids are in lower case: no runner's tunnel has this name. */
function deviceName(network: Pick<Network, "devicePrefix" | "keyGeneration">): string {
  return `${network.devicePrefix}W${slotOf(network)}`;
}

/** The inverse, of a network with any prefix. */
export function parseDeviceName(name: string): { prefix: string; slot: number } | undefined {
  const [, prefix, slot] = /^(.+)W([01])$/.exec(name) ?? [];
  return prefix === undefined ? undefined : { prefix, slot: Number(slot) };
}

export const portOf = (network: Pick<Network, "wireguardPort" | "keyGeneration">): number =>
  network.wireguardPort + slotOf(network);

/** The kernel's IPv6 routes to the subnets of devices have 256. In IPv4 ours precede them: see kinds/route.ts. */
const BEFORE_SUBNETS = 128;

const ANY: Record<Family, string> = { 4: "0.0.0.0/0", 6: "::/0" };

export const hostCidr = (ip: string, family: Family): string => `${ip}/${addressBits(family)}`;

export const mtuOver = ({ underlayIp, underlayMtu }: Underlay): number => underlayMtu - wireguardOverhead(underlayIp);

export const planKey = (network: Network, { publicKey }: Underlay): Key => ({
  kind: "key",
  path: keyPath(network.networkName, slotOf(network)),
  ...(publicKey && { publicKey }),
});

export const planLink = (
  network: Network,
  name: string,
  { underlayIp, publicKey }: Underlay,
  autoMtu: number,
): Link & { wireguard: Wireguard } => ({
  kind: "link",
  name,
  type: "wireguard",
  mtu: network.mtu === "auto" ? autoMtu : network.mtu,
  wireguard: {
    port: portOf(network),
    keyFile: keyPath(network.networkName, slotOf(network)),
    ...(publicKey && { publicKey }),
    local: underlayIp,
  },
});

export const looseFiltering = (dev: string): Item => ({
  kind: "sysctl",
  key: deviceSysctl(4, dev, "rp_filter"),
  value: "2",
});

/** Seconds. Both ends know each other's address, and so find each other again at once; what is between them keeps the mapping open. */
const KEEPALIVE = 25;

/** None while the other host has no key. */
export const planPeer = (
  network: Pick<Network, "wireguardPort">,
  dev: string,
  { publicKey, underlayIp }: Pick<Underlay, "publicKey" | "underlayIp">,
  allowedIps: string[],
): WireguardPeer[] =>
  publicKey === undefined
    ? []
    : [
        {
          kind: "wgpeer",
          dev,
          publicKey,
          allowedIps,
          endpoint: { ip: underlayIp, port: portOf(network) },
          keepalive: KEEPALIVE,
        },
      ];

/** From any host: WireGuard answers only to peers, and one behind NAT has another address than its own. */
export function planPort(network: Network, { underlayIp }: Underlay): Item[] {
  const port = portOf(network);
  const family = familyOfIp(underlayIp);
  const rule = `rule family="ipv${family}" source address="${ANY[family]}" port port="${port}" protocol="udp" accept`;
  return [
    ...planChainRules(INPUT, family, [`-p udp -m udp --dport ${port} -j ACCEPT`]),
    { kind: "zone", rule, underlay: underlayIp },
  ];
}

/** What leaves by the device on which it came is no reason to name another gateway. */
export const dropRedirects = ({ layouts }: Network, dev: string): Item[] =>
  layouts.flatMap(({ family }) => planChainRules(OUT, family, [`-o ${dev} ${ICMP_REDIRECT[family]} -j DROP`]));

/** Between a runner's workloads and the other end, and from the overlay to what the runner itself offers; nothing else passes the device. */
export function planRunnerDeviceRules(network: Network, runnerId: number, dev: string): Item[] {
  const rulesOf = (layout: Layout): Item[] => {
    const { family, cidr } = layout;
    const { subnet } = runnerLayout(layout, runnerId);
    const sent = `-s ${subnet} -i ${network.bridgeName} -o ${dev}`;
    const received = `-d ${subnet} -i ${dev} -o ${network.bridgeName}`;
    return [
      ...planChainRules(GUARD, family, [
        `${sent} -j RETURN`,
        `${received} -j RETURN`,
        `-i ${dev} -j DROP`,
        `-o ${dev} -j DROP`,
      ]),
      ...planChainRules(FORWARD, family, [`${sent} -j ACCEPT`, `${received} -j ACCEPT`]),
      ...planChainRules(INPUT, family, acceptsOnHost(network.hostAccess, family, cidr, dev)),
      ...rejectsOnHost(network.hostAccess, family, dev),
    ];
  };
  return FAMILIES.flatMap((family) => {
    const layout = layoutOfFamily(network, family);
    return layout ? rulesOf(layout) : planChainRules(PRE, family, [`-i ${dev} -j DROP`]);
  });
}
