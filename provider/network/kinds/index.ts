import type { Facts } from "../model/facts";
import { type Item, keyOf, lists } from "../model/items";
import { unitPath } from "../model/paths";
import type { Step } from "../model/steps";
import { quote, requirePlain, textFile } from "../render/shell";
import { addressText, put, renderLink, undoLink, wrongAddress, wrongLink } from "./device";
import { dockerCreate, dockerRemove, isOurNetwork, wrongNetwork } from "./docker";
import { dropService, enableService, wrongFile, wrongService } from "./file";
import { firewallLines, isBehindStop, placeOf, renderFirewall, rulesOf } from "./firewall";
import { type Difference, type Lines, mismatch } from "./kind";
import { addPolicy, policyText, routeText, undoRoute, wrongRoute } from "./route";
import { restoreSysctl, saveSysctl, setSysctl } from "./sysctl";
import { isForUs, isZone, wrongEntry, zoneCommands } from "./zone";

export const differenceText = ({ item, missing, wrong }: Difference): string =>
  `${keyOf(item)}: ${missing ? "missing" : wrong.join(", ")}`;

export const differences = (want: Item[], facts: Facts): Difference[] =>
  want.flatMap((item): Difference[] => {
    if (!fits(item, facts)) return [];
    const wrong = wrongWith(item, facts);
    if (wrong === undefined) return [{ item, missing: true, wrong: [] }];
    return wrong.length > 0 ? [{ item, missing: false, wrong }] : [];
  });

/**
 * Whether an item concerns this machine. Docker's network does where dockerd runs, or must run; one that is on record still
 * does while dockerd is down. A zone does where firewalld is.
 */
export function fits(item: Item, facts: Facts): boolean {
  const { docker, records } = facts;
  if (item.kind === "zone") return isForUs(item, facts);
  if (item.kind !== "docker" || item.required || docker?.answers) return true;
  return docker !== undefined && records.some((record) => lists(record, item));
}

/** Whether it stands, and is the one that we made, as far as that can be told from a machine. */
export function isPresent(item: Item, facts: Facts): boolean {
  if (item.kind === "docker") return isOurNetwork(item, facts.docker);
  return wrongWith(item, facts) !== undefined;
}

/** undefined: the object is not there at all. */
function wrongWith(item: Item, facts: Facts): string[] | undefined {
  switch (item.kind) {
    case "sysctl": {
      const have = facts.sysctls.get(item.key);
      return have === undefined ? undefined : mismatch("value", have, item.value);
    }
    case "link":
      return wrongLink(item, facts);
    case "address":
      return wrongAddress(item, facts);
    case "route":
      return wrongRoute(item, facts);
    case "policy":
      return facts.policies.has(`${item.family} ${item.from} ${item.mark} ${item.table}`) ? [] : undefined;
    case "docker":
      return wrongNetwork(item, facts.docker);
    case "zone":
      return wrongEntry(item, facts);
    case "chain":
      return facts.chains.has(`${item.family} ${item.table} ${item.chain}`) ? [] : undefined;
    case "jump": {
      const place = placeOf(item, facts);
      if (place === 0) return undefined;
      if (place < 0) return ["position is before DOCKER-USER, should be after it"];
      return [...mismatch("position", place, 1), ...mismatch("number of copies", copiesOf(item, facts), 1)];
    }
    case "file":
      return wrongFile(item.path, item.content, facts);
    case "service":
      return wrongService(item, facts);
    case "rule":
      if (copiesOf(item, facts) === 0) return undefined;
      return isBehindStop(item, facts) ? ["it comes after a rule that drops"] : [];
  }
}

/** A rule or jump can stand several times, and is removed as often. */
export function copiesOf(item: Item, facts: Facts): number {
  if (item.kind === "rule") return rulesOf(facts, item, item.chain).filter((rule) => rule === item.rule).length;
  if (item.kind !== "jump") return 1;
  return rulesOf(facts, item, item.from).filter((rule) => rule === `-j ${item.chain}`).length;
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

export const rank = (item: Item): number => ORDER.indexOf(item.kind) * 2 + (needsSameKind(item) ? 1 : 0);

/** A bridge comes before its ports, and our zone of firewalld before what is in it. */
const needsSameKind = (item: Item): boolean =>
  (item.kind === "link" && Boolean(item.master)) || (item.kind === "zone" && !isZone(item));

export function linesOf(steps: Step[]): Lines {
  const lines: Lines = { writes: [], saves: [], files: [], shell: [], ip: [], late: [], firewall: new Map() };
  for (const step of steps) render(step, lines);
  return lines;
}

function render(
  { verb, item, copies = 1, instead = [], ports = [], leave = false, former, places = [], position }: Step,
  lines: Lines,
): void {
  requirePlain(item, [...instead, ...ports]);
  switch (item.kind) {
    case "sysctl":
      if (verb !== "remove") lines.saves.push(saveSysctl(item.key));
      lines.shell.push(verb === "remove" ? restoreSysctl(item.key, leave, former) : setSysctl(item.key, item.value));
      break;
    case "link":
      renderLink(verb, item, lines);
      for (const port of ports) lines.ip.push(`link set dev ${port} master ${item.name}`);
      break;
    case "address":
      lines.ip.push(verb === "remove" ? `address del ${item.address} dev ${item.dev}` : addressText(item));
      for (const other of instead) lines.ip.push(`address del ${other} dev ${item.dev}`);
      break;
    case "route":
      lines.ip.push(`route ${verb === "remove" ? "del" : "replace"} ${routeText(item)}`);
      break;
    case "policy":
      // In a batch `ip` takes every range for one of IPv4.
      lines.shell.push(verb === "remove" ? `ip -${item.family} rule del ${policyText(item)}` : addPolicy(item));
      break;
    case "zone": {
      const commands = zoneCommands(verb, item, places);
      lines[verb === "remove" ? "shell" : "late"].push(...commands.map((words) => words.map(quote).join(" ")));
      break;
    }
    case "file":
      if (verb === "remove") lines.files.push(`rm -f ${quote(item.path)}`);
      else lines.writes.push(textFile(item.path, item.content ?? ""));
      break;
    case "service":
      if (verb !== "remove") lines.writes.push(textFile(unitPath(item.name), item.unit ?? ""));
      lines.files.push(verb === "remove" ? dropService(item) : enableService(item));
      break;
    case "docker":
      // Before its bridge goes, and after it has come.
      if (verb !== "add") lines.shell.push(dockerRemove(item).map(quote).join(" "));
      if (verb !== "remove") lines.late.push(dockerCreate(item).map(quote).join(" "));
      break;
    default:
      firewallLines(item, lines.firewall).push(...renderFirewall(verb, item, copies, position));
  }
}

export function undo({ verb, item, instead = [], places }: Step, before: Facts): Step[] {
  switch (item.kind) {
    case "sysctl": {
      const value = before.sysctls.get(item.key);
      return value === undefined ? [] : [{ verb: "change", item: { ...item, value } }];
    }
    case "link":
      return undoLink(verb, item, before);
    case "address":
      return [
        ...instead.map((address) => put({ ...item, address })),
        before.addresses.has(`${item.address} ${item.dev}`) ? put(item) : { verb: "remove", item },
      ];
    case "route":
      return undoRoute(item, before);
    case "policy":
    case "chain":
    case "rule":
      return [{ verb: verb === "remove" ? "add" : "remove", item }];
    case "docker": // made anew in one step: it stays
    case "jump": // one that was only moved to the top stays there
      return verb === "change" ? [] : [{ verb: verb === "remove" ? "add" : "remove", item }];
    case "zone":
      return verb === "change" ? [] : [{ verb: verb === "remove" ? "add" : "remove", item, ...(places && { places }) }];
    case "file":
    case "service": // these are changed last, when nothing needs to be undone any more
      return [];
  }
}
