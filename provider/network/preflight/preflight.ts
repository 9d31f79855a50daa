import { overlaps, parseRange, type ValueRange } from "../../addressing/ip";
import { OverlayError } from "../../errors";
import {
  findOtherRules,
  findOwnedItems,
  findUnprovenLinks,
  isOwnRecord,
  isProvenNetwork,
  recordsOfOthers,
  unlistedOwners,
} from "../diff/ownership";
import { devicesWithAddress, underlayAddresses } from "../kinds/device";
import { compareDockerNetwork, findDockerNetwork } from "../kinds/docker";
import { iptablesTool } from "../kinds/firewall";
import { findInvalidSaved } from "../kinds/sysctl";
import type { Facts } from "../model/facts";
import {
  type Chain,
  type DesiredState,
  type DockerNetwork,
  hasItem,
  type Item,
  isFirewallItem,
  itemKey,
  type Link,
  vxlanOverhead,
  wireguardOverhead,
} from "../model/items";
import { recordPath } from "../model/record";
import { refuseBlockingChains } from "./firewalls";
import { describeHolder, refuseForeign, refuseVniConflicts } from "./foreign";
import { isOverlayRoute, refuseForeignRoutes } from "./foreign-routes";

/** Refuses everything that is known to fail, or to harm other programs, before the first change, with a remedy. */
export function preflight(desired: DesiredState, facts: Facts): void {
  refuseForeign(desired, facts);
  refuseVniConflicts(desired, facts);
  refuseUnmetRequirements(desired, facts);
  refuseInvalidSaved(desired, facts);
  refuseBlockingChains(desired.items, facts.blockingChains);
  for (const item of desired.items) if (item.kind === "docker") refuseDocker(item, desired, facts);
  if (desired.items.length === 0) refuseLostRecord(desired, facts);
  for (const item of itemsToRemove(desired, facts)) if (item.kind === "docker") refuseDockerRemoval(item, facts);
}

/** What is saved as a former value decides whether the host stays a router. */
function refuseInvalidSaved(desired: DesiredState, facts: Facts): void {
  const [invalid] = findInvalidSaved(facts);
  if (!invalid || ![...desired.items, ...findOwnedItems(desired, facts)].some(({ kind }) => kind === "sysctl")) return;
  throw new OverlayError(
    "FILE_FOREIGN",
    `${invalid.path} says whether this host forwarded packets before the overlay, and has ${JSON.stringify(invalid.found.slice(0, 50))} instead of 0 or 1. Nothing was changed.`,
    `Write 0 into it, or 1 if the host is to forward packets of others, or remove it (\`rm ${invalid.path}\`): then 0 or 1 follows from our rules.`,
  );
}

/** Items that this owner has on the host and that are no longer desired. */
function itemsToRemove(desired: DesiredState, facts: Facts): Item[] {
  const keep = new Set(desired.items.map(itemKey));
  return findOwnedItems(desired, facts).filter((item) => !keep.has(itemKey(item)));
}

function refuseDocker(item: DockerNetwork, desired: DesiredState, facts: Facts): void {
  const { docker, records } = facts;
  if (item.required && !docker?.isRunning) {
    throw new OverlayError(
      "DOCKER_UNAVAILABLE",
      `docker.enabled is 'on', but dockerd ${docker ? "does not answer" : "is not installed"}.`,
      "Install and start Docker there, or set docker.enabled to 'auto' or 'off'.",
    );
  }
  const observed = findDockerNetwork(item, docker);
  const holder = records.find((record) => hasItem(record, item));
  const adoptable = desired.adopt && observed?.bridge === item.bridge && hasSameSubnets(observed.subnets, item.subnets);
  const isOther = observed !== undefined && observed.bridge !== item.bridge;
  const isForeign = holder
    ? !isOwnRecord(holder, desired) || isOther
    : observed && !adoptable && !isProvenNetwork(item, desired.items, facts);
  if (isForeign) {
    throw new OverlayError(
      "DOCKER_NETWORK_FOREIGN",
      `There is already a Docker network ${item.name}, and it ${describeHolder(isOther ? undefined : holder)}. It was not changed.`,
      "Choose another docker.networkName, remove that network, or set adopt if it is yours.",
    );
  }
  const wrong = compareDockerNetwork(item, docker) ?? [];
  const containers = observed?.containers ?? [];
  if (wrong.length > 0 && containers.length > 0) {
    throw dockerNetworkInUseError(item, containers, `must be created again (${wrong.join("; ")})`);
  }
}

/** A network with only the name in common is not adopted: it would have to be created again. */
const hasSameSubnets = (observed: { subnet?: string }[], desired: { subnet: string }[]): boolean =>
  desired.every(({ subnet }) => observed.some((each) => each.subnet === subnet));

/** Stopped containers do not prevent the removal of a network. */
function refuseDockerRemoval(item: DockerNetwork, { docker }: Facts): void {
  if (docker && !docker.isRunning) {
    throw new OverlayError(
      "DOCKER_UNAVAILABLE",
      `Docker network ${item.name} is to be removed, but dockerd does not answer. It would create the bridge ${item.bridge} again when it starts.`,
      "Start Docker there and try again.",
    );
  }
  const observed = findDockerNetwork(item, docker);
  const running = observed?.bridge === item.bridge ? observed.containers.filter((container) => container.running) : [];
  if (running.length > 0) throw dockerNetworkInUseError(item, running, "is to be removed");
}

function dockerNetworkInUseError({ name }: DockerNetwork, containers: { name: string }[], what: string): OverlayError {
  const names = containers.map((container) => container.name).sort();
  const more = names.length > 10 ? ` and ${names.length - 10} more` : "";
  return new OverlayError(
    "DOCKER_NETWORK_IN_USE",
    `Docker network ${name} ${what}, but containers use it: ${names.slice(0, 10).join(", ")}${more}. Nothing was changed.`,
    `Remove them, or take them off it with \`docker network disconnect ${name} CONTAINER\`, and try again.`,
  );
}

/** Throws if an owner without a record is removed, and an object is present that may be its own, but nothing proves it. */
function refuseLostRecord(desired: DesiredState, facts: Facts): void {
  if (facts.records.some((record) => isOwnRecord(record, desired))) return;
  const links = findUnprovenLinks(desired, facts);
  const chains = chainsWithUnrecordedRules(desired, facts);
  if (links.length + chains.length === 0) return;
  const what = [
    ...links.map(
      ({ name }) => `device ${name} (${facts.links.get(name)!.mac}) does not have the MAC that we would have given it`,
    ),
    ...chains.map(({ item, rules }) => `${itemKey(item)} has rules that are in no record: ${rules.join("; ")}`),
  ];
  const commands = [
    ...links.map(({ name }) => `ip link del ${name}`),
    ...chains.flatMap(({ item, rules }) => rules.map((rule) => deleteRuleCommand(item, rule))),
  ];
  throw new OverlayError(
    "RECORD_LOST",
    `${recordPath(desired.record)} is missing, and whether this is ours is unknown: ${what.join("; ")}. Nothing was changed.`,
    `If others use it, run \`pulumi up --refresh\` for their stacks first, which writes their records again; else remove it by hand (${commands.map((command) => `\`${command}\``).join(", ")}), and try again.`,
  );
}

const deleteRuleCommand = ({ family, table, chain }: Chain, rule: string): string =>
  `${iptablesTool(family)} -t ${table} -D ${chain} ${rule}`;

/** Chains that would be removed with this owner, and have rules that are in no record. */
function chainsWithUnrecordedRules(desired: DesiredState, facts: Facts): { item: Chain; rules: string[] }[] {
  if (unlistedOwners([desired], facts).length > 0) return [];
  const mine = findOwnedItems(desired, facts);
  const others = new Set(recordsOfOthers([desired], facts).flatMap(({ items }) => items.map(itemKey)));
  return mine
    .filter((item) => item.kind === "chain")
    .filter((item) => !others.has(itemKey(item)))
    .map((item) => ({ item, rules: findOtherRules(item, mine, facts) }))
    .filter(({ rules }) => rules.length > 0);
}

function refuseUnmetRequirements(desired: DesiredState, facts: Facts): void {
  refuseMissingFeatures(desired.items, facts);
  refuseSmallMtu(desired.items);
  refuseLargeMtu(desired.items, facts);
  const ranges = desired.items.flatMap((item) =>
    isOverlayRoute(item) ? [{ text: item.dst, range: parseRange(item.dst)! }] : [],
  );
  for (const range of ranges) {
    refuseUnderlayInRange(range, desired.items, facts);
    refuseDockerNetworks(range, desired, facts);
  }
  refuseForeignRoutes(desired, facts);
}

interface OverlayRange {
  text: string;
  range: ValueRange;
}

function refuseMissingFeatures(items: Item[], { missingFeatures, links }: Facts): void {
  const missing = items.find(
    (item): item is Link => item.kind === "link" && !links.has(item.name) && missingFeatures.includes(item.type),
  );
  if (missing?.wireguard) {
    throw new OverlayError(
      "HOST_TOOL_MISSING",
      `There is no WireGuard, and ${missing.name} must be a device of it: it needs \`wg\`, and the kernel's module wireguard or else wireguard-go with /dev/net/tun.`,
      "Install them there (Debian: apt-get install wireguard-tools; before Linux 5.6 also wireguard-go).",
    );
  }
  if (missing) {
    throw new OverlayError(
      "HOST_TOOL_MISSING",
      `The kernel has no ${missing.type} devices, and ${missing.name} must be one.`,
      `Load the module there (modprobe ${missing.type}), or install the kernel package that has it.`,
    );
  }
  if (
    missingFeatures.includes("ip6tables-restore") &&
    items.some((item) => isFirewallItem(item) && item.family === 6)
  ) {
    throw new OverlayError(
      "HOST_TOOL_MISSING",
      "There is no 'ip6tables-restore'.",
      "Install it there (Debian: apt-get install iptables).",
    );
  }
}

/** The least MTU is 1280 for IPv6 (RFC 8200), and 576 for IPv4 (RFC 791). */
function refuseSmallMtu(items: Item[]): void {
  const v6 = items.some((item) => item.kind === "address" && item.address.includes(":"));
  const least = v6 ? 1280 : 576;
  const small = items.find((item): item is Link => item.kind === "link" && item.mtu !== undefined && item.mtu < least);
  if (!small) return;
  throw new OverlayError(
    "MTU_TOO_SMALL",
    `${small.name} would have an MTU of ${small.mtu}, and IPv${v6 ? 6 : 4} needs at least ${least}.`,
    "Give the underlay a larger MTU: the overlay's is smaller by 50, or by 70 over IPv6; with WireGuard by 60, or by 80.",
  );
}

/** A tunnel's packets with its headers must fit into those of the device that sends them. */
function refuseLargeMtu(items: Item[], facts: Facts): void {
  for (const item of items) {
    const tunnel = item.kind === "link" ? (item.vxlan ?? item.wireguard) : undefined;
    if (item.kind !== "link" || !tunnel || item.mtu === undefined) continue;
    const { local } = tunnel;
    const [name, overhead] = item.vxlan ? ["VXLAN", vxlanOverhead(local)] : ["WireGuard", wireguardOverhead(local)];
    for (const device of devicesWithAddress(local, facts)) {
      const underlay = facts.links.get(device)?.mtu ?? Infinity;
      if (item.mtu + overhead <= underlay) continue;
      throw new OverlayError(
        "MTU_TOO_LARGE",
        `${item.name} would have an MTU of ${item.mtu}. With the ${overhead} bytes of ${name} that exceeds the ${underlay} of ${device}, which has ${local}. Nothing was changed.`,
        `Set mtu to ${underlay - overhead} or less, or to auto.`,
      );
    }
  }
}

/** The addresses of tunnels and SSH must not be in the overlay's range, or they would be routed into the overlay. */
function refuseUnderlayInRange(range: OverlayRange, items: Item[], { ssh }: Facts): void {
  const remotes = items.flatMap((item) => {
    if (item.kind === "wgpeer") return [item.endpoint.ip];
    if (item.kind === "vxpeer") return [item.remote];
    return item.kind === "link" && item.vxlan ? [item.vxlan.remote] : [];
  });
  const ends: [what: string, address: string | undefined][] = [
    ["the address from which SSH reaches it", ssh?.client],
    ["the address at which SSH reaches it", ssh?.server],
    ...underlayAddresses(items).map((local): [string, string] => ["its own underlay address", local]),
    ...remotes.map((remote): [string, string] => ["its peer's underlay address", remote]),
  ];
  for (const [what, address] of ends) {
    const place = address ? parseRange(address) : undefined;
    if (!place || !overlaps(place, range.range)) continue;
    throw new OverlayError(
      "ROUTE_OVERLAP",
      `${address}, ${what}, is in the overlay's range ${range.text}: it would no longer be reachable. Nothing was changed.`,
      "Choose another range for the network (subnets), or reach the host by another address.",
    );
  }
}

/** Docker networks with the desired name are checked by `refuseDocker`. */
function refuseDockerNetworks({ text, range }: OverlayRange, desired: DesiredState, { docker, records }: Facts): void {
  const ours = [desired, ...records].flatMap(({ items }) =>
    items.flatMap((item) => (item.kind === "docker" ? [item.name] : [])),
  );
  for (const { name, bridge, subnets } of docker?.networks ?? []) {
    const subnet = subnets.find(
      (each) => each.subnet && parseRange(each.subnet) && overlaps(parseRange(each.subnet)!, range),
    );
    if (!subnet || ours.includes(name)) continue;
    throw new OverlayError(
      "ROUTE_OVERLAP",
      `Docker network ${name} (${subnet.subnet}${bridge ? ` on ${bridge}` : ""}) overlaps the overlay's range ${text}. It was not changed.`,
      "Remove that Docker network, or choose another range for the network (subnets).",
    );
  }
}
