import { type Family, familyOf, toLine, widthOf } from "../../addressing/ip";
import { macOf, tableOf } from "../../addressing/names";
import { DNAT, FORWARD, INPUT, NAT, RETURN_PATH, rulesIn } from "../kinds/firewall";
import { FORWARDING, type Item, type Rule } from "../model/items";
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

const ANCHOR = "overlay-vip";
/** One bit, high up, where none of the known users of marks has its own. */
const MARK = "0x10000000/0x10000000";

const familyOfText = (address: string): Family => familyOf(toLine(address.split("/")[0]!));

/** On the machine that carries it. `runners`: those on the return path, whose own clients it cannot show to workloads. */
export function planCarrier(address: StaticAddress, carrier: Machine, runners: Machine[] = []): Item[] {
  const { ip, forwards } = address;
  const family = familyOfText(ip);
  const led = { kind: "rule", family, table: DNAT.table, chain: DNAT.chain } as const;
  return [
    ...home(ip, family, carrier.uplink),
    ...closed(ip, family),
    { kind: "sysctl", key: FORWARDING[family], value: "1" },
    ...rulesIn(FORWARD, family, [`-m conntrack --ctstate DNAT --ctorigdst ${ip} -j ACCEPT`]),
    ...rulesIn(
      DNAT,
      family,
      forwards.map((forward): Rule => ({ ...led, rule: dnat(ip, forward), ...stale(ip, forward) })),
    ),
    ...rulesIn(
      NAT,
      family,
      forwards.flatMap((forward) => hidden(address, family, runners).map((source) => masquerade(ip, forward, source))),
    ),
  ];
}

/**
 * IPv4 answers on every device for addresses of any; so it lives on one of our own, which no network manager touches.
 * IPv6 answers only for a device's own addresses.
 */
function home(ip: string, family: Family, uplink: string | undefined): Item[] {
  const announce = uplink ? { announce: uplink } : {};
  const address = { kind: "address" as const, address: `${ip}/${widthOf(family)}`, ...announce };
  if (family === 6 && uplink) return [{ ...address, dev: uplink }];
  return [
    { kind: "link", name: ANCHOR, type: "anchor", mac: macOf(ANCHOR, 0, "hub"), shared: true },
    { ...address, dev: ANCHOR },
  ];
}

/**
 * The carrier's own services listen on all its addresses, and nobody asked for them on this one. What the carrier itself
 * asked for comes back to the address, too.
 */
function closed(ip: string, family: Family): Item[] {
  const [ping, reject] = family === 4 ? ["icmp", "icmp-port-unreachable"] : ["ipv6-icmp", "icmp6-port-unreachable"];
  return rulesIn(INPUT, family, [
    `-d ${host(ip)} ! -p ${ping} -m conntrack --ctstate NEW -j REJECT --reject-with ${reject}`,
  ]);
}

/** A UDP client that goes on sending would stay with the old target for ever. */
const stale = (ip: string, { protocol, port }: Forward) =>
  protocol === "udp" ? { flows: { protocol, ip, port } } : {};

const dnat = (ip: string, { protocol, port, to, toPort }: Forward): string =>
  `-d ${host(ip)} -p ${protocol} -m ${protocol} --dport ${port} -j DNAT --to-destination ${to.includes(":") ? `[${to}]` : to}:${toPort}`;

const host = (ip: string): string => `${ip}/${widthOf(familyOfText(ip))}`;

/** By port, since others may share the address and show clients, or not, as they like. */
const masquerade = (ip: string, { protocol, port }: Forward, [range, match]: Source): string =>
  `${range}-p ${protocol} ${match}-m conntrack --ctstate DNAT --ctorigdst ${ip} --ctorigdstport ${port} -j MASQUERADE`;

/** Where a rule names a range, and where a match: in the order in which iptables-save writes them. */
type Source = [range: string, match: string];

/**
 * The clients that a workload does not see: all of them; or those that could not be answered otherwise, because the way back
 * would not lead past the carrier: its own, the overlay's, and those that share their address with a runner.
 */
function hidden({ cidrs, preserveClientIp }: StaticAddress, family: Family, runners: Machine[]): Source[] {
  if (!preserveClientIp) return [["", ""]];
  const ranges = [...cidrs, ...runners.map(({ underlayIp }) => host(underlayIp))];
  return [
    ["", "-m addrtype --src-type LOCAL "],
    ...ranges.filter((range) => familyOfText(range) === family).map((range): Source => [`-s ${range} `, ""]),
  ];
}

/** On the runner that has the workloads of these forwards: what they say to clients outside goes back through the hub. */
export function planReturn(path: ReturnPath, forwards: Forward[]): Item[] {
  const family = familyOfText(path.subnet);
  const table = tableOf(path.networkName);
  const replies = forwards.map(
    ({ protocol, to, toPort }) => `-s ${host(to)} ! -d ${path.cidr} -p ${protocol} -m ${protocol} --sport ${toPort}`,
  );
  return [
    { kind: "route", family, dst: "default", via: path.hubIp, dev: path.bridge, table },
    { kind: "policy", family, from: path.subnet, mark: MARK, table },
    ...rulesIn(RETURN_PATH, family, [
      ...replies.flatMap((reply) => [`${reply} -j MARK --set-xmark ${MARK}`, `${reply} -j CT --notrack`]),
      `-d ${path.subnet} -p ${REDIRECT[family]} -j DROP`,
    ]),
    ...(family === 6 ? neighbours(path.bridge) : []),
  ];
}

/**
 * Replies leave by the device on which they came, so the runner would tell workloads to send them to the hub themselves, and
 * with them all that they ever begin towards that client.
 */
const REDIRECT: Record<Family, string> = { 4: "icmp -m icmp --icmp-type 5", 6: "ipv6-icmp -m icmp6 --icmpv6-type 137" };

/**
 * For a client from outside the hub looks for the workload from its link-local address. Where bridged packets pass the
 * firewall (Docker wants that), nothing else would let its question through.
 */
const neighbours = (bridge: string): Item[] =>
  rulesIn(FORWARD, 6, [`-i ${bridge} -o ${bridge} -p ipv6-icmp -j ACCEPT`]);
