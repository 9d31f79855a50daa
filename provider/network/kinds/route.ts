import type { Family } from "../../addressing/ip";
import type { Facts, RouteFact } from "../model/facts";
import {
  isUnreachable,
  mismatch,
  oppositeStep,
  POLICY_PRIORITY,
  type PolicyRule,
  ROUTE_PROTOCOL,
  type Route,
} from "../model/items";
import type { ItemKind } from "./kind";

/** A route, marked with our protocol number. */
export const routeKind: ItemKind<Route> = {
  isUnique: false,
  toRecord: (item) => item,
  resets: { via: undefined, dev: undefined, src: undefined, metric: undefined, table: undefined }, // without one it is another route
  readFrom: { before: ["ip", "routing6"], after: ["changed", "ours6"] },
  readBack: ({ family, dev }) => ({ isIpv6: family === 6, ...(dev !== undefined && { devices: [dev] }) }),
  disappearsWith: ({ dev }) => dev,
  compare(item, facts) {
    const observed = findRoute(item, facts);
    if (!observed) return undefined;
    return isUnreachable(item)
      ? []
      : [
          ...(observed.via === item.via ? [] : mismatch("via", observed.via ?? "", item.via ?? "")),
          ...mismatch("dev", observed.dev, item.dev),
          ...mismatch("src", observed.src, item.src),
        ];
  },
  render({ verb, item, precedesKernel }, parts) {
    const command = verb === "remove" ? "del" : precedesKernel ? "prepend" : "replace";
    parts.ip.push(`route ${command} ${formatRoute(item)}`);
  },
  bootSteps: (item) => [{ verb: "add", item }],
  invert({ item }, before) {
    const former = findRoute(item, before);
    return former ? [{ verb: "change", item: toRouteItem(former) }] : [{ verb: "remove", item }];
  },
  removeFrom(facts, item) {
    const removed = findRoute(item, facts);
    facts.routes = facts.routes.filter((route) => route !== removed);
  },
  inspectCommands: [
    `ip route show table all proto ${ROUTE_PROTOCOL}`,
    `ip -6 route show table all proto ${ROUTE_PROTOCOL}`,
  ],
};

/** A policy rule of `ip rule`, with our protocol number and priority. */
export const policyKind: ItemKind<PolicyRule> = {
  isUnique: false,
  toRecord: (item) => item,
  resets: {},
  readFrom: { before: ["ip", "routing6"], after: ["changed", "ours6"] },
  readBack: ({ family }) => ({ isIpv6: family === 6 }),
  disappearsWith: () => undefined,
  compare: (item, facts) => (facts.policies.has(policyKey(item)) ? [] : undefined),
  render({ verb, item }, parts) {
    // In a batch `ip rule` takes every range for an IPv4 one.
    parts.shell.push(verb === "remove" ? `ip -${item.family} rule del ${formatPolicy(item)}` : renderAddPolicy(item));
  },
  bootSteps: (item) => [{ verb: "add", item }],
  invert: (step) => [oppositeStep(step)],
  removeFrom: ({ policies }, item) => void policies.delete(policyKey(item)),
  inspectCommands: [
    `ip rule show | grep 'proto ${ROUTE_PROTOCOL}'`,
    `ip -6 rule show | grep 'proto ${ROUTE_PROTOCOL}'`,
  ],
};

/** As in `Facts.policies`. */
const policyKey = ({ family, from, mark, table }: PolicyRule): string => `${family} ${from} ${mark} ${table}`;

export const isOurRoute = (route: { protocol: string }): boolean => route.protocol === String(ROUTE_PROTOCOL);

/** In IPv4 it would take the place of the kernel's own route to the subnet of a device, which comes back only with the address. */
export const precedesKernel = (item: Route, { routes }: Facts): boolean =>
  item.family === 4 &&
  !isUnreachable(item) &&
  routes.some(
    (r) => r.family === 4 && r.protocol === "kernel" && r.dst === item.dst && r.table === item.table && !r.metric,
  );

/** The observed route of this item. An unreachable route and another one to the same range can exist at once, with different metrics. */
const findRoute = (item: Route, { routes }: Facts): RouteFact | undefined =>
  routes.find(
    (r) =>
      isOurRoute(r) &&
      r.family === item.family &&
      r.dst === item.dst &&
      r.table === item.table &&
      r.unreachable === isUnreachable(item),
  );

/** The kernel refuses a second rule of the same form. `ip rule show` (6.1) ignores `protocol`, by which `ip rule del` selects. */
const renderAddPolicy = (item: PolicyRule): string =>
  `{ [ -n "$(ip -${item.family} rule show from ${item.from} fwmark ${item.mark} table ${item.table})" ] || ip -${item.family} rule add ${formatPolicy(item)}; }`;

const formatPolicy = ({ from, mark, table }: PolicyRule): string =>
  `from ${from} fwmark ${mark} lookup ${table} priority ${POLICY_PRIORITY} protocol ${ROUTE_PROTOCOL}`;

/** A line of a batch has no other mark of its family than its addresses. */
const formatDst = ({ family, dst, via }: Route): string => {
  if (dst !== "default") return dst;
  return family === 6 ? "::/0" : via?.includes(":") ? "0.0.0.0/0" : dst;
};

/** An IPv4 route can have a next hop of IPv6 (Linux 5.2). */
const formatVia = (via: string, family: Family): string[] =>
  family === 4 && via.includes(":") ? ["via", "inet6", via] : ["via", via];

const formatRoute = (route: Route): string => {
  const { family, via, dev, src, metric, table } = route;
  const dst = formatDst(route);
  return [
    ...(dev ? [dst, ...(via ? formatVia(via, family) : []), "dev", dev] : ["unreachable", dst]),
    ...(src ? ["src", src] : []),
    "proto",
    ROUTE_PROTOCOL,
    ...(metric === undefined ? [] : ["metric", metric]),
    ...(table === undefined ? [] : ["table", table]),
  ].join(" ");
};

export const toRouteItem = ({ family, dst, via, dev, src, metric, table, unreachable }: RouteFact): Route => ({
  kind: "route",
  family,
  dst,
  ...(via && { via }),
  ...(dev && !unreachable && { dev }),
  ...(src && { src }),
  ...(metric !== undefined && { metric }),
  ...(table !== undefined && { table }),
});
