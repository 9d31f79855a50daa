import { deviceMac, tunnelName } from "../../addressing/layout";
import { OverlayError } from "../../errors";
import { diffItems, isPresent } from "../kinds";
import { hasLinkType, hasOurKey, hasOurPort } from "../kinds/device";
import { isOurDockerNetwork } from "../kinds/docker";
import { observedRules } from "../kinds/firewall";
import type { Facts, LinkFact } from "../model/facts";
import {
  type Address,
  type DesiredState,
  type DockerNetwork,
  type HostRecord,
  type Item,
  isUnreachable,
  itemKey,
  type Link,
  type Route,
  unhandledKind,
} from "../model/items";
import { BOOT_SCRIPT, isBootFile, parseOwnerPath, scriptPath } from "../model/record";
import { canOthersNeed, isOwnRule } from "./shared-items";

/**
 * Which items on a host belong to an owner. Its record lists them. If the record is lost, a plan and the host prove it: the MACs of our
 * devices follow from network and id, our routes have a protocol number, our rules are in chains of our own, and the boot script
 * has the owner's uid in its name.
 */
export const isOwnRecord = (record: HostRecord, { record: me, staleUids = [] }: DesiredState): boolean =>
  record.uid === me.uid || staleUids.includes(record.uid);

/** Items that this owner has on the host: those of its records; for a removal also those of its plan that are provably its own. */
export function findOwnedItems(desired: DesiredState, facts: Facts): Item[] {
  const listed = facts.records.filter((record) => isOwnRecord(record, desired)).flatMap(({ items }) => items);
  const { plannedItems = [] } = desired;
  if (desired.items.length > 0 || plannedItems.length === 0) return listed;
  const keys = new Set(listed.map(itemKey));
  const unlisted = plannedItems.filter((item) => !keys.has(itemKey(item)));
  const own = unlisted.filter((item) => isProvenOwn(item, plannedItems, facts));
  const isHere = own.length > 0 || facts.files.has(scriptPath(desired.record));
  return [...listed, ...own, ...(isHere ? unlisted.filter((item) => !own.includes(item) && isShareable(item)) : [])];
}

/** Whether the host proves that the item is present and was created for this plan. */
function isProvenOwn(item: Item, plan: Item[], facts: Facts): boolean {
  switch (item.kind) {
    case "link":
      return isProvenLink(item, facts);
    case "address":
      return isProvenAddress(item, plan, facts);
    case "docker":
      return isProvenNetwork(item, plan, facts);
    case "vxpeer":
    case "neighbour":
      return isOnProvenLink(item.dev, plan, facts) && isPresent(item, facts);
    case "wgpeer": // no other program has the key of our host as a peer
    case "route":
    case "policy":
      return isPresent(item, facts);
    case "rule":
      return isOwnRule(item, plan) && isPresent(item, facts);
    case "file": // the path of a script has the owner's uid; any other file is ours if it has the planned content
      if (isBootFile(item.path)) return item.path !== BOOT_SCRIPT && isPresent(item, facts);
      return item.content !== undefined && diffItems([item], facts).length === 0;
    case "key": // its device may be that of other owners, too
    case "sysctl":
    case "chain":
    case "jump":
    case "zone":
    case "service":
      return false;
    default:
      return unhandledKind(item);
  }
}

const isOnProvenLink = (dev: string, plan: Item[], facts: Facts): boolean =>
  plan.some((each) => each.kind === "link" && each.name === dev && isProvenLink(each, facts));

/** Items that several owners share, or that do not show which program created them. */
function isShareable(item: Item): boolean {
  switch (item.kind) {
    case "chain":
    case "jump":
    case "rule":
    case "sysctl":
    case "service":
    case "zone":
    case "key":
      return true;
    case "file":
      return isBootFile(item.path);
    case "link":
    case "wgpeer":
    case "vxpeer":
    case "neighbour":
    case "address":
    case "route":
    case "policy":
    case "docker":
      return false;
    default:
      return unhandledKind(item);
  }
}

/** By its MAC, which follows from network and id, or is the one of an adopted device; a WireGuard device by the host's key; a bridge by a port of ours. */
export function isProvenLink(item: Link, facts: Facts): boolean {
  const observed = facts.links.get(item.name);
  return (
    observed !== undefined &&
    hasLinkType(item.type, observed.type) &&
    ((item.mac !== undefined && observed.mac === item.mac) || hasOurKey(item, facts) || hasOurPort(item, facts))
  );
}

/** On a device of the plan; on any other one, exactly as planned and with all rules of the plan in our chains. */
export function isProvenAddress(item: Address, plan: Item[], facts: Facts): boolean {
  const link = plan.find((each): each is Link => each.kind === "link" && each.name === item.dev);
  if (link) return isProvenLink(link, facts) && isPresent(item, facts);
  const rules = plan.filter(({ kind }) => kind === "rule");
  return (
    facts.addresses.has(`${item.address} ${item.dev}`) &&
    rules.length > 0 &&
    rules.every((rule) => isPresent(rule, facts))
  );
}

/** On a bridge of the plan. */
export function isProvenNetwork(item: DockerNetwork, plan: Item[], facts: Facts): boolean {
  const bridge = plan.find((each): each is Link => each.kind === "link" && each.name === item.bridge);
  return bridge !== undefined && isProvenLink(bridge, facts) && isOurDockerNetwork(item, facts.docker);
}

/** Records of owners without a request. */
export const recordsOfOthers = (desiredStates: DesiredState[], facts: Facts): HostRecord[] =>
  facts.records.filter((record) => !desiredStates.some((desired) => isOwnRecord(record, desired)));

/**
 * Keys of items that an owner has on this host, now or after this change. On a hub there are many, and new owners have nothing to remove. Shared
 * items also stay while an owner whose record is lost may need them.
 */
export function findKeptKeys(mine: Item[], desiredStates: DesiredState[], facts: Facts): Set<string> {
  if (mine.length === 0) return new Set();
  const keep = new Set(
    [...recordsOfOthers(desiredStates, facts), ...desiredStates].flatMap(({ items }) => items.map(itemKey)),
  );
  const listed = new Set(facts.records.flatMap(({ items }) => items.map(itemKey)));
  const others = unlistedNetworks(mine, desiredStates, facts);
  for (const desired of others.length > 0 ? desiredStates.filter(({ items }) => items.length === 0) : []) {
    const owned = findOwnedItems(desired, facts);
    const needed = owned.filter((item) => canOthersNeed(item, mine, desired.record.network, others, facts));
    for (const item of needed) keep.add(itemKey(item));
  }
  const going = mine.filter((item) => !keep.has(itemKey(item)));
  for (const item of going) {
    if ((others.length > 0 || !listed.has(itemKey(item))) && isNeededByOthers(item, going, others.length > 0, facts))
      keep.add(itemKey(item));
  }
  return keep;
}

/** Networks of the owners whose records are lost; undefined if a file does not show it. The MAC of a tunnel shows its network. */
function unlistedNetworks(mine: Item[], desiredStates: DesiredState[], facts: Facts): (string | undefined)[] {
  const files = unlistedOwners(desiredStates, facts).map((file) => parseOwnerPath(file)?.network);
  if (!mine.some((item) => item.kind === "link" && item.vxlan)) return files;
  const items = [...mine, ...facts.records.flatMap((record) => record.items)];
  const known = new Set(items.flatMap((item) => (item.kind === "link" ? [item.name] : [])));
  const tunnels = [...facts.links].filter(([name, { vxlan }]) => vxlan && !known.has(name));
  const networks = new Set(desiredStates.map(({ record }) => record.network));
  return [
    ...files,
    ...[...networks].filter((each) => tunnels.some(([name, { mac }]) => isTunnelOfNetwork(each, name, mac))),
  ];
}

/** Files of owners whose records are missing or unreadable: their scripts, the invalid files in place of their records, and the records that the pool expects. */
export function unlistedOwners(desiredStates: DesiredState[], facts: Facts): string[] {
  const known = new Set([...facts.records, ...desiredStates.map(({ record }) => record)].map(({ uid }) => uid));
  const scripts = [...facts.files.keys()].filter((path) => {
    const owner = path.endsWith(".sh") ? parseOwnerPath(path) : undefined;
    return owner !== undefined && !known.has(owner.uid);
  });
  const invalid = facts.invalidRecords.filter(({ uid }) => uid === undefined || !known.has(uid));
  const lost = facts.lostRecords.filter((path) => !known.has(parseOwnerPath(path)!.uid));
  return [...invalid.map(({ file }) => file), ...scripts, ...lost];
}

/**
 * Tunnels of a network whose records are lost, except these: by their MACs, which follow from network and id. Adopted ones
 * have other MACs, and count while the network has owners here without a record.
 */
export function findLostTunnels(network: string, known: string[], facts: Facts): string[] {
  const hasUnlisted = unlistedOwners([], facts).some((file) => parseOwnerPath(file)?.network === network);
  return [...facts.links].flatMap(([name, { vxlan, mac }]) =>
    vxlan && !known.includes(name) && (hasUnlisted || isTunnelOfNetwork(network, name, mac)) ? [name] : [],
  );
}

const MAX_ID_DIGITS = 4;

/** Whether this is a hub's tunnel of the network, by its name and MAC. */
export function isTunnelOfNetwork(network: string, name: string, mac: string): boolean {
  for (let digits = 1; digits <= MAX_ID_DIGITS && digits < name.length; digits++) {
    const id = Number.parseInt(name.slice(-digits), 36);
    if (deviceMac(network, id, "hub") === mac && tunnelName(name.slice(0, -digits), id) === name) return true;
  }
  return false;
}

function isNeededByOthers(item: Item, mine: Item[], hasUnlisted: boolean, facts: Facts): boolean {
  switch (item.kind) {
    case "chain":
    case "jump":
      return findOtherRules(item, mine, facts).length > 0;
    case "link":
      return item.shared === true && findOtherAddresses(item, mine, facts).length > 0;
    case "key":
      return hasUnlisted;
    case "sysctl":
    case "service":
      return hasUnlisted;
    case "zone": // our zone and the rules in it
      return hasUnlisted && !item.interface && !item.underlay;
    case "file":
      return hasUnlisted && item.path === BOOT_SCRIPT;
    case "wgpeer":
    case "vxpeer":
    case "neighbour":
    case "address":
    case "route":
    case "policy":
    case "docker":
    case "rule":
      return false;
    default:
      return unhandledKind(item);
  }
}

/** Rules in a chain of ours other than these. */
export function findOtherRules(item: Extract<Item, { kind: "chain" | "jump" }>, mine: Item[], facts: Facts): string[] {
  const own = new Set(
    mine.flatMap((each) =>
      each.kind === "rule" && each.family === item.family && each.table === item.table && each.chain === item.chain
        ? [each.rule]
        : [],
    ),
  );
  return observedRules(facts, item, item.chain).filter((rule) => !own.has(rule));
}

const findOtherAddresses = ({ name }: Link, mine: Item[], { addresses }: Facts): string[] =>
  [...addresses].filter(
    (text) =>
      text.endsWith(` ${name}`) &&
      !text.startsWith("fe80:") &&
      !mine.some((each) => each.kind === "address" && `${each.address} ${each.dev}` === text),
  );

/** Devices of a plan that are present and may have been adopted, without a proof. */
export function findUnprovenLinks({ plannedItems = [] }: DesiredState, facts: Facts): Link[] {
  return plannedItems.filter((item): item is Link => {
    const observed = item.kind === "link" ? facts.links.get(item.name) : undefined;
    if (item.kind !== "link" || !observed) return false;
    const isListed = facts.records.some(({ items }) => items.some((each) => itemKey(each) === itemKey(item)));
    return !isListed && !isProvenLink(item, facts) && isAdoptable(item, observed);
  });
}

/**
 * Adoption takes over what another program created, unchanged: a device with the right name and tunnel stays,
 * with its MAC. With the MAC of our own scheme, neighbours would send to the old one until their ARP entries expire; so the
 * record has the MAC that was found, also if the device is created again later.
 */
export function withAdoptedMacs<W extends DesiredState>(desired: W, facts: Facts): W {
  const recorded = linksByName(facts.records.filter(({ uid }) => uid === desired.record.uid));
  const items = desired.items.map((item) => {
    if (item.kind !== "link" || item.mac === undefined) return item;
    const observed = facts.links.get(item.name);
    const found = desired.adopt && observed && isAdoptable(item, observed) ? observed.mac : undefined;
    const kept = observed?.mac === item.mac ? undefined : recorded.get(item.name)?.mac;
    return { ...item, mac: kept ?? found ?? item.mac };
  });
  return { ...desired, items };
}

const linksByName = (records: HostRecord[]): Map<string, Link> =>
  new Map(records.flatMap(({ items }) => items.flatMap((item) => (item.kind === "link" ? [[item.name, item]] : []))));

/** Devices that these states take over. Each is configured once in full: a bridge changes its MAC unless it was set explicitly. */
export function findAdoptedLinks(desiredStates: DesiredState[], facts: Facts): Set<string> {
  const known = linksByName(facts.records);
  const links = desiredStates
    .filter(({ adopt }) => adopt)
    .flatMap(({ items }) => items.filter((item) => item.kind === "link"));
  return new Set(links.filter(({ name }) => facts.links.has(name) && !known.has(name)).map(itemKey));
}

/** On the hub the remote identifies the runner of a tunnel; on a runner there is one tunnel only, and the hub may have moved. */
export function isAdoptable(item: Link, observed: LinkFact): boolean {
  if (!hasLinkType(item.type, observed.type) || item.wireguard) return false;
  if (!item.vxlan) return true;
  const { vni, port, remote } = observed.vxlan!;
  return (
    vni === item.vxlan.vni && port === item.vxlan.port && (item.master !== undefined || remote === item.vxlan.remote)
  );
}

/** A route to the same range over the same next hop only gets our protocol number. */
export const isAdoptableRoute = (
  item: Route,
  observed: { via?: string; dev?: string; unreachable: boolean },
): boolean =>
  observed.unreachable === isUnreachable(item) &&
  observed.via === item.via &&
  (isUnreachable(item) || observed.dev === item.dev);

/**
 * The hub may already have a tunnel to this runner, under another id than the pool has allocated. Preview contacts no host
 * and could not know; a second tunnel to the same host would cut off its workloads.
 */
export function refuseOtherId(item: Item, desired: DesiredState, facts: Facts): void {
  if (!desired.adopt || item.kind !== "link" || !item.vxlan || item.master !== undefined) return;
  const known = linksByName(facts.records);
  for (const [name, { vxlan }] of facts.links) {
    if (!vxlan || name === item.name || known.has(name)) continue;
    if (vxlan.remote !== item.vxlan.remote || vxlan.port !== item.vxlan.port) continue;
    const id = parseSiblingId(item.name, name, vxlan.vni - item.vxlan.vni);
    if (id === undefined) continue;
    throw new OverlayError(
      "PLAN_STALE",
      `The tunnel ${name} (VNI ${vxlan.vni}) already leads to ${vxlan.remote}, but the plan was made for ${item.name} (VNI ${item.vxlan.vni}). Nothing was changed there.`,
      `Set runnerId: ${id} on this runner, and run up again (\`overlayctl scan\` writes a program with all of them).`,
    );
  }
}

/** The runner id of `other`, if both are names of one network whose VNIs are this far apart. */
function parseSiblingId(name: string, other: string, apart: number): number | undefined {
  for (let digits = 1; digits <= 4 && digits < name.length; digits++) {
    const [prefix, id] = [name.slice(0, -digits), Number.parseInt(name.slice(-digits), 36)];
    if (tunnelName(prefix, id) === name && tunnelName(prefix, id + apart) === other) return id + apart;
  }
  return undefined;
}
