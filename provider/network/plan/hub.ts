import { deviceMac, dockerRange, type Layout, runnerLayout, tunnelName } from "../../addressing/layout";
import { NAT, planChainRules } from "../kinds/firewall";
import { type DockerNetwork, FORWARDING, type Item, itemKey, type Link, vxlanOverhead } from "../model/items";
import { type Isolation, planHubRules, planRunnerRules, planTunnelRules, planZone, planZoneDevice } from "./isolation";

/**
 * Hub topology. One VXLAN device per runner on the hub, whose other end is a port of the runner's bridge:
 *
 *   hub   hubInterface hubIp/32 · unreachable CIDR · vxkr1 .254 ═══ VXLAN ═══ vxkr1 ─ bridge .1   runner 1
 *                                                  · vxkr2 .254 ═══ VXLAN ═══ vxkr2 ─ bridge .1   runner 2
 *
 * The hub routes between subnets; subnets that no runner has are unreachable at once. A planner returns the items that a host
 * must have and contacts no host: addresses and MTU of the machines are arguments.
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

/** The underlay of a machine: its address there, and that device's MTU. */
export interface Machine {
  underlayIp: string;
  underlayMtu: number;
  /** The device whose subnet contains the static address in question, if there is one. */
  uplink?: string;
}

const UNREACHABLE_METRIC = 4096;

export const effectiveMtu = (network: Pick<Network, "mtu">, ...ends: Machine[]): number =>
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
export function planTunnel(network: Network, runnerId: number, hub: Machine, runner: Machine): Item[] {
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
  hub: Machine,
  runner: Machine,
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

function vxlanLink(network: Network, runnerId: number, here: Machine, there: Machine) {
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
