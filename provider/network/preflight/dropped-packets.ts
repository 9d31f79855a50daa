import { type Family, familyOfIp, formatIp, parseRange, subnetOf } from "../../addressing/ip";
import { containsIp } from "../diff/steps";
import { devicesWithAddress } from "../kinds/device";
import { ECHO_REQUEST, FORWARD, iptablesTool, matchesDevice } from "../kinds/firewall";
import type { Facts } from "../model/facts";
import { type DesiredState, FORWARDING, type Item, type Link } from "../model/items";
import { quoteCommand } from "../render/shell";
import { isOverlayRoute } from "./foreign-routes";

/**
 * Rules of other programs in iptables that drop or redirect packets of the overlay where no accept of ours overrules them: in the tables
 * before `filter`, after it, in OUTPUT, and in DOCKER-USER. A few packets that must pass are followed through these chains, as the kernel would.
 * A rule about single ports or workloads does not match them: it is left to its administrator.
 */
interface Packet {
  family: Family;
  protocol: "icmp" | "tcp" | "udp";
  source: string;
  destination: string;
  in?: string | undefined;
  out?: string | undefined;
  dport?: number;
}

/** The chains that it passes: table and chain. */
type Path = [table: string, chain: string, device: "in" | "out" | "both"][];

const FORWARDED: Path = [
  ["raw", "PREROUTING", "in"],
  ["mangle", "PREROUTING", "in"],
  ["nat", "PREROUTING", "in"],
  ["mangle", "FORWARD", "both"],
  ["filter", "DOCKER-USER", "both"],
  ["mangle", "POSTROUTING", "out"],
];
const RECEIVED: Path = [
  ["raw", "PREROUTING", "in"],
  ["mangle", "PREROUTING", "in"],
  ["nat", "PREROUTING", "in"],
  ["mangle", "INPUT", "in"],
];
const SENT: Path = [
  ["raw", "OUTPUT", "out"],
  ["mangle", "OUTPUT", "out"],
  ["nat", "OUTPUT", "out"],
  ["filter", "OUTPUT", "out"],
  ["mangle", "POSTROUTING", "out"],
];

export function describeDroppedPackets(desired: DesiredState, facts: Facts): string[] {
  const found = [
    ...forwardedPackets(desired, facts).map((packet) => followPacket(packet, FORWARDED, facts)),
    ...tunnelPackets(desired.items, facts).flatMap(({ sent, received }) => [
      followPacket(sent, SENT, facts),
      followPacket(received, RECEIVED, facts),
    ]),
  ];
  return [...new Set(found.filter((text) => text !== undefined)), ...describeClosedUplinks(desired.items, facts)];
}

const isHubTunnel = (item: Item): item is Link => item.kind === "link" && item.vxlan !== undefined && !item.master;

/** The second address of a range: a workload in it. */
const workloadIn = (range: string): string => formatIp(parseRange(range)!.first + 2n);

/** Packets between a workload of this host, or behind a tunnel, and one elsewhere in the overlay, in both directions. */
function forwardedPackets(desired: DesiredState, facts: Facts): Packet[] {
  const { items } = desired;
  return items.flatMap((item) => {
    if (item.kind !== "address") return [];
    const device = items.find((each): each is Link => each.kind === "link" && each.name === item.dev);
    const there = device && otherEnd(device, familyOfIp(item.address.split("/")[0]!), desired, facts);
    if (!there) return [];
    const here = { device: item.dev, ip: workloadIn(subnetOf(item.address)) };
    return (["icmp", "tcp"] as const).flatMap((protocol) => [
      packetBetween(here, there, protocol),
      packetBetween(there, here, protocol),
    ]);
  });
}

interface End {
  device: string;
  ip: string;
}

/** From a runner's bridge all packets go to the hub, by the bridge or by the tunnel's device; on the hub they go to another tunnel of the network. */
function otherEnd(device: Link, family: Family, { items, record }: DesiredState, facts: Facts): End | undefined {
  if (device.type === "bridge") {
    const route = items.filter(isOverlayRoute).find((each) => each.family === family && each.dev !== undefined);
    return route && { device: route.dev!, ip: workloadIn(route.dst) };
  }
  if (!isHubTunnel(device)) return undefined;
  for (const other of facts.records) {
    const tunnel = other.network === record.network ? other.items.find(isHubTunnel) : undefined;
    if (!tunnel || tunnel.name === device.name) continue;
    const on = other.items.find(
      (each) => each.kind === "address" && each.dev === tunnel.name && each.address.includes(":") === (family === 6),
    );
    if (on?.kind === "address") return { device: tunnel.name, ip: workloadIn(subnetOf(on.address)) };
  }
  return undefined;
}

const packetBetween = (from: End, to: End, protocol: Packet["protocol"]): Packet => ({
  family: familyOfIp(from.ip),
  protocol,
  source: from.ip,
  destination: to.ip,
  in: from.device,
  out: to.device,
});

function tunnelPackets(items: Item[], facts: Facts): { sent: Packet; received: Packet }[] {
  return items.flatMap((item) => {
    if (item.kind !== "link" || !item.vxlan) return [];
    const { local, remote, port } = item.vxlan;
    const [device] = devicesWithAddress(local, facts);
    const packet = { family: familyOfIp(remote), protocol: "udp" as const, dport: port };
    return [
      {
        sent: { ...packet, source: local, destination: remote, out: device },
        received: { ...packet, source: remote, destination: local, in: device },
      },
    ];
  });
}

function followPacket(packet: Packet, path: Path, facts: Facts): string | undefined {
  for (const [table, chain, devices] of path) {
    const seen = {
      ...packet,
      ...(devices === "in" && { out: undefined }),
      ...(devices === "out" && { in: undefined }),
    };
    const end = findVerdict({ table, family: packet.family }, chain, seen, facts);
    if (end !== undefined && end !== "passes") return end;
    const key = `${packet.family} ${table} ${chain}`;
    if (end === undefined && facts.droppingChains.has(key)) return describePolicy(packet, table, chain);
  }
  return undefined;
}

const MAX_DEPTH = 8;

/** What the first rule that decides does: `passes`, or the text of one that drops or redirects; undefined: none decides. */
function findVerdict(
  place: { table: string; family: Family },
  chain: string,
  packet: Packet,
  facts: Facts,
  depth = 0,
): string | undefined {
  for (const rule of facts.chains.get(`${place.family} ${place.table} ${chain}`) ?? []) {
    const { target, matches } = parseRule(rule, packet);
    if (matches === "no" || target === undefined || target.startsWith("OVERLAY-")) continue;
    if (target === "RETURN") {
      // A condition that is not known may hold.
      return matches === "yes" && depth > 0 ? undefined : "passes";
    }
    if (target === "ACCEPT") return "passes";
    if (matches === "maybe") continue;
    if (/^(DROP|REJECT)$/.test(target)) return describeRule(rule, packet, place.table, chain, "drops");
    if (place.table === "nat" && /^(DNAT|REDIRECT)$/.test(target))
      return describeRule(rule, packet, place.table, chain, "redirects");
    const inner = depth < MAX_DEPTH ? findVerdict(place, target, packet, facts, depth + 1) : undefined;
    if (inner !== undefined) return inner;
  }
  return undefined;
}

interface ParsedRule {
  target?: string;
  /** `maybe`: it has a condition that is not evaluated here. */
  matches: "yes" | "no" | "maybe";
}

/** Options without a condition of their own, with the number of words after them. */
const PLAIN_OPTIONS: Record<string, number> = { "--comment": 1 };
const PLAIN_MODULES = ["tcp", "udp", "icmp", "icmp6", "comment", "conntrack", "state"];

/** A rule in iptables-save's form, and whether it matches a packet that opens a connection. */
function parseRule(rule: string, packet: Packet): ParsedRule {
  const words = rule.match(/"(?:\\.|[^"\\])*"|\S+/g) ?? [];
  let matches: ParsedRule["matches"] = "yes";
  let isInverted = false;
  for (let i = 0; i < words.length; i++) {
    const option = words[i]!;
    if (option === "!") {
      isInverted = true;
      continue;
    }
    if (option === "-j" || option === "-g") return { target: words[i + 1]!, matches };
    const value = words[++i] ?? "";
    if (option in PLAIN_OPTIONS) continue;
    const holds = evaluate(option, value, packet);
    if (holds === undefined) matches = matches === "no" ? "no" : "maybe";
    else if (holds === isInverted) matches = "no";
    isInverted = false;
  }
  return { matches };
}

/** undefined: not known here. */
function evaluate(option: string, value: string, packet: Packet): boolean | undefined {
  switch (option) {
    case "-s":
      return containsIp(value, packet.source);
    case "-d":
      return containsIp(value, packet.destination);
    case "-i":
      return packet.in !== undefined && matchesDevice(value, packet.in);
    case "-o":
      return packet.out !== undefined && matchesDevice(value, packet.out);
    case "-p":
      return value.replace("ipv6-", "") === packet.protocol;
    case "--dport":
      return packet.dport !== undefined && value === String(packet.dport);
    case "--icmp-type":
    case "--icmpv6-type":
      return ECHO_REQUEST[packet.family].endsWith(` ${value}`);
    case "--ctstate":
    case "--state":
      return value.split(",").includes("NEW");
    case "-m":
      return PLAIN_MODULES.includes(value) ? true : undefined;
    default:
      return undefined;
  }
}

const whatOf = ({ source, destination, dport }: Packet): string =>
  dport === undefined
    ? `packets of the overlay (${source} to ${destination})`
    : `VXLAN (${source} to ${destination}, UDP port ${dport})`;

const describeRule = (rule: string, packet: Packet, table: string, chain: string, does: string): string =>
  `foreign rule '${rule}' in ${chain} (IPv${packet.family} ${table}) ${does} ${whatOf(packet)}; it is never removed by us: remove it with \`${quoteCommand(`${iptablesTool(packet.family)} -t ${table} -D ${chain} ${rule}`)}\``;

const describePolicy = (packet: Packet, table: string, chain: string): string =>
  `foreign policy DROP of ${chain} (IPv${packet.family} ${table}) drops ${whatOf(packet)}; it is never changed by us: \`${iptablesTool(packet.family)} -t ${table} -P ${chain} ACCEPT\``;

/** Devices over which workloads reach other networks, and that do not forward what comes back. */
function describeClosedUplinks(items: Item[], { withoutForwarding }: Facts): string[] {
  const ours = new Set(items.flatMap((item) => (item.kind === "link" ? [item.name] : [])));
  const uplinks = items.flatMap((item) => {
    const [, device] = /^-i \S+ -o (\S+) -j ACCEPT$/.exec(item.kind === "rule" ? item.rule : "") ?? [];
    return item.kind === "rule" && item.chain === FORWARD.chain && device && !ours.has(device)
      ? [{ family: item.family, device }]
      : [];
  });
  return uplinks
    .filter(({ family, device }) => withoutForwarding.has(`${family} ${device}`))
    .map(({ family, device }) => {
      const key = `net.ipv${family}.conf.${device.replaceAll(".", "/")}.forwarding`;
      return `foreign setting ${key} is 0 although ${FORWARDING[family]} is 1, so replies to workloads are dropped on ${device}; it is never changed by us: \`sysctl -w ${key}=1\``;
    });
}
