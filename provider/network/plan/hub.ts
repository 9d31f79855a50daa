import { deviceMac, dockerRange, type Layout, routingTableId, runnerLayout } from "../../addressing/layout";
import { NAT, planChainRules } from "../kinds/firewall";
import { type DockerNetwork, FORWARDING, type Item, itemKey, type Link, type Vxlan } from "../model/items";
import { type Isolation, planBridgeRules, planHubRules, planZone, planZoneDevice, unreachableRoute } from "./isolation";
import { meshOf, type TunnelName, tunnelOf } from "./tunnels";
import type { MeshPeer } from "./tunnels/tunnel";

/**
 * Hub topology: a tunnel from the hub to each runner (see tunnels/):
 *
 *   hub   hubInterface hubIp/32 · unreachable CIDR · .254 ═══ tunnel ═══ bridge .1   runner 1
 *                                                  · .254 ═══ tunnel ═══ bridge .1   runner 2
 *
 * The hub routes between subnets; subnets that no runner has are unreachable at once. A planner returns the items that a host
 * must have and contacts no host: addresses and MTU of the underlay are arguments.
 */
export interface Network extends Isolation {
  networkName: string;
  tunnel: TunnelName;
  vniBase: number;
  vxlanPort: number;
  wireguardPort: number;
  /** Which of the two WireGuard devices, with which key: see tunnels/wireguard.ts. */
  keyGeneration?: number;
  /** In place of its tunnel: see tunnels/temporary-vxlan.ts. */
  temporary?: Pick<Vxlan, "vni" | "port">;
  mtu: number | "auto";
  /** That of devices which the hub has for all runners; absent: `mtu`, which a runner can override. */
  hubMtu?: number | "auto";
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
  /** Of the host's key for the network's tunnels; absent: it has none. */
  publicKey?: string;
}

export const effectiveMtu = (network: Pick<Network, "mtu" | "tunnel" | "temporary">, ...ends: Underlay[]): number =>
  network.mtu === "auto"
    ? Math.min(...ends.map(({ underlayIp, underlayMtu }) => underlayMtu - tunnelOf(network).overhead(underlayIp)))
    : network.mtu;

/** `hub`: for tunnels that need its underlay. */
export function planHub(network: Network, hub?: Underlay): Item[] {
  return uniqueByKey([
    { kind: "link", name: network.hubInterface, type: "anchor", mac: deviceMac(network.networkName, 0, "hub") },
    ...network.layouts.flatMap((layout): Item[] => [
      { kind: "address", dev: network.hubInterface, address: `${layout.hubIp}/${layout.family === 4 ? 32 : 128}` },
      unreachableRoute(layout),
      forwardingSysctl(layout),
    ]),
    ...planHubRules(network),
    ...(hub ? tunnelOf(network).planHub(network, hub) : []),
  ]);
}

/** The hub's end of one runner's tunnel. */
export const planTunnel = (network: Network, runnerId: number, hub: Underlay, runner: Underlay): Item[] =>
  uniqueByKey(tunnelOf(network).planHubEnd(network, runnerId, hub, runner));

/** `peers`: the other runners of a mesh; absent: all packets pass the hub. */
export function planRunner(
  network: Network,
  runnerId: number,
  runnerDevice: string,
  hub: Underlay,
  runner: Underlay,
  peers?: MeshPeer[],
): Item[] {
  const mtu = effectiveMtu(network, hub, runner);
  const bridge = network.bridgeName;
  const mac = deviceMac(network.networkName, runnerId, "bridge");
  const over: Link = { kind: "link", name: bridge, type: "bridge", mtu, mac };
  const tunnel = tunnelOf(network);
  return uniqueByKey([
    over,
    ...tunnel.planRunnerEnd(network, runnerId, runnerDevice, hub, runner),
    ...planBridgeRules(network, runnerId, bridge, hub.underlayIp),
    ...planZone(network),
    ...planZoneDevice(over, network.docker !== undefined),
    ...network.layouts.flatMap((layout): Item[] => {
      const { subnet, gateway } = runnerLayout(layout, runnerId);
      return [
        { kind: "address", dev: bridge, address: `${gateway}/${layout.runnerPrefix}` },
        forwardingSysctl(layout),
        ...(network.masquerade ? planMasquerade(layout, subnet) : []),
      ];
    }),
    ...tunnel.planRunnerRoutes(network, runnerId, runnerDevice),
    ...network.layouts.map((layout) => planReturnRoute(network, layout, runnerId)),
    ...(peers ? meshOf(network).plan(network, runnerId, hub, runner, peers) : []),
    ...(network.docker ? [planDocker(network.docker, network.layouts, runnerId, bridge, mtu)] : []),
  ]);
}

/** Replies of workloads to clients of static addresses on the hub take it: see plan/static-ip.ts. It is the runner's own, because it changes with its tunnel. */
const planReturnRoute = (network: Network, layout: Layout, runnerId: number): Item => ({
  kind: "route",
  family: layout.family,
  dst: "default",
  ...tunnelOf(network).nextHop(network, runnerLayout(layout, runnerId).hubIp),
  table: routingTableId(network.networkName),
});

/** Items that several parts of a plan need are listed once. */
export const uniqueByKey = (items: Item[]): Item[] => [...new Map(items.map((item) => [itemKey(item), item])).values()];

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
