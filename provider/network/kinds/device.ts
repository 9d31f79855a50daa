import { pointOf } from "../../addressing/ip";
import type { Facts } from "../model/facts";
import type { Address, Item, Link, Vxlan } from "../model/items";
import type { Step } from "../model/steps";
import { containersOn, isOurNetwork } from "./docker";
import { type Difference, type Lines, mismatch } from "./kind";
import { isOurs, routeItem } from "./route";

/** Devices that have this address, with whatever prefix. */
export const devicesWith = (address: string, { addresses }: Pick<Facts, "addresses">): string[] =>
  [...addresses].filter((text) => text.startsWith(`${address}/`)).map((text) => text.split(" ")[1]!);

/** An anchor is a dummy, or a bridge where the kernel has no dummy. */
export const isOfType = (type: Link["type"], have: string): boolean =>
  type === "anchor" ? have === "dummy" || have === "bridge" : have === type;

/**
 * Whether the device of this name is the one that we made: a name alone is not enough, since records outlive a reboot and
 * devices do not. Its MAC is ours, or it is the very tunnel.
 */
export function isOurLink(item: Link, facts: Facts): boolean {
  const have = facts.links.get(item.name);
  if (!have || !isOfType(item.type, have.type)) return false;
  const sameTunnel =
    item.vxlan !== undefined && have.vxlan?.vni === item.vxlan.vni && have.vxlan.port === item.vxlan.port;
  return have.mac === item.mac || sameTunnel || isMadeByDocker(item, facts);
}

/** A dockerd that starts before us makes the bridge of our network itself. */
const isMadeByDocker = ({ name }: Link, { docker, records }: Facts): boolean =>
  records.some(({ items }) =>
    items.some((item) => item.kind === "docker" && item.bridge === name && isOurNetwork(item, docker)),
  );

export function wrongLink(item: Link, facts: Facts): string[] | undefined {
  const have = facts.links.get(item.name);
  if (!have) return undefined;
  if (!isOfType(item.type, have.type))
    return [`type is ${have.type || "physical"}, should be ${item.type === "anchor" ? "dummy" : item.type}`];
  return [
    ...mismatch("VNI", have.vxlan?.vni, item.vxlan?.vni),
    ...mismatch("port", have.vxlan?.port, item.vxlan?.port),
    ...mismatch("remote", have.vxlan?.remote, item.vxlan?.remote),
    ...mismatch("local", have.vxlan?.local, item.vxlan?.local),
    ...mismatch("learning", have.vxlan?.learning ?? false, false),
    ...mismatch("MTU", have.mtu, item.mtu),
    ...mismatch("MAC", have.mac, item.mac),
    ...mismatch("master", have.master, item.master),
    ...mismatch("state", have.up ? "up" : "down", "up"),
  ];
}

/** With another prefix the kernel would add a route to a whole range, and take it for its own network. */
export function wrongAddress(item: Address, facts: Facts): string[] | undefined {
  const stands = facts.addresses.has(`${item.address} ${item.dev}`);
  const others = otherPrefixes(item, facts);
  if (others.length === 0) return stands ? [] : undefined;
  return [`${item.dev} has it ${stands ? "also" : "only"} as ${others.join(" and ")}`];
}

/** The same address with other prefixes on the same device. */
export function otherPrefixes(item: Item, facts: Facts): string[] {
  if (item.kind !== "address") return [];
  const start = item.address.slice(0, item.address.indexOf("/") + 1);
  const end = ` ${item.dev}`;
  return [...facts.addresses]
    .filter((text) => text.startsWith(start) && text.endsWith(end))
    .map((text) => text.slice(0, -end.length))
    .filter((address) => address !== item.address);
}

/** The peer that a tunnel has now, if its address is to change in place. */
export function formerPeer({ name, vxlan }: Link, facts: Facts): Vxlan | undefined {
  const have = facts.links.get(name)?.vxlan;
  if (!vxlan || !have || have.vni !== vxlan.vni || have.port !== vxlan.port) return undefined;
  return have.remote !== vxlan.remote && pointOf(have.remote) !== undefined ? have : undefined;
}

/** Ends, MTU, MAC and master change in place: ifindex, addresses and routes stay. VNI, port and family do not. */
export function canChange(item: Link, facts: Facts): boolean {
  const have = facts.links.get(item.name)!;
  const isV6 = (address: string | undefined): boolean => address?.includes(":") ?? false;
  return (
    isOfType(item.type, have.type) &&
    have.vxlan?.vni === item.vxlan?.vni &&
    have.vxlan?.port === item.vxlan?.port &&
    isV6(have.vxlan?.remote) === isV6(item.vxlan?.remote)
  );
}

export function renderLink(verb: Step["verb"], item: Link, lines: Lines): void {
  const { name, vxlan } = item;
  const anchor = item.type === "anchor";
  if (verb === "remove") {
    // Only a shell can try dummy, then bridge; so an anchor that is made anew is removed there, too.
    if (anchor) lines.shell.push(`ip link del dev ${name}`);
    else lines.ip.push(`link del dev ${name}`);
    return;
  }
  const create = verb === "add";
  // With the MAC from the start: systemd-udevd gives a device without one its own, at whatever moment.
  const mac = item.mac ? ` address ${item.mac}` : "";
  if (create && anchor) {
    lines.shell.push(
      `{ [ -e /sys/class/net/${name} ] || ip link add ${name}${mac} type dummy 2>/dev/null || ip link add ${name}${mac} type bridge; }`,
    );
  }
  if (create && item.type === "bridge") lines.ip.push(`link add ${name}${mac} type bridge`);
  if (vxlan) {
    const ends = `remote ${vxlan.remote} local ${vxlan.local} nolearning`;
    lines.ip.push(
      create
        ? `link add ${name}${mac} type vxlan id ${vxlan.vni} dstport ${vxlan.port} ${ends}`
        : `link set dev ${name} type vxlan id ${vxlan.vni} ${ends}`,
    );
  }
  const attributes = [
    item.mac && `address ${item.mac}`,
    item.mtu && `mtu ${item.mtu}`,
    item.master !== undefined && (item.master ? `master ${item.master}` : "nomaster"),
    "up",
  ];
  lines.ip.push(`link set dev ${name} ${attributes.filter(Boolean).join(" ")}`);
}

/**
 * The pool has made sure that nobody else has it; and without a carrier the kernel would never end its own search. An
 * address that may go to another host is never the source of what this one sends by itself.
 */
export const addressText = ({ address, dev, announce }: Address): string =>
  [
    `address replace ${address} dev ${dev}`,
    ...(isV6(address) ? ["nodad", ...(announce ? ["preferred_lft 0"] : [])] : []),
  ].join(" ");

const isV6 = (address: string): boolean => address.includes(":");

export const put = (item: Item): Step => ({ verb: "add", item });

/** With a device went its addresses, the routes over it, and its ports' membership. */
export function undoLink(verb: Step["verb"], item: Link, before: Facts): Step[] {
  const was = linkBefore(item.name, before, item.type);
  if (verb === "add" || !was) return [{ verb: "remove", item }];
  if (verb === "change") return [{ verb: "change", item: was }];
  const ports = [...before.links].filter(([, { master }]) => master === item.name);
  const routes = before.routes.filter((route) => route.dev === item.name && isOurs(route));
  return [
    put(was),
    ...ports.map(([name]): Step => ({ verb: "change", item: linkBefore(name, before)! })),
    ...addressesOn(item.name, before).map(put),
    ...routes.map(routeItem).map(put),
  ];
}

function linkBefore(name: string, { links }: Facts, type?: Link["type"]): Link | undefined {
  const have = links.get(name);
  if (!have) return undefined;
  const { mac, mtu, master = "", vxlan } = have;
  return {
    kind: "link",
    name,
    type: type ?? (have.type as Link["type"]),
    mac,
    mtu,
    master,
    ...(vxlan && { vxlan }),
  };
}

const addressesOn = (dev: string, { addresses }: Facts): Address[] =>
  [...addresses]
    .map((text) => text.split(" ") as [string, string])
    .filter(([address, on]) => on === dev && !address.startsWith("fe80:")) // the kernel makes those itself
    .map(([address]) => ({ kind: "address", dev, address }));

/**
 * Bridges that stand, and have fewer ports than containers run on their Docker network: such a bridge was deleted, and made
 * again by something that does not know its ports, such as the script that runs at boot.
 */
export const emptiedBridges = (items: Item[], { docker, links }: Facts): Difference[] =>
  items.flatMap((item) => {
    if (item.kind !== "link" || item.type !== "bridge" || !links.has(item.name)) return [];
    const networks = items.filter((each) => each.kind === "docker" && each.bridge === item.name);
    const running = containersOn(networks, docker).filter((each) => each.running && each.addresses.length > 0).length;
    const plugged = [...links.values()].filter(({ type, master }) => type === "veth" && master === item.name).length;
    if (plugged >= running) return [];
    return [{ item, missing: false, wrong: [`it has ${plugged} ports, but ${running} containers run on its network`] }];
  });
