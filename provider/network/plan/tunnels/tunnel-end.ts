import { z } from "zod";
import { tryParseIp } from "../../../addressing/ip";
import { publicKey } from "../../model/record";
import { TUNNELS, type TunnelName } from ".";

const choice = {
  /** The one that carries the traffic. While the tunnel of a network changes, its runners can have either. */
  tunnel: z.enum(Object.keys(TUNNELS) as [TunnelName, ...TunnelName[]]),
  /** Of its keys; absent: it has none. */
  keyGeneration: z.int().min(0).exactOptional(),
  /** The VNI of the runner with id 0; absent: the tunnel has none. */
  vniBase: z.int().min(0).exactOptional(),
};

/**
 * The end of a tunnel on a host, as the last up left it. It is in the data of a lease, under `tunnel`: in that of a network for its hub, in that
 * of a runner for the runner. Records on hosts, Pulumi's state and outputs are copies.
 */
export const tunnelEnd = z.object({
  ...choice,
  underlayIp: z.string().refine((text) => tryParseIp(text) !== undefined, "is not an address"),
  /** UDP port. */
  port: z.int().min(1).max(65535),
  /** Of the host; absent: the tunnel has no keys. */
  publicKey: publicKey.exactOptional(),
});

export type TunnelEnd = z.output<typeof tunnelEnd>;
export type TunnelChoice = Pick<TunnelEnd, "tunnel" | "keyGeneration" | "vniBase">;

/** What the lease of a network or runner holds; undefined: no up of this release has finished, or the resource has no tunnel. */
export const readTunnelEnd = ({ data }: { data?: unknown }): TunnelEnd | undefined =>
  z.object({ tunnel: tunnelEnd }).safeParse(data).data?.tunnel;
