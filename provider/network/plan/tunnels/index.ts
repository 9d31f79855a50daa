import type { Network } from "../hub";
import { temporaryVxlan } from "./temporary-vxlan";
import type { Tunnel } from "./tunnel";
import { vxlan } from "./vxlan";
import { wireguard } from "./wireguard";
import { planWireguardMesh } from "./wireguard-mesh";

/** The tunnels by the names that users give. */
export const TUNNELS = { vxlan, wireguard } satisfies Record<string, Tunnel>;

export type TunnelName = keyof typeof TUNNELS;

export const tunnelOf = ({ tunnel, temporary }: Pick<Network, "tunnel" | "temporary">): Tunnel =>
  temporary ? temporaryVxlan : TUNNELS[tunnel];

/** `hub`: all packets between runners pass the hub. `mesh`: runners send to each other directly. */
export const TOPOLOGIES = ["hub", "mesh"] as const;

export type Topology = (typeof TOPOLOGIES)[number];

/** What a runner of a mesh has for its direct routes to others, by tunnel. */
export const MESHES: Partial<Record<TunnelName, typeof planWireguardMesh>> = { wireguard: planWireguardMesh };
