import { type Family, familyRange, overlaps, parseRange, subnetOf, type ValueRange } from "../../addressing/ip";
import { OverlayError } from "../../errors";
import { findLostTunnels, isAdoptableRoute, unlistedOwners } from "../diff/ownership";
import { isOurRoute, toRouteItem } from "../kinds/route";
import type { Facts, OtherTableRoute, RouteFact, RoutingRuleFact } from "../model/facts";
import { type DesiredState, type Item, itemKey, type Route } from "../model/items";
import { quoteCommand } from "../render/shell";

/**
 * Routes of other programs that take packets of the overlay's range away from the overlay: in the main table those to a
 * part of the range, or to the whole range with a metric as good as ours; and any route to the range in a table that the
 * routing rules look up before main. They are named, and never removed.
 */
export interface ForeignRoute {
  kind: "route" | "routing rule";
  range: string;
  /** As `ip route` prints it. */
  text: string;
  remedy: string;
}

export function findForeignRoutes(
  desired: Pick<DesiredState, "items" | "adopt"> & Partial<Pick<DesiredState, "record">>,
  facts: Facts,
): ForeignRoute[] {
  const own = ownRouting(desired, facts);
  return desired.items.filter(isOverlayRoute).flatMap((item) => {
    const range = parseRange(item.dst);
    if (!range) return [];
    const main = facts.routes.filter((route) => takesOverlayPackets(route, item, range, desired, own));
    const early = tablesBeforeMain(item, range, own, facts);
    const others = facts.otherTableRoutes.filter((route) => early.has(route.tableName) && routeOverlaps(route, range));
    const found = [...main, ...others.filter((route) => !isRoutedIntoOverlay(route, range, own, facts))];
    const rules = rulesBeforeMain(item, range, own, facts).filter(({ action }) => action !== undefined);
    return [
      ...found.map((route) => describeRoute(route, item.dst)),
      ...rules.map((rule) => describeRule(rule, item.dst)),
    ];
  });
}

/** As drift. The caller puts the host's name before it. */
export const formatForeignRoute = ({ kind, range, text, remedy }: ForeignRoute): string =>
  `foreign ${kind} '${text}' takes packets of ${range} away from the overlay; it is never removed by us: remove it with \`${remedy}\``;

export function refuseForeignRoutes(desired: DesiredState, facts: Facts): void {
  const [first, ...more] = findForeignRoutes(desired, facts);
  if (!first) return;
  const others = more.length > 0 ? ` So do ${more.map(({ text }) => `'${text}'`).join(", ")}.` : "";
  throw new OverlayError(
    "ROUTE_OVERLAP",
    `The ${first.kind} '${first.text}' of another program would take packets of the overlay's range ${first.range}.${others} Nothing was changed.`,
    `Remove it (\`${first.remedy}\`), or choose another range for the network (subnets).`,
  );
}

/** Routes in other tables apply only to packets that a policy rule selects. */
export const isOverlayRoute = (item: Item): item is Route => item.kind === "route" && item.table === undefined;

/** Our devices on this host, their subnets, and destinations with the metric of our route there. */
interface OwnRouting {
  devices: Map<string, ValueRange[]>;
  metrics: Map<string, number>;
  /** Keys of our routes. Absent: records are lost, so that any with our protocol number can be ours. */
  routes?: Set<string>;
}

/** The metric that the kernel gives to a route without one, and to the route to a device's own subnet. */
const DEFAULT_METRIC: Record<Family, number> = { 4: 0, 6: 1024 };
const SUBNET_METRIC: Record<Family, number> = { 4: 0, 6: 256 };

export const effectiveMetric = ({ family, metric }: Pick<RouteFact, "family" | "metric">): number =>
  metric ?? DEFAULT_METRIC[family];

function ownRouting(
  { items, record }: Pick<DesiredState, "items"> & Partial<Pick<DesiredState, "record">>,
  facts: Facts,
): OwnRouting {
  const all = [...items, ...facts.records.flatMap((record) => record.items)];
  const names = all.flatMap((item) => (item.kind === "link" ? [item.name] : []));
  const lost = record ? findLostTunnels(record.network, names, facts) : [];
  const devices = new Map([...names, ...lost].map((name) => [name, [] as ValueRange[]]));
  const metrics = new Map<string, number>();
  for (const item of all) {
    if (isOverlayRoute(item)) metrics.set(item.dst, Math.min(metrics.get(item.dst) ?? Infinity, effectiveMetric(item)));
    if (item.kind !== "address") continue;
    const subnet = subnetOf(item.address);
    devices.get(item.dev)?.push(parseRange(subnet)!);
    metrics.set(subnet, SUBNET_METRIC[item.address.includes(":") ? 6 : 4]);
  }
  if (unlistedOwners([], facts).length > 0) return { devices, metrics };
  return { devices, metrics, routes: new Set(all.filter(isOverlayRoute).map(itemKey)) };
}

/** The protocol number alone is no proof: a route that no owner lists takes packets away like any other. */
const isListedRoute = (route: RouteFact, { routes }: OwnRouting): boolean =>
  isOurRoute(route) && (routes?.has(itemKey(toRouteItem(route))) ?? true);

const isWithin = (inner: ValueRange, outer: ValueRange): boolean =>
  outer.first <= inner.first && inner.last <= outer.last;

const routeRange = ({ dst, family }: Pick<RouteFact, "dst" | "family">): ValueRange | undefined =>
  dst === "default" ? familyRange(family) : parseRange(dst);

/** Ours takes precedence over wider routes, and over those to the same destination with a higher metric. */
function takesOverlayPackets(
  route: RouteFact,
  item: Route,
  range: ValueRange,
  desired: Pick<DesiredState, "adopt">,
  own: OwnRouting,
): boolean {
  const to = routeRange(route);
  if (route.table !== undefined || route.family !== item.family || isListedRoute(route, own)) return false;
  if (!to || !isWithin(to, range) || isOfOwnDevice(route, to, own)) return false;
  if (desired.adopt && route.protocol === "kernel") return false; // it belongs to a device that is to be adopted
  if (desired.adopt && route.dst === item.dst && isAdoptableRoute(item, route)) return false;
  const ours = own.metrics.get(route.dst);
  return ours === undefined || effectiveMetric(route) <= ours;
}

/** The kernel's own routes of our devices, and routes to workloads in the subnet of the device that they are behind. */
function isOfOwnDevice({ dev, protocol }: RouteFact, to: ValueRange, { devices }: OwnRouting): boolean {
  const subnets = dev === undefined ? undefined : devices.get(dev);
  return subnets !== undefined && (protocol === "kernel" || subnets.some((subnet) => isWithin(to, subnet)));
}

const tablesBeforeMain = (...given: Parameters<typeof rulesBeforeMain>): Set<string> =>
  new Set(
    rulesBeforeMain(...given)
      .map(({ table }) => table)
      .filter((table) => table !== "local" && table !== "main"),
  );

/** Routing rules of others that decide about packets of this range before the main table. */
function rulesBeforeMain(
  { family, dst }: Route,
  range: ValueRange,
  own: OwnRouting,
  { routingRules }: Facts,
): RoutingRuleFact[] {
  const concerns = (rule: RoutingRuleFact): boolean =>
    rule.family === family &&
    !rule.isSelective &&
    [rule.from, rule.to].every((text) => text === "all" || rangeOverlaps(text, range)) &&
    (rule.iif === undefined || own.devices.has(rule.iif));
  const prefix = Number(dst.split("/")[1]);
  const isMain = (rule: RoutingRuleFact): boolean =>
    rule.family === family &&
    rule.table === "main" &&
    !rule.isSelective &&
    rule.iif === undefined &&
    rule.from === "all" &&
    rule.to === "all" &&
    rule.suppressPrefixLength < prefix;
  const main = Math.min(...routingRules.filter(isMain).map(({ priority }) => priority));
  return routingRules.filter((rule) => rule.priority < main && concerns(rule));
}

const rangeOverlaps = (text: string, range: ValueRange): boolean => {
  const other = parseRange(text);
  return other !== undefined && overlaps(other, range);
};

const routeOverlaps = (route: RouteFact, range: ValueRange): boolean => {
  const to = routeRange(route);
  return to !== undefined && overlaps(to, range);
};

/** Whether it is over a device of ours, or a narrower route in the same table that covers the whole range is. */
function isRoutedIntoOverlay(
  route: OtherTableRoute,
  range: ValueRange,
  own: OwnRouting,
  { otherTableRoutes }: Facts,
): boolean {
  const isOverOurs = ({ dev }: RouteFact): boolean => dev !== undefined && own.devices.has(dev);
  if (isOverOurs(route)) return true;
  const to = routeRange(route)!;
  return otherTableRoutes.some((other) => {
    const inner = other.tableName === route.tableName && isOverOurs(other) ? routeRange(other) : undefined;
    return inner !== undefined && isWithin(range, inner) && isWithin(inner, to) && other.dst !== route.dst;
  });
}

function describeRule({ family, priority, from, to, iif, action }: RoutingRuleFact, range: string): ForeignRoute {
  const destination = to === "all" ? "" : ` to ${to}`;
  const text = `from ${from}${destination}${iif ? ` iif ${iif}` : ""} priority ${priority} ${action}`;
  return { kind: "routing rule", range, text, remedy: quoteCommand(`ip ${family === 6 ? "-6 " : ""}rule del ${text}`) };
}

function describeRoute(route: RouteFact | OtherTableRoute, range: string): ForeignRoute {
  const table = "tableName" in route ? ` table ${route.tableName}` : "";
  const { dst, protocol } = route;
  const text = `${route.text ?? `${dst} proto ${protocol}`}${table}`;
  return { kind: "route", range, text, remedy: quoteCommand(`ip ${route.family === 6 ? "-6 " : ""}route del ${text}`) };
}
