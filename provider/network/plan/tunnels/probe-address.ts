import { ECHO_REQUEST, INPUT, PRE, planChainRules } from "../../kinds/firewall";
import type { Item, Link } from "../../model/items";

/** The id of the hub among those of runners. */
export const HUB = 0;

/**
 * The address of a host on its WireGuard devices, and on that of a mesh. Packets between two of them take exactly this device, whatever the routes are: they show
 * whether data passes while other tunnels carry the traffic. Ids have at most 16 bits.
 */
export const probeAddress = (id: number): string => `fe80::1:${id.toString(16)}`;

/** As a range that a peer may send from. */
export const probeRange = (id: number): string => `${probeAddress(id)}/128`;

/** The inverse of `probeRange`. */
export function idOfProbeRange(range: string): number | undefined {
  const [, id] = /^fe80::1:([0-9a-f]{1,4})\/128$/.exec(range) ?? [];
  return id === undefined ? undefined : Number.parseInt(id, 16);
}

const ECHO_REPLY = "-p ipv6-icmp -m icmp6 --icmpv6-type 129";

export const LEAST_MTU = 1280; // of a device with IPv6 (RFC 8200)

/** Probes pass in networks without IPv6, too. */
export const planProbeAddress = ({ name, mtu = 0 }: Pick<Link, "name" | "mtu">, id: number): Item[] =>
  mtu < LEAST_MTU
    ? []
    : [
        { kind: "address", dev: name, address: `${probeAddress(id)}/64` },
        ...[ECHO_REQUEST[6], ECHO_REPLY].flatMap((echo) => [
          ...planChainRules(PRE, 6, [`-s fe80::/64 -i ${name} ${echo} -j RETURN`]),
          ...planChainRules(INPUT, 6, [`-s fe80::/64 -i ${name} ${echo} -j ACCEPT`]),
        ]),
      ];
