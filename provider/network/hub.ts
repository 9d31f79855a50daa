import { type Layout, runnerLayout } from "../addressing/layout";
import type { Family } from "../addressing/line";
import { deviceName, macOf } from "../addressing/names";
import { NAT, rulesIn } from "./chains";
import { type DockerPlan, planDocker } from "./docker";
import { type Isolation, planHubRules, planRunnerRules, planTunnelRules } from "./isolation";
import { type Item, keyOf, type Link } from "./items";
import { planZone, planZoneDevice } from "./zones";

/**
 * Hub topology. One VXLAN device per runner on the hub, whose other end is a port of the runner's bridge:
 *
 *   hub   hubInterface hubIp/32 · unreachable CIDR · vxkr1 .254 ═══ VXLAN ═══ vxkr1 ─ bridge .1   runner 1
 *                                                  · vxkr2 .254 ═══ VXLAN ═══ vxkr2 ─ bridge .1   runner 2
 *
 * The hub routes between subnets; subnets that no runner has are unreachable at once. A planner returns what a host
 * must look like and asks no host: what machines say about themselves (addresses, MTU) is handed in.
 */
export interface Network extends Isolation {
  networkName: string;
  vniBase: number;
  vxlanPort: number;
  mtu: number | "auto";
  masquerade: boolean;
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

const UNREACHABLE_METRIC = 4096;
export const FORWARDING: Record<Family, string> = { 4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding" };

/** Outer Ethernet-less headers: IP + UDP + VXLAN + inner Ethernet. */
export const overheadOf = (underlayIp: string): number => (underlayIp.includes(":") ? 70 : 50);

export const effectiveMtu = (network: Pick<Network, "mtu">, ...ends: Machine[]): number =>
  network.mtu === "auto"
    ? Math.min(...ends.map(({ underlayIp, underlayMtu }) => underlayMtu - overheadOf(underlayIp)))
    : network.mtu;

export function planHub(network: Network): Item[] {
  return unique([
    { kind: "link", name: network.hubInterface, type: "anchor", mac: macOf(network.networkName, 0, "hub") },
    ...network.layouts.flatMap((layout): Item[] => [
      { kind: "address", dev: network.hubInterface, address: `${layout.hubIp}/${layout.family === 4 ? 32 : 128}` },
      { kind: "route", family: layout.family, dst: layout.cidr, metric: UNREACHABLE_METRIC },
      forwarding(layout),
    ]),
    ...planHubRules(network),
  ]);
}

/** The hub's end of one runner's tunnel. */
export function planTunnel(network: Network, runnerId: number, hub: Machine, runner: Machine): Item[] {
  const dev = deviceName(network.devicePrefix, runnerId);
  const link = {
    ...tunnel(network, runnerId, hub, runner),
    name: dev,
    mac: macOf(network.networkName, runnerId, "hub"),
  };
  return unique([
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
  hub: Machine,
  runner: Machine,
): Item[] {
  const mtu = effectiveMtu(network, hub, runner);
  const bridge = network.bridgeName;
  const mac = macOf(network.networkName, runnerId, "bridge");
  const over: Link = { kind: "link", name: bridge, type: "bridge", mtu, mac };
  const link = {
    ...tunnel(network, runnerId, runner, hub),
    name: runnerDevice,
    master: bridge,
    mac: macOf(network.networkName, runnerId, "runner"),
  };
  return unique([
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
        forwarding(layout),
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

const forwarding = ({ family }: Layout): Item => ({ kind: "sysctl", key: FORWARDING[family], value: "1" });

const masquerade = ({ family, cidr }: Layout, subnet: string): Item[] =>
  rulesIn(NAT, family, [`-s ${subnet} ! -d ${cidr} -j MASQUERADE`]);
