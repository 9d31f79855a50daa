import { OverlayError } from "../../errors";
import {
  isAdoptable,
  isAdoptableRoute,
  isOwnRecord,
  isProvenAddress,
  isProvenLink,
  refuseOtherId,
  unlistedOwners,
} from "../diff/ownership";
import { isPresent } from "../kinds";
import { DEFAULT_MAC, devicesWithAddress, findForeignFdb, isLinkLocalAddress, isOurLink } from "../kinds/device";
import { sha256 } from "../kinds/file";
import { isOurRoute } from "../kinds/route";
import type { Facts, LinkFact } from "../model/facts";
import {
  type Address,
  type DesiredState,
  type FileItem,
  type HostRecord,
  hasItem,
  type Item,
  type ItemDifference,
  itemKey,
  type Link,
  type Route,
  type WireguardPeer,
} from "../model/items";
import { isBootFile, keyPath } from "../model/record";
import { quoteCommand } from "../render/shell";
import { describeDroppedPackets } from "./dropped-packets";
import { describeBlockingChains } from "./firewalls";
import { effectiveMetric, findForeignRoutes, formatForeignRoute } from "./foreign-routes";
import { describeForeignRules, describeStrayChains } from "./foreign-rules";

/** Objects of other programs under the key of an item of ours, and devices with its VNI and port. `up` refuses both. */

/**
 * The kernel allows one VXLAN device for a VNI, a UDP port and an address family. Those of our own network that
 * conflict are changed by the same requests.
 */
interface VniConflict {
  name: string;
  observed: LinkFact;
  holder?: HostRecord;
}

function findVniConflict(item: Link, desired: DesiredState, facts: Facts): VniConflict | undefined {
  if (!item.vxlan || isSameTunnel(item, facts.links.get(item.name))) return undefined;
  for (const [name, observed] of facts.links) {
    if (name === item.name || !isSameTunnel(item, observed)) continue;
    const holder = facts.records.find((record) =>
      record.items.some((other) => other.kind === "link" && other.name === name && isOurLink(other, facts)),
    );
    if (holder && (isOwnRecord(holder, desired) || holder.network === desired.record.network)) continue;
    return { name, observed, ...(holder && { holder }) };
  }
  return undefined;
}

const isIpv6Vxlan = ({ remote, local }: { remote: string; local: string }): boolean =>
  `${remote}${local}`.includes(":");

const isSameTunnel = ({ vxlan }: Link, observed: LinkFact | undefined): boolean =>
  vxlan !== undefined &&
  observed?.vxlan?.vni === vxlan.vni &&
  observed.vxlan.port === vxlan.port &&
  isIpv6Vxlan(observed.vxlan) === isIpv6Vxlan(vxlan);

export function refuseVniConflicts(desired: DesiredState, facts: Facts): void {
  for (const item of desired.items) {
    const conflict = item.kind === "link" ? findVniConflict(item, desired, facts) : undefined;
    if (!conflict) continue;
    const { name, observed, holder } = conflict;
    throw new OverlayError(
      "DEVICE_FOREIGN",
      `The device ${name} (${describeDevice(observed)}) has the VNI and port that ${(item as Link).name} needs, and the kernel allows only one such device. It ${describeHolder(holder)}. Nothing was changed.`,
      holder
        ? "Choose another vniBase or vxlanPort for one of the networks."
        : `Remove it (\`ip link del ${name}\`), or choose another vniBase or vxlanPort.`,
    );
  }
}

const describeDevice = ({ type, mac, vxlan, wireguard }: LinkFact): string =>
  wireguard
    ? `WireGuard, public key ${wireguard.publicKey}`
    : vxlan
      ? `vxlan, VNI ${vxlan.vni}, port ${vxlan.port}${vxlan.remote && `, remote ${vxlan.remote}`}, MAC ${mac}`
      : `${type || "physical"}, MAC ${mac}`;

/** Whether a device of another program has this item's name. It is neither changed nor removed. */
function isForeignDevice(item: Item, desired: DesiredState, facts: Facts): item is Link {
  if (item.kind !== "link") return false;
  const observed = facts.links.get(item.name);
  if (!observed || isOurLink(item, facts) || (desired.adopt && isAdoptable(item, observed))) return false;
  return !facts.records.some((record) => !isOwnRecord(record, desired) && hasItem(record, item));
}

/** As drift, with the hint that `up` refuses: a difference alone reads as if `up` would repair it. */
const describeForeignDevices = (desired: DesiredState, facts: Facts): string[] =>
  desired.items.flatMap((item) => {
    if (item.kind !== "link") return [];
    const conflict = findVniConflict(item, desired, facts);
    if (conflict) return [describeConflict(item, conflict)];
    if (!isForeignDevice(item, desired, facts)) return [];
    const what = describeDevice(facts.links.get(item.name)!);
    return [
      `foreign device ${item.name} (${what}) has a name of ours, but another program made it: ${nameHint(item.name, facts)}`,
    ];
  });

function describeConflict({ name: ours }: Link, { name, observed, holder }: VniConflict): string {
  const what = `device ${name} (${describeDevice(observed)}) has the VNI and port of ${ours}`;
  return holder
    ? `${what}, and belongs to ${holder.owner} (network ${holder.network}): up will refuse with DEVICE_FOREIGN until one of them has another vniBase or vxlanPort`
    : `foreign ${what}: ${removeHint(name)}`;
}

const removeHint = (name: string): string =>
  `up will refuse with DEVICE_FOREIGN until it is removed (\`ip link del ${name}\`)`;

/** A device in use is not to be removed: that would disconnect its ports, or remove its addresses. */
const nameHint = (name: string, facts: Facts): string =>
  isInUse(name, facts)
    ? `up will refuse with DEVICE_FOREIGN until it has another name (\`ip link set dev ${name} name OTHER\`), or its program removes it`
    : removeHint(name);

const isInUse = (name: string, { links, addresses }: Facts): boolean =>
  [...links.values()].some(({ master }) => master === name) ||
  [...addresses].some((text) => text.endsWith(` ${name}`) && !text.startsWith("fe80:"));

/** `There is already a device x, and it …` */
export const describeHolder = (holder: HostRecord | undefined): string =>
  holder ? `belongs to ${holder.owner} (network ${holder.network})` : "is not in our records";

type ForeignCheck<T extends Item> = (item: T, desired: DesiredState, others: HostRecord[], facts: Facts) => void;

/** Undefined: other programs cannot have such an object under our name, or it does no harm. */
const FOREIGN_CHECKS: { [K in Item["kind"]]: ForeignCheck<Extract<Item, { kind: K }>> | undefined } = {
  link: refuseForeignLink,
  address: refuseForeignAddress,
  route: refuseForeignRoute,
  file: refuseForeignFile,
  key: undefined,
  wgpeer: refuseForeignPeer,
  vxpeer: undefined,
  neighbour: undefined,
  docker: undefined, // see `refuseDocker`
  sysctl: undefined,
  policy: undefined,
  chain: undefined,
  jump: undefined,
  rule: undefined,
  zone: undefined,
  service: undefined,
};

/** Throws if an object that we need belongs to another program or owner. */
export function refuseForeign(desired: DesiredState, facts: Facts): void {
  const others = facts.records.filter((record) => !isOwnRecord(record, desired));
  const mine = facts.records.filter((record) => isOwnRecord(record, desired)).flatMap(({ items }) => items);
  const ours = new Set(mine.filter((item) => isPresent(item, facts)).map(itemKey));
  for (const item of desired.items) {
    if (ours.has(itemKey(item))) continue;
    refuseOtherId(item, desired, facts);
    const check = FOREIGN_CHECKS[item.kind] as ForeignCheck<Item> | undefined;
    check?.(item, desired, others, facts);
  }
}

/** A peer is known by its key alone: of two hosts with one key, the last to send would get the packets of both. */
function refuseForeignPeer(
  item: WireguardPeer,
  { record, items }: DesiredState,
  others: HostRecord[],
  facts: Facts,
): void {
  const holder = others.find((other) => hasItem(other, item));
  const isOwnKey =
    facts.links.get(item.dev)?.wireguard?.publicKey === item.publicKey ||
    items.some((each) => each.kind === "key" && each.publicKey === item.publicKey);
  if (!holder && !isOwnKey) return;
  throw new OverlayError(
    "KEY_DUPLICATE",
    `The public key ${item.publicKey} of the host at ${item.endpoint.ip} is also that of ${holder ? holder.owner : "this host"}: one of the disks is a copy of the other. Nothing was changed there.`,
    `Remove the key on the copied host (\`rm ${keyPath(record.network)}\`), and run up again: it makes another one.`,
  );
}

function refuseForeignFile(item: FileItem, _desired: DesiredState, others: HostRecord[], { files }: Facts): void {
  const observed = files.get(item.path);
  const holder = others.find((record) => hasItem(record, item));
  if (isBootFile(item.path) || (observed === undefined && !holder)) return;
  if (!holder && observed === sha256(item.content ?? "")) return;
  throw new OverlayError(
    "FILE_FOREIGN",
    `There is already a file ${item.path}, and it ${describeHolder(holder)}. It was not changed.`,
    holder ? "Only one of the two resources can have it." : "Move or remove it, and try again.",
  );
}

function refuseForeignLink(item: Link, desired: DesiredState, others: HostRecord[], facts: Facts): void {
  const observed = facts.links.get(item.name);
  const holder = others.find((record) => hasItem(record, item));
  if (!observed && !holder) return;
  if (item.shared && holder?.items.some((other) => itemKey(other) === itemKey(item) && isSharedLink(other))) return;
  if (!holder && (isProvenLink(item, facts) || (desired.adopt && isAdoptable(item, observed!)))) return;
  const tunnel =
    observed?.vxlan &&
    `, VNI ${observed.vxlan.vni}${desired.adopt ? ` on port ${observed.vxlan.port} to ${observed.vxlan.remote}` : ""}`;
  const what = `${observed?.type || "physical"}${tunnel ?? ""}`;
  throw new OverlayError(
    "DEVICE_FOREIGN",
    `There is already a device ${item.name}${observed ? ` (${what})` : ""}, and it ${describeHolder(holder)}. It was not changed.`,
    desired.adopt && !holder
      ? `Adopting takes over only ${describeAdoptable(item)}; remove that device, or choose other device names.`
      : "Choose other device names (devicePrefix, bridgeName, hubInterface), remove that device, or set adopt if it is yours.",
  );
}

const isSharedLink = (item: Item): boolean => item.kind === "link" && item.shared === true;

const describeAdoptable = ({ type, vxlan }: Link): string =>
  vxlan ? `a tunnel with VNI ${vxlan.vni} on port ${vxlan.port} to ${vxlan.remote}` : `a device of type ${type}`;

/** Refuses an address that the host has on another device; one on a device of ours may have another prefix length, and is repaired. */
function refuseForeignAddress(item: Address, desired: DesiredState, _others: HostRecord[], facts: Facts): void {
  const [ip = ""] = item.address.split("/");
  const records = [desired, ...facts.records];
  const isListed = (dev: string): boolean =>
    records.some(({ items }) => items.some((each) => each.kind === "link" && each.name === dev)) ||
    facts.records.some(({ items }) =>
      items.some((each) => each.kind === "address" && each.dev === dev && each.address.startsWith(`${ip}/`)),
    );
  const foreign = devicesWithAddress(ip, facts).find(
    (dev) => !isListed(dev) && (!isLinkLocalAddress(item) || dev === item.dev),
  );
  if (foreign === undefined || (foreign === item.dev && isProvenAddress(item, desired.items, facts))) return;
  throw new OverlayError(
    "IP_IN_USE",
    `The host already has ${ip} on ${foreign}, and it is not in our records. It was not changed.`,
    "Ask for another address, or take this one off the host first.",
  );
}

function refuseForeignRoute(item: Route, desired: DesiredState, _others: HostRecord[], facts: Facts): void {
  const ours = new Set(
    [desired, ...facts.records].flatMap(({ items }) =>
      items.flatMap((each) => (each.kind === "link" ? each.name : [])),
    ),
  );
  const foreign = facts.routes.find(
    (r) =>
      !isOurRoute(r) &&
      !(r.protocol === "kernel" && ours.has(r.dev ?? "")) &&
      r.family === item.family &&
      r.dst === item.dst &&
      r.table === item.table &&
      effectiveMetric(r) === effectiveMetric(item),
  );
  if (!foreign || (desired.adopt && isAdoptableRoute(item, foreign))) return;
  throw new OverlayError(
    "ROUTE_OVERLAP",
    `There is already a route to ${item.dst} (${foreign.via ? `via ${foreign.via} ` : ""}dev ${foreign.dev ?? "none"}, protocol ${foreign.protocol}). It was not changed.`,
    "Remove that route, or choose another range for the network.",
  );
}

/** Objects of other programs that conflict with what this owner has on the host, as drift. They are never removed by us. */
export const describeForeign = (desired: DesiredState, facts: Facts): string[] => [
  ...describeForeignDevices(desired, facts),
  ...describeForeignFdb(desired, facts),
  ...describeForeignPeers(desired, facts),
  ...findForeignRoutes(desired, facts).map(formatForeignRoute),
  ...describeForeignRules(desired, facts),
  ...describeStrayChains(desired, facts),
  ...describeBlockingChains(desired, facts),
  ...describeDroppedPackets(desired, facts),
];

const describeForeignFdb = (desired: DesiredState, facts: Facts): string[] =>
  desired.items.flatMap((item) =>
    item.kind === "link" && isOurLink(item, facts)
      ? findForeignFdb(
          item,
          [desired, ...facts.records].flatMap(({ items }) => items),
          facts,
        ).map(({ mac, destination }) => {
          const what = mac === DEFAULT_MAC ? "copies all frames of" : `sends frames to ${mac} of`;
          const entry = `${mac} dev ${item.name} ${destination}`;
          return `foreign FDB entry '${entry}' ${what} ${item.name} elsewhere; it is never removed by us: remove it with \`${quoteCommand(`bridge fdb del ${entry}`)}\``;
        })
      : [],
  );

/** Peers on a device of ours that no owner has: they can send into the overlay. */
function describeForeignPeers(desired: DesiredState, facts: Facts): string[] {
  if (unlistedOwners([desired], facts).length > 0) return [];
  return findUnlistedPeers(desired.items, [desired, ...facts.records], facts).map(
    ({ dev, publicKey, allowedIps }) =>
      `foreign peer ${publicKey} of ${dev} can send from ${allowedIps.join(", ") || "no address"}; it is never removed by us: remove it with \`wg set ${dev} peer ${publicKey} remove\``,
  );
}

/** Whether WireGuard devices of these states have peers that no record and none of the states lists. */
export function hasUnlistedPeers(states: DesiredState[], facts: Facts): boolean {
  const items = states.flatMap((state) => [...state.items, ...(state.plannedItems ?? [])]);
  return findUnlistedPeers(items, [{ items }, ...facts.records], facts).length > 0;
}

/** Peers of the WireGuard devices among `items` that no owner lists. */
function findUnlistedPeers(
  items: Item[],
  owners: { items: Item[] }[],
  facts: Facts,
): { dev: string; publicKey: string; allowedIps: string[] }[] {
  const known = new Set(
    owners.flatMap((owner) =>
      owner.items.flatMap((item) => (item.kind === "wgpeer" ? [`${item.dev} ${item.publicKey}`] : [])),
    ),
  );
  const devices = items.filter((item) => item.kind === "link" && item.wireguard && isOurLink(item, facts)) as Link[];
  return [...new Set(devices.map(({ name }) => name))].flatMap((dev) =>
    [...(facts.links.get(dev)?.wireguard?.peers ?? [])].flatMap(([publicKey, { allowedIps }]) =>
      known.has(`${dev} ${publicKey}`) ? [] : [{ dev, publicKey, allowedIps }],
    ),
  );
}

/** Without the differences of devices that other programs created: no `up` changes those. */
export const excludeForeign = (all: ItemDifference[], desired: DesiredState, facts: Facts): ItemDifference[] =>
  all.filter(({ item }) => !isForeignDevice(item, desired, facts));
