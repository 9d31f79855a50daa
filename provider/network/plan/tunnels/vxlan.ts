import { familyOfIp } from "../../../addressing/ip";
import { deviceMac, runnerLayout, tunnelName } from "../../../addressing/layout";
import { acceptPeerRule, dropVxlanRule, INPUT, PRE, planChainRules } from "../../kinds/firewall";
import { type Item, type Link, type Vxlan, vxlanOverhead, type ZoneEntry } from "../../model/items";
import type { Network, Underlay } from "../hub";
import {
  type Isolation,
  layoutOfFamily,
  planHubDeviceRules,
  planHubRules,
  planZone,
  planZoneDevice,
} from "../isolation";
import { HUB, planProbeAddress } from "./probe-address";
import type { Tunnel } from "./tunnel";
import { looseFiltering } from "./wireguard";

/**
 * One VXLAN device per runner on the hub, whose other end is a port of the runner's bridge. The hub's address in the runner's subnet is
 * on-link for its workloads:
 *
 *   hub   ovl1 .254 ═══ VXLAN ═══ ovl1 ─ bridge .1   runner 1
 */
export const vxlan: Tunnel = {
  isRouted: false,
  overhead: vxlanOverhead,
  hubDevice: ({ devicePrefix }, runnerId) => tunnelName(devicePrefix, runnerId),
  planHub: () => [],
  planHubEnd(network, runnerId, hub, runner) {
    const name = tunnelName(network.devicePrefix, runnerId);
    const link = planLink(network, runnerId, hub, runner, {
      name,
      mac: deviceMac(network.networkName, runnerId, "hub"),
    });
    return [
      link,
      ...planHubRules(network),
      ...planPeer(link.vxlan),
      ...planHubDeviceRules(network, name, (family) => {
        const { subnet } = runnerLayout(layoutOfFamily(network, family)!, runnerId);
        return [`! -s ${subnet} -i ${name} -j DROP`];
      }),
      ...planZone(network),
      ...planZoneDevice(link),
      ...planZonePeer(link.vxlan),
      ...network.layouts.map((layout): Item => {
        const { hubIp } = runnerLayout(layout, runnerId);
        return { kind: "address", dev: name, address: `${hubIp}/${layout.runnerPrefix}` };
      }),
    ];
  },
  planRunnerEnd(network, runnerId, name, hub, runner) {
    const mac = deviceMac(network.networkName, runnerId, "runner");
    const link = planLink(network, runnerId, runner, hub, { name, master: network.bridgeName, mac });
    return [
      link,
      ...planPeer(link.vxlan),
      ...planTunnelPort(network, network.bridgeName, link.vxlan),
      ...planZoneDevice(link),
      ...planZonePeer(link.vxlan),
    ];
  },
  planTransition(network, runnerId, hub, runner) {
    const { mtu } = planLink(network, runnerId, hub, runner, { name: "" });
    const planDevice = (name: string, id: number): Item[] => [
      looseFiltering(name),
      ...planProbeAddress({ name, mtu: mtu! }, id),
      ...acceptNeighbourDiscovery(name),
    ];
    const device = tunnelName(network.devicePrefix, runnerId);
    return { hub: planDevice(device, HUB), runner: planDevice(network.bridgeName, runnerId) };
  },
  probeDevice: ({ bridgeName }) => bridgeName,
  nextHop: ({ bridgeName }, hubIp) => ({ via: hubIp, dev: bridgeName }),
  planRunnerRoutes: (network, runnerId) =>
    network.layouts.map((layout) => {
      const { hubIp } = runnerLayout(layout, runnerId);
      return { kind: "route", family: layout.family, dst: layout.cidr, ...vxlan.nextHop(network, hubIp) };
    }),
};

/** Between probe addresses, in networks without IPv6, too. */
export const acceptNeighbourDiscovery = (name: string): Item[] =>
  [135, 136].flatMap((type) => [
    ...planChainRules(PRE, 6, [`-s fe80::/64 -i ${name} -p ipv6-icmp -m icmp6 --icmpv6-type ${type} -j RETURN`]),
    ...planChainRules(INPUT, 6, [`-i ${name} -p ipv6-icmp -m icmp6 --icmpv6-type ${type} -j ACCEPT`]),
  ]);

export function planLink(
  network: Network,
  runnerId: number,
  here: Underlay,
  there: Underlay,
  own: Pick<Link, "name" | "master" | "mac">,
): Link & { vxlan: Vxlan } {
  const overhead = (end: Underlay): number => end.underlayMtu - vxlanOverhead(end.underlayIp);
  return {
    kind: "link",
    type: "vxlan",
    mtu: network.mtu === "auto" ? Math.min(overhead(here), overhead(there)) : network.mtu,
    vxlan: {
      vni: network.vniBase + runnerId,
      port: network.vxlanPort,
      remote: there.underlayIp,
      local: here.underlayIp,
    },
    ...own,
  };
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
export function planTunnelPort(network: Isolation, bridge: string, { remote, port }: Vxlan): Item[] {
  const family = familyOfIp(remote);
  const layout = layoutOfFamily(network, family);
  const outside = layout ? `! -d ${layout.cidr} ` : "";
  return planChainRules(PRE, family, [`${outside}-i ${bridge} -p udp -m udp --dport ${port} -j DROP`]);
}

/** The peer, in the zone of the underlay's device. */
export const planZonePeer = ({ remote, local, port }: Vxlan): ZoneEntry[] => [
  {
    kind: "zone",
    rule: `rule family="ipv${familyOfIp(remote)}" source address="${remote}" port port="${port}" protocol="udp" accept`,
    underlay: local,
  },
];
