import { addressBits, type Family, familyOfIp } from "../../addressing/ip";
import { deviceMac, routingTableId } from "../../addressing/layout";
import { DNAT, FORWARD, INPUT, NAT, planChainRules, RETURN_PATH } from "../kinds/firewall";
import { type FirewallRule, FORWARDING, type Item } from "../model/items";
import type { Underlay } from "./hub";

/**
 * A static address, and what it forwards. The host that carries it responds to ARP or neighbour discovery for it, and rewrites packets to a
 * forwarded port:
 *
 *   client ─▶ IP:port  carrier ─ DNAT ─▶ to:toPort  workload
 *          ◀──────────        ◀─ MASQUERADE ────
 *
 * Without the MASQUERADE a workload would reply to its client directly, from an address that the client does not expect.
 * With it clients from outside, from the same subnet, from other runners and on the carrier itself all get answers, but
 * the workload takes the carrier for its client. With `preserveClientIp` the workload's replies are routed back: on its
 * runner they get a mark by their source, and by that mark a routing table whose only route, which each runner has, is through the hub.
 * They are marked without connection tracking, because requests reach the runner as bridged frames, which its connection
 * tracking has not seen; untracked, they are also exempt from the masquerading of packets that leave the overlay.
 */
export interface StaticAddress {
  ip: string;
  forwards: Forward[];
  /** The overlay's ranges. */
  cidrs: string[];
  preserveClientIp: boolean;
}

export interface Forward {
  protocol: "tcp" | "udp" | "sctp";
  port: number;
  to: string;
  toPort: number;
}

/** A runner whose workloads see their clients' addresses. */
export interface ReturnPath {
  networkName: string;
  cidr: string;
  subnet: string;
  bridge: string;
}

const VIP_DEVICE = "overlay-vip";
/** One bit, high up, where none of the known users of marks has its own. */
const RETURN_MARK = "0x10000000/0x10000000";

/** The items of the host that carries it. `runners`: those on the return path, whose own clients must be masqueraded. */
export function planCarrier(address: StaticAddress, carrier: Underlay, runners: Underlay[] = []): Item[] {
  const { ip, forwards } = address;
  const family = familyOfIp(ip);
  const led = { kind: "rule", family, table: DNAT.table, chain: DNAT.chain } as const;
  return [
    ...planVipAddress(ip, family, carrier.uplink),
    ...rejectHostServices(ip, family),
    { kind: "sysctl", key: FORWARDING[family], value: "1" },
    ...planChainRules(FORWARD, family, [`-m conntrack --ctstate DNAT --ctorigdst ${ip} -j ACCEPT`]),
    ...planChainRules(
      DNAT,
      family,
      forwards.map((forward): FirewallRule => ({ ...led, rule: dnatRule(ip, forward), ...staleFlows(ip, forward) })),
    ),
    ...planChainRules(
      NAT,
      family,
      forwards.flatMap((forward) =>
        masqueradedSources(address, family, runners).map((source) => masqueradeRule(ip, forward, source)),
      ),
    ),
  ];
}

/**
 * A host responds to ARP on every device for the addresses of all; so an IPv4 address is on a device of our own, which no network manager
 * changes. Neighbour discovery works only for a device's own addresses.
 */
function planVipAddress(ip: string, family: Family, uplink: string | undefined): Item[] {
  const announce = uplink ? { announce: uplink } : {};
  const address = { kind: "address" as const, address: `${ip}/${addressBits(family)}`, ...announce };
  if (family === 6 && uplink) return [{ ...address, dev: uplink }];
  return [
    { kind: "link", name: VIP_DEVICE, type: "anchor", mac: deviceMac(VIP_DEVICE, 0, "hub"), shared: true },
    { ...address, dev: VIP_DEVICE },
  ];
}

/**
 * The carrier's own services listen on all its addresses, and must not be reachable at this one. Replies to the
 * carrier's own requests arrive at the address, too.
 */
function rejectHostServices(ip: string, family: Family): Item[] {
  const [ping, reject] = family === 4 ? ["icmp", "icmp-port-unreachable"] : ["ipv6-icmp", "icmp6-port-unreachable"];
  return planChainRules(INPUT, family, [
    `-d ${hostCidr(ip)} ! -p ${ping} -m conntrack --ctstate NEW -j REJECT --reject-with ${reject}`,
  ]);
}

/** A UDP client that keeps sending would stay with the old target for ever. */
const staleFlows = (ip: string, { protocol, port }: Forward) =>
  protocol === "udp" ? { flows: { protocol, ip, port } } : {};

const dnatRule = (ip: string, { protocol, port, to, toPort }: Forward): string =>
  `-d ${hostCidr(ip)} -p ${protocol} -m ${protocol} --dport ${port} -j DNAT --to-destination ${to.includes(":") ? `[${to}]` : to}:${toPort}`;

const hostCidr = (ip: string): string => `${ip}/${addressBits(familyOfIp(ip))}`;

/** By port, because other resources may share the address with another `preserveClientIp`. */
const masqueradeRule = (ip: string, { protocol, port }: Forward, [range, match]: Source): string =>
  `${range}-p ${protocol} ${match}-m conntrack --ctstate DNAT --ctorigdst ${ip} --ctorigdstport ${port} -j MASQUERADE`;

/** The parts of a rule with a range and with a match, in the order in which iptables-save writes them. */
type Source = [range: string, match: string];

/**
 * The clients that a workload does not see: all of them; or those whose replies would not pass the
 * carrier: its own, the overlay's, and those that share their address with a runner.
 */
function masqueradedSources({ cidrs, preserveClientIp }: StaticAddress, family: Family, runners: Underlay[]): Source[] {
  if (!preserveClientIp) return [["", ""]];
  const ranges = [...cidrs, ...runners.map(({ underlayIp }) => hostCidr(underlayIp))];
  return [
    ["", "-m addrtype --src-type LOCAL "],
    ...ranges.filter((range) => familyOfIp(range) === family).map((range): Source => [`-s ${range} `, ""]),
  ];
}

/** The items of the runner that has the workloads of these forwards: their replies to clients outside are routed through the hub. */
export function planReturn(path: ReturnPath, forwards: Forward[]): Item[] {
  const family = familyOfIp(path.subnet);
  const table = routingTableId(path.networkName);
  const replies = forwards.map(
    ({ protocol, to, toPort }) =>
      `-s ${hostCidr(to)} ! -d ${path.cidr} -p ${protocol} -m ${protocol} --sport ${toPort}`,
  );
  return [
    { kind: "policy", family, from: path.subnet, mark: RETURN_MARK, table },
    ...planChainRules(
      RETURN_PATH,
      family,
      replies.flatMap((reply) => [`${reply} -j MARK --set-xmark ${RETURN_MARK}`, `${reply} -j CT --notrack`]),
    ),
    ...(family === 6 ? acceptNeighbourDiscovery(path.bridge) : []),
  ];
}

/**
 * For a client from outside the hub sends neighbour solicitations from its link-local address. If bridged packets pass
 * iptables (as Docker configures), no other rule accepts them.
 */
const acceptNeighbourDiscovery = (bridge: string): Item[] =>
  planChainRules(FORWARD, 6, [`-i ${bridge} -o ${bridge} -p ipv6-icmp -j ACCEPT`]);
