import { createHash } from "node:crypto";
import { isOurNetwork, wrongNetwork } from "./docker";
import type { Facts } from "./facts";
import { type Address, type Item, keyOf, type Link, lists, ROUTE_PROTOCOL, type Route, type Service } from "./items";
import { unitPath } from "./paths";
import { isBehindStop, placeOf, rulesOf } from "./place";
import type { RouteFact } from "./routing-facts";
import { isForUs, wrongEntry } from "./zones";

/** How the machine differs from one item: `missing`, or what is wrong, as `what is HAVE, should be WANT`. */
export interface Difference {
  item: Item;
  missing: boolean;
  wrong: string[];
}

export const differenceText = ({ item, missing, wrong }: Difference): string =>
  `${keyOf(item)}: ${missing ? "missing" : wrong.join(", ")}`;

export const differences = (want: Item[], facts: Facts): Difference[] =>
  want.flatMap((item): Difference[] => {
    if (!fits(item, facts)) return [];
    const wrong = wrongWith(item, facts);
    if (wrong === undefined) return [{ item, missing: true, wrong: [] }];
    return wrong.length > 0 ? [{ item, missing: false, wrong }] : [];
  });

/**
 * Whether an item concerns this machine. Docker's network does where dockerd runs, or must run; one that is on record still
 * does while dockerd is down. A zone does where firewalld is.
 */
export function fits(item: Item, facts: Facts): boolean {
  const { docker, records } = facts;
  if (item.kind === "zone") return isForUs(item, facts);
  if (item.kind !== "docker" || item.required || docker?.answers) return true;
  return docker !== undefined && records.some((record) => lists(record, item));
}

/** Whether it stands, and is the one that we made, as far as that can be told from a machine. */
export function isPresent(item: Item, facts: Facts): boolean {
  if (item.kind === "docker") return isOurNetwork(item, facts.docker);
  return wrongWith(item, facts) !== undefined;
}

/** undefined: the object is not there at all. */
function wrongWith(item: Item, facts: Facts): string[] | undefined {
  switch (item.kind) {
    case "sysctl": {
      const have = facts.sysctls.get(item.key);
      return have === undefined ? undefined : mismatch("value", have, item.value);
    }
    case "link":
      return wrongLink(item, facts);
    case "address":
      return wrongAddress(item, facts);
    case "route":
      return wrongRoute(item, facts);
    case "policy":
      return facts.policies.has(`${item.family} ${item.from} ${item.mark} ${item.table}`) ? [] : undefined;
    case "docker":
      return wrongNetwork(item, facts.docker);
    case "zone":
      return wrongEntry(item, facts);
    case "chain":
      return facts.chains.has(`${item.family} ${item.table} ${item.chain}`) ? [] : undefined;
    case "jump": {
      const place = placeOf(item, facts);
      if (place === 0) return undefined;
      if (place < 0) return ["position is before DOCKER-USER, should be after it"];
      return [...mismatch("position", place, 1), ...mismatch("number of copies", copiesOf(item, facts), 1)];
    }
    case "file":
      return wrongFile(item.path, item.content, facts);
    case "service":
      return wrongService(item, facts);
    case "rule":
      if (copiesOf(item, facts) === 0) return undefined;
      return isBehindStop(item, facts) ? ["it comes after a rule that drops"] : [];
  }
}

function wrongFile(path: string, content: string | undefined, { files }: Facts): string[] | undefined {
  const have = files.get(path);
  if (have === undefined) return undefined;
  return content === undefined || have === sumOf(content) ? [] : ["its content is not the planned one"];
}

export const sumOf = (content: string): string => createHash("sha256").update(content).digest("hex");

/** While we talk with the host its units may wait for the lock. */
function wrongService({ name, unit, stays }: Service, facts: Facts): string[] | undefined {
  const wrong = wrongFile(unitPath(name), unit, facts);
  const have = facts.systemd?.get(name);
  if (!wrong || !have || unit === undefined) return wrong;
  const well = stays ? ["active", "activating", "reloading"] : ["inactive", "activating"];
  return [
    ...wrong,
    ...mismatch("start at boot", have.boot || "disabled", "enabled"),
    ...(well.includes(have.state) ? [] : mismatch("state", have.state, well[0])),
  ];
}

/** With another prefix the kernel would add a route to a whole range, and take it for its own network. */
function wrongAddress(item: Address, facts: Facts): string[] | undefined {
  const stands = facts.addresses.has(`${item.address} ${item.dev}`);
  const others = otherPrefixes(item, facts);
  if (others.length === 0) return stands ? [] : undefined;
  return [`${item.dev} has it ${stands ? "also" : "only"} as ${others.join(" and ")}`];
}

/** The same address with other prefixes on the same device. */
export function otherPrefixes(item: Item, facts: Facts): string[] {
  if (item.kind !== "address") return [];
  const start = item.address.slice(0, item.address.indexOf("/") + 1);
  const end = ` ${item.dev}`;
  return [...facts.addresses]
    .filter((text) => text.startsWith(start) && text.endsWith(end))
    .map((text) => text.slice(0, -end.length))
    .filter((address) => address !== item.address);
}

/** A rule or jump can stand several times, and is removed as often. */
export function copiesOf(item: Item, facts: Facts): number {
  if (item.kind === "rule") return rulesOf(facts, item, item.chain).filter((rule) => rule === item.rule).length;
  if (item.kind !== "jump") return 1;
  return rulesOf(facts, item, item.from).filter((rule) => rule === `-j ${item.chain}`).length;
}

function mismatch(what: string, have: unknown, want: unknown): string[] {
  return want === undefined || have === want ? [] : [`${what} is ${have ?? "none"}, should be ${want}`];
}

/** An anchor is a dummy, or a bridge where the kernel has no dummy. */
export const isOfType = (type: Link["type"], have: string): boolean =>
  type === "anchor" ? have === "dummy" || have === "bridge" : have === type;

/**
 * Whether the device of this name is the one that we made: a name alone is not enough, since records outlive a reboot and
 * devices do not. Its MAC is ours, or it is the very tunnel.
 */
export function isOurLink(item: Link, facts: Facts): boolean {
  const have = facts.links.get(item.name);
  if (!have || !isOfType(item.type, have.type)) return false;
  const sameTunnel =
    item.vxlan !== undefined && have.vxlan?.vni === item.vxlan.vni && have.vxlan.port === item.vxlan.port;
  return have.mac === item.mac || sameTunnel || isMadeByDocker(item, facts);
}

/** A dockerd that starts before us makes the bridge of our network itself. */
const isMadeByDocker = ({ name }: Link, { docker, records }: Facts): boolean =>
  records.some(({ items }) =>
    items.some((item) => item.kind === "docker" && item.bridge === name && isOurNetwork(item, docker)),
  );

function wrongLink(item: Link, facts: Facts): string[] | undefined {
  const have = facts.links.get(item.name);
  if (!have) return undefined;
  if (!isOfType(item.type, have.type))
    return [`type is ${have.type || "physical"}, should be ${item.type === "anchor" ? "dummy" : item.type}`];
  return [
    ...mismatch("VNI", have.vxlan?.vni, item.vxlan?.vni),
    ...mismatch("port", have.vxlan?.port, item.vxlan?.port),
    ...mismatch("remote", have.vxlan?.remote, item.vxlan?.remote),
    ...mismatch("local", have.vxlan?.local, item.vxlan?.local),
    ...mismatch("learning", have.vxlan?.learning ?? false, false),
    ...mismatch("MTU", have.mtu, item.mtu),
    ...mismatch("MAC", have.mac, item.mac),
    ...mismatch("master", have.master, item.master),
    ...mismatch("state", have.up ? "up" : "down", "up"),
  ];
}

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

function wrongRoute(item: Route, facts: Facts): string[] | undefined {
  const have = routeOf(item, facts);
  if (!have) return undefined;
  return [...mismatch("via", have.via, item.via), ...(item.via ? mismatch("dev", have.dev, item.dev) : [])];
}
