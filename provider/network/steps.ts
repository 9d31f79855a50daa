import { OverlayError } from "../errors";
import { differences, isOfType, isOurs, isPresent } from "./compare";
import type { Facts } from "./facts";
import { type HostRecord, type Item, keyOf, type Link, type Route } from "./items";

/** One change of a host. `recreate` is for what the kernel cannot change in place. */
export interface Step {
  verb: "add" | "change" | "recreate" | "remove";
  item: Item;
}

/** What one owner wants of a host. */
export interface Want {
  record: Omit<HostRecord, "items">;
  /** Empty: nothing of this owner is to be left. */
  items: Item[];
  /** Take over devices that stand as wanted but are in nobody's record. */
  adopt?: boolean;
}

/** The order in which things are made; they are removed the other way round. */
const ORDER: Item["kind"][] = ["sysctl", "link", "address", "route", "chain", "rule", "jump"];
const rank = (item: Item): number => ORDER.indexOf(item.kind) * 2 + (item.kind === "link" && item.master ? 1 : 0);

/** A record of an earlier life of the same resource (its lease was lost) is ours too: we take over what it lists. */
export const isMine = (record: HostRecord, { record: me }: Want): boolean =>
  record.uid === me.uid || (record.owner === me.owner && record.network === me.network);

/**
 * want − have, for all the owners that have work on this host at once. Removes only what an owner's own record lists,
 * and of that only what no other record lists, now or after this work: a shared name or mark is not enough to call a
 * thing ours. What several owners share (chains, forwarding) is one step.
 */
export function planSteps(wants: Want[], facts: Facts): Step[] {
  const untouched = facts.records.filter((record) => !wants.some((want) => isMine(record, want)));
  const keep = new Set([...untouched, ...wants].flatMap(({ items }) => items.map(keyOf)));
  const mine = facts.records.filter((record) => !untouched.includes(record)).flatMap(({ items }) => items);
  const wanted = new Map(wants.flatMap(({ items }) => items.map((item) => [keyOf(item), item])));
  return [...removeSteps(mine, keep, facts), ...putSteps([...wanted.values()], facts)];
}

function putSteps(want: Item[], facts: Facts): Step[] {
  const recreated = new Set<string>();
  const steps = differences(want, facts).map(({ item, missing }): Step => {
    if (missing) return { verb: "add", item };
    if (item.kind !== "link" || canChange(item, facts)) return { verb: "change", item };
    recreated.add(item.name);
    return { verb: "recreate", item };
  });
  const planned = new Set(steps.map(({ item }) => keyOf(item)));
  const lost = want.filter((item) => !planned.has(keyOf(item)) && hangsOn(item, recreated));
  const all: Step[] = [
    ...steps,
    ...lost.map((item): Step => ({ verb: item.kind === "link" ? "change" : "add", item })),
  ];
  return all.sort((a, b) => rank(a.item) - rank(b.item));
}

/** remote, local, MTU, MAC and master change in place: ifindex, addresses and routes stay. VNI and port do not. */
function canChange(item: Link, facts: Facts): boolean {
  const have = facts.links.get(item.name)!;
  return isOfType(item.type, have.type) && have.vxlan?.vni === item.vxlan?.vni && have.vxlan?.port === item.vxlan?.port;
}

/** What goes away with a device: its addresses, the routes over it, and its ports' membership. */
const hangsOn = (item: Item, links: Set<string>): boolean =>
  ((item.kind === "address" || item.kind === "route") && item.dev !== undefined && links.has(item.dev)) ||
  (item.kind === "link" && item.master !== undefined && links.has(item.master));

function removeSteps(mine: Item[], keep: Set<string>, facts: Facts): Step[] {
  const gone = new Map(mine.filter((item) => !keep.has(keyOf(item))).map((item) => [keyOf(item), item]));
  const present = [...gone.values()].filter((item) => isPresent(item, facts));
  const links = new Set(present.flatMap((item) => (item.kind === "link" ? [item.name] : [])));
  return present
    .filter((item) => item.kind === "link" || !hangsOn(item, links))
    .sort((a, b) => rank(b) - rank(a))
    .map((item) => ({ verb: "remove", item }));
}

/** Throws when a device or route that we would need is somebody else's. */
export function refuseForeign(want: Want, facts: Facts): void {
  const others = facts.records.filter((record) => !isMine(record, want));
  const known = new Set(facts.records.filter((record) => isMine(record, want)).flatMap((r) => r.items.map(keyOf)));
  for (const item of want.items) {
    if (known.has(keyOf(item))) continue;
    if (item.kind === "link") refuseForeignLink(item, want, others, facts);
    if (item.kind === "route") refuseForeignRoute(item, facts);
  }
}

function refuseForeignLink(item: Link, want: Want, others: HostRecord[], facts: Facts): void {
  const have = facts.links.get(item.name);
  const holder = others.find((r) => r.items.some((other) => keyOf(other) === keyOf(item)));
  if (!have && !holder) return;
  if (!holder && want.adopt && isOfType(item.type, have!.type) && have!.vxlan?.vni === item.vxlan?.vni) return;
  const whose = holder ? `belongs to ${holder.owner} (network ${holder.network})` : "is not in our records";
  const what = `${have?.type || "physical"}${have?.vxlan ? `, VNI ${have.vxlan.vni}` : ""}`;
  throw new OverlayError(
    "DEVICE_FOREIGN",
    `There is already a device ${item.name}${have ? ` (${what})` : ""}, and it ${whose}. It was left as it is.`,
    "Choose other device names (devicePrefix, bridgeName, hubInterface), remove that device, or set adopt if it is yours.",
  );
}

function refuseForeignRoute(item: Route, facts: Facts): void {
  const foreign = facts.routes.find(
    (r) => !isOurs(r) && r.family === item.family && r.dst === item.dst && r.metric === item.metric,
  );
  if (!foreign) return;
  throw new OverlayError(
    "ROUTE_OVERLAP",
    `There is already a route to ${item.dst} (${foreign.via ? `via ${foreign.via} ` : ""}dev ${foreign.dev ?? "none"}, protocol ${foreign.protocol}). It was left as it is.`,
    "Remove that route, or choose another range for the network.",
  );
}
