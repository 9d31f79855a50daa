import { addressBits, type Family, familyOf, parseIp } from "../../addressing/ip";
import { deviceMac, routingTableId } from "../../addressing/names";
import { DNAT, FORWARD, INPUT, NAT, planChainRules, RETURN_PATH } from "../kinds/firewall";
import { type FirewallRule, FORWARDING, type Item } from "../model/items";
import type { Machine } from "./hub";

/**
 * A static address, and what it forwards. The machine that carries it answers for it, and rewrites what comes to a
 * forwarded port:
 *
 *   client ─▶ IP:port  carrier ─ DNAT ─▶ to:toPort  workload
 *          ◀──────────        ◀─ MASQUERADE ────
 *
 * Without the MASQUERADE a workload would answer its client past the carrier, from an address that the client never asked.
 * With it clients from outside, from the same subnet, from other runners and on the carrier itself all get answers, but
 * the workload takes the carrier for its client. To show it the client instead, the workload's replies are led back: on its
 * runner they get a mark by where they come from, and a routing table by that mark, whose only way is through the hub.
 * They are marked without looking at connections, since requests come to the runner as frames that are bridged, and its
 * connection tracking has never seen them; untracked, they also escape the masquerading of what leaves the overlay.
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

/** A runner whose workloads see their clients' addresses, and how its packets come to the hub. */
export interface ReturnPath {
  networkName: string;
  cidr: string;
  subnet: string;
  hubIp: string;
  bridge: string;
}

const VIP_DEVICE = "overlay-vip";
/** One bit, high up, where none of the known users of marks has its own. */
const RETURN_MARK = "0x10000000/0x10000000";

const familyOfText = (address: string): Family => familyOf(parseIp(address.split("/")[0]!));

/** On the machine that carries it. `runners`: those on the return path, whose own clients it cannot show to workloads. */
export function planCarrier(address: StaticAddress, carrier: Machine, runners: Machine[] = []): Item[] {
  const { ip, forwards } = address;
  const family = familyOfText(ip);
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
 * IPv4 answers on every device for addresses of any; so it lives on one of our own, which no network manager touches.
 * IPv6 answers only for a device's own addresses.
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
 * The carrier's own services listen on all its addresses, and nobody asked for them on this one. What the carrier itself
 * asked for comes back to the address, too.
 */
function rejectHostServices(ip: string, family: Family): Item[] {
  const [ping, reject] = family === 4 ? ["icmp", "icmp-port-unreachable"] : ["ipv6-icmp", "icmp6-port-unreachable"];
  return planChainRules(INPUT, family, [
    `-d ${hostCidr(ip)} ! -p ${ping} -m conntrack --ctstate NEW -j REJECT --reject-with ${reject}`,
  ]);
}

/** A UDP client that goes on sending would stay with the old target for ever. */
const staleFlows = (ip: string, { protocol, port }: Forward) =>
  protocol === "udp" ? { flows: { protocol, ip, port } } : {};

const dnatRule = (ip: string, { protocol, port, to, toPort }: Forward): string =>
  `-d ${hostCidr(ip)} -p ${protocol} -m ${protocol} --dport ${port} -j DNAT --to-destination ${to.includes(":") ? `[${to}]` : to}:${toPort}`;

const hostCidr = (ip: string): string => `${ip}/${addressBits(familyOfText(ip))}`;

/** By port, since others may share the address and show clients, or not, as they like. */
const masqueradeRule = (ip: string, { protocol, port }: Forward, [range, match]: Source): string =>
  `${range}-p ${protocol} ${match}-m conntrack --ctstate DNAT --ctorigdst ${ip} --ctorigdstport ${port} -j MASQUERADE`;

/** Where a rule names a range, and where a match: in the order in which iptables-save writes them. */
type Source = [range: string, match: string];

/**
 * The clients that a workload does not see: all of them; or those that could not be answered otherwise, because the way back
 * would not lead past the carrier: its own, the overlay's, and those that share their address with a runner.
 */
function masqueradedSources({ cidrs, preserveClientIp }: StaticAddress, family: Family, runners: Machine[]): Source[] {
  if (!preserveClientIp) return [["", ""]];
  const ranges = [...cidrs, ...runners.map(({ underlayIp }) => hostCidr(underlayIp))];
  return [
    ["", "-m addrtype --src-type LOCAL "],
    ...ranges.filter((range) => familyOfText(range) === family).map((range): Source => [`-s ${range} `, ""]),
  ];
}

/** On the runner that has the workloads of these forwards: what they say to clients outside goes back through the hub. */
export function planReturn(path: ReturnPath, forwards: Forward[]): Item[] {
  const family = familyOfText(path.subnet);
  const table = routingTableId(path.networkName);
  const replies = forwards.map(
    ({ protocol, to, toPort }) =>
      `-s ${hostCidr(to)} ! -d ${path.cidr} -p ${protocol} -m ${protocol} --sport ${toPort}`,
  );
  return [
    { kind: "route", family, dst: "default", via: path.hubIp, dev: path.bridge, table },
    { kind: "policy", family, from: path.subnet, mark: RETURN_MARK, table },
    ...planChainRules(RETURN_PATH, family, [
      ...replies.flatMap((reply) => [`${reply} -j MARK --set-xmark ${RETURN_MARK}`, `${reply} -j CT --notrack`]),
      `-d ${path.subnet} -p ${ICMP_REDIRECT[family]} -j DROP`,
    ]),
    ...(family === 6 ? acceptNeighbourDiscovery(path.bridge) : []),
  ];
}

/**
 * Replies leave by the device on which they came, so the runner would tell workloads to send them to the hub themselves, and
 * with them all that they ever begin towards that client.
 */
const ICMP_REDIRECT: Record<Family, string> = {
  4: "icmp -m icmp --icmp-type 5",
  6: "ipv6-icmp -m icmp6 --icmpv6-type 137",
};

/**
 * For a client from outside the hub looks for the workload from its link-local address. Where bridged packets pass the
 * firewall (Docker wants that), nothing else would let its question through.
 */
const acceptNeighbourDiscovery = (bridge: string): Item[] =>
  planChainRules(FORWARD, 6, [`-i ${bridge} -o ${bridge} -p ipv6-icmp -j ACCEPT`]);
