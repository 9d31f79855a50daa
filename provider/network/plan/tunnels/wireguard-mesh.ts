import { runnerLayout } from "../../../addressing/layout";
import type { Item } from "../../model/items";
import type { Network, Underlay } from "../hub";
import { planZoneDevice } from "../isolation";
import { planProbeAddress, probeRange } from "./probe-address";
import type { MeshPeer } from "./tunnel";
import {
  dropRedirects,
  hostCidr,
  looseFiltering,
  mtuOver,
  planKey,
  planLink,
  planPeer,
  planPort,
  planRunnerDeviceRules,
  portOf,
} from "./wireguard";

/**
 * Runners that send to each other directly: a second WireGuard device on each, of which the other runners are peers, beside the tunnel to
 * the hub, which carries all else:
 *
 *   runner 1   ovlM0 ═══ WireGuard ═══ ovlM0   runner 2
 *              ovlW0 ══════ hub ══════ ovlW0
 *
 * It is a device of its own, because WireGuard drops what a peer sends from a range that another peer of the device has: while one of two
 * runners still sends by the hub, the other one accepts both. A subnet's route is more specific than that of the range, so a runner
 * without it, or without the device, sends by the hub.
 */
export function planWireguardMesh(
  network: Network,
  runnerId: number,
  hub: Underlay,
  runner: Underlay,
  peers: MeshPeer[],
): Item[] {
  const dev = meshDevice(network.devicePrefix);
  const mesh = { ...network, wireguardPort: network.wireguardPort + MESH_PORT_OFFSET };
  const link = planLink(mesh, dev, runner, Math.min(mtuOver(hub), mtuOver(runner)));
  return [
    planKey(mesh, runner),
    link,
    looseFiltering(dev),
    ...planProbeAddress(link, runnerId),
    ...network.layouts.map((layout): Item => {
      const { gateway } = runnerLayout(layout, runnerId);
      return { kind: "address", dev, address: hostCidr(gateway, layout.family) };
    }),
    ...planRunnerDeviceRules(network, runnerId, dev),
    ...dropRedirects(network, dev),
    ...planPort(mesh, runner),
    ...planZoneDevice(link),
    ...peers.flatMap((peer) => planMeshPeer(mesh, runnerId, dev, peer)),
  ];
}

/** Ids are in lower case: no runner's tunnel has this name. */
export const meshDevice = (prefix: string): string => `${prefix}M0`;

/** Of a network with any prefix. */
export const isMeshDevice = (name: string): boolean => name.endsWith(meshDevice(""));

/** It follows the two ports of the tunnel to the hub. */
export const meshPort = (network: Pick<Network, "wireguardPort" | "keyGeneration">): number =>
  portOf(network) + MESH_PORT_OFFSET;

const MESH_PORT_OFFSET = 2;

/** The MTU is that of the path by the hub, so that no packet is too large for one of them. */
function planMeshPeer(mesh: Network, runnerId: number, dev: string, peer: MeshPeer): Item[] {
  const ends = mesh.layouts.map((layout) => ({
    family: layout.family,
    subnet: runnerLayout(layout, peer.id).subnet,
    src: runnerLayout(layout, runnerId).gateway,
  }));
  return [
    ...planPeer({ wireguardPort: peer.port + MESH_PORT_OFFSET }, dev, peer, [
      ...ends.map(({ subnet }) => subnet),
      probeRange(peer.id),
    ]),
    ...(peer.isRouted
      ? ends.map(({ family, subnet, src }): Item => ({ kind: "route", family, dst: subnet, dev, src }))
      : []),
  ];
}
