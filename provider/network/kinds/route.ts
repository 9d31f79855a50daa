import type { Facts, RouteFact } from "../model/facts";
import { POLICY_PRIORITY, type PolicyRule, ROUTE_PROTOCOL, type Route } from "../model/items";
import type { Step } from "../model/steps";
import { mismatch } from "./kind";

export const isOurRoute = (route: { protocol: string }): boolean => route.protocol === String(ROUTE_PROTOCOL);

/** Unreachable routes and real ones to the same range live side by side, told apart by their metric. */
export const findRoute = (item: Route, { routes }: Facts): RouteFact | undefined =>
  routes.find(
    (r) =>
      isOurRoute(r) &&
      r.family === item.family &&
      r.dst === item.dst &&
      r.table === item.table &&
      r.unreachable === !item.via,
  );

export function compareRoute(item: Route, facts: Facts): string[] | undefined {
  const observed = findRoute(item, facts);
  if (!observed) return undefined;
  return [...mismatch("via", observed.via, item.via), ...(item.via ? mismatch("dev", observed.dev, item.dev) : [])];
}

/** A second one of the same kind would be refused. */
export const renderAddPolicy = (item: PolicyRule): string =>
  `{ [ -n "$(ip -${item.family} rule show from ${item.from} fwmark ${item.mark} table ${item.table})" ] || ip -${item.family} rule add ${formatPolicy(item)}; }`;

export const formatPolicy = ({ from, mark, table }: PolicyRule): string =>
  `from ${from} fwmark ${mark} lookup ${table} priority ${POLICY_PRIORITY} protocol ${ROUTE_PROTOCOL}`;

export const formatRoute = ({ dst, via, dev, metric, table }: Route): string =>
  [
    ...(via ? [dst, "via", via, "dev", dev] : ["unreachable", dst]),
    "proto",
    ROUTE_PROTOCOL,
    ...(metric === undefined ? [] : ["metric", metric]),
    ...(table === undefined ? [] : ["table", table]),
  ].join(" ");

export function invertRoute(item: Route, before: Facts): Step[] {
  const was = findRoute(item, before);
  return was ? [{ verb: "change", item: toRouteItem(was) }] : [{ verb: "remove", item }];
}

export const toRouteItem = ({ family, dst, via, dev, metric, table }: RouteFact): Route => ({
  kind: "route",
  family,
  dst,
  ...(via && { via }),
  ...(dev && { dev }),
  ...(metric !== undefined && { metric }),
  ...(table !== undefined && { table }),
});
