import type { Facts, RouteFact } from "../model/facts";
import { POLICY_PRIORITY, type Policy, ROUTE_PROTOCOL, type Route } from "../model/items";
import type { Step } from "../model/steps";
import { mismatch } from "./kind";

export const isOurs = (route: { protocol: string }): boolean => route.protocol === String(ROUTE_PROTOCOL);

/** Unreachable routes and real ones to the same range live side by side, told apart by their metric. */
export const routeOf = (item: Route, { routes }: Facts): RouteFact | undefined =>
  routes.find(
    (r) =>
      isOurs(r) &&
      r.family === item.family &&
      r.dst === item.dst &&
      r.table === item.table &&
      r.unreachable === !item.via,
  );

export function wrongRoute(item: Route, facts: Facts): string[] | undefined {
  const have = routeOf(item, facts);
  if (!have) return undefined;
  return [...mismatch("via", have.via, item.via), ...(item.via ? mismatch("dev", have.dev, item.dev) : [])];
}

/** A second one of the same kind would be refused. */
export const addPolicy = (item: Policy): string =>
  `{ [ -n "$(ip -${item.family} rule show from ${item.from} fwmark ${item.mark} table ${item.table})" ] || ip -${item.family} rule add ${policyText(item)}; }`;

export const policyText = ({ from, mark, table }: Policy): string =>
  `from ${from} fwmark ${mark} lookup ${table} priority ${POLICY_PRIORITY} protocol ${ROUTE_PROTOCOL}`;

export const routeText = ({ dst, via, dev, metric, table }: Route): string =>
  [
    ...(via ? [dst, "via", via, "dev", dev] : ["unreachable", dst]),
    "proto",
    ROUTE_PROTOCOL,
    ...(metric === undefined ? [] : ["metric", metric]),
    ...(table === undefined ? [] : ["table", table]),
  ].join(" ");

export function undoRoute(item: Route, before: Facts): Step[] {
  const was = routeOf(item, before);
  return was ? [{ verb: "change", item: routeItem(was) }] : [{ verb: "remove", item }];
}

export const routeItem = ({ family, dst, via, dev, metric, table }: RouteFact): Route => ({
  kind: "route",
  family,
  dst,
  ...(via && { via }),
  ...(dev && { dev }),
  ...(metric !== undefined && { metric }),
  ...(table !== undefined && { table }),
});
