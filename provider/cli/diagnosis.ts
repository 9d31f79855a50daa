import type { OverlayError } from "../errors";
import { diffItems, formatDifference } from "../network/kinds";
import type { Facts } from "../network/model/facts";
import type { HostRecord, Item, Link } from "../network/model/items";
import { describeForeign, excludeForeign } from "../network/preflight/foreign";
import { requireWord } from "../network/render/shell";

/** One machine of a network as its own records and its kernel describe it. Pure: facts in, plain data out. */
export interface End {
  name: string;
  role: "hub" | "runner";
  /** Its overlay addresses, one a family. */
  addresses: string[];
  /** Of its bridge, or undefined for the hub, which has a tunnel of its own size for each runner. */
  mtu?: number;
  /** Addresses of its tunnel on the network below. A hub has one for each runner, under the runner's uid. */
  tunnels: Record<string, Tunnel>;
  /** How its kernel differs from its records, and what of other programs is in the way, by uid. */
  wrong: Record<string, string[]>;
  /** Firewall rules that could stop tunnels (INPUT), or what goes through them (FORWARD). */
  suspects: { input: string[]; forward: string[] };
}

export interface Tunnel {
  local: string;
  remote: string;
  port: number;
}

export function endOf(name: string, role: End["role"], network: string, facts: Facts): End {
  const records = facts.records.filter((record) => record.network === network);
  const tunnels = records.flatMap((record) => tunnelsIn(record));
  const bridge = role === "runner" ? linkOf(records, "bridge") : undefined;
  const own = bridge ?? linkOf(records, "anchor");
  const mtu = bridge && facts.links.get(bridge.name)?.mtu;
  return {
    name,
    role,
    addresses: own ? addressesOn(own.name, records) : [],
    ...(mtu !== undefined && { mtu }),
    tunnels: Object.fromEntries(tunnels),
    wrong: Object.fromEntries(records.map((record) => [record.uid, wrongIn(record, facts)])),
    suspects: suspectsIn(facts, tunnels[0]?.[1].port ?? 4789),
  };
}

const linksIn = (records: HostRecord[]): Link[] =>
  records.flatMap(({ items }) => items.filter((item): item is Link => item.kind === "link"));

const linkOf = (records: HostRecord[], type: Link["type"]): Link | undefined =>
  linksIn(records).find((link) => link.type === type);

const tunnelsIn = (record: HostRecord): [uid: string, Tunnel][] =>
  linksIn([record]).flatMap(({ vxlan }) => (vxlan ? [[record.uid, vxlan] as [string, Tunnel]] : []));

/** The first of each family: every other machine pings them all at once, and a host may put thousands into its records. */
function addressesOn(dev: string, records: HostRecord[]): string[] {
  const all = records
    .flatMap(({ items }) => items)
    .filter((item): item is Extract<Item, { kind: "address" }> => item.kind === "address" && item.dev === dev)
    .map(({ address }) => address.slice(0, address.indexOf("/")));
  const firsts = [all.find((address) => !address.includes(":")), all.find((address) => address.includes(":"))];
  return firsts.filter((address) => address !== undefined);
}

/** What other programs put in the way comes first: it is the likelier cause. */
function wrongIn({ items, ...record }: HostRecord, facts: Facts): string[] {
  const want = { record, items };
  return [
    ...describeForeign(want, facts),
    ...excludeForeign(diffItems(items, facts), want, facts).map(formatDifference),
  ];
}

/** Only those that look at nothing else: a rule about another port or about replies is not the cause. */
function suspectsIn(facts: Facts, port: number): End["suspects"] {
  const stopping = (chain: string): string[] =>
    ([4, 6] as const)
      .flatMap((family) => facts.chains.get(`${family} filter ${chain}`) ?? [])
      .filter((rule) => /-j (DROP|REJECT)/.test(rule));
  const meetsTunnel = (rule: string): boolean =>
    !/-p (?!udp)/.test(rule) && (!/--dports? /.test(rule) || new RegExp(`--dports? (\\S*,)?${port}\\b`).test(rule));
  return { input: stopping("INPUT").filter(meetsTunnel), forward: stopping("FORWARD") };
}

/** Who pings whom, in one script for each machine. Pure. */
export interface Probe {
  from: string;
  to: string;
  target: string;
  /** `underlay`: below the overlay, between the two ends of a tunnel; asked along, and told only when the overlay fails. */
  layer: "overlay" | "underlay";
  /** Bytes of the largest packet that must pass unbroken, with its headers. */
  mtu: number;
}

export interface Answer extends Probe {
  /** Percent. */
  loss: number;
  /** Milliseconds on average. */
  rtt?: number;
  full: boolean;
}

const LARGEST = 1450;

export function probesFrom(from: End, ends: End[]): Probe[] {
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
  const below = others.flatMap((to): Probe[] => {
    const tunnel = tunnelBetween(from, to);
    return tunnel ? [{ from: from.name, to: to.name, target: tunnel.remote, layer: "underlay", mtu: 0 }] : [];
  });
  return [...overlay, ...below];
}

const sizeFor = (a: End, b: End): number =>
  Math.min(a.mtu ?? Infinity, b.mtu ?? Infinity, ...((a.mtu ?? b.mtu) ? [] : [LARGEST]));

/** A runner's lease has one uid on both machines. */
export function tunnelBetween(a: End, b: End) {
  const uid = Object.keys(a.tunnels).find((each) => each in b.tunnels);
  return a.role !== b.role && uid !== undefined ? a.tunnels[uid] : undefined;
}

const HEADERS = { 4: 28, 6: 48 };
const headersOf = (target: string): number => HEADERS[target.includes(":") ? 6 : 4];

/** All at once; each answer is one line, short enough to be written in one piece. */
export function probeScript(probes: Probe[], count: number): string {
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

export function answersIn(probes: Probe[], stdout: string): Answer[] {
  const lines = new Map(stdout.split("\n").map((line) => [Number.parseInt(line, 10), line]));
  return probes.map((probe, i) => {
    const line = lines.get(i) ?? "";
    const rtt = /= [\d.]+\/([\d.]+)\//.exec(line)?.[1];
    const loss = Number(/([\d.]+)% packet loss/.exec(line)?.[1] ?? 100);
    return { ...probe, loss, full: / yes /.test(line), ...(rtt !== undefined && { rtt: Number(rtt) }) };
  });
}

/** All that is known of a network when its machines have answered. */
export interface Findings {
  ends: Map<string, End>;
  answers: Answer[];
  /** Machines that could not be asked, and why. */
  silent: Map<string, OverlayError>;
}

export const isFine = ({ loss, full }: Answer): boolean => loss === 0 && full;

/**
 * Which hop is to blame, by what is surest: a machine that differs from its own records, then the network below, then a
 * tunnel through which nothing passes, then the hub in between. What is lost now and then explains only that. Pure.
 */
export function blame({ from, to, loss }: Answer, findings: Findings): string {
  const path = pathOf(from, to, findings);
  const legs = path.slice(1).map((end, i) => [path[i]!, end] as const);
  return (
    first(path, (name) => silence(name, findings)) ??
    first(path, (name) => difference(name, path, findings)) ??
    first(legs, ([a, b]) => below(a, b, findings)) ??
    first(legs, ([a, b]) => tunnel(a, b, findings)) ??
    first(legs, ([a, b]) => weakness(a, b, loss, findings)) ??
    (loss < 100 && loss > 0 ? "packets are lost now and then" : through(path, findings))
  );
}

const first = <T>(all: readonly T[], find: (each: T) => string | undefined): string | undefined => {
  for (const each of all) {
    const found = find(each);
    if (found !== undefined) return found;
  }
  return undefined;
};

function pathOf(from: string, to: string, { ends }: Findings): string[] {
  const hub = [...ends.values()].find(({ role }) => role === "hub")?.name;
  return hub === undefined || from === hub || to === hub ? [from, to] : [from, hub, to];
}

const silence = (name: string, { silent }: Findings): string | undefined =>
  silent.has(name) ? `${name} could not be asked: ${silent.get(name)!.code}` : undefined;

/** On the hub only what concerns these runners, and the network itself. */
function difference(name: string, path: string[], { ends }: Findings): string | undefined {
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

/** There before back, whichever machine was done first. */
const between = (a: string, b: string, layer: Answer["layer"], { answers }: Findings): Answer[] => {
  const along = (from: string, to: string) =>
    answers.filter((each) => each.layer === layer && each.from === from && each.to === to);
  return [...along(a, b), ...along(b, a)];
};

function below(a: string, b: string, findings: Findings): string | undefined {
  const dead = between(a, b, "underlay", findings).find(({ loss }) => loss === 100);
  return dead && `the underlay: ${dead.target} (${dead.to}) does not answer ${dead.from}`;
}

function tunnel(a: string, b: string, findings: Findings): string | undefined {
  if (!between(a, b, "overlay", findings).some(({ loss }) => loss === 100)) return undefined;
  const ends = [findings.ends.get(a)!, findings.ends.get(b)!] as const;
  const suspect = ends.flatMap(({ name, suspects }) => suspects.input.map((rule) => `${name} has INPUT ${rule}`))[0];
  const port = tunnelBetween(...ends)?.port ?? 4789;
  return `${a} to ${b}: UDP port ${port} does not pass, ${suspect ?? "though both ends match their records; look for a firewall on the way"}`;
}

/** A leg with the same trouble as the whole way: some packets are lost, or only large ones. */
function weakness(a: string, b: string, loss: number, findings: Findings): string | undefined {
  if (loss === 100) return undefined;
  const answers = between(a, b, "overlay", findings);
  if (loss > 0 && answers.some((leg) => leg.loss > 0)) return `${a} to ${b}: packets are lost now and then`;
  const narrow = answers.find(({ full }) => !full);
  return narrow && `${a} to ${b}: packets of ${narrow.mtu} bytes are too large for the underlay`;
}

function through(path: string[], { ends }: Findings): string {
  const hub = ends.get(path[1]!)!;
  const [suspect] = hub.suspects.forward;
  return `${hub.name} does not forward packets${suspect ? `, it has FORWARD ${suspect}` : ": look for a firewall there"}`;
}
