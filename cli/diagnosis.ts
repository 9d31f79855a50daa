import { isIpInRange } from "../provider/addressing/ip";
import type { OverlayError } from "../provider/errors";
import { diffItems, formatDifference } from "../provider/network/kinds";
import { NO_ANSWER } from "../provider/network/kinds/wireguard";
import type { Facts } from "../provider/network/model/facts";
import type { HostRecord, Item, Link, Route } from "../provider/network/model/items";
import { isMeshDevice } from "../provider/network/plan/tunnels/mesh";
import { describeForeign, excludeForeign } from "../provider/network/preflight/foreign";
import { requireWord } from "../provider/network/render/shell";

/** One host of a network, as its records and its kernel describe it. Pure. */
export interface NetworkEnd {
  name: string;
  role: "hub" | "runner";
  /** Its overlay addresses, one for each family. */
  addresses: string[];
  /** Of its bridge. undefined for the hub: each of its tunnels has an MTU of its own. */
  mtu?: number;
  /** Its tunnels between hub and runner, by the uid of the runner. */
  tunnels: Record<string, Tunnel>;
  /** In a mesh: its tunnels to other runners that have a direct route. */
  direct: DirectTunnel[];
  /** Differences between kernel and records, and conflicting objects of other programs, by uid. */
  wrong: Record<string, string[]>;
  /** Firewall rules that may drop packets of tunnels (INPUT), or packets inside them (FORWARD). */
  suspects: { input: string[]; forward: string[] };
}

export interface Tunnel {
  remote: string;
  port: number;
}

interface DirectTunnel extends Tunnel {
  subnets: string[];
}

export function describeEnd(name: string, role: NetworkEnd["role"], network: string, facts: Facts): NetworkEnd {
  const records = facts.records.filter((record) => record.network === network);
  const tunnels = records.flatMap((record) => tunnelsIn(record));
  const direct = records.flatMap((record) => directTunnelsIn(record));
  const type = role === "runner" ? "bridge" : "anchor";
  const own = records.find((record) => linkIn(record, type));
  const link = own && linkIn(own, type);
  const mtu = link?.type === "bridge" ? facts.links.get(link.name)?.mtu : undefined;
  return {
    name,
    role,
    addresses: link ? addressesOn(link.name, own) : [],
    ...(mtu !== undefined && { mtu }),
    tunnels: Object.fromEntries(tunnels),
    direct,
    wrong: Object.fromEntries(records.map((record) => [record.uid, findDifferences(record, facts)])),
    suspects: findSuspectRules(facts, [tunnels[0]?.[1].port ?? 4789, ...direct.slice(0, 1).map(({ port }) => port)]),
  };
}

const linkIn = ({ items }: HostRecord, type: Link["type"]): Link | undefined =>
  items.find((item): item is Link => item.kind === "link" && item.type === type);

const tunnelsIn = ({ uid, items }: HostRecord): [uid: string, Tunnel][] =>
  items.flatMap((item): [string, Tunnel][] => {
    if (item.kind === "link" && item.vxlan && !isMeshDevice(item.name)) return [[uid, item.vxlan]];
    const isHubTunnel = item.kind === "wgpeer" && !isMeshDevice(item.dev);
    return isHubTunnel ? [[uid, { remote: item.endpoint.ip, port: item.endpoint.port }]] : [];
  });

const directTunnelsIn = ({ items }: HostRecord): DirectTunnel[] => {
  const routes = items.filter((item) => item.kind === "route" && isMeshDevice(item.dev ?? "")) as Route[];
  const links = items.filter((item): item is Link => item.kind === "link");
  const portOf = (dev: string): number => links.find(({ name }) => name === dev)?.vxlan?.port ?? 0;
  const tunnels = items.flatMap((item): DirectTunnel[] => {
    const subnets = routes.filter((route) => leadsTo(item, route)).map(({ dst }) => dst);
    if (item.kind === "vxpeer") return [{ remote: item.remote, port: portOf(item.dev), subnets }];
    return item.kind === "wgpeer" ? [{ remote: item.endpoint.ip, port: item.endpoint.port, subnets }] : [];
  });
  return tunnels.filter(({ subnets }) => subnets.length > 0);
};

const leadsTo = (peer: Item, { dst, via, dev }: Route): boolean =>
  (peer.kind === "vxpeer" && peer.dev === dev && peer.ip === via) ||
  (peer.kind === "wgpeer" && peer.dev === dev && peer.allowedIps.includes(dst));

/** The first of each family. Records of runners add addresses on the hub's device, which other runners of a mesh do not reach. */
function addressesOn(dev: string, { items }: HostRecord): string[] {
  const all = items
    .filter((item): item is Extract<Item, { kind: "address" }> => item.kind === "address" && item.dev === dev)
    .map(({ address }) => address.slice(0, address.indexOf("/")));
  const firsts = [all.find((address) => !address.includes(":")), all.find((address) => address.includes(":"))];
  return firsts.filter((address) => address !== undefined);
}

/** Conflicting objects of other programs come first: they are the likelier cause. That a peer does not answer is what the pings show. */
function findDifferences({ items, ...record }: HostRecord, facts: Facts): string[] {
  const desired = { record, items };
  return [
    ...describeForeign(desired, facts),
    ...excludeForeign(diffItems(items, facts), desired, facts)
      .filter(({ missing, wrong }) => missing || wrong.some((text) => text !== NO_ANSWER))
      .map(formatDifference),
  ];
}

/** Without rules for other protocols or ports. */
function findSuspectRules(facts: Facts, ports: number[]): NetworkEnd["suspects"] {
  const stopping = (chain: string): string[] =>
    ([4, 6] as const)
      .flatMap((family) => facts.chains.get(`${family} filter ${chain}`) ?? [])
      .filter((rule) => /-j (DROP|REJECT)/.test(rule));
  const meetsTunnel = (rule: string): boolean =>
    !/-p (?!udp)/.test(rule) &&
    (!/--dports? /.test(rule) || new RegExp(`--dports? (\\S*,)?(${ports.join("|")})\\b`).test(rule));
  return { input: stopping("INPUT").filter(meetsTunnel), forward: stopping("FORWARD") };
}

/** A ping from one host to another. */
export interface Ping {
  from: string;
  to: string;
  target: string;
  /** `underlay`: between the two ends of a tunnel. Reported only if the overlay fails. */
  layer: "overlay" | "underlay";
  /** Size in bytes, with headers, of the largest packet that must pass without fragmentation. */
  mtu: number;
}

export interface PingResult extends Ping {
  /** Percent. */
  loss: number;
  /** Milliseconds on average. */
  rtt?: number;
  passesFullSize: boolean;
}

const LARGEST = 1450;

export function planPings(from: NetworkEnd, ends: NetworkEnd[]): Ping[] {
  const others = ends.filter(({ name }) => name !== from.name);
  const overlay = others.flatMap((to) =>
    to.addresses.map((target) => ({
      from: from.name,
      to: to.name,
      target,
      layer: "overlay" as const,
      mtu: sizeFor(from, to),
    })),
  );
  const below = others.flatMap((to): Ping[] => {
    const tunnel = findTunnel(from, to);
    return tunnel ? [{ from: from.name, to: to.name, target: tunnel.remote, layer: "underlay", mtu: 0 }] : [];
  });
  return [...overlay, ...below];
}

const sizeFor = (a: NetworkEnd, b: NetworkEnd): number =>
  Math.min(a.mtu ?? Infinity, b.mtu ?? Infinity, ...((a.mtu ?? b.mtu) ? [] : [LARGEST]));

/** The tunnel by which the first end sends to the second one; undefined: the hub is between them. */
function findTunnel(a: NetworkEnd, b: NetworkEnd): Tunnel | undefined {
  if (a.role === b.role)
    return a.direct.find(({ subnets }) => b.addresses.some((ip) => subnets.some((subnet) => isIpInRange(ip, subnet))));
  const uid = Object.keys(a.tunnels).find((each) => each in b.tunnels); // the records of a runner have the same uid on both hosts
  return uid === undefined ? undefined : a.tunnels[uid];
}

const HEADERS = { 4: 28, 6: 48 };
const headersOf = (target: string): number => HEADERS[target.includes(":") ? 6 : 4];

/** Pings all targets at the same time. Each result is one line, short enough for an atomic write. */
export function renderPings(probes: Ping[], count: number): string {
  return [
    "command -v ping >/dev/null || { echo ping >&2; exit 127; }",
    "probe() {",
    `  said=$(LC_ALL=C ping -n -q -c ${count} -i 0.2 -W 1 "$2" 2>/dev/null | tail -n 2 | tr '\\n' ' ')`,
    "  full=-",
    '  [ "$3" = 0 ] || { ping -n -q -c 3 -i 0.2 -W 1 -M do -s "$3" "$2" >/dev/null 2>&1 && full=yes || full=no; }',
    '  echo "$1 $full $said"',
    "}",
    ...probes.map(
      ({ target, mtu }, i) => `probe ${i} ${requireWord(target)} ${mtu === 0 ? 0 : mtu - headersOf(target)} &`,
    ),
    "wait",
  ].join("\n");
}

export function parsePingResults(probes: Ping[], stdout: string): PingResult[] {
  const lines = new Map(stdout.split("\n").map((line) => [Number.parseInt(line, 10), line]));
  return probes.map((probe, i) => {
    const line = lines.get(i) ?? "";
    const rtt = /= [\d.]+\/([\d.]+)\//.exec(line)?.[1];
    const loss = Number(/([\d.]+)% packet loss/.exec(line)?.[1] ?? 100);
    return { ...probe, loss, passesFullSize: / yes /.test(line), ...(rtt !== undefined && { rtt: Number(rtt) }) };
  });
}

/** The results of all hosts of a network. */
export interface Findings {
  ends: Map<string, NetworkEnd>;
  results: PingResult[];
  /** Hosts that could not be asked, and why. */
  unreachable: Map<string, OverlayError>;
}

export const hasPassed = ({ loss, passesFullSize }: PingResult): boolean => loss === 0 && passesFullSize;

/**
 * The hop that fails, the surest cause first: a host that differs from its records, then the underlay, then a tunnel that drops all
 * packets, then the hub. Pure.
 */
export function findFailedHop({ from, to, loss }: PingResult, findings: Findings): string {
  const path = pathOf(from, to, findings);
  const legs = path.slice(1).map((end, i) => [path[i]!, end] as const);
  return (
    firstText(path, (name) => describeUnreachable(name, findings)) ??
    firstText(path, (name) => describeDifference(name, path, findings)) ??
    firstText(legs, ([a, b]) => describeUnderlayFailure(a, b, findings)) ??
    firstText(legs, ([a, b]) => describeTunnelFailure(a, b, findings)) ??
    firstText(legs, ([a, b]) => describeWeakTunnel(a, b, loss, findings)) ??
    (loss < 100 && loss > 0 ? "some packets are lost" : describeForwarding(path, findings))
  );
}

const firstText = <T>(all: readonly T[], find: (each: T) => string | undefined): string | undefined => {
  for (const each of all) {
    const found = find(each);
    if (found !== undefined) return found;
  }
  return undefined;
};

function pathOf(from: string, to: string, { ends }: Findings): string[] {
  const hub = [...ends.values()].find(({ role }) => role === "hub")?.name;
  const isDirect = findTunnel(ends.get(from)!, ends.get(to)!) !== undefined;
  return hub === undefined || from === hub || to === hub || isDirect ? [from, to] : [from, hub, to];
}

const describeUnreachable = (name: string, { unreachable: silent }: Findings): string | undefined =>
  silent.has(name) ? `${name} could not be asked: ${silent.get(name)!.code}` : undefined;

/** On the hub, only differences of the network and of these runners. */
function describeDifference(name: string, path: string[], { ends }: Findings): string | undefined {
  const end = ends.get(name)!;
  if (end.addresses.length === 0)
    return `${name} has no record of this network: \`pulumi up\` has not configured it, or the record is lost`;
  const others = new Set(
    [...ends.values()]
      .filter((other) => other.role === "runner" && !path.includes(other.name))
      .flatMap((other) => Object.keys(other.tunnels)),
  );
  const wrong = Object.entries(end.wrong).flatMap(([uid, texts]) => (others.has(uid) ? [] : texts));
  if (wrong.length === 0) return undefined;
  return `${name} differs: ${wrong[0]}${wrong.length > 1 ? `, and ${wrong.length - 1} more` : ""}`;
}

/** The direction from `a` to `b` first. */
const resultsBetween = (
  a: string,
  b: string,
  layer: PingResult["layer"],
  { results: answers }: Findings,
): PingResult[] => {
  const along = (from: string, to: string) =>
    answers.filter((each) => each.layer === layer && each.from === from && each.to === to);
  return [...along(a, b), ...along(b, a)];
};

function describeUnderlayFailure(a: string, b: string, findings: Findings): string | undefined {
  const dead = resultsBetween(a, b, "underlay", findings).find(({ loss }) => loss === 100);
  return dead && `the underlay: ${dead.target} (${dead.to}) does not answer ${dead.from}`;
}

function describeTunnelFailure(a: string, b: string, findings: Findings): string | undefined {
  if (!resultsBetween(a, b, "overlay", findings).some(({ loss }) => loss === 100)) return undefined;
  const ends = [findings.ends.get(a)!, findings.ends.get(b)!] as const;
  const suspect = ends.flatMap(({ name, suspects }) => suspects.input.map((rule) => `${name} has INPUT ${rule}`))[0];
  const port = findTunnel(...ends)?.port ?? 4789;
  return `${a} to ${b}: UDP port ${port} does not pass, ${suspect ?? "though both ends match their records; look for a firewall on the way"}`;
}

/** A part of the path that fails like the whole: some packets are lost, or only large ones. */
function describeWeakTunnel(a: string, b: string, loss: number, findings: Findings): string | undefined {
  if (loss === 100) return undefined;
  const answers = resultsBetween(a, b, "overlay", findings);
  if (loss > 0 && answers.some((leg) => leg.loss > 0)) return `${a} to ${b}: some packets are lost`;
  const narrow = answers.find(({ passesFullSize }) => !passesFullSize);
  return narrow && `${a} to ${b}: packets of ${narrow.mtu} bytes are too large for the underlay`;
}

function describeForwarding(path: string[], { ends }: Findings): string {
  const hub = ends.get(path[1]!)!;
  const [suspect] = hub.suspects.forward;
  return `${hub.name} does not forward packets${suspect ? `, it has FORWARD ${suspect}` : ": look for a firewall there"}`;
}
