import type { Tunnel } from "./tunnel";
import { vxlan } from "./vxlan";
import { wireguard } from "./wireguard";

/** The tunnels by the names that users give. */
export const TUNNELS = { vxlan, wireguard } satisfies Record<string, Tunnel>;

export type TunnelName = keyof typeof TUNNELS;

export const tunnelOf = ({ tunnel }: { tunnel: TunnelName }): Tunnel => TUNNELS[tunnel];
