import { isOurs, routeOf } from "./compare";
import type { Facts } from "./facts";
import type { Address, Item, Link, Route } from "./items";
import type { RouteFact } from "./routing-facts";
import type { Step } from "./steps";

/** The steps that lead back to what `before` shows, last change first. What others changed meanwhile stays as it is. */
export const undoing = (steps: Step[], before: Facts): Step[] =>
  [...steps].reverse().flatMap((step) => undo(step, before));

function undo({ verb, item, instead = [], places }: Step, before: Facts): Step[] {
  switch (item.kind) {
    case "sysctl": {
      const value = before.sysctls.get(item.key);
      return value === undefined ? [] : [{ verb: "change", item: { ...item, value } }];
    }
    case "link":
      return undoLink(verb, item, before);
    case "address":
      return [
        ...instead.map((address) => put({ ...item, address })),
        before.addresses.has(`${item.address} ${item.dev}`) ? put(item) : { verb: "remove", item },
      ];
    case "route":
      return undoRoute(item, before);
    case "policy":
    case "chain":
    case "rule":
      return [{ verb: verb === "remove" ? "add" : "remove", item }];
    case "docker": // made anew in one step: it stays
    case "jump": // one that was only moved to the top stays there
      return verb === "change" ? [] : [{ verb: verb === "remove" ? "add" : "remove", item }];
    case "zone":
      return verb === "change" ? [] : [{ verb: verb === "remove" ? "add" : "remove", item, ...(places && { places }) }];
    case "file":
    case "service": // these are changed last, when nothing needs to be undone any more
      return [];
  }
}

const put = (item: Item): Step => ({ verb: "add", item });

/** With a device went its addresses, the routes over it, and its ports' membership. */
function undoLink(verb: Step["verb"], item: Link, before: Facts): Step[] {
  const was = linkBefore(item.name, before, item.type);
  if (verb === "add" || !was) return [{ verb: "remove", item }];
  if (verb === "change") return [{ verb: "change", item: was }];
  const ports = [...before.links].filter(([, { master }]) => master === item.name);
  const routes = before.routes.filter((route) => route.dev === item.name && isOurs(route));
  return [
    put(was),
    ...ports.map(([name]): Step => ({ verb: "change", item: linkBefore(name, before)! })),
    ...addressesOn(item.name, before).map(put),
    ...routes.map(routeItem).map(put),
  ];
}

function linkBefore(name: string, { links }: Facts, type?: Link["type"]): Link | undefined {
  const have = links.get(name);
  if (!have) return undefined;
  const { mac, mtu, master = "", vxlan } = have;
  return {
    kind: "link",
    name,
    type: type ?? (have.type as Link["type"]),
    mac,
    mtu,
    master,
    ...(vxlan && { vxlan }),
  };
}

const addressesOn = (dev: string, { addresses }: Facts): Address[] =>
  [...addresses]
    .map((text) => text.split(" ") as [string, string])
    .filter(([address, on]) => on === dev && !address.startsWith("fe80:")) // the kernel makes those itself
    .map(([address]) => ({ kind: "address", dev, address }));

function undoRoute(item: Route, before: Facts): Step[] {
  const was = routeOf(item, before);
  return was ? [{ verb: "change", item: routeItem(was) }] : [{ verb: "remove", item }];
}

const routeItem = ({ family, dst, via, dev, metric, table }: RouteFact): Route => ({
  kind: "route",
  family,
  dst,
  ...(via && { via }),
  ...(dev && { dev }),
  ...(metric !== undefined && { metric }),
  ...(table !== undefined && { table }),
});
