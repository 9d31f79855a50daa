import type { Facts, Zone, ZoneFacts } from "../model/facts";
import { type Item, OUR_ZONE, oppositeStep, type Step, type ZoneEntry, type ZoneLocation } from "../model/items";
import { quote } from "../render/shell";
import { devicesWithAddress } from "./device";
import type { ItemKind } from "./kind";

/**
 * firewalld, where it is installed. It rejects what no zone accepts, whatever other tables accept: our devices go to a zone of our own,
 * and the zone of the underlay gets a rule for VXLAN from the peer; each in the runtime configuration, which is effective now, and in
 * the permanent one, which is effective after a reload. While firewalld is stopped, only in the permanent one.
 *
 * Our zone accepts what is forwarded, and to the host itself pings and what `hostAccess` names, as our chains do. firewalld loads a
 * new zone only when it reloads or starts, and then loses runtime settings and deletes the iptables rules of all programs: an
 * administrator decides when. Until then our devices are in `trusted`, and our chains alone protect the host; the reload that
 * deletes them loads our zone.
 *
 * Docker places the bridge of a Docker network itself, in a zone `docker`, whenever it starts, and fails if the bridge is in
 * another.
 */
export const zoneKind: ItemKind<ZoneEntry> = {
  needsSameKind: (item) => !isZoneItself(item),
  isUnique: false,
  toRecord: (item) => item,
  resets: { interface: undefined, hasDocker: undefined, rule: undefined, underlay: undefined },
  readFrom: { before: ["zone", "zones", "permanent"], after: ["zone", "zones", "permanent"] },
  readBack: ({ underlay }, before) => (underlay ? { devices: devicesWithAddress(underlay, before) } : {}),
  disappearsWith: () => undefined, // firewalld keeps the name of a device
  appliesToHost: isZoneManaged,
  compare: compareZoneEntry,
  render({ verb, item, zones = [] }, parts) {
    const commands = zoneCommands(verb, item, zones).map((words) => words.map(quote).join(" "));
    parts[verb === "remove" ? "shell" : "late"].push(...commands);
  },
  quotedFields: ["rule"],
  bootSteps: () => [], // firewalld restores it
  invert: (step) =>
    step.verb === "change" ? [] : [{ ...oppositeStep(step), ...(step.zones && { zones: step.zones }) }],
  removeFrom() {}, // an entry that stays in the facts is refused to no owner
  inspectCommands: [`firewall-cmd --permanent --info-zone=${OUR_ZONE}`],
};

const FALLBACK_ZONE = "trusted";
const DOCKER_ZONE = "docker";

/** For packets that are forwarded; the last of the rules below stops those to the host. */
const ZONE_TARGET = "ACCEPT";
const BASE_RULES = [
  'rule protocol value="icmp" accept',
  'rule protocol value="ipv6-icmp" accept',
  'rule priority="32767" reject',
];

const DEFAULT_ZONE = "sed -n 's/^DefaultZone=//p' /etc/firewalld/firewalld.conf";
/** It is enabled at boot, or has entries of ours. */
const WILL_RUN_AGAIN =
  '{ systemctl -q is-enabled firewalld 2>/dev/null || grep -qs \'"kind":"zone"\' /var/lib/overlay/*/*.json; }';

export const ZONE_SCRIPT = [
  "if ! command -v firewall-cmd >/dev/null; then :",
  "elif zones=$(firewall-cmd --list-all-zones 2>/dev/null); then",
  `  echo '@@ zone'; ${DEFAULT_ZONE}`,
  "  echo '@@ zones'; echo \"$zones\"; echo '@@ permanent'; firewall-cmd --permanent --list-all-zones || exit 1",
  `elif ${WILL_RUN_AGAIN}; then`,
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

/** Whether firewalld is there, and Docker does not manage the entry itself. */
function isZoneManaged({ hasDocker }: ZoneEntry, { zones, docker }: Facts): boolean {
  return zones !== undefined && !(hasDocker && docker && zones.permanent.has(DOCKER_ZONE));
}

/** Where an entry belongs on this host. The runtime configuration has our zone only once it is loaded. */
export function desiredZones(item: ZoneEntry, facts: Facts): ZoneLocation[] {
  if (!facts.zones) return [];
  const { runtime } = facts.zones;
  const zone = item.underlay ? zoneOfUnderlay(item.underlay, facts, facts.zones) : OUR_ZONE;
  if (!runtime) return [{ configuration: "offline", zone }];
  const permanent: ZoneLocation = { configuration: "permanent", zone };
  if (runtime.has(zone)) return [{ configuration: "runtime", zone }, permanent];
  return item.interface ? [{ configuration: "runtime", zone: FALLBACK_ZONE }, permanent] : [permanent];
}

function zoneOfUnderlay(address: string, facts: Facts, { runtime, permanent, defaultZone }: ZoneFacts): string {
  const [device = ""] = devicesWithAddress(address, facts);
  const bound = [...(runtime ?? permanent)].find(([, { interfaces }]) => interfaces.includes(device));
  return bound?.[0] ?? (defaultZone || "public");
}

/**
 * Where an entry is. A device may be in `trusted`, also permanently, because earlier versions put it there. A zone that is only
 * loaded disappears with the next reload.
 */
export function observedZones(item: ZoneEntry, facts: Facts): ZoneLocation[] {
  const locations = desiredZones(item, facts).flatMap((location) => {
    if (item.interface) return [OUR_ZONE, FALLBACK_ZONE].map((zone) => ({ ...location, zone }));
    return isZoneItself(item) && location.configuration === "runtime" ? [] : [location];
  });
  return locations.filter((location) => isInZone(location, item, facts));
}

/** Whether it is our zone itself. */
const isZoneItself = (item: ZoneEntry): boolean => !item.interface && !item.rule;

function isInZone(location: ZoneLocation, item: ZoneEntry, facts: Facts): boolean {
  const zone = findZone(location, facts);
  if (!zone || isZoneItself(item)) return zone !== undefined;
  return item.interface ? zone.interfaces.includes(item.interface) : zone.rules.includes(item.rule!);
}

const findZone = ({ configuration, zone }: ZoneLocation, { zones }: Facts): Zone | undefined =>
  (configuration === "runtime" ? zones?.runtime : zones?.permanent)?.get(zone);

function compareZoneEntry(item: ZoneEntry, facts: Facts): string[] | undefined {
  if (observedZones(item, facts).length === 0) return undefined;
  if (isZoneItself(item)) return desiredZones(item, facts).flatMap((location) => compareZone(location, facts));
  return desiredZones(item, facts)
    .filter((location) => !isInZone(location, item, facts))
    .map(({ configuration, zone }) => `not in the ${configurationName(configuration)} configuration of zone ${zone}`);
}

/** A target changes only in the permanent configuration. */
function compareZone(location: ZoneLocation, facts: Facts): string[] {
  const { target, rules } = findZone(location, facts)!;
  const where = `in the ${configurationName(location.configuration)} configuration`;
  const missing = BASE_RULES.filter((rule) => !rules.includes(rule)).map((rule) => `no ${rule} ${where}`);
  if (location.configuration === "runtime" || target === ZONE_TARGET) return missing;
  return [`target is ${target}, should be ${ZONE_TARGET}`, ...missing];
}

const configurationName = (configuration: ZoneLocation["configuration"]): string =>
  configuration === "runtime" ? "runtime" : "permanent";

/** A warning for the run that creates the zone. */
export function zoneWarnings(items: Item[], { zones }: Facts): string[] {
  if (!zones?.runtime || zones.runtime.has(OUR_ZONE) || zones.permanent.has(OUR_ZONE)) return [];
  if (!items.some((item) => item.kind === "zone" && isZoneItself(item))) return [];
  return [
    `firewalld loads the new zone ${OUR_ZONE} when it is reloaded or started. Until then the overlay's devices are in zone ${FALLBACK_ZONE}, and our iptables chains alone keep workloads from this host. A reload loses firewalld's runtime settings and other programs' iptables rules; where that does no harm, run \`firewall-cmd --reload; systemctl start overlay-network\`.`,
  ];
}

const ZONE_COMMANDS: Record<ZoneLocation["configuration"], string[]> = {
  runtime: ["firewall-cmd", "--quiet"],
  permanent: ["firewall-cmd", "--quiet", "--permanent"],
  offline: ["firewall-offline-cmd", "--quiet"],
};

/** Commands for each location. None fails if there is nothing to change. */
const zoneCommands = (verb: Step["verb"], item: ZoneEntry, locations: ZoneLocation[]): string[][] =>
  locations.flatMap((location) =>
    zoneOptions(verb, item, location).map((options) => [...ZONE_COMMANDS[location.configuration], ...options]),
  );

function zoneOptions(verb: Step["verb"], item: ZoneEntry, { configuration, zone }: ZoneLocation): string[][] {
  const inZone = `--zone=${zone}`;
  const isAdded = verb !== "remove";
  if (item.interface) return [[inZone, `--${isAdded ? "change" : "remove"}-interface=${item.interface}`]];
  if (item.rule) return [[inZone, `--${isAdded ? "add" : "remove"}-rich-rule=${item.rule}`]];
  const rules = [inZone, ...BASE_RULES.map((rule) => `--add-rich-rule=${rule}`)];
  if (configuration === "runtime") return isAdded ? [rules] : [];
  if (!isAdded) return [[`--delete-zone=${zone}`]];
  return [...(verb === "add" ? [[`--new-zone=${zone}`]] : []), [inZone, `--set-target=${ZONE_TARGET}`], rules];
}
