import { FAMILIES, familyOfIp } from "../../../addressing/ip";
import { meshMac, runnerLayout } from "../../../addressing/layout";
import { dropVxlanRule, INPUT, markUsersRule, OUT, planChainRules, SOURCES } from "../../kinds/firewall";
import type { Item, Link, Vxlan } from "../../model/items";
import type { Network, Underlay } from "../hub";
import { layoutOfFamily } from "../isolation";
import { planDirectRoutes, planMeshDevice } from "./mesh";
import { LEAST_MTU, probeAddress, probeRange } from "./probe-address";
import type { Mesh, MeshPeer } from "./tunnel";
import { planLink, planPeer, planTunnelPort, planZonePeer } from "./vxlan";
import { looseFiltering } from "./wireguard";

/**
 * One VXLAN device on each runner, whose forwarding database has the host of each other runner:
 *
 *   runner 1   ovlMV ═══ VXLAN ═══ ovlMV   runner 2
 *              ovl1 ══════ hub ═════ ovl2
 *
 * The next hop of a direct route, in both families, is the probe address of the peer, which a permanent neighbour entry resolves. It has a UDP
 * port of its own, so that no peer can send frames of the tunnel to the hub.
 *
 * A peer can send only from its subnets: the kernel drops frames with its MAC from other hosts (see kinds/vxlan-peer.ts), and the chain
 * SOURCES drops packets that do not have its MAC and an address of its own.
 */
export const vxlanMesh: Mesh = {
  device: ({ devicePrefix }) => `${devicePrefix}MV`,
  plan(network, runnerId, hub, runner, peers) {
    const link = planDevice(network, runnerId, hub, runner);
    const { name: dev, vxlan } = link;
    const isProbed = link.mtu! >= LEAST_MTU;
    return [
      ...planMeshDevice(network, runnerId, link),
      looseFiltering(network.bridgeName), // while one of two runners sends by the hub
      ...planTunnelPort(network, network.bridgeName, { ...vxlan, remote: vxlan.local }),
      ...planChainRules(INPUT, familyOfIp(vxlan.local), [dropVxlanRule(vxlan.port)]),
      ...FAMILIES.flatMap((family) => planChainRules(SOURCES, family, [`-i ${dev} -j DROP`])),
      ...network.layouts.flatMap(({ family }) => planChainRules(OUT, family, [markUsersRule(dev)])),
      ...(isProbed ? peers : []).flatMap((peer): Item[] => [
        {
          kind: "vxpeer",
          dev,
          mac: meshMac(network.networkName, peer.id),
          ip: probeAddress(peer.id),
          remote: peer.underlayIp,
        },
        ...planPeer({ ...vxlan, remote: peer.underlayIp }),
        ...planZonePeer({ ...vxlan, remote: peer.underlayIp }),
        ...planSources(network, dev, peer),
        ...planDirectRoutes(network, runnerId, peer, { via: probeAddress(peer.id), dev }),
      ]),
    ];
  },
};

/** Ids begin with 1, so no tunnel to the hub has the first VNI. The port follows that of those tunnels. */
function planDevice(network: Network, runnerId: number, hub: Underlay, runner: Underlay): Link & { vxlan: Vxlan } {
  const own = { name: vxlanMesh.device(network), mac: meshMac(network.networkName, runnerId) };
  const link = planLink(network, 0, runner, hub, own);
  return { ...link, vxlan: { ...link.vxlan, port: network.vxlanPort + 1, remote: "" } };
}

const planSources = (network: Network, dev: string, { id }: MeshPeer): Item[] =>
  FAMILIES.flatMap((family) => {
    const layout = layoutOfFamily(network, family);
    const ranges = [...(layout ? [runnerLayout(layout, id).subnet] : []), ...(family === 6 ? [probeRange(id)] : [])];
    const mac = meshMac(network.networkName, id);
    return planChainRules(
      SOURCES,
      family,
      ranges.map((range) => `-s ${range} -i ${dev} -m mac --mac-source ${mac} -j RETURN`),
    );
  });
