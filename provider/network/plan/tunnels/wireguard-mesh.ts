import { runnerLayout } from "../../../addressing/layout";
import type { Network } from "../hub";
import { planDirectRoutes, planMeshDevice } from "./mesh";
import { probeRange } from "./probe-address";
import type { Mesh } from "./tunnel";
import { mtuOver, planKey, planLink, planPeer, planPort, slotOf } from "./wireguard";

/**
 * A second WireGuard device on each runner, of which the other runners are peers:
 *
 *   runner 1   ovlM0 ═══ WireGuard ═══ ovlM0   runner 2
 *              ovlW0 ══════ hub ══════ ovlW0
 *
 * It is a device of its own, because WireGuard drops what a peer sends from a range that another peer of the device has: while one of two
 * runners still sends by the hub, the other one accepts both.
 */
export const wireguardMesh: Mesh = {
  device: (network) => `${network.devicePrefix}M${slotOf(network)}`,
  plan(network, runnerId, hub, runner, peers) {
    const dev = wireguardMesh.device(network);
    const mesh = onMeshPort(network);
    const link = planLink(mesh, dev, runner, Math.min(mtuOver(hub), mtuOver(runner)));
    return [
      planKey(mesh, runner),
      ...planMeshDevice(network, runnerId, link),
      ...planPort(mesh, runner),
      ...peers.flatMap((peer) => [
        ...planPeer(onMeshPort({ wireguardPort: peer.port }), dev, peer, [
          ...network.layouts.map((layout) => runnerLayout(layout, peer.id).subnet),
          probeRange(peer.id),
        ]),
        ...planDirectRoutes(network, runnerId, peer, { dev }),
      ]),
    ];
  },
};

/** Its ports follow the two of the tunnel to the hub. */
const onMeshPort = <N extends Pick<Network, "wireguardPort">>(network: N): N => ({
  ...network,
  wireguardPort: network.wireguardPort + 2,
});
