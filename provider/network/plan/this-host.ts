import { type Family, familyOfIp, tryParseIp } from "../../addressing/ip";
import { isOwnRecord, isTunnelOfNetwork, unlistedOwners, withAdoptedMacs } from "../diff/ownership";
import { findTunnelRules } from "../diff/shared-items";
import { appliesToHost, withResets } from "../kinds";
import { devicesWithAddress, formerPeer, isLinkLocalAddress, underlayAddresses } from "../kinds/device";
import {
  acceptPeerRule,
  dropVxlanRule,
  FORWARD,
  GUARD,
  INPUT,
  markUsersRule,
  planChainRules,
  REST,
} from "../kinds/firewall";
import { ACCEPT_RA, formerForwarding } from "../kinds/sysctl";
import { zoneWarnings } from "../kinds/zone";
import type { Facts } from "../model/facts";
import {
  type DesiredState,
  FORWARDING,
  type Item,
  isFirewallItem,
  itemKey,
  type Link,
  type Sysctl,
  type Vxlan,
} from "../model/items";
import { deviceSysctl, parseOwnerPath, scriptPath } from "../model/record";
import { isBootScriptOf, withBootItems } from "./boot";
import { planTunnelPorts } from "./tunnel-port";

/** The desired state of this host: the items that apply to it, adopted devices with their MACs, and what restores all at boot. */
export function adaptToHost<W extends DesiredState>(desired: W, facts: Facts): W {
  if (desired.items.length > 0) return { ...desired, items: itemsForHost(desired, facts) };
  if (!desired.plannedItems) return desired;
  // Adopted devices have other MACs. Without a record only the owner's boot script shows them.
  const adopt = desired.adopt === true && facts.files.has(scriptPath(desired.record));
  const planned = itemsForHost({ ...desired, items: desired.plannedItems, adopt, persist: true }, facts);
  const isListed = facts.records.some((record) => isOwnRecord(record, desired));
  const tunnelRules = isListed ? [] : findTunnelRules(desired.record.network, facts);
  const all = [...planned, ...acceptRaSettings(facts), ...tunnelRules].map((item): [string, Item] => [
    itemKey(item),
    item,
  ]);
  return { ...desired, plannedItems: [...new Map(all).values()] };
}

function itemsForHost(desired: DesiredState, facts: Facts): Item[] {
  const recorded = facts.records.filter((record) => isOwnRecord(record, desired)).flatMap(({ items }) => items);
  const former = new Map(recorded.map((item) => [itemKey(item), item]));
  const applicable = desired.items
    .filter((item) => appliesToHost(item, facts))
    .map((item) => withResets(item, former.get(itemKey(item)) ?? item));
  const items = withAcceptRa(withLocalRules(applicable, facts, recorded, desired.record.network), facts);
  const isListed = facts.records.some(({ uid }) => uid === desired.record.uid);
  const adopted = isListed ? undefined : withAdoptedMacs({ ...desired, items, adopt: true }, facts);
  const fitting =
    adopted && isBootScriptOf(desired, adopted.items, facts) ? adopted : withAdoptedMacs({ ...desired, items }, facts);
  return withBootItems(fitting, facts);
}

/**
 * A host that forwards IPv6 ignores router advertisements, unless accept_ra is 2: when forwarding is enabled, the kernel drops the default
 * routes that it has learned from them. So accept_ra is set to 2 first on the devices with such routes. If a
 * program handles advertisements, such as systemd-networkd, accept_ra is 0, and stays so.
 */
const ACCEPT_RA_WHEN_FORWARDING = "2";

const acceptRaKey = (device: string): string => deviceSysctl(6, device, "accept_ra");

/** Settings that we may have changed, for a removal without a record. Only those with a saved value are restored. */
const acceptRaSettings = ({ sysctls }: Facts): Sysctl[] =>
  [...sysctls]
    .filter(([key, value]) => key.endsWith(".accept_ra") && value === ACCEPT_RA_WHEN_FORWARDING)
    .map(([key, value]) => ({ kind: "sysctl", key, value }));

/** Once it is on record it stays, also while there are no advertisements. */
export function withAcceptRa(items: Item[], facts: Facts): Item[] {
  if (!items.some((item) => item.kind === "sysctl" && item.key === FORWARDING[6])) return items;
  const recorded = new Set(facts.records.flatMap((record) => record.items.map(itemKey)));
  const advertised = new Set(
    facts.routes
      .filter(({ family, dst, protocol }) => family === 6 && dst === "default" && protocol === "ra")
      .map(({ dev = "" }) => acceptRaKey(dev)),
  );
  const settings = [...facts.sysctls].flatMap(([key, value]): Sysctl[] => {
    const item: Sysctl = { kind: "sysctl", key, value: ACCEPT_RA_WHEN_FORWARDING };
    const isNeeded = recorded.has(itemKey(item)) || (advertised.has(key) && value === ACCEPT_RA);
    return key.endsWith(".accept_ra") && isNeeded ? [item] : [];
  });
  return [...settings, ...items];
}

/**
 * Rules that depend on what else a host has: other programs' tunnels on our UDP port, the devices of the default route, and
 * whether it forwarded packets before our first change. Planners contact no host, so these are added when its facts are known. `recorded`: what
 * this owner has on the host; `network`: the network that it is part of.
 */
export function withLocalRules(planned: Item[], facts: Facts, recorded: Item[] = [], network?: string): Item[] {
  const items =
    facts.ip6tables || needsIpv6(planned)
      ? planned
      : planned.filter((item) => !needsIp6tables(item) && !isLinkLocalAddress(item) && item.kind !== "vxpeer");
  const unknown = portsOfUnknownPeers(items, facts);
  const added = [
    ...acceptFormerPeers(items, facts, recorded),
    ...acceptUnrecordedPeers(items, facts, recorded, network),
    ...acceptEgress(items, facts),
    ...closeForwarding(items, facts),
    ...planTunnelPorts(tunnelEnds(items), findOtherTunnels(items, facts, recorded), [...unknown.keys()], facts),
  ];
  const kept = items.filter(
    (item) => item.kind !== "rule" || ![...unknown.keys()].some((port) => item.rule === dropVxlanRule(port)),
  );
  const observed = new Set(kept.map(itemKey));
  const more = new Map(added.filter((item) => !observed.has(itemKey(item))).map((item) => [itemKey(item), item]));
  return [...kept, ...more.values()];
}

/**
 * While a peer gets another address, VXLAN from the former one is accepted, too, until the peer has changed as well. See
 * `renderPeerExpiry` in render/script.ts.
 */
function acceptFormerPeers(items: Item[], facts: Facts, recorded: Item[]): Item[] {
  const before = new Set(recorded.map(itemKey));
  return items.filter(isLinkItem).flatMap((link): Item[] => {
    const former = formerPeer(link, facts);
    if (!former) return [];
    const rules = planChainRules(INPUT, familyOfIp(former.remote), [acceptPeerRule(former.remote, former.port)]);
    if (!rules.every((item) => before.has(itemKey(item)))) return []; // another program has set this remote
    return rules.map((item) => (item.kind === "rule" ? { ...item, transient: true } : item));
  });
}

/** Warnings about limits of the rules on this host. */
export function localWarnings(items: Item[], facts: Facts): string[] {
  const shared = [...portsOfUnknownPeers(items, facts)].map(
    ([port, user]) =>
      `VXLAN from hosts that are not peers is not dropped, because ${user} uses UDP port ${port}, too, and its peers are not known. Set vxlanPort to a port that nothing else uses there.`,
  );
  return [...shared, ...reversePathWarnings(items, facts), ...zoneWarnings(items, facts)];
}

const needsIp6tables = (item: Item): boolean => isFirewallItem(item) && item.family === 6;
const needsIpv6 = (items: Item[]): boolean =>
  items.some((item) => item.kind === "address" && item.address.includes(":") && !isLinkLocalAddress(item)) ||
  underlayAddresses(items).some((local) => local.includes(":"));

const isLinkItem = (item: Item): item is Link => item.kind === "link";
const vxlansOf = (items: Item[]): Vxlan[] => items.filter(isLinkItem).flatMap(({ vxlan }) => vxlan ?? []);

/** The ends of tunnels: a device with several peers has several. */
const tunnelEnds = (items: Item[]): Vxlan[] => {
  const devices = new Map(items.flatMap((item) => (isLinkItem(item) && item.vxlan ? [[item.name, item.vxlan]] : [])));
  const peers = items.flatMap((item) =>
    item.kind === "vxpeer" ? { ...devices.get(item.dev)!, remote: item.remote } : [],
  );
  return [...[...devices.values()].filter(({ remote }) => remote !== ""), ...peers];
};

/** VXLAN devices on a port of ours that are not in these items. */
function otherVxlanDevices(items: Item[], facts: Facts): { name: string; vxlan: Vxlan }[] {
  const ports = new Set(vxlansOf(items).map(({ port }) => port));
  if (ports.size === 0) return [];
  const ours = new Set(items.filter(isLinkItem).map(({ name }) => name));
  return [...facts.links].flatMap(([name, { vxlan }]) =>
    vxlan && ports.has(vxlan.port) && !ours.has(name) ? [{ name, vxlan }] : [],
  );
}

const isUnicast = (ip: string): boolean => tryParseIp(ip) !== undefined && !/^(22[4-9]|23\d)\.|^ff/i.test(ip);

/**
 * Tunnels of other programs on a port of ours, other than those whose names have our prefix. One that is adopted by another owner stays
 * as long as its rule is on record here.
 */
function findOtherTunnels(items: Item[], facts: Facts, recorded: Item[]): Map<string, Vxlan> {
  const known = tunnelNames(facts);
  const before = new Set(recorded.flatMap((item) => (item.kind === "rule" ? [item.rule] : [])));
  const prefixes = items.flatMap((item) =>
    item.kind === "rule" ? (/^-o (\S+)\+ .* -j MARK /.exec(item.rule)?.[1] ?? []) : [],
  );
  const others = otherVxlanDevices(items, facts).filter(
    ({ name }) =>
      /^[\w.-]+$/.test(name) &&
      !prefixes.some((prefix) => name.startsWith(prefix)) &&
      (!known.has(name) || before.has(markUsersRule(name))),
  );
  return new Map(others.map(({ name, vxlan }) => [name, vxlan]));
}

/**
 * The peers of tunnels that are in no record: other programs', and those of an overlay that is being adopted, runner by runner. Once
 * a runner is adopted its own record has the rule; in those that had it before, it stays as long as the tunnel, so that adopting
 * one runner is no drift for the others. A tunnel without a record whose MAC is ours belongs to an owner that has lost its record, and that has the rule.
 */
function acceptUnrecordedPeers(items: Item[], facts: Facts, recorded: Item[], network: string | undefined): Item[] {
  const known = tunnelNames(facts);
  const before = new Set(recorded.map(itemKey));
  const networks = networksOnHost(facts, network);
  const isLost = (name: string): boolean =>
    !known.has(name) && networks.some((each) => isTunnelOfNetwork(each, name, facts.links.get(name)!.mac));
  return otherVxlanDevices(items, facts).flatMap(({ name, vxlan: { remote, port } }) => {
    if (!isUnicast(remote) || isLost(name)) return [];
    const rules = planChainRules(INPUT, familyOfIp(remote), [acceptPeerRule(remote, port)]);
    return known.has(name) && !rules.every((item) => before.has(itemKey(item))) ? [] : rules;
  });
}

const networksOnHost = (facts: Facts, network: string | undefined): string[] => {
  const lost = unlistedOwners([], facts).flatMap((file) => parseOwnerPath(file)?.network ?? []);
  return [...new Set([...(network ? [network] : []), ...facts.records.map((record) => record.network), ...lost])];
};

const tunnelNames = ({ records }: Facts): Set<string> =>
  new Set(records.flatMap(({ items }) => items.flatMap((item) => (isLinkItem(item) && item.vxlan ? [item.name] : []))));

const SWARM_PORT = 4789;

/**
 * Ports that other programs use with peers that a device does not name (Calico, multicast), with the program's name: on them
 * packets of other hosts cannot be distinguished from those of peers. The devices of Docker's overlay networks are in other network
 * namespaces; their presence is seen from the list of Docker networks.
 */
function portsOfUnknownPeers(items: Item[], facts: Facts): Map<number, string> {
  const known = tunnelNames(facts);
  const others = otherVxlanDevices(items, facts).filter(
    ({ name, vxlan }) => !known.has(name) && !isUnicast(vxlan.remote),
  );
  const found = new Map(others.map(({ name, vxlan }) => [vxlan.port, `device ${name}`]));
  const swarm = facts.docker?.networks.find(({ driver }) => driver === "overlay");
  if (swarm && vxlansOf(items).some(({ port }) => port === SWARM_PORT))
    found.set(SWARM_PORT, `Docker's overlay network ${swarm.name}`);
  return found;
}

/**
 * Workloads reach other networks over the devices of the default route and of the underlay. Other devices, such as Docker's bridges, they
 * reach only if the host's own firewall accepts it.
 */
function acceptEgress(items: Item[], facts: Facts): Item[] {
  const ours = new Set(items.filter(isLinkItem).map(({ name }) => name));
  return workloadBridges(items).flatMap(({ bridge, family }) => {
    const defaults = facts.routes.filter((r) => r.dst === "default" && r.family === family && r.table === undefined);
    const devices = [
      ...defaults.flatMap(({ dev }) => dev ?? []),
      ...underlayAddresses(items).flatMap((local) => devicesWithAddress(local, facts)),
    ];
    const uplinks = [...new Set(devices)].filter((device) => /^[\w.-]+$/.test(device) && !ours.has(device)).sort();
    return planChainRules(
      FORWARD,
      family,
      uplinks.map((device) => `-i ${bridge} -o ${device} -j ACCEPT`),
    );
  });
}

/** The bridges of workloads, once for each family that they have addresses of. */
function workloadBridges(items: Item[]): { bridge: string; family: Family }[] {
  const names = new Set(items.flatMap((item) => (isLinkItem(item) && item.type === "bridge" ? [item.name] : [])));
  return items.flatMap((item) =>
    item.kind === "address" && names.has(item.dev) ? [{ bridge: item.dev, family: familyOfIp(item.address) }] : [],
  );
}

/** In OVERLAY-GUARD: what passes between devices of the overlay. */
const BETWEEN_OVERLAY_DEVICES = / -i \S+ -o \S+ -j RETURN$/;

/**
 * A host that did not forward before must not become a router between its networks: packets that no rule accepted are dropped, as if
 * the chain had policy DROP, except those from workloads and between tunnels. Programs that need forwarding insert their accepts before it.
 */
function closeForwarding(items: Item[], facts: Facts): Item[] {
  return ([4, 6] as const).flatMap((family) => {
    const key = FORWARDING[family];
    if (formerForwarding(family, facts) !== "0" || !items.some((item) => item.kind === "sysctl" && item.key === key))
      return [];
    const bridges = workloadBridges(items).filter((each) => each.family === family);
    const between = items.flatMap((item) =>
      item.kind === "rule" &&
      item.family === family &&
      item.chain === GUARD.chain &&
      BETWEEN_OVERLAY_DEVICES.test(item.rule)
        ? [item.rule]
        : [],
    );
    return planChainRules(REST, family, [
      ...bridges.map(({ bridge }) => `-i ${bridge} -j RETURN`),
      ...between,
      "-j DROP",
    ]);
  });
}

/**
 * A warning with the first tunnel of a host: on which of its other networks packets with a peer's address could arrive. Strict
 * reverse path filtering (1) drops such packets; loose filtering (2) does not, since there is a way back to the peer.
 */
function reversePathWarnings(items: Item[], facts: Facts): string[] {
  if (facts.records.some((record) => vxlansOf(record.items).length > 0)) return [];
  const underlay = new Set(vxlansOf(items).flatMap(({ local }) => devicesWithAddress(local, facts)));
  if (underlay.size === 0 || vxlansOf(items).some(({ local }) => familyOfIp(local) === 6)) return [];
  const filterOf = (device: string): number =>
    Math.max(...["all", device].map((name) => Number(facts.sysctls.get(deviceSysctl(4, name, "rp_filter")) ?? 0)));
  const open = [...facts.links]
    .filter(
      ([name, { type, up, wireguard }]) =>
        up && name !== "lo" && !/^(bridge|dummy|veth|vxlan)$/.test(type) && !wireguard && !underlay.has(name),
    )
    .map(([name]) => name)
    .filter((name) => filterOf(name) !== 1 && [...facts.addresses].some((text) => text.endsWith(` ${name}`)));
  return open.map(
    (name) =>
      `net.ipv4.conf.${name}.rp_filter is ${filterOf(name)}: by ${name}, packets with a forged source address can pass as VXLAN from a peer. Set it and net.ipv4.conf.all.rp_filter to 1, unless packets come and go by different devices.`,
  );
}
