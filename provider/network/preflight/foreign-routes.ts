import { type Block, type Family, familyBlock, overlaps } from "../../addressing/ip";
import { rangeOf, subnetOf } from "../../addressing/ranges";
import { OverlayError } from "../../errors";
import { isAdoptableRoute } from "../diff/adopt";
import { lostTunnels } from "../diff/ownership";
import { isOurs } from "../kinds/route";
import type { Facts, OtherTableRoute, RouteFact, RoutingRule } from "../model/facts";
import type { Item, Route } from "../model/items";
import type { Want } from "../model/steps";
import { pasteable } from "../render/shell";

/**
 * Routes of other programs that take packets of the overlay's range away from the overlay: in the main table those to a
 * part of the range, or to the whole range with a metric as good as ours; and any route to the range in a table that the
 * routing rules look up before main. They are named, and never removed.
 */
export interface ForeignRoute {
  range: string;
  /** As `ip route` prints it. */
  text: string;
  remedy: string;
}

export function foreignRoutes(
  want: Pick<Want, "items" | "adopt"> & Partial<Pick<Want, "record">>,
  facts: Facts,
): ForeignRoute[] {
  const own = ownRouting(want, facts);
  return want.items.filter(isOfOverlay).flatMap((item) => {
    const block = rangeOf(item.dst);
    if (!block) return [];
    const main = facts.routes.filter((route) => isInTheWay(route, item, block, want, own));
    const early = tablesBeforeMain(item, block, own, facts);
    const others = facts.otherTables.filter((route) => early.has(route.tableName) && meets(route, block));
    const found = [...main, ...others.filter((route) => !isLedIntoOverlay(route, block, own, facts))];
    return found.map((route) => describe(route, item.dst));
  });
}

/** As drift. The machine's name is put before it by the caller. */
export const foreignRouteText = ({ range, text, remedy }: ForeignRoute): string =>
  `foreign route '${text}' takes packets of ${range} away from the overlay; it is never removed by us: remove it with \`${remedy}\``;

export function refuseForeignRoutes(want: Want, facts: Facts): void {
  const [first, ...more] = foreignRoutes(want, facts);
  if (!first) return;
  const others = more.length > 0 ? ` So do ${more.map(({ text }) => `'${text}'`).join(", ")}.` : "";
  throw new OverlayError(
    "ROUTE_OVERLAP",
    `The route '${first.text}' of another program would take packets of the overlay's range ${first.range}.${others} Nothing was changed.`,
    `Remove it (\`${first.remedy}\`), or choose another range for the network (subnets).`,
  );
}

/** Tables of their own are only for what a policy sends there. */
export const isOfOverlay = (item: Item): item is Route => item.kind === "route" && item.table === undefined;

/** What this host has of ours: devices, their subnets, and destinations with the metric of our route there. */
interface OwnRouting {
  devices: Map<string, Block[]>;
  metrics: Map<string, number>;
}

/** The metric that the kernel gives to a route without one, and to the route to a device's own subnet. */
const DEFAULT_METRIC: Record<Family, number> = { 4: 0, 6: 1024 };
const SUBNET_METRIC: Record<Family, number> = { 4: 0, 6: 256 };

const metricOf = ({ family, metric }: Pick<RouteFact, "family" | "metric">): number => metric ?? DEFAULT_METRIC[family];

function ownRouting({ items, record }: Pick<Want, "items"> & Partial<Pick<Want, "record">>, facts: Facts): OwnRouting {
  const all = [...items, ...facts.records.flatMap((record) => record.items)];
  const names = all.flatMap((item) => (item.kind === "link" ? [item.name] : []));
  const lost = record ? lostTunnels(record.network, names, facts) : [];
  const devices = new Map([...names, ...lost].map((name) => [name, [] as Block[]]));
  const metrics = new Map<string, number>();
  for (const item of all) {
    if (isOfOverlay(item)) metrics.set(item.dst, Math.min(metrics.get(item.dst) ?? Infinity, metricOf(item)));
    if (item.kind !== "address") continue;
    const subnet = subnetOf(item.address);
    devices.get(item.dev)?.push(rangeOf(subnet)!);
    metrics.set(subnet, SUBNET_METRIC[item.address.includes(":") ? 6 : 4]);
  }
  return { devices, metrics };
}

const isWithin = (inner: Block, outer: Block): boolean => outer.first <= inner.first && inner.last <= outer.last;

const blockOf = ({ dst, family }: Pick<RouteFact, "dst" | "family">): Block | undefined =>
  dst === "default" ? familyBlock(family) : rangeOf(dst);

/** Wider routes lose against ours, and so do those to the same destination with a higher metric. */
function isInTheWay(route: RouteFact, item: Route, block: Block, want: Pick<Want, "adopt">, own: OwnRouting): boolean {
  const to = blockOf(route);
  if (isOurs(route) || route.table !== undefined || route.family !== item.family) return false;
  if (!to || !isWithin(to, block) || isOfOwnDevice(route, to, own)) return false;
  if (want.adopt && route.protocol === "kernel") return false; // it belongs to a device that is to be taken over
  if (want.adopt && route.dst === item.dst && isAdoptableRoute(item, route)) return false;
  const ours = own.metrics.get(route.dst);
  return ours === undefined || metricOf(route) <= ours;
}

/** The kernel's own routes of our devices, and routes to workloads in the subnet of the device that they are behind. */
function isOfOwnDevice({ dev, protocol }: RouteFact, to: Block, { devices }: OwnRouting): boolean {
  const subnets = dev === undefined ? undefined : devices.get(dev);
  return subnets !== undefined && (protocol === "kernel" || subnets.some((subnet) => isWithin(to, subnet)));
}

/** Tables that packets of this range are looked up in before main, by rules of others. */
function tablesBeforeMain({ family, dst }: Route, block: Block, own: OwnRouting, { rules }: Facts): Set<string> {
  const concerns = (rule: RoutingRule): boolean =>
    rule.family === family &&
    !rule.isSelective &&
    [rule.from, rule.to].every((range) => range === "all" || overlapsText(range, block)) &&
    (rule.iif === undefined || own.devices.has(rule.iif));
  const prefix = Number(dst.split("/")[1]);
  const isMain = (rule: RoutingRule): boolean =>
    rule.family === family &&
    rule.table === "main" &&
    !rule.isSelective &&
    rule.iif === undefined &&
    rule.from === "all" &&
    rule.to === "all" &&
    rule.suppressed < prefix;
  const main = Math.min(...rules.filter(isMain).map(({ priority }) => priority));
  const early = rules.filter((rule) => rule.priority < main && concerns(rule)).map(({ table }) => table);
  return new Set(early.filter((table) => table !== "local" && table !== "main"));
}

const overlapsText = (range: string, block: Block): boolean => {
  const other = rangeOf(range);
  return other !== undefined && overlaps(other, block);
};

const meets = (route: RouteFact, block: Block): boolean => {
  const to = blockOf(route);
  return to !== undefined && overlaps(to, block);
};

/** It leads over a device of ours, or a route in the same table to at least the whole range does, and is narrower. */
function isLedIntoOverlay(route: OtherTableRoute, block: Block, own: OwnRouting, { otherTables }: Facts): boolean {
  const isOverOurs = ({ dev }: RouteFact): boolean => dev !== undefined && own.devices.has(dev);
  if (isOverOurs(route)) return true;
  const to = blockOf(route)!;
  return otherTables.some((other) => {
    const range = other.tableName === route.tableName && isOverOurs(other) ? blockOf(other) : undefined;
    return range !== undefined && isWithin(block, range) && isWithin(range, to) && other.dst !== route.dst;
  });
}

function describe(route: RouteFact | OtherTableRoute, range: string): ForeignRoute {
  const table = "tableName" in route ? ` table ${route.tableName}` : "";
  const text = `${route.text ?? route.dst}${table}`;
  return { range, text, remedy: pasteable(`ip ${route.family === 6 ? "-6 " : ""}route del ${text}`) };
}
