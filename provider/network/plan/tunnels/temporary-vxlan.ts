import { deviceMac, runnerLayout, tunnelName } from "../../../addressing/layout";
import { type Item, type Link, type Vxlan, vxlanOverhead } from "../../model/items";
import type { Network, Underlay } from "../hub";
import { layoutOfFamily, planHubDeviceRules, planHubRules, planZone, planZoneDevice } from "../isolation";
import { HUB, planProbeAddress, probeAddress } from "./probe-address";
import type { Tunnel } from "./tunnel";
import { acceptNeighbourDiscovery, planLink, planPeer, planTunnelPort, planZonePeer } from "./vxlan";
import {
  dropRedirects,
  hostCidr,
  looseFiltering,
  planRoutedEnd,
  planRoutesToHub,
  planRoutesToRunner,
} from "./wireguard";

/**
 * VXLAN that routes, for the time in which a runner's tunnel gets another VNI or UDP port. The kernel changes neither of a device, and the new
 * device has the name of the former one. So packets take this tunnel while that device is made again:
 *
 *   hub   ovlT1 ═══ VXLAN ═══ ovlT0 │ bridge .1   runner 1
 *         ovl1  ═══ VXLAN ═══ ovl1 ── bridge
 *
 * Next hops are probe addresses, in both families.
 */
export const temporaryVxlan: Tunnel = {
  isRouted: true,
  overhead: vxlanOverhead,
  hubDevice: ({ devicePrefix }, runnerId) => deviceName(devicePrefix, runnerId),
  planHub: () => [],
  planHubEnd(network, runnerId, hub, runner) {
    const link = planDevice(network, runnerId, hub, runner, runnerId);
    const { name: dev } = link;
    return [
      link,
      looseFiltering(dev),
      ...planProbeAddress(link, HUB),
      ...acceptNeighbourDiscovery(dev),
      ...planHubRules(network),
      ...planPeer(link.vxlan),
      ...planHubDeviceRules(network, dev, (family) => {
        const { subnet } = runnerLayout(layoutOfFamily(network, family)!, runnerId);
        return [`! -s ${subnet} -i ${dev} -j DROP`];
      }),
      ...dropRedirects(network, dev),
      ...planZone(network),
      ...planZoneDevice(link),
      ...planZonePeer(link.vxlan),
      ...network.layouts.map(({ hubIp, family }): Item => ({ kind: "address", dev, address: hostCidr(hubIp, family) })),
      ...planRoutesToRunner(network, runnerId, { via: probeAddress(runnerId), dev }),
    ];
  },
  planRunnerEnd(network, runnerId, _device, hub, runner) {
    const link = planDevice(network, runnerId, runner, hub, HUB);
    return [
      ...planRoutedEnd(network, runnerId, link),
      ...acceptNeighbourDiscovery(link.name),
      ...planPeer(link.vxlan),
      ...planTunnelPort(network, network.bridgeName, link.vxlan),
      ...planZonePeer(link.vxlan),
    ];
  },
  planTransition: () => ({ hub: [], runner: [] }),
  probeDevice: ({ devicePrefix }) => deviceName(devicePrefix, HUB),
  nextHop: ({ devicePrefix }) => ({ via: probeAddress(HUB), dev: deviceName(devicePrefix, HUB) }),
  planRunnerRoutes: (network, runnerId) => planRoutesToHub(network, runnerId, temporaryVxlan.nextHop(network, "")),
};

/** By the id of the other end. Ids are in lower case: no runner's tunnel has this name. */
const deviceName = (prefix: string, id: number): string => tunnelName(`${prefix}T`, id);

function planDevice(
  network: Network,
  runnerId: number,
  here: Underlay,
  there: Underlay,
  otherEnd: number,
): Link & { vxlan: Vxlan } {
  const mac = deviceMac(network.networkName, runnerId, otherEnd === HUB ? "temporary runner" : "temporary hub");
  const link = planLink(network, runnerId, here, there, { name: deviceName(network.devicePrefix, otherEnd), mac });
  return { ...link, vxlan: { ...link.vxlan, ...network.temporary } };
}
