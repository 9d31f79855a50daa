import { OverlayError } from "../errors";
import { isAdoptable } from "./adopt";
import { isOurLink } from "./compare";
import type { Facts, LinkFact } from "./facts";
import { type HostRecord, type Item, type Link, lists } from "./items";
import { isMine } from "./ownership";
import type { Want } from "./steps";

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
