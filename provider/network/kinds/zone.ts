import type { Facts, Zone, ZoneFacts } from "../model/facts";
import { type Item, OUR_ZONE, type ZoneEntry } from "../model/items";
import type { Place, Step } from "../model/steps";
import { devicesWith } from "./device";

const UNTIL_LOADED = "trusted";
const DOCKERS = "docker";

/** For packets that are forwarded; the last of the rules below stops those to the host. */
const TARGET = "ACCEPT";
const BASE_RULES = [
  'rule protocol value="icmp" accept',
  'rule protocol value="ipv6-icmp" accept',
  'rule priority="32767" reject',
];

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
    const [, target = ""] = /^ {2}target: (.*)$/m.exec(block) ?? [];
    const [, interfaces = ""] = /^ {2}interfaces: (.*)$/m.exec(block) ?? [];
    const rules = [...block.matchAll(/^\s+(rule .*)$/gm)].map(([, rule]) => rule!);
    if (name) zones.set(name, { target, interfaces: interfaces.split(" ").filter(Boolean), rules });
  }
  return zones;
}

/** Whether it is for us to see to it: firewalld is there, and Docker does not. */
export const isForUs = ({ hasDocker }: ZoneEntry, { zones, docker }: Facts): boolean =>
  zones !== undefined && !(hasDocker && docker && zones.permanent.has(DOCKERS));

/** Where an entry belongs on this host. The runtime configuration has our zone only once it is loaded. */
export function placesFor(item: ZoneEntry, facts: Facts): Place[] {
  if (!facts.zones) return [];
  const { runtime } = facts.zones;
  const zone = item.underlay ? zoneOfUnderlay(item.underlay, facts, facts.zones) : OUR_ZONE;
  if (!runtime) return [{ configuration: "offline", zone }];
  const permanent: Place = { configuration: "permanent", zone };
  if (runtime.has(zone)) return [{ configuration: "runtime", zone }, permanent];
  return item.interface ? [{ configuration: "runtime", zone: UNTIL_LOADED }, permanent] : [permanent];
}

function zoneOfUnderlay(address: string, facts: Facts, { runtime, permanent, initial }: ZoneFacts): string {
  const [device = ""] = devicesWith(address, facts);
  const bound = [...(runtime ?? permanent)].find(([, { interfaces }]) => interfaces.includes(device));
  return bound?.[0] ?? (initial || "public");
}

/**
 * Where an entry stands. A device may be in `trusted`, also permanently: earlier versions have put it there. A zone that is only
 * loaded goes with the next reload.
 */
export function placesOf(item: ZoneEntry, facts: Facts): Place[] {
  const places = placesFor(item, facts).flatMap((place) => {
    if (item.interface) return [OUR_ZONE, UNTIL_LOADED].map((zone) => ({ ...place, zone }));
    return isZone(item) && place.configuration === "runtime" ? [] : [place];
  });
  return places.filter((place) => isIn(place, item, facts));
}

/** Whether it is our zone itself. */
export const isZone = (item: ZoneEntry): boolean => !item.interface && !item.rule;

function isIn(place: Place, item: ZoneEntry, facts: Facts): boolean {
  const zone = zoneAt(place, facts);
  if (!zone || isZone(item)) return zone !== undefined;
  return item.interface ? zone.interfaces.includes(item.interface) : zone.rules.includes(item.rule!);
}

const zoneAt = ({ configuration, zone }: Place, { zones }: Facts): Zone | undefined =>
  (configuration === "runtime" ? zones?.runtime : zones?.permanent)?.get(zone);

/** What is wrong with it, of the configurations that count; undefined: it is in none. */
export function wrongEntry(item: ZoneEntry, facts: Facts): string[] | undefined {
  if (placesOf(item, facts).length === 0) return undefined;
  if (isZone(item)) return placesFor(item, facts).flatMap((place) => wrongZone(place, facts));
  return placesFor(item, facts)
    .filter((place) => !isIn(place, item, facts))
    .map(({ configuration, zone }) => `not in the ${nameOf(configuration)} configuration of zone ${zone}`);
}

/** A target changes only in the permanent configuration. */
function wrongZone(place: Place, facts: Facts): string[] {
  const { target, rules } = zoneAt(place, facts)!;
  const where = `in the ${nameOf(place.configuration)} configuration`;
  const missing = BASE_RULES.filter((rule) => !rules.includes(rule)).map((rule) => `no ${rule} ${where}`);
  if (place.configuration === "runtime" || target === TARGET) return missing;
  return [`target is ${target}, should be ${TARGET}`, ...missing];
}

const nameOf = (configuration: Place["configuration"]): string =>
  configuration === "runtime" ? "runtime" : "permanent";

/** A warning for the run that makes the zone. */
export function zoneWarnings(items: Item[], { zones }: Facts): string[] {
  if (!zones?.runtime || zones.runtime.has(OUR_ZONE) || zones.permanent.has(OUR_ZONE)) return [];
  if (!items.some((item) => item.kind === "zone" && isZone(item))) return [];
  return [
    `firewalld loads the new zone ${OUR_ZONE} when it is reloaded or started. Until then the overlay's devices are in zone ${UNTIL_LOADED}, and our iptables chains alone keep workloads from this host. A reload loses firewalld's runtime settings and other programs' iptables rules; where that does no harm, run \`firewall-cmd --reload; systemctl start overlay-network\`.`,
  ];
}

const COMMANDS: Record<Place["configuration"], string[]> = {
  runtime: ["firewall-cmd", "--quiet"],
  permanent: ["firewall-cmd", "--quiet", "--permanent"],
  offline: ["firewall-offline-cmd", "--quiet"],
};

/** Commands for each place. None fails on what is so already. */
export const zoneCommands = (verb: Step["verb"], item: ZoneEntry, places: Place[]): string[][] =>
  places.flatMap((place) =>
    optionsFor(verb, item, place).map((options) => [...COMMANDS[place.configuration], ...options]),
  );

function optionsFor(verb: Step["verb"], item: ZoneEntry, { configuration, zone }: Place): string[][] {
  const inZone = `--zone=${zone}`;
  const isAdded = verb !== "remove";
  if (item.interface) return [[inZone, `--${isAdded ? "change" : "remove"}-interface=${item.interface}`]];
  if (item.rule) return [[inZone, `--${isAdded ? "add" : "remove"}-rich-rule=${item.rule}`]];
  const rules = [inZone, ...BASE_RULES.map((rule) => `--add-rich-rule=${rule}`)];
  if (configuration === "runtime") return isAdded ? [rules] : [];
  if (!isAdded) return [[`--delete-zone=${zone}`]];
  return [...(verb === "add" ? [[`--new-zone=${zone}`]] : []), [inZone, `--set-target=${TARGET}`], rules];
}
