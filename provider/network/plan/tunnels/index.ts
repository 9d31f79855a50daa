import type { Tunnel } from "./tunnel";
import { vxlan } from "./vxlan";

/** The tunnels by the names that users give. */
export const TUNNELS = { vxlan } satisfies Record<string, Tunnel>;

export type TunnelName = keyof typeof TUNNELS;

export const tunnelOf = ({ tunnel }: { tunnel: TunnelName }): Tunnel => TUNNELS[tunnel];
