import { addressBits, familyOf, tryParseIp } from "../../addressing/ip";
import { creationRank, diffItems, disappearsWith, factsWithout, isPresent, restoresFormerState } from "../kinds";
import { canChangeInPlace, devicesWithAddress, findLinkFaults, findOtherPrefixes, formerPeer } from "../kinds/device";
import {
  countCopies,
  desiredJumpPosition,
  FORWARD,
  findMissingRules,
  GUARD,
  matchesDevice,
  observedRules,
  REST,
  type RuleOrJump,
} from "../kinds/firewall";
import { precedesKernel } from "../kinds/route";
import { familyOfForwarding, formerForwarding, formerValueToSave } from "../kinds/sysctl";
import { desiredZones, observedZones } from "../kinds/zone";
import type { Facts, RouteFact, SshPath } from "../model/facts";
import {
  type DesiredState,
  type HostRecord,
  type Item,
  itemKey,
  type Link,
  type Step,
  unhandledKind,
} from "../model/items";
import { findOtherRouting } from "./other-routing";
import { findAdoptedLinks, findKeptKeys, findOwnedItems, isOwnRecord, recordsOfOthers } from "./ownership";

/**
 * The steps from the observed to the desired state, for all owners with a request at once. Removes only what an owner has
 * (`findOwnedItems`), and of that only what no other record lists, now or after this change: a name or protocol number alone does not
 * prove that an object is ours. An item that several owners share (chains, forwarding) is one step.
 */
export function planSteps(desiredStates: DesiredState[], facts: Facts): Step[] {
  const untouched = recordsOfOthers(desiredStates, facts);
  const mine = desiredStates.flatMap((desired) => findOwnedItems(desired, facts));
  const keep = findKeptKeys(mine, desiredStates, facts);
  const desiredItems = [
    ...new Map(desiredStates.flatMap(({ items }) => items.map((item) => [itemKey(item), item]))).values(),
  ];
  const ofSameNetwork = untouched.filter(({ network }) =>
    desiredStates.some(({ record }) => record.network === network),
  );
  const outdated = findOutdatedLinks(desiredItems, ofSameNetwork, facts);
  const lost = new Set(outdated.map(({ name }) => name));
  const put = planPutSteps(desiredItems, lost, findAdoptedLinks(desiredStates, facts), facts);
  return [
    ...findItemsToRemove(mine, keep, facts).map((item) => removeStep(item, mine, facts)),
    ...outdated.map((item): Step => ({ verb: "remove", item, ...faultsOf(item, facts) })),
    ...put,
    ...planRuleRepairs(put, untouched, facts),
  ];
}

/**
 * If rules are added, those on record for other owners that are missing are added with them, in the same call. On a host that was
 * flushed, a drop that all owners share would else drop what the rules of the next owner accept.
 */
function planRuleRepairs(put: Step[], untouched: HostRecord[], facts: Facts): Step[] {
  if (!put.some(({ verb, item }) => verb === "add" && item.kind === "rule")) return [];
  const planned = new Set(put.map(({ item }) => itemKey(item)));
  const missing = findMissingRules(
    untouched.flatMap(({ items }) => items),
    facts,
  );
  return missing
    .filter((item) => !planned.has(itemKey(item)))
    .map((item): Step => ({ verb: "add", item, ...positionOf(item, facts) }))
    .sort((a, b) => creationRank(a.item) - creationRank(b.item));
}

const positionOf = (item: Item, facts: Facts): Pick<Step, "position"> =>
  item.kind === "jump" ? { position: desiredJumpPosition(item, facts) } : {};

const removeStep = (item: Item, mine: Item[], facts: Facts): Step => ({
  verb: "remove",
  item,
  copies: countCopies(item, facts),
  ...faultsOf(item, facts),
  ...(item.kind === "sysctl" && restoreStep(item.key, mine, facts)),
  ...(item.kind === "zone" && { zones: observedZones(item, facts) }),
});

const faultsOf = (item: Item, facts: Facts): Pick<Step, "faults"> =>
  item.kind === "link" ? { faults: findLinkFaults(item, facts) } : {};

/** Docker enables forwarding without a trace, and needs it: where Docker runs, forwarding stays on, and where other programs route. */
function restoreStep(key: string, mine: Item[], facts: Facts): Partial<Step> {
  if (facts.docker?.isRunning) return { keepsValue: true };
  const family = familyOfForwarding(key);
  if (family === undefined || formerForwarding(family, facts) !== "0") return {};
  const keptFor = findOtherRouting(family, mine, facts);
  if (keptFor.length > 0) return { keepsValue: true, keptFor };
  return facts.savedSysctls.has(key) ? {} : { formerValue: "0" };
}

/**
 * Links that must be removed before others can be created: those that cannot be changed in place, and tunnels of our own network that
 * still have a VNI which the network's present numbering gives to another runner. Their owners change in the same up.
 */
function findOutdatedLinks(desiredItems: Item[], ofSameNetwork: HostRecord[], facts: Facts): Link[] {
  const links = desiredItems.filter((item) => item.kind === "link");
  const recreated = links.filter((link) => facts.links.has(link.name) && !canChangeInPlace(link, facts));
  const missing = links.filter((link) => link.vxlan && (!facts.links.has(link.name) || recreated.includes(link)));
  const inTheWay = ofSameNetwork.flatMap(({ items }) =>
    items
      .filter((item) => item.kind === "link")
      .filter((item) => missing.some((link) => hasSameVni(link, item, facts))),
  );
  return [...recreated, ...inTheWay];
}

const hasSameVni = (link: Link, other: Link, facts: Facts): boolean => {
  const observed = facts.links.get(other.name)?.vxlan;
  return link.name !== other.name && observed?.vni === link.vxlan?.vni && observed?.port === link.vxlan?.port;
};

function planPutSteps(desiredItems: Item[], lost: Set<string>, taken: Set<string>, facts: Facts): Step[] {
  const steps = diffItems(desiredItems, facts).map(({ item, missing }): Step => {
    const gone = missing || (item.kind === "link" && lost.has(item.name));
    const otherPrefixes = findOtherPrefixes(item, facts);
    return {
      verb: gone ? "add" : "change",
      item,
      copies: countCopies(item, facts),
      ...faultsOf(item, facts),
      ...(otherPrefixes.length > 0 && { otherPrefixes }),
      ...(item.kind === "link" && formerPeer(item, facts) && { formerPeer: formerPeer(item, facts)! }),
      ...positionOf(item, facts),
      ...(gone && item.kind === "route" && precedesKernel(item, facts) && { precedesKernel: true as const }),
      ...(item.kind === "sysctl" && formerValueToSave(item.key, facts)),
      ...(item.kind === "zone" && { zones: desiredZones(item, facts) }),
    };
  });
  const planned = new Set(steps.map(({ item }) => itemKey(item)));
  // A device that must be down to be renamed loses its routes and IPv6 addresses.
  const renamed = steps.flatMap(({ item, faults }) => (item.kind === "link" && faults?.renamedTo ? [item.name] : []));
  const without = new Set([...lost, ...renamed]);
  // With an address the kernel removes the routes that have it as their source, although another device has it, too.
  const sources = new Set(
    [...steps.map(({ item }) => item), ...desiredItems.filter((item) => disappearsWith(item, without))].flatMap(
      (item) => (item.kind === "address" ? [item.address.split("/")[0]!] : []),
    ),
  );
  const again = desiredItems.filter(
    (item) =>
      !planned.has(itemKey(item)) &&
      (disappearsWith(item, without) ||
        taken.has(itemKey(item)) ||
        (item.kind === "route" && item.src !== undefined && sources.has(item.src))),
  );
  const all = [...steps, ...again.map((item): Step => ({ verb: item.kind === "link" ? "change" : "add", item }))];
  return all.sort((a, b) => creationRank(a.item) - creationRank(b.item));
}

/** The facts of the host after these steps removed all that these owners have there; for dry runs. */
export function factsAfterRemoval(steps: Step[], removed: DesiredState[], facts: Facts): Facts {
  const after = factsWithout(
    steps.map(({ item }) => item),
    facts,
  );
  return { ...after, records: facts.records.filter((record) => !removed.some((state) => isOwnRecord(record, state))) };
}

/** Those of these items that are present and that no owner keeps, in the order of removal. */
export function findItemsToRemove(mine: Item[], keep: Set<string>, facts: Facts): Item[] {
  const gone = new Map(mine.filter((item) => !keep.has(itemKey(item))).map((item) => [itemKey(item), item]));
  const standing = [...gone.values()].filter((item) => restoresFormerState(item) || isPresent(item, facts));
  const links = new Set(standing.flatMap((item) => (item.kind === "link" ? [item.name] : [])));
  return standing
    .filter((item) => item.kind === "link" || !disappearsWith(item, links))
    .sort((a, b) => creationRank(b) - creationRank(a));
}

/**
 * The steps that could cut our SSH connection to the host. Most cannot: a new device with a new range carries no SSH. In doubt a step
 * counts as risky: that costs one more connection, while a lock-out needs physical access.
 */
export function findRiskySteps(steps: Step[], facts: Facts): Step[] {
  const { ssh } = facts;
  if (!ssh) return [];
  const carriers = devicesCarryingSsh(ssh, facts);
  return steps.filter((step) => canCutSsh(step, ssh, carriers, facts));
}

function canCutSsh({ verb, item }: Step, ssh: SshPath, carriers: Set<string>, facts: Facts): boolean {
  const mayCut = (firewall: RuleOrJump, rules: string[]): boolean =>
    (seesHostTraffic(firewall, ssh) && canRulesCutSsh(verb, rules, ssh, carriers)) ||
    (verb === "remove" && isOverTunnel(carriers, facts));
  switch (item.kind) {
    case "link":
      return carriers.has(item.name) || carriers.has(item.master ?? "");
    case "docker":
      return carriers.has(item.bridge);
    case "address": // with it the kernel adds or removes the route to its range, and with the first of a range the others
      return containsIp(item.address, ssh.client) || containsIp(item.address, ssh.server);
    case "route": // other tables than main apply only to what a policy rule selects
      return item.table === undefined && containsIp(item.dst, ssh.client);
    case "wgpeer":
    case "vxpeer":
    case "neighbour":
      return carriers.has(item.dev);
    case "policy":
      return containsIp(item.from, ssh.server);
    case "sysctl": // with forwarding the kernel drops routes from router advertisements
      return item.key.startsWith("net.ipv6.") && routeTo(ssh.client, facts)?.protocol === "ra";
    case "rule":
      return mayCut(item, [item.rule]);
    case "jump":
      return mayCut(item, observedRules(facts, item, item.chain));
    case "chain":
    case "key":
    case "zone": // our entries accept VXLAN and packets from the overlay, and nothing else
    case "file":
    case "service":
      return false;
    default:
      return unhandledKind(item);
  }
}

/** Devices that carry SSH: those with the server's address, that of the route to the client, and their ports and bridges. */
function devicesCarryingSsh({ client, server }: SshPath, facts: Facts): Set<string> {
  const names = new Set([...devicesWithAddress(server, facts), routeTo(client, facts)?.dev ?? ""]);
  names.delete("");
  for (const name of names) {
    const master = facts.links.get(name)?.master;
    if (master) names.add(master);
    for (const [port, { master }] of facts.links) if (master === name) names.add(port);
  }
  return names;
}

const isOverTunnel = (carriers: Set<string>, { links }: Facts): boolean =>
  [...carriers].some((name) => links.get(name)?.vxlan !== undefined || links.get(name)?.wireguard !== undefined);

/** The longest match; the default route is the shortest. */
function routeTo(client: string, { routes }: Facts): RouteFact | undefined {
  const family = client.includes(":") ? 6 : 4;
  return routes
    .filter(({ family: its, table, unreachable }) => its === family && table === undefined && !unreachable)
    .filter(({ dst }) => containsIp(dst, client))
    .sort((a, b) => prefixLength(b.dst) - prefixLength(a.dst))[0];
}

const prefixLength = (range: string): number => (range === "default" ? -1 : Number(range.split("/")[1] ?? 128));

/** Whether a range, or an address with a prefix, has this address in it. */
export function containsIp(range: string, address: string): boolean {
  if (range === "default") return true;
  const [base, length] = range.split("/");
  const [first, point] = [tryParseIp(base!), tryParseIp(address)];
  if (first === undefined || point === undefined || familyOf(first) !== familyOf(point)) return false;
  const width = addressBits(familyOf(first));
  const host = BigInt(width - Number(length ?? width));
  return first >> host === point >> host;
}

/** A rule that passes or only marks packets is harmless when it is added; the removal of any rule may be harmful. */
const HARMLESS = /(^| )-j (ACCEPT|RETURN|MASQUERADE|CONNMARK|MARK)( |$)/;

const canRulesCutSsh = (verb: Step["verb"], rules: string[], ssh: SshPath, carriers: Set<string>): boolean =>
  rules.some((rule) => canMatchSsh(rule, ssh, carriers) && (verb === "remove" || !HARMLESS.test(rule)));

/** Chains that FORWARD jumps to see only forwarded packets, and no chain sees the other family. */
const seesHostTraffic = ({ family, chain }: RuleOrJump, { server }: SshPath): boolean =>
  (family === 6) === server.includes(":") && ![FORWARD, GUARD, REST].some((place) => place.chain === chain);

/** Whether a rule in iptables-save's form can match a packet of the SSH connection, in either direction. */
function canMatchSsh(rule: string, { client, server, port }: SshPath, carriers: Set<string>): boolean {
  const of = (option: string): string | undefined =>
    new RegExp(`(?<!! )(?:^| )${option} (\\S+)`).exec(rule.replaceAll(/! \S+ \S+/g, ""))?.[1];
  const fits = (option: string, address: string): boolean => containsIp(of(option) ?? "default", address);
  if ((of("-p") ?? "tcp") !== "tcp") return false;
  const device = of("-i") ?? of("-o");
  if (device !== undefined && ![...carriers].some((carrier) => matchesDevice(device, carrier))) return false;
  const dport = of("--dport");
  const comes = fits("-s", client) && fits("-d", server) && (dport === undefined || isInPortRange(dport, port));
  return comes || (dport === undefined && fits("-s", server) && fits("-d", client));
}

function isInPortRange(text: string, port: number): boolean {
  const [first, last = first] = text.split(":").map(Number);
  return first! <= port && port <= last!;
}
