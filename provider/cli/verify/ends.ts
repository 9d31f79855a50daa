import { diffItems, formatDifference } from "../../network/kinds";
import type { Facts } from "../../network/model/facts";
import type { HostRecord, Item, Link } from "../../network/model/items";
import { describeForeign, excludeForeign } from "../../network/preflight/foreign";

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
