import type { Family } from "../../addressing/ip";
import { OverlayError } from "../../errors";
import { isAdoptable, isAdoptableRoute, refuseOtherId } from "../diff/adopt";
import { isMine, isProvenAddress, isProvenLink } from "../diff/ownership";
import { devicesWith, isOurLink } from "../kinds/device";
import { isOurs } from "../kinds/route";
import type { Facts, LinkFact } from "../model/facts";
import { type Address, type HostRecord, type Item, keyOf, type Link, lists, type Route } from "../model/items";
import type { Want } from "../model/steps";

/** Devices of other programs where ours must be: under its name, or with its VNI and port. `up` refuses both. */

/**
 * The kernel allows one VXLAN device for a VNI, a UDP port and an address family. Those of our own network that are in the
 * way are moved by the same work.
 */
interface Conflict {
  name: string;
  have: LinkFact;
  holder?: HostRecord;
}

function conflictWith(item: Link, want: Want, facts: Facts): Conflict | undefined {
  if (!item.vxlan || isSameTunnel(item, facts.links.get(item.name))) return undefined;
  for (const [name, have] of facts.links) {
    if (name === item.name || !isSameTunnel(item, have)) continue;
    const holder = facts.records.find((record) =>
      record.items.some((other) => other.kind === "link" && other.name === name && isOurLink(other, facts)),
    );
    if (holder && (isMine(holder, want) || holder.network === want.record.network)) continue;
    return { name, have, ...(holder && { holder }) };
  }
  return undefined;
}

const isV6 = ({ remote, local }: { remote: string; local: string }): boolean => `${remote}${local}`.includes(":");

const isSameTunnel = ({ vxlan }: Link, have: LinkFact | undefined): boolean =>
  vxlan !== undefined &&
  have?.vxlan?.vni === vxlan.vni &&
  have.vxlan.port === vxlan.port &&
  isV6(have.vxlan) === isV6(vxlan);

export function refuseConflicts(want: Want, facts: Facts): void {
  for (const item of want.items) {
    const conflict = item.kind === "link" ? conflictWith(item, want, facts) : undefined;
    if (!conflict) continue;
    const { name, have, holder } = conflict;
    const whose = holder ? `It belongs to ${holder.owner} (network ${holder.network}).` : "It is not in our records.";
    throw new OverlayError(
      "DEVICE_FOREIGN",
      `The device ${name} (${deviceText(have)}) has the VNI and port that ${(item as Link).name} needs, and the kernel allows only one such device. ${whose} Nothing was changed.`,
      holder
        ? "Choose another vniBase or vxlanPort for one of the networks."
        : `Remove it (\`ip link del ${name}\`), or choose another vniBase or vxlanPort.`,
    );
  }
}

const deviceText = ({ type, mac, vxlan }: LinkFact): string =>
  vxlan
    ? `vxlan, VNI ${vxlan.vni}, port ${vxlan.port}${vxlan.remote && `, remote ${vxlan.remote}`}, MAC ${mac}`
    : `${type || "physical"}, MAC ${mac}`;

/** A device of another program stands under this item's name: it is neither changed nor removed. */
export function isForeignDevice(item: Item, want: Want, facts: Facts): item is Link {
  if (item.kind !== "link") return false;
  const have = facts.links.get(item.name);
  if (!have || isOurLink(item, facts) || (want.adopt && isAdoptable(item, have))) return false;
  return !facts.records.some((record) => !isMine(record, want) && lists(record, item));
}

/** As drift: it says that `up` refuses, since a difference alone reads as if `up` would mend it. */
export const foreignDeviceTexts = (want: Want, facts: Facts): string[] =>
  want.items.flatMap((item) => {
    if (item.kind !== "link") return [];
    const conflict = conflictWith(item, want, facts);
    if (conflict) return [conflictText(item, conflict)];
    if (!isForeignDevice(item, want, facts)) return [];
    const what = deviceText(facts.links.get(item.name)!);
    return [
      `foreign device ${item.name} (${what}) has a name of ours, but another program made it: ${remedy(item.name)}`,
    ];
  });

function conflictText({ name: ours }: Link, { name, have, holder }: Conflict): string {
  const what = `device ${name} (${deviceText(have)}) has the VNI and port of ${ours}`;
  return holder
    ? `${what}, and belongs to ${holder.owner} (network ${holder.network}): up will refuse with DEVICE_FOREIGN until one of them has another vniBase or vxlanPort`
    : `foreign ${what}: ${remedy(name)}`;
}

const remedy = (name: string): string =>
  `up will refuse with DEVICE_FOREIGN until it is removed (\`ip link del ${name}\`)`;

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

/** The kernel gives IPv6 routes without a metric this one. */
const metricOf = ({ family, metric }: { family: Family; metric?: number }): number =>
  metric ?? (family === 6 ? 1024 : 0);
