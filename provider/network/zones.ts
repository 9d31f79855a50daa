import { devicesWith } from "./devices";
import type { Facts } from "./facts";
import type { Link, ZoneEntry } from "./items";

/**
 * firewalld, where it runs. It rejects what no zone lets in, whatever other tables accept: our devices go to its zone
 * `trusted`, and the zone of the underlay gets a rule for VXLAN from the peer; each in the runtime configuration, which counts
 * now, and in the permanent one, which counts after a reload. Where it is stopped and will be back, in the latter alone.
 *
 * A bridge with a Docker network on it is Docker's to place: it puts it into a zone `docker`, which lets everything pass, too,
 * whenever it starts, and fails where the bridge is in another.
 */
export interface ZoneFacts {
  initial: string;
  /** Absent: it is stopped. */
  runtime?: Map<string, Zone>;
  permanent: Map<string, Zone>;
}

interface Zone {
  interfaces: string[];
  rules: string[];
}

const TRUSTED = "trusted";
const DOCKERS = "docker";

export const planZones = ({ name, vxlan }: Link, hasDocker = false): ZoneEntry[] => [
  { kind: "zone", interface: name, ...(hasDocker && { hasDocker: true as const }) },
  ...(vxlan ? [{ kind: "zone" as const, rule: vxlanRule(vxlan.remote, vxlan.port), underlay: vxlan.local }] : []),
];

const vxlanRule = (peer: string, port: number): string =>
  `rule family="ipv${peer.includes(":") ? 6 : 4}" source address="${peer}" port port="${port}" protocol="udp" accept`;

const DEFAULT_ZONE = "sed -n 's/^DefaultZone=//p' /etc/firewalld/firewalld.conf";
/** It is started at boot, or has entries of ours. */
const COMES_BACK =
  '{ systemctl -q is-enabled firewalld 2>/dev/null || grep -qs \'"kind":"zone"\' /var/lib/overlay/*/*.json; }';

export const ZONE_FACTS = [
  "if ! command -v firewall-cmd >/dev/null; then :",
  "elif zones=$(firewall-cmd --list-all-zones 2>/dev/null); then",
  `  echo '@@ zone'; ${DEFAULT_ZONE}`,
  "  echo '@@ zones'; echo \"$zones\"; echo '@@ permanent'; firewall-cmd --permanent --list-all-zones || exit 1",
  `elif ${COMES_BACK}; then`,
  `  echo '@@ zone'; ${DEFAULT_ZONE}; echo '@@ permanent'; firewall-offline-cmd --list-all-zones || exit 1`,
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

/** Whether it is for us to see to it: firewalld is there, and Docker does not. */
export const isForUs = ({ hasDocker }: ZoneEntry, { zones, docker }: Facts): boolean =>
  zones !== undefined && !(hasDocker && docker && zones.permanent.has(DOCKERS));

/** Where an entry belongs on this machine. */
export interface Place {
  zone: string;
  /** firewalld is stopped. */
  offline?: true;
}

export function placeFor(item: ZoneEntry, facts: Facts): Place {
  const { runtime, permanent, initial } = facts.zones ?? { permanent: new Map<string, Zone>(), initial: "" };
  const offline = !runtime && { offline: true as const };
  if (item.interface) return { zone: TRUSTED, ...offline };
  const [device = ""] = devicesWith(item.underlay!, facts);
  const bound = [...(runtime ?? permanent)].find(([, { interfaces }]) => interfaces.includes(device));
  return { zone: bound?.[0] ?? (initial || "public"), ...offline };
}

const has = (zone: Zone | undefined, item: ZoneEntry): boolean =>
  item.interface ? (zone?.interfaces.includes(item.interface) ?? false) : (zone?.rules.includes(item.rule!) ?? false);

/** Where it is not, of the configurations that count; undefined: in none. */
export function wrongEntry(item: ZoneEntry, facts: Facts): string[] | undefined {
  const { zone, offline } = placeFor(item, facts);
  const kinds = offline ? (["permanent"] as const) : (["runtime", "permanent"] as const);
  const missing = kinds.filter((kind) => !has(facts.zones?.[kind]?.get(zone), item));
  if (missing.length === kinds.length) return undefined;
  return missing.map((kind) => `not in the ${kind} configuration of zone ${zone}`);
}

const NOW = ["firewall-cmd", "--quiet"];

/** Two commands: now, and from the next reload on. Neither fails on what is so already. */
export function zoneCommands(verb: "add" | "remove", item: ZoneEntry, { zone, offline }: Place): string[][] {
  const [kind, value] = item.interface ? ["interface", item.interface] : ["rich-rule", item.rule!];
  const put = item.interface ? "change" : "add";
  const option = `--${verb === "add" ? put : "remove"}-${kind}=${value}`;
  const ways = offline ? [["firewall-offline-cmd", "--quiet"]] : [NOW, [...NOW, "--permanent"]];
  return ways.map((words) => [...words, `--zone=${zone}`, option]);
}
