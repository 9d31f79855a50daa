import { type Family, pointOf } from "../addressing/line";
import { OverlayError } from "../errors";
import { isAdoptable, isAdoptableRoute, refuseOtherId, takenOver } from "./adopt";
import { copiesOf, differences, isOfType, isOurLink, isOurs, isPresent, otherPrefixes } from "./compare";
import { devicesWith } from "./devices";
import type { Facts } from "./facts";
import { FORWARDING } from "./hub";
import { type Address, type HostRecord, type Item, keyOf, type Link, lists, type Route, type Vxlan } from "./items";
import { isMine, isProvenAddress, isProvenLink, keptKeys, ownedItems, untouchedRecords } from "./ownership";
import { forwardingBefore, positionOf } from "./place";
import { isZone, type Place, placesFor, placesOf } from "./zones";

/** One change of a host. */
export interface Step {
  verb: "add" | "change" | "remove";
  item: Item;
  /** How many of it stand now, where that can be more than one. */
  copies?: number;
  /** Where a jump goes among the rules of others; the first unless set. */
  position?: number;
  /** The tunnel's peer before this change, where it had another address. */
  formerPeer?: Vxlan;
  /** The zones of firewalld that it is about. */
  places?: Place[];
  /** The same address with other prefixes, which goes when this has come. */
  instead?: string[];
  /** Devices that were ports of this bridge before it was deleted, and are plugged in again. */
  ports?: string[];
  /** It is no longer ours, but others need it as it is. */
  leave?: boolean;
  /** The setting before our first change, where the host tells it although the kept value is lost. */
  former?: string;
}

/** What one owner wants of a host. */
export interface Want {
  record: Omit<HostRecord, "items">;
  /** Empty: nothing of this owner is to be left. */
  items: Item[];
  /** Take over devices and routes that stand as wanted but are in nobody's record: see adopt.ts. */
  adopt?: boolean;
  /** Bring it back after a boot of the machine. */
  persist?: boolean;
  /** When nothing is to be left: what the plan says of this host. It goes, too, where no record lists it, if it is provably ours. */
  planned?: Item[];
  /** uids of earlier lives, whose leases are gone: what their records list is ours now. */
  earlier?: string[];
}

/** The order in which things are made; they are removed the other way round. */
const ORDER: Item["kind"][] = [
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

/**
 * want − have, for all the owners that have work on this host at once. Removes only what an owner has (`ownedItems`),
 * and of that only what no other record lists, now or after this work: a shared name or mark is not enough to call a
 * thing ours. What several owners share (chains, forwarding) is one step.
 */
export function planSteps(wants: Want[], facts: Facts): Step[] {
  const untouched = untouchedRecords(wants, facts);
  const mine = wants.flatMap((want) => ownedItems(want, facts));
  const keep = keptKeys(mine, wants, facts);
  const wanted = [...new Map(wants.flatMap(({ items }) => items.map((item) => [keyOf(item), item]))).values()];
  const fellows = untouched.filter(({ network }) => wants.some(({ record }) => record.network === network));
  const outdated = outdatedLinks(wanted, fellows, facts);
  const lost = new Set(outdated.map(({ name }) => name));
  return [
    ...goneItems(mine, keep, facts).map((item) => removal(item, facts)),
    ...outdated.map((item): Step => ({ verb: "remove", item })),
    ...putSteps(wanted, lost, takenOver(wants, facts), facts),
  ];
}

/** Docker switches forwarding on where it is off, and says so to nobody: where it runs, it needs it. */
const removal = (item: Item, facts: Facts): Step => ({
  verb: "remove",
  item,
  copies: copiesOf(item, facts),
  ...(item.kind === "sysctl" && facts.docker?.answers && { leave: true }),
  ...(item.kind === "sysctl" && wasForwardingOff(item.key, facts) && { former: "0" }),
  ...(item.kind === "zone" && { places: placesOf(item, facts) }),
});

const wasForwardingOff = (key: string, facts: Facts): boolean =>
  !facts.former.has(key) &&
  facts.sysctls.get(key) === "1" &&
  ([4, 6] as const).some((family) => FORWARDING[family] === key && forwardingBefore(key, family, facts) === "0");

/**
 * Links that must go before others can come: those that cannot be changed in place, and tunnels of our own network that
 * still have a VNI which by the network's present numbering is another runner's. Their owners' turn comes in the same up.
 */
function outdatedLinks(wanted: Item[], fellows: HostRecord[], facts: Facts): Link[] {
  const links = wanted.filter((item) => item.kind === "link");
  const recreated = links.filter((link) => facts.links.has(link.name) && !canChange(link, facts));
  const missing = links.filter((link) => link.vxlan && (!facts.links.has(link.name) || recreated.includes(link)));
  const inTheWay = fellows.flatMap(({ items }) =>
    items
      .filter((item) => item.kind === "link")
      .filter((item) => missing.some((link) => sameTunnel(link, item, facts))),
  );
  return [...recreated, ...inTheWay];
}

const sameTunnel = (link: Link, other: Link, facts: Facts): boolean => {
  const have = facts.links.get(other.name)?.vxlan;
  return link.name !== other.name && have?.vni === link.vxlan?.vni && have?.port === link.vxlan?.port;
};

function putSteps(wanted: Item[], lost: Set<string>, taken: Set<string>, facts: Facts): Step[] {
  const steps = differences(wanted, facts).map(({ item, missing }): Step => {
    const gone = missing || (item.kind === "link" && lost.has(item.name));
    const instead = otherPrefixes(item, facts);
    return {
      verb: gone ? "add" : "change",
      item,
      copies: copiesOf(item, facts),
      ...(instead.length > 0 && { instead }),
      ...(item.kind === "link" && formerPeer(item, facts) && { formerPeer: formerPeer(item, facts)! }),
      ...(item.kind === "jump" && { position: positionOf(item, facts) }),
      ...(item.kind === "zone" && { places: placesFor(item, facts) }),
    };
  });
  const planned = new Set(steps.map(({ item }) => keyOf(item)));
  const again = wanted.filter((item) => !planned.has(keyOf(item)) && (hangsOn(item, lost) || taken.has(keyOf(item))));
  const all = [...steps, ...again.map((item): Step => ({ verb: item.kind === "link" ? "change" : "add", item }))];
  return all.sort((a, b) => rank(a.item) - rank(b.item));
}

/** The peer that a tunnel has now, if its address is to change in place. */
export function formerPeer({ name, vxlan }: Link, facts: Facts): Vxlan | undefined {
  const have = facts.links.get(name)?.vxlan;
  if (!vxlan || !have || have.vni !== vxlan.vni || have.port !== vxlan.port) return undefined;
  return have.remote !== vxlan.remote && pointOf(have.remote) !== undefined ? have : undefined;
}

/** Ends, MTU, MAC and master change in place: ifindex, addresses and routes stay. VNI, port and family do not. */
function canChange(item: Link, facts: Facts): boolean {
  const have = facts.links.get(item.name)!;
  const isV6 = (address: string | undefined): boolean => address?.includes(":") ?? false;
  return (
    isOfType(item.type, have.type) &&
    have.vxlan?.vni === item.vxlan?.vni &&
    have.vxlan?.port === item.vxlan?.port &&
    isV6(have.vxlan?.remote) === isV6(item.vxlan?.remote)
  );
}

/** What goes away with a device: its addresses, the routes over it, and its ports' membership. */
const hangsOn = (item: Item, links: Set<string>): boolean =>
  ((item.kind === "address" || item.kind === "route") && item.dev !== undefined && links.has(item.dev)) ||
  (item.kind === "link" && item.master !== undefined && links.has(item.master));

/** The machine as it would look once these owners have left it; for plans that must not touch it. */
export function afterRemoval(steps: Step[], leaving: Want[], facts: Facts): Facts {
  const gone = new Set(steps.map(({ item }) => keyOf(item)));
  const links = new Set(steps.flatMap(({ item }) => (item.kind === "link" ? [item.name] : [])));
  const chains = new Map([...facts.chains].map(([name, rules]) => [name, [...rules]]));
  for (const { item } of steps) {
    if (item.kind === "chain") chains.delete(`${item.family} ${item.table} ${item.chain}`);
    if (item.kind !== "rule" && item.kind !== "jump") continue;
    const [from, rule] = item.kind === "rule" ? [item.chain, item.rule] : [item.from, `-j ${item.chain}`];
    const key = `${item.family} ${item.table} ${from}`;
    chains.set(
      key,
      (chains.get(key) ?? []).filter((each) => each !== rule),
    );
  }
  return {
    ...facts,
    chains,
    links: new Map([...facts.links].filter(([name]) => !links.has(name))),
    addresses: new Set([...facts.addresses].filter((text) => !links.has(text.split(" ")[1]!))),
    routes: facts.routes.filter(
      (r) =>
        !(r.dev !== undefined && links.has(r.dev)) &&
        !(isOurs(r) && gone.has(r.unreachable ? `unreachable ${r.dst}` : `route ${r.dst}`)),
    ),
    records: facts.records.filter((record) => !leaving.some((want) => isMine(record, want))),
  };
}

/** What of these items stands and is kept by nobody, in the order in which it is removed. */
export function goneItems(mine: Item[], keep: Set<string>, facts: Facts): Item[] {
  const gone = new Map(mine.filter((item) => !keep.has(keyOf(item))).map((item) => [keyOf(item), item]));
  const standing = [...gone.values()].filter((item) => {
    if (item.kind === "sysctl") return true; // what it was before is kept on the machine, and must go in any case
    return item.kind === "link" ? isOurLink(item, facts) : isPresent(item, facts);
  });
  const links = new Set(standing.flatMap((item) => (item.kind === "link" ? [item.name] : [])));
  return standing.filter((item) => item.kind === "link" || !hangsOn(item, links)).sort((a, b) => rank(b) - rank(a));
}

/** Throws when a device or route that we would need is somebody else's. */
export function refuseForeign(want: Want, facts: Facts): void {
  const others = facts.records.filter((record) => !isMine(record, want));
  const mine = facts.records.filter((record) => isMine(record, want)).flatMap(({ items }) => items);
  const ours = new Set(mine.filter((item) => item.kind !== "link" || isOurLink(item, facts)).map(keyOf));
  for (const item of want.items) {
    if (ours.has(keyOf(item))) continue;
    refuseOtherId(item, want, facts);
    if (item.kind === "link") refuseForeignLink(item, want, others, facts);
    if (item.kind === "address") refuseForeignAddress(item, want, facts);
    if (item.kind === "route") refuseForeignRoute(item, want, facts);
  }
}

function refuseForeignLink(item: Link, want: Want, others: HostRecord[], facts: Facts): void {
  const have = facts.links.get(item.name);
  const holder = others.find((record) => lists(record, item));
  if (!have && !holder) return;
  if (item.shared && holder?.items.some((other) => keyOf(other) === keyOf(item) && isShared(other))) return;
  if (!holder && (isProvenLink(item, facts) || (want.adopt && isAdoptable(item, have!)))) return;
  const whose = holder ? `belongs to ${holder.owner} (network ${holder.network})` : "is not in our records";
  const tunnel =
    have?.vxlan && `, VNI ${have.vxlan.vni}${want.adopt ? ` on port ${have.vxlan.port} to ${have.vxlan.remote}` : ""}`;
  const what = `${have?.type || "physical"}${tunnel ?? ""}`;
  throw new OverlayError(
    "DEVICE_FOREIGN",
    `There is already a device ${item.name}${have ? ` (${what})` : ""}, and it ${whose}. It was left as it is.`,
    want.adopt && !holder
      ? `Adopting takes over only ${wantedText(item)}; remove that device, or choose other device names.`
      : "Choose other device names (devicePrefix, bridgeName, hubInterface), remove that device, or set adopt if it is yours.",
  );
}

const isShared = (item: Item): boolean => item.kind === "link" && item.shared === true;

const wantedText = ({ type, vxlan }: Link): string =>
  vxlan ? `a tunnel with VNI ${vxlan.vni} on port ${vxlan.port} to ${vxlan.remote}` : `a device of type ${type}`;

/** An address that the machine has for itself; one on a device of ours may have another prefix, and is mended. */
function refuseForeignAddress(item: Address, want: Want, facts: Facts): void {
  const [ip = ""] = item.address.split("/");
  const records = [want, ...facts.records];
  const isListed = (dev: string): boolean =>
    records.some(({ items }) => items.some((each) => each.kind === "link" && each.name === dev)) ||
    facts.records.some(({ items }) =>
      items.some((each) => each.kind === "address" && each.dev === dev && each.address.startsWith(`${ip}/`)),
    );
  const foreign = devicesWith(ip, facts).find((dev) => !isListed(dev));
  if (foreign === undefined || (foreign === item.dev && isProvenAddress(item, want.items, facts))) return;
  throw new OverlayError(
    "IP_IN_USE",
    `The machine already has ${ip} on ${foreign}, and it is not in our records. It was left as it is.`,
    "Ask for another address, or take this one off the machine first.",
  );
}

/** The kernel gives IPv6 routes without a metric this one. */
const metricOf = ({ family, metric }: { family: Family; metric?: number }): number =>
  metric ?? (family === 6 ? 1024 : 0);

function refuseForeignRoute(item: Route, want: Want, facts: Facts): void {
  const foreign = facts.routes.find(
    (r) =>
      !isOurs(r) &&
      r.family === item.family &&
      r.dst === item.dst &&
      r.table === item.table &&
      metricOf(r) === metricOf(item),
  );
  if (!foreign || (want.adopt && isAdoptableRoute(item, foreign))) return;
  throw new OverlayError(
    "ROUTE_OVERLAP",
    `There is already a route to ${item.dst} (${foreign.via ? `via ${foreign.via} ` : ""}dev ${foreign.dev ?? "none"}, protocol ${foreign.protocol}). It was left as it is.`,
    "Remove that route, or choose another range for the network.",
  );
}
