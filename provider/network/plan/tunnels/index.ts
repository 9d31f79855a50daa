import type { Network } from "../hub";
import { temporaryVxlan } from "./temporary-vxlan";
import type { Mesh, Tunnel } from "./tunnel";
import { vxlan } from "./vxlan";
import { vxlanMesh } from "./vxlan-mesh";
import { wireguard } from "./wireguard";
import { wireguardMesh } from "./wireguard-mesh";

/** The tunnels by the names that users give. */
export const TUNNELS = { vxlan, wireguard } satisfies Record<string, Tunnel>;

export type TunnelName = keyof typeof TUNNELS;

export const tunnelOf = ({ tunnel, temporary }: Pick<Network, "tunnel" | "temporary">): Tunnel =>
  temporary ? temporaryVxlan : TUNNELS[tunnel];

/** `hub`: all packets between runners pass the hub. `mesh`: runners send to each other directly. */
export const TOPOLOGIES = ["hub", "mesh"] as const;

export type Topology = (typeof TOPOLOGIES)[number];

const MESHES: Record<TunnelName, Mesh> = { vxlan: vxlanMesh, wireguard: wireguardMesh };

export const meshOf = ({ tunnel }: { tunnel: TunnelName }): Mesh => MESHES[tunnel];
