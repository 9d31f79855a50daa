import { FAMILIES, type Family, tryParseIp } from "../../addressing/ip";
import type { Facts, FdbEntry } from "../model/facts";
import {
  type Address,
  addStep,
  type Item,
  type ItemDifference,
  type Link,
  type LinkFaults,
  mismatch,
  type Step,
  type Vxlan,
} from "../model/items";
import { containersOn, isOurDockerNetwork } from "./docker";
import type { ItemKind, ScriptParts, StepOf } from "./kind";
import { isOurRoute, toRouteItem } from "./route";
import {
  compareWireguard,
  formerPeers,
  renderRemoveWireguard,
  renderWireguard,
  withoutLinkLocalAddress,
} from "./wireguard";

/** A network device. */
export const linkKind: ItemKind<Link> = {
  needsSameKind: ({ master }) => Boolean(master),
  isUnique: true,
  toRecord: (item) => item,
  resets: { mtu: 1500, master: "", mac: undefined, vxlan: undefined, wireguard: undefined, shared: undefined },
  readFrom: { before: ["ip", "fdb", "wg"], after: ["changed", "fdb", "wg"] },
  readBack: ({ name }) => ({ devices: [name] }),
  compare: compareLink,
  isPresent: isOurLink,
  disappearsWith: ({ master }) => master, // only its membership: `invertLink` and `planSteps` set it again
  render: renderLink,
  // A device that already exists may have other ends, or lack the default FDB entry, of which the kernel never makes a second one.
  bootSteps: (item) => [addStep(item), { verb: "change", item, faults: { lacksFdb: true } }],
  invert: invertLink,
  removeFrom(facts, { name }) {
    facts.links.delete(name);
    for (const text of facts.addresses) if (text.endsWith(` ${name}`)) facts.addresses.delete(text);
    facts.routes = facts.routes.filter(({ dev }) => dev !== name);
    for (const text of facts.proxies) if (text.endsWith(` ${name}`)) facts.proxies.delete(text);
    for (const text of facts.neighbours.keys()) if (text.endsWith(` ${name}`)) facts.neighbours.delete(text);
  },
  inspectCommands: [
    "ip -d link show type vxlan",
    "wg show interfaces",
    "ip link show type bridge",
    "ip link show type dummy",
  ],
};

/** An address of a device. */
export const addressKind: ItemKind<Address> = {
  isUnique: true,
  toRecord: (item) => item,
  resets: { announce: undefined },
  readFrom: { before: ["ip"], after: ["changed"] },
  readBack: ({ dev }) => ({ devices: [dev] }),
  compare: compareAddress,
  disappearsWith: ({ dev }) => dev,
  render({ verb, item, otherPrefixes = [] }, parts) {
    if (verb !== "remove" && isLinkLocalAddress(item)) parts.shell.push(enableIpv6(item.dev));
    parts.ip.push(verb === "remove" ? `address del ${item.address} dev ${item.dev}` : formatAddress(item));
    for (const other of otherPrefixes) parts.ip.push(`address del ${other} dev ${item.dev}`);
  },
  bootSteps: (item) => [addStep(item)],
  invert: ({ item, otherPrefixes = [] }, before) => [
    ...otherPrefixes.map((address) => addStep({ ...item, address })),
    before.addresses.has(addressKey(item)) ? addStep(item) : { verb: "remove", item },
  ],
  removeFrom: ({ addresses }, item) => void addresses.delete(addressKey(item)),
  inspectCommands: ["ip -br addr show"],
};

/** Each device may have it. */
export const isLinkLocalAddress = (item: Item): item is Address =>
  item.kind === "address" && item.address.startsWith("fe80:");

/** Such an address is planned for networks without IPv6, too, whose hosts may have it disabled. */
const enableIpv6 = (dev: string): string =>
  `{ { echo 0 >/proc/sys/net/ipv6/conf/${dev}/disable_ipv6; } 2>/dev/null || :; }`;

/** As in `Facts.addresses`. */
const addressKey = ({ address, dev }: Address): string => `${address} ${dev}`;

/** The host's own addresses on the underlay, as its tunnels name them. */
export const underlayAddresses = (items: Item[]): string[] =>
  items.flatMap((item) => (item.kind === "link" ? ((item.vxlan ?? item.wireguard)?.local ?? []) : []));

/** Devices that have this address, with whatever prefix. */
export const devicesWithAddress = (address: string, { addresses }: Pick<Facts, "addresses">): string[] =>
  [...addresses].filter((text) => text.startsWith(`${address}/`)).map((text) => text.split(" ")[1]!);

/** An anchor is a dummy, or a bridge where the kernel has no dummy. A WireGuard device of a process is a tun device. */
export const hasLinkType = (type: Link["type"], observed: string): boolean => LINK_TYPES[type].includes(observed);

const LINK_TYPES: Record<Link["type"], string[]> = {
  vxlan: ["vxlan"],
  wireguard: ["wireguard", "tun"],
  bridge: ["bridge"],
  anchor: ["dummy", "bridge"],
};

/**
 * Whether the device of this name is the one that we created. The name alone proves nothing, because records survive a reboot and
 * devices do not. A tunnel has our MAC, or its VNI and port, or the host's key; another device our MAC, a port of ours, or what its
 * record has on it: an address, or the tunnel as a port.
 */
export function isOurLink(item: Link, facts: Facts): boolean {
  const observed = facts.links.get(item.name);
  if (!observed || !hasLinkType(item.type, observed.type)) return false;
  const sameTunnel =
    item.vxlan !== undefined && observed.vxlan?.vni === item.vxlan.vni && observed.vxlan.port === item.vxlan.port;
  return (
    (item.mac !== undefined && observed.mac === item.mac) ||
    sameTunnel ||
    hasOurKey(item, facts) ||
    isMadeByDocker(item, facts) ||
    hasOurPort(item, facts) ||
    (!item.vxlan && carriesItsRecord(item, facts))
  );
}

/** The key of a WireGuard device is that of the host, which no other program has. If the host has lost it, the device has our port and an address for probes. */
export const hasOurKey = ({ name, wireguard }: Link, { links, keys, addresses }: Facts): boolean => {
  const observed = links.get(name)?.wireguard;
  if (!wireguard || !observed) return false;
  const ours = [wireguard.publicKey, keys.get(wireguard.keyFile)];
  return (
    ours.includes(observed.publicKey) ||
    (observed.port === wireguard.port && [...addresses].some((text) => isProbeAddress(text, name)))
  );
};

/** As in plan/tunnels/probe-address.ts. */
const isProbeAddress = (text: string, device: string): boolean =>
  text.startsWith("fe80::1:") && text.endsWith(`/64 ${device}`);

/** A bridge with a port of ours: a device that is desired as its port, with our MAC. */
export const hasOurPort = ({ name, type }: Link, { links, desiredLinks }: Facts): boolean =>
  type === "bridge" &&
  desiredLinks.some((port) => {
    const observed = links.get(port.name);
    return port.master === name && observed?.master === name && port.mac !== undefined && observed.mac === port.mac;
  });

const carriesItsRecord = ({ name }: Link, facts: Facts): boolean =>
  facts.records.some(
    ({ items }) =>
      items.some((item) => item.kind === "link" && item.name === name) &&
      items.some(
        (item) =>
          (item.kind === "address" && item.dev === name && facts.addresses.has(addressKey(item))) ||
          (item.kind === "link" && item.master === name && isPort(item, facts)),
      ),
  );

const isPort = (item: Link, facts: Facts): boolean =>
  facts.links.get(item.name)?.master === item.master && isOurLink(item, facts);

/** A dockerd that starts before the boot script creates the bridge of our network itself. */
const isMadeByDocker = ({ name }: Link, { docker, records }: Facts): boolean =>
  records.some(({ items }) =>
    items.some((item) => item.kind === "docker" && item.bridge === name && isOurDockerNetwork(item, docker)),
  );

function compareLink(item: Link, facts: Facts): string[] | undefined {
  const observed = facts.links.get(item.name);
  if (!observed) return undefined;
  if (!hasLinkType(item.type, observed.type))
    return [`type is ${observed.type || "physical"}, should be ${LINK_TYPES[item.type][0]}`];
  return [
    ...compareWireguard(observed.wireguard, item),
    ...compareFaults(item, findLinkFaults(item, facts)),
    ...mismatch("VNI", observed.vxlan?.vni, item.vxlan?.vni),
    ...mismatch("port", observed.vxlan?.port, item.vxlan?.port),
    ...mismatch("remote", observed.vxlan?.remote, item.vxlan?.remote),
    ...mismatch("local", observed.vxlan?.local, item.vxlan?.local),
    ...mismatch("learning", observed.vxlan?.learning ?? false, item.vxlan?.remote === ""),
    ...mismatch("MTU", observed.mtu, item.mtu),
    ...mismatch("MAC", observed.mac, item.mac),
    ...mismatch("master", observed.master ?? "", item.master),
    ...mismatch("state", observed.up ? "up" : "down", "up"),
  ];
}

/** The entry of a tunnel for all MACs without one of their own. */
export const DEFAULT_MAC = "00:00:00:00:00:00";

/** While the peer changes, the kernel changes the default entry with it. */
function lacksDefaultFdb({ name, vxlan }: Link, { links }: Facts): boolean {
  const { fdb, vxlan: observed } = links.get(name) ?? {};
  if (!vxlan?.remote || !fdb || observed?.remote !== vxlan.remote) return false;
  return !fdb.some(({ mac, destination }) => mac === DEFAULT_MAC && destination === `dst ${vxlan.remote}`);
}

/** A device that is new has the forwarding of `default`. Ports of a bridge and anchors forward nothing. */
function familiesWithoutForwarding({ name, type, master }: Link, { links, withoutForwarding }: Facts): Family[] {
  const device = links.has(name) ? name : "default";
  return master || type === "anchor" ? [] : FAMILIES.filter((family) => withoutForwarding.has(`${family} ${device}`));
}

/** Devices that resolve addresses. */
const RESOLVING_TYPES: Link["type"][] = ["vxlan", "bridge"];

export function findLinkFaults(item: Link, facts: Facts): LinkFaults {
  const observed = facts.links.get(item.name);
  const withoutForwarding = familiesWithoutForwarding(item, facts);
  return {
    ...(observed?.renamedTo && { renamedTo: observed.renamedTo }),
    ...(lacksDefaultFdb(item, facts) && { lacksFdb: true }),
    ...(RESOLVING_TYPES.includes(item.type) && observed?.isWithoutArp && { lacksArp: true }),
    ...(withoutForwarding.length > 0 && { withoutForwarding }),
    ...(item.master && observed?.master === item.master && observed.portFaults && { port: observed.portFaults }),
  };
}

const compareFaults = (
  { name, vxlan }: Link,
  { renamedTo, lacksFdb, lacksArp, withoutForwarding = [], port = [] }: LinkFaults,
): string[] => [
  ...mismatch("name", renamedTo ?? name, name),
  ...(lacksFdb ? [`default FDB entry is none, should be dst ${vxlan?.remote}`] : []),
  ...(lacksArp ? ["ARP is off, should be on"] : []),
  ...withoutForwarding.map((family) => `IPv${family} forwarding is off, should be on`),
  ...port.map((setting) => `as a port of its bridge it should have \`${setting}\``),
];

/**
 * Entries of a tunnel of ours that lead to another host than its peer; of one with several peers, those of other MACs. The kernel sends a copy to
 * each entry of one MAC. `items`: all that its owner has or had.
 */
export function findForeignFdb({ name, vxlan }: Link, items: Item[], { links }: Facts): FdbEntry[] {
  const peers = [vxlan?.remote, links.get(name)?.vxlan?.remote].map((peer) => `dst ${peer}`);
  const macs = new Set(items.flatMap((item) => (item.kind === "vxpeer" && item.dev === name ? item.mac : [])));
  return (links.get(name)?.fdb ?? []).filter(({ mac, destination }) => !peers.includes(destination) && !macs.has(mac));
}

/** With another prefix length the kernel would add a route to a whole range as directly connected. */
function compareAddress(item: Address, facts: Facts): string[] | undefined {
  const isPresent = facts.addresses.has(addressKey(item));
  const others = findOtherPrefixes(item, facts);
  if (others.length === 0) return isPresent ? [] : undefined;
  return [`${item.dev} has it ${isPresent ? "also" : "only"} as ${others.join(" and ")}`];
}

/** The same address with other prefixes on the same device. */
export function findOtherPrefixes(item: Item, facts: Facts): string[] {
  if (item.kind !== "address") return [];
  const start = item.address.slice(0, item.address.indexOf("/") + 1);
  const end = ` ${item.dev}`;
  return [...facts.addresses]
    .filter((text) => text.startsWith(start) && text.endsWith(end))
    .map((text) => text.slice(0, -end.length))
    .filter((address) => address !== item.address);
}

/** The present peer of a tunnel, if its address is to change in place. */
export function formerPeer({ name, vxlan }: Link, facts: Facts): Vxlan | undefined {
  const observed = facts.links.get(name)?.vxlan;
  if (!vxlan || !observed || observed.vni !== vxlan.vni || observed.port !== vxlan.port) return undefined;
  return observed.remote !== vxlan.remote && tryParseIp(observed.remote) !== undefined ? observed : undefined;
}

/** Ends, MTU, MAC and master change in place: ifindex, addresses and routes stay. VNI, port and family do not. */
export function canChangeInPlace(item: Link, facts: Facts): boolean {
  const observed = facts.links.get(item.name)!;
  const isV6 = ({ remote, local }: Partial<Vxlan> = {}): boolean => `${remote}${local}`.includes(":");
  return (
    hasLinkType(item.type, observed.type) &&
    observed.vxlan?.vni === item.vxlan?.vni &&
    observed.vxlan?.port === item.vxlan?.port &&
    isV6(observed.vxlan) === isV6(item.vxlan)
  );
}

function renderLink({ verb, item, ports = [], faults = {} }: StepOf<Link>, parts: ScriptParts): void {
  const { name, vxlan } = item;
  const { renamedTo, lacksFdb, lacksArp, withoutForwarding = [], port = [] } = faults;
  const anchor = item.type === "anchor";
  const hasPeers = vxlan?.remote === "";
  if (verb === "remove") {
    // What is created in the shell is removed there, too, because it may be created again.
    if (anchor || hasPeers) parts.shell.push(`ip link del dev ${renamedTo ?? name}`);
    else if (item.wireguard) parts.shell.push(renderRemoveWireguard(renamedTo ?? name));
    else parts.ip.push(`link del dev ${renamedTo ?? name}`);
    return;
  }
  if (renamedTo) parts.shell.push(renameLink(renamedTo, name));
  const create = verb === "add";
  // With the MAC from the start: systemd-udevd may set a random one at any time on a device without.
  const mac = item.mac ? ` address ${item.mac}` : "";
  if (create && anchor) {
    parts.shell.push(
      `{ [ -e /sys/class/net/${name} ] || ip link add ${name}${mac} type dummy 2>/dev/null || ip link add ${name}${mac} type bridge; }`,
    );
  }
  if (create && item.type === "bridge") parts.ip.push(`link add ${name}${mac} type bridge`);
  if (vxlan) {
    const ends = hasPeers ? `local ${vxlan.local} learning` : `remote ${vxlan.remote} local ${vxlan.local} nolearning`;
    const add = `link add ${name}${mac} type vxlan id ${vxlan.vni} dstport ${vxlan.port} ${ends}`;
    if (!create) parts.ip.push(`link set dev ${name} type vxlan id ${vxlan.vni} ${ends}`);
    else if (!hasPeers) parts.ip.push(add);
    else parts.shell.push(`{ [ -e /sys/class/net/${name} ] || ip ${add}; }`, withoutLinkLocalAddress(name));
    if (lacksFdb && !hasPeers) parts.late.push(`bridge fdb append ${DEFAULT_MAC} dev ${name} dst ${vxlan.remote}`);
  }
  parts.shell.push(...renderWireguard({ verb, item }));
  const attributes = [
    item.mac && `address ${item.mac}`,
    item.mtu && `mtu ${item.mtu}`,
    item.master !== undefined && (item.master ? `master ${item.master}` : "nomaster"),
    lacksArp && "arp on",
    "up",
  ];
  parts.ip.push(`link set dev ${name} ${attributes.filter(Boolean).join(" ")}`);
  if (port.length > 0) parts.ip.push(`link set dev ${name} type bridge_slave ${port.join(" ")}`);
  for (const family of withoutForwarding) parts.late.push(`echo 1 >/proc/sys/net/ipv${family}/conf/${name}/forwarding`);
  for (const port of ports) parts.ip.push(`link set dev ${port} master ${name}`);
}

/** Kernels before 6.2 rename only devices that are down. */
const renameLink = (from: string, to: string): string =>
  `{ ip link set dev ${from} name ${to} 2>/dev/null || { ip link set dev ${from} down && ip link set dev ${from} name ${to}; }; }`;

/**
 * Without duplicate address detection: the pool guarantees that the address is unique, and on a device without carrier the
 * detection never ends. An address that may move to another host is never the source of packets that this host sends itself.
 */
const formatAddress = ({ address, dev, announce }: Address): string =>
  [
    `address replace ${address} dev ${dev}`,
    ...(isIpv6(address) ? ["nodad", ...(announce ? ["preferred_lft 0"] : [])] : []),
  ].join(" ");

const isIpv6 = (address: string): boolean => address.includes(":");

/** With a device the kernel removes its addresses, the routes over it, and the membership of its ports. */
function invertLink({ verb, item }: StepOf<Link>, before: Facts): Step[] {
  const former = formerLink(item.name, before, item.type);
  const was = former && item.wireguard ? { ...former, wireguard: item.wireguard } : former;
  if (verb === "add" || !was) return [{ verb: "remove", item }];
  if (verb === "change") return [{ verb: "change", item: was }];
  const ports = [...before.links].filter(([, { master }]) => master === item.name);
  const routes = before.routes.filter((route) => route.dev === item.name && isOurRoute(route));
  return [
    addStep(was),
    ...ports.map(([name]): Step => ({ verb: "change", item: formerLink(name, before)! })),
    ...formerPeers(item.name, before).map(addStep),
    ...formerAddresses(item, before).map(addStep),
    ...routes.map(toRouteItem).map(addStep),
  ];
}

function formerLink(name: string, { links }: Facts, type?: Link["type"]): Link | undefined {
  const observed = links.get(name);
  if (!observed) return undefined;
  const { mac, mtu, master = "", vxlan } = observed;
  return {
    kind: "link",
    name,
    type: type ?? (observed.type as Link["type"]),
    mac,
    mtu,
    master,
    ...(vxlan && { vxlan }),
  };
}

/** The kernel adds link-local addresses itself, but not to WireGuard's devices. */
const formerAddresses = ({ name, wireguard }: Link, { addresses }: Facts): Address[] =>
  [...addresses]
    .map((text) => text.split(" ") as [string, string])
    .filter(([address, on]) => on === name && (wireguard || !address.startsWith("fe80:")))
    .map(([address]) => ({ kind: "address", dev: name, address }));

/**
 * Bridges that have fewer ports than containers run on their Docker network: such a bridge was deleted, and created
 * again without its ports, for example by the boot script.
 */
export const findEmptiedBridges = (items: Item[], { docker, links }: Facts): ItemDifference[] =>
  items.flatMap((item) => {
    if (item.kind !== "link" || item.type !== "bridge" || !links.has(item.name)) return [];
    const networks = items.filter((each) => each.kind === "docker" && each.bridge === item.name);
    const running = containersOn(networks, docker).filter((each) => each.running && each.addresses.length > 0).length;
    const plugged = [...links.values()].filter(({ type, master }) => type === "veth" && master === item.name).length;
    if (plugged >= running) return [];
    return [{ item, missing: false, wrong: [`it has ${plugged} ports, but ${running} containers run on its network`] }];
  });
