import { devicesWith } from "./devices";
import type { Facts } from "./facts";
import type { Link, ZoneEntry } from "./items";

/**
 * firewalld, where it runs. It rejects what no zone lets in, whatever other tables accept: our devices go to its zone
 * `trusted`, and the zone of the underlay gets a rule for VXLAN from the peer; each in the runtime configuration, which counts
 * now, and in the permanent one, which counts after a reload.
 */
export interface ZoneFacts {
  initial: string;
  runtime: Map<string, Zone>;
  permanent: Map<string, Zone>;
}

interface Zone {
  interfaces: string[];
  rules: string[];
}

const TRUSTED = "trusted";

export const planZones = ({ name, vxlan }: Link): ZoneEntry[] => [
  { kind: "zone", interface: name },
  ...(vxlan ? [{ kind: "zone" as const, rule: vxlanRule(vxlan.remote, vxlan.port), underlay: vxlan.local }] : []),
];

const vxlanRule = (peer: string, port: number): string =>
  `rule family="ipv${peer.includes(":") ? 6 : 4}" source address="${peer}" port port="${port}" protocol="udp" accept`;

/** Fails at once where firewalld does not run. */
export const ZONE_FACTS = [
  "if command -v firewall-cmd >/dev/null && zones=$(firewall-cmd --list-all-zones 2>/dev/null); then",
  "  echo '@@ zone'; sed -n 's/^DefaultZone=//p' /etc/firewalld/firewalld.conf",
  "  echo '@@ zones'; echo \"$zones\"; echo '@@ permanent'; firewall-cmd --permanent --list-all-zones || exit 1",
  "fi",
].join("\n");

/** `firewall-cmd --list-all-zones`: a zone's name, then its settings, indented; rich rules follow theirs, a line each. */
export function parseZones(body: string): Map<string, Zone> {
  const zones = new Map<string, Zone>();
  for (const block of body.split(/\n(?=\S)/)) {
    const [, name] = /^([\w-]+)/.exec(block) ?? [];
    const [, interfaces = ""] = /^ {2}interfaces: (.*)$/m.exec(block) ?? [];
    const rules = [...block.matchAll(/^\s+(rule .*)$/gm)].map(([, rule]) => rule!);
    if (name) zones.set(name, { interfaces: interfaces.split(" ").filter(Boolean), rules });
  }
  return zones;
}

/** The zone that an entry belongs to, on this machine. */
export function zoneFor(item: ZoneEntry, facts: Facts): string {
  if (item.interface) return TRUSTED;
  const { zones } = facts;
  const [device = ""] = devicesWith(item.underlay!, facts);
  const bound = [...(zones?.runtime ?? [])].find(([, { interfaces }]) => interfaces.includes(device));
  return bound?.[0] ?? (zones?.initial || "public");
}

const has = (zone: Zone | undefined, item: ZoneEntry): boolean =>
  item.interface ? (zone?.interfaces.includes(item.interface) ?? false) : (zone?.rules.includes(item.rule!) ?? false);

/** Where it is not, of the two configurations; undefined: in neither. */
export function wrongEntry(item: ZoneEntry, facts: Facts): string[] | undefined {
  const zone = zoneFor(item, facts);
  const missing = (["runtime", "permanent"] as const).filter((kind) => !has(facts.zones?.[kind].get(zone), item));
  return missing.length === 2 ? undefined : missing.map((kind) => `not in the ${kind} configuration of zone ${zone}`);
}

/** Two commands: now, and from the next reload on. Neither fails on what is so already. */
export function zoneCommands(verb: "add" | "remove", item: ZoneEntry, zone: string): string[][] {
  const [kind, value] = item.interface ? ["interface", item.interface] : ["rich-rule", item.rule!];
  const put = item.interface ? "change" : "add";
  const option = `--${verb === "add" ? put : "remove"}-${kind}=${value}`;
  return [[], ["--permanent"]].map((when) => ["firewall-cmd", "--quiet", ...when, `--zone=${zone}`, option]);
}
