import type { Facts } from "../model/facts";
import { hasItem, type Item, itemKey } from "../model/items";
import { unitPath } from "../model/paths";
import type { Step } from "../model/steps";
import { quote, requireSafeItem, textFile } from "../render/shell";
import { addStep, compareAddress, compareLink, formatAddress, invertLink, renderLink } from "./device";
import { compareDockerNetwork, dockerCreateCommand, dockerRemoveCommand, isOurDockerNetwork } from "./docker";
import { compareFile, compareService, renderDisable, renderEnable } from "./file";
import { isAfterDrop, observedJumpPosition, observedRules, renderFirewall, tableLines } from "./firewall";
import { type ItemDifference, mismatch, type ScriptParts } from "./kind";
import { compareRoute, formatPolicy, formatRoute, invertRoute, renderAddPolicy } from "./route";
import { restoreSysctl, saveSysctl, setSysctl } from "./sysctl";
import { compareZoneEntry, isZoneItself, isZoneManaged, zoneCommands } from "./zone";

export const formatDifference = ({ item, missing, wrong }: ItemDifference): string =>
  `${itemKey(item)}: ${missing ? "missing" : wrong.join(", ")}`;

export const diffItems = (desired: Item[], facts: Facts): ItemDifference[] =>
  desired.flatMap((item): ItemDifference[] => {
    if (!appliesToHost(item, facts)) return [];
    const wrong = compareItem(item, facts);
    if (wrong === undefined) return [{ item, missing: true, wrong: [] }];
    return wrong.length > 0 ? [{ item, missing: false, wrong }] : [];
  });

/**
 * Whether an item concerns this machine. Docker's network does where dockerd runs, or must run; one that is on record still
 * does while dockerd is down. A zone does where firewalld is.
 */
export function appliesToHost(item: Item, facts: Facts): boolean {
  const { docker, records } = facts;
  if (item.kind === "zone") return isZoneManaged(item, facts);
  if (item.kind !== "docker" || item.required || docker?.isRunning) return true;
  return docker !== undefined && records.some((record) => hasItem(record, item));
}

/** Whether it stands, and is the one that we made, as far as that can be told from a machine. */
export function isPresent(item: Item, facts: Facts): boolean {
  if (item.kind === "docker") return isOurDockerNetwork(item, facts.docker);
  return compareItem(item, facts) !== undefined;
}

/** undefined: the object is not there at all. */
function compareItem(item: Item, facts: Facts): string[] | undefined {
  switch (item.kind) {
    case "sysctl": {
      const observed = facts.sysctls.get(item.key);
      return observed === undefined ? undefined : mismatch("value", observed, item.value);
    }
    case "link":
      return compareLink(item, facts);
    case "address":
      return compareAddress(item, facts);
    case "route":
      return compareRoute(item, facts);
    case "policy":
      return facts.policies.has(`${item.family} ${item.from} ${item.mark} ${item.table}`) ? [] : undefined;
    case "docker":
      return compareDockerNetwork(item, facts.docker);
    case "zone":
      return compareZoneEntry(item, facts);
    case "chain":
      return facts.chains.has(`${item.family} ${item.table} ${item.chain}`) ? [] : undefined;
    case "jump": {
      const place = observedJumpPosition(item, facts);
      if (place === 0) return undefined;
      if (place < 0) return ["position is before DOCKER-USER, should be after it"];
      return [...mismatch("position", place, 1), ...mismatch("number of copies", countCopies(item, facts), 1)];
    }
    case "file":
      return compareFile(item.path, item.content, facts);
    case "service":
      return compareService(item, facts);
    case "rule":
      if (countCopies(item, facts) === 0) return undefined;
      return isAfterDrop(item, facts) ? ["it comes after a rule that drops"] : [];
  }
}

/** A rule or jump can stand several times, and is removed as often. */
export function countCopies(item: Item, facts: Facts): number {
  if (item.kind === "rule") return observedRules(facts, item, item.chain).filter((rule) => rule === item.rule).length;
  if (item.kind !== "jump") return 1;
  return observedRules(facts, item, item.from).filter((rule) => rule === `-j ${item.chain}`).length;
}

/** The order in which things are made; they are removed the other way round. */
export const ORDER: Item["kind"][] = [
  "file",
  "service",
  "sysctl",
  "link",
  "address",
  "route",
  "policy",
  "docker",
  "chain",
  "rule",
  "jump",
  "zone",
];

export const creationRank = (item: Item): number => ORDER.indexOf(item.kind) * 2 + (needsSameKind(item) ? 1 : 0);

/** A bridge comes before its ports, and our zone of firewalld before what is in it. */
const needsSameKind = (item: Item): boolean =>
  (item.kind === "link" && Boolean(item.master)) || (item.kind === "zone" && !isZoneItself(item));

export function renderSteps(steps: Step[]): ScriptParts {
  const lines: ScriptParts = { writes: [], saves: [], files: [], shell: [], ip: [], late: [], firewall: new Map() };
  for (const step of steps) renderStep(step, lines);
  return lines;
}

function renderStep(
  {
    verb,
    item,
    copies = 1,
    otherPrefixes = [],
    ports = [],
    keepsValue = false,
    formerValue,
    zones = [],
    position,
  }: Step,
  lines: ScriptParts,
): void {
  requireSafeItem(item, [...otherPrefixes, ...ports]);
  switch (item.kind) {
    case "sysctl":
      if (verb !== "remove") lines.saves.push(saveSysctl(item.key));
      lines.shell.push(
        verb === "remove" ? restoreSysctl(item.key, keepsValue, formerValue) : setSysctl(item.key, item.value),
      );
      break;
    case "link":
      renderLink(verb, item, lines);
      for (const port of ports) lines.ip.push(`link set dev ${port} master ${item.name}`);
      break;
    case "address":
      lines.ip.push(verb === "remove" ? `address del ${item.address} dev ${item.dev}` : formatAddress(item));
      for (const other of otherPrefixes) lines.ip.push(`address del ${other} dev ${item.dev}`);
      break;
    case "route":
      lines.ip.push(`route ${verb === "remove" ? "del" : "replace"} ${formatRoute(item)}`);
      break;
    case "policy":
      // In a batch `ip` takes every range for one of IPv4.
      lines.shell.push(verb === "remove" ? `ip -${item.family} rule del ${formatPolicy(item)}` : renderAddPolicy(item));
      break;
    case "zone": {
      const commands = zoneCommands(verb, item, zones);
      lines[verb === "remove" ? "shell" : "late"].push(...commands.map((words) => words.map(quote).join(" ")));
      break;
    }
    case "file":
      if (verb === "remove") lines.files.push(`rm -f ${quote(item.path)}`);
      else lines.writes.push(textFile(item.path, item.content ?? ""));
      break;
    case "service":
      if (verb !== "remove") lines.writes.push(textFile(unitPath(item.name), item.unit ?? ""));
      lines.files.push(verb === "remove" ? renderDisable(item) : renderEnable(item));
      break;
    case "docker":
      // Before its bridge goes, and after it has come.
      if (verb !== "add") lines.shell.push(dockerRemoveCommand(item).map(quote).join(" "));
      if (verb !== "remove") lines.late.push(dockerCreateCommand(item).map(quote).join(" "));
      break;
    default:
      tableLines(item, lines.firewall).push(...renderFirewall(verb, item, copies, position));
  }
}

export function invertStep({ verb, item, otherPrefixes = [], zones }: Step, before: Facts): Step[] {
  switch (item.kind) {
    case "sysctl": {
      const value = before.sysctls.get(item.key);
      return value === undefined ? [] : [{ verb: "change", item: { ...item, value } }];
    }
    case "link":
      return invertLink(verb, item, before);
    case "address":
      return [
        ...otherPrefixes.map((address) => addStep({ ...item, address })),
        before.addresses.has(`${item.address} ${item.dev}`) ? addStep(item) : { verb: "remove", item },
      ];
    case "route":
      return invertRoute(item, before);
    case "policy":
    case "chain":
    case "rule":
      return [{ verb: verb === "remove" ? "add" : "remove", item }];
    case "docker": // made anew in one step: it stays
    case "jump": // one that was only moved to the top stays there
      return verb === "change" ? [] : [{ verb: verb === "remove" ? "add" : "remove", item }];
    case "zone":
      return verb === "change" ? [] : [{ verb: verb === "remove" ? "add" : "remove", item, ...(zones && { zones }) }];
    case "file":
    case "service": // these are changed last, when nothing needs to be undone any more
      return [];
  }
}
