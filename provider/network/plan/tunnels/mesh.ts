import { runnerLayout } from "../../../addressing/layout";
import type { Item, Link, Route } from "../../model/items";
import type { Network } from "../hub";
import { planZoneDevice } from "../isolation";
import { planProbeAddress } from "./probe-address";
import type { MeshPeer } from "./tunnel";
import { dropRedirects, hostCidr, looseFiltering, planRunnerDeviceRules } from "./wireguard";

/**
 * What the meshes of all tunnels have in common: a device for direct routes to other runners, beside the tunnel to the hub, which carries all
 * else. A subnet's route is more specific than that of the range, so a runner without it, or without the device, sends by the hub. The MTU is
 * that of the path by the hub, so that no packet is too large for one of them.
 */
export const planMeshDevice = (network: Network, runnerId: number, link: Link): Item[] => [
  link,
  looseFiltering(link.name),
  ...planProbeAddress(link, runnerId),
  ...network.layouts.map((layout): Item => {
    const { gateway } = runnerLayout(layout, runnerId);
    return { kind: "address", dev: link.name, address: hostCidr(gateway, layout.family) };
  }),
  ...planRunnerDeviceRules(network, runnerId, link.name),
  ...dropRedirects(network, link.name),
  ...planZoneDevice(link),
];

export const planDirectRoutes = (
  network: Network,
  runnerId: number,
  { id, isRouted }: MeshPeer,
  nextHop: Pick<Route, "via" | "dev">,
): Item[] =>
  (isRouted ? network.layouts : []).map((layout) => ({
    kind: "route",
    family: layout.family,
    dst: runnerLayout(layout, id).subnet,
    ...nextHop,
    src: runnerLayout(layout, runnerId).gateway,
  }));

/** Of a network with any prefix. Ids are in lower case: no runner's tunnel has such a name. */
export const isMeshDevice = (name: string): boolean => /M[01V]$/.test(name);
