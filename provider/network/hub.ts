import { type Layout, runnerLayout } from "../addressing/layout";
import type { Family } from "../addressing/line";
import { deviceName, macOf } from "../addressing/names";
import { type DockerPlan, planDocker } from "./docker";
import { type Item, keyOf, type Link, type Vxlan } from "./items";
import { planZones } from "./zones";

/**
 * Hub topology. One VXLAN device per runner on the hub, whose other end is a port of the runner's bridge:
 *
 *   hub   hubInterface hubIp/32 · unreachable CIDR · vxkr1 .254 ═══ VXLAN ═══ vxkr1 ─ bridge .1   runner 1
 *                                                  · vxkr2 .254 ═══ VXLAN ═══ vxkr2 ─ bridge .1   runner 2
 *
 * The hub routes between subnets; subnets that no runner has are unreachable at once. A planner returns what a host
 * must look like and asks no host: what machines say about themselves (addresses, MTU) is handed in.
 */
export interface Network {
  networkName: string;
  layouts: Layout[];
  vniBase: number;
  vxlanPort: number;
  mtu: number | "auto";
  masquerade: boolean;
  devicePrefix: string;
  bridgeName: string;
  hubInterface: string;
  /** Absent: Docker is none of our business. */
  docker?: DockerPlan;
}

/** What a machine says about its underlay: its address there, and that device's MTU. */
export interface Machine {
  underlayIp: string;
  underlayMtu: number;
  /** The device on whose network the address lies that was asked for, if there is one. */
  uplink?: string;
}

export const INPUT = "OVERLAY-IN";
export const FORWARD = "OVERLAY-FWD";
export const NAT = "OVERLAY-NAT";
const UNREACHABLE_METRIC = 4096;
export const FORWARDING: Record<Family, string> = { 4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding" };

/** Outer Ethernet-less headers: IP + UDP + VXLAN + inner Ethernet. */
export const overheadOf = (underlayIp: string): number => (underlayIp.includes(":") ? 70 : 50);

export const effectiveMtu = (network: Pick<Network, "mtu">, ...ends: Machine[]): number =>
  network.mtu === "auto"
    ? Math.min(...ends.map(({ underlayIp, underlayMtu }) => underlayMtu - overheadOf(underlayIp)))
    : network.mtu;

export function planHub(network: Network): Item[] {
  return [
    { kind: "link", name: network.hubInterface, type: "anchor", mac: macOf(network.networkName, 0, "hub") },
    ...network.layouts.flatMap((layout): Item[] => [
      { kind: "address", dev: network.hubInterface, address: `${layout.hubIp}/${layout.family === 4 ? 32 : 128}` },
      { kind: "route", family: layout.family, dst: layout.cidr, metric: UNREACHABLE_METRIC },
      ...forwarding(layout),
    ]),
  ];
}

/** The hub's end of one runner's tunnel. */
export function planTunnel(network: Network, runnerId: number, hub: Machine, runner: Machine): Item[] {
  const dev = deviceName(network.devicePrefix, runnerId);
  const link: Link = {
    ...tunnel(network, runnerId, hub, runner),
    name: dev,
    mac: macOf(network.networkName, runnerId, "hub"),
  };
  return [
    link,
    ...entrance(link.vxlan!),
    ...planZones(link),
    ...network.layouts.map((layout): Item => {
      const { hubIp } = runnerLayout(layout, runnerId);
      return { kind: "address", dev, address: `${hubIp}/${layout.runnerPrefix}` };
    }),
  ];
}

export function planRunner(
  network: Network,
  runnerId: number,
  runnerDevice: string,
  hub: Machine,
  runner: Machine,
): Item[] {
  const mtu = effectiveMtu(network, hub, runner);
  const bridge = network.bridgeName;
  const mac = macOf(network.networkName, runnerId, "bridge");
  const over: Link = { kind: "link", name: bridge, type: "bridge", mtu, mac };
  const link: Link = {
    ...tunnel(network, runnerId, runner, hub),
    name: runnerDevice,
    master: bridge,
    mac: macOf(network.networkName, runnerId, "runner"),
  };
  return unique([
    over,
    link,
    ...entrance(link.vxlan!),
    ...planZones(over, network.docker !== undefined),
    ...planZones(link),
    ...network.layouts.flatMap((layout): Item[] => {
      const { subnet, gateway, hubIp } = runnerLayout(layout, runnerId);
      return [
        { kind: "address", dev: bridge, address: `${gateway}/${layout.runnerPrefix}` },
        { kind: "route", family: layout.family, dst: layout.cidr, via: hubIp, dev: bridge },
        ...forwarding(layout),
        ...(network.masquerade ? masquerade(layout, subnet) : []),
      ];
    }),
    ...(network.docker ? [planDocker(network.docker, network.layouts, runnerId, bridge, mtu)] : []),
  ]);
}

/** Chains and jumps that several parts of a plan need are one. */
const unique = (items: Item[]): Item[] => [...new Map(items.map((item) => [keyOf(item), item])).values()];

function tunnel(network: Network, runnerId: number, here: Machine, there: Machine) {
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

function forwarding(layout: Layout): Item[] {
  const { family, cidr } = layout;
  const place = { family, table: "filter" as const, chain: FORWARD };
  return [
    { kind: "sysctl", key: FORWARDING[family], value: "1" },
    { kind: "chain", ...place },
    { kind: "rule", ...place, rule: `-s ${cidr} -j ACCEPT` },
    { kind: "rule", ...place, rule: `-d ${cidr} -j ACCEPT` },
    { kind: "jump", ...place, from: "FORWARD" },
    { kind: "jump", ...place, from: "DOCKER-USER", ifPresent: true },
    ...echo(layout),
  ];
}

/** Where the machine lets nothing in by itself: VXLAN from the peer. */
function entrance({ remote, port }: Vxlan): Item[] {
  const family = remote.includes(":") ? 6 : 4;
  const place = { family, table: "filter", chain: INPUT } as const;
  const from = `${remote}/${family === 4 ? 32 : 128}`;
  return [
    { kind: "chain", ...place },
    { kind: "rule", ...place, rule: `-s ${from} -p udp -m udp --dport ${port} -j ACCEPT` },
    { kind: "jump", ...place, from: "INPUT" },
  ];
}

/** The ping that proves it, too, must come in. */
function echo({ family, cidr }: Layout): Item[] {
  const place = { family, table: "filter", chain: INPUT } as const;
  const type = family === 4 ? "icmp -m icmp --icmp-type 8" : "ipv6-icmp -m icmp6 --icmpv6-type 128";
  return [
    { kind: "chain", ...place },
    { kind: "rule", ...place, rule: `-s ${cidr} -p ${type} -j ACCEPT` },
    { kind: "jump", ...place, from: "INPUT" },
  ];
}

function masquerade({ family, cidr }: Layout, subnet: string): Item[] {
  const place = { family, table: "nat" as const, chain: NAT };
  return [
    { kind: "chain", ...place },
    { kind: "rule", ...place, rule: `-s ${subnet} ! -d ${cidr} -j MASQUERADE` },
    { kind: "jump", ...place, from: "POSTROUTING" },
  ];
}
