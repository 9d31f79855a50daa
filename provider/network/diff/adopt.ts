import { tunnelName } from "../../addressing/layout";
import { OverlayError } from "../../errors";
import { hasLinkType } from "../kinds/device";
import type { Facts, LinkFact } from "../model/facts";
import { type DesiredState, type HostRecord, type Item, itemKey, type Link, type Route } from "../model/items";

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
    return { ...item, mac: recorded.get(item.name)?.mac ?? found ?? item.mac };
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
  if (!hasLinkType(item.type, observed.type)) return false;
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
  observed.unreachable === !item.via &&
  observed.via === item.via &&
  (item.via === undefined || observed.dev === item.dev);

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
