import { z } from "zod";
import { addressBits, type Family } from "../../addressing/ip";
import { OverlayError } from "../../errors";
import type { Facts, LinkFact, RouteFact, RoutingRuleFact } from "../model/facts";
import { ROUTE_PROTOCOL } from "../model/items";
import { boundedArray, parseHostJson } from "../model/record";

/** What `ip` prints about a host: devices and their addresses, routes, and routing rules. Hosts are not trusted. */

const IF_V6 = "[ ! -e /proc/sys/net/ipv6 ] ||";

/** Several commands in one `ip` process, which prints a line for each: starting the process is the most expensive part. */
export const ipBatch = (options: string, commands: string[], otherwise: string): string =>
  `ip -j ${options} -batch - <<'END' ${otherwise}\n${commands.join("\n")}\nEND`;

/** In all tables. The output omits the protocol, because the command selects by it. */
const OURS = `route show table all proto ${ROUTE_PROTOCOL}`;
export const OUR_ROUTES4 = `${OURS} root 0/0`;
export const OUR_ROUTES6 = OURS;

/** The kernel filters by type: what the local table has (types local, broadcast, anycast) is never sent. */
const routesOfType = (type: string, range = ""): string =>
  `route show table all type ${type}${range && ` root ${range}`}`;
const REJECTING = ["blackhole", "unreachable", "prohibit"] as const;

/** The order in which `readRouting` expects the answers. */
const ROUTING4 = [
  routesOfType("unicast", "0/0"),
  OUR_ROUTES4,
  "rule show",
  ...REJECTING.map((type) => routesOfType(type, "0/0")),
];
/** Not the routes to link-local addresses, of which each device has one, nor to where no layout can be (`layout.ts`). */
export const ROUTING6 = [
  routesOfType("unicast", "::/1"),
  OUR_ROUTES6,
  "rule show",
  routesOfType("unicast", "fc00::/7"),
  "route show default",
  ...REJECTING.map((type) => routesOfType(type)),
];

/** Devices with their addresses, and IPv4 routes in the same process, which has the names of the devices already. */
export const LINKS_AND_ROUTING = `echo '@@ ip'; ${ipBatch("-d", ["addr show", ...ROUTING4], "|| exit 1")}`;

/** None on a host without IPv6. */
export const ipv6Part = (part: string, commands: string[]): string =>
  `echo; echo '@@ ${part}6'; answers=$(${IF_V6} ${ipBatch("-6", commands, "")}\n) || exit 1; echo "$answers"`;

/** A line for each command; none if the host does not have the family. */
const answerLines = (body: string): string[] => body.split("\n").filter(Boolean);

/** Only what can be an address, a name or a number. */
const hexText = z.string().regex(/^[0-9a-fA-F.:]{0,80}$/);
const rawLink = z.object({
  ifname: z.string(),
  address: hexText.optional(),
  mtu: z.int().min(0),
  flags: boundedArray(z.string()),
  master: z.string().optional(),
  linkinfo: z
    .object({
      info_kind: z
        .string()
        .regex(/^[\w-]{0,32}$/)
        .optional(),
      info_data: z
        .object({
          id: z.int().optional(),
          port: z.int().optional(),
          remote: hexText.optional(),
          remote6: hexText.optional(),
          group: hexText.optional(),
          group6: hexText.optional(),
          local: hexText.optional(),
          local6: hexText.optional(),
          learning: z.boolean().optional(),
        })
        .catch({})
        .optional(),
      info_slave_kind: z.string().optional(),
      info_slave_data: z.record(z.string(), z.unknown()).catch({}).optional(),
    })
    .optional(),
  addr_info: boundedArray(
    z.object({ local: hexText.optional(), prefixlen: z.int().min(0).max(128).optional() }),
  ).optional(),
});
type RawLink = z.output<typeof rawLink>;

function toLinkFact(raw: RawLink): LinkFact {
  const data = raw.linkinfo?.info_data ?? {};
  const type = raw.linkinfo?.info_kind ?? "";
  return {
    type,
    mac: raw.address ?? "",
    mtu: raw.mtu,
    up: raw.flags.includes("UP"),
    ...(raw.master && { master: raw.master }),
    ...(raw.flags.includes("NOARP") && { isWithoutArp: true }),
    ...(raw.linkinfo?.info_slave_kind === "bridge" && readPort(raw.flags, raw.linkinfo.info_slave_data ?? {})),
    ...(type === "vxlan" && {
      vxlan: {
        vni: Number(data.id),
        port: Number(data.port),
        remote: String(data.remote ?? data.remote6 ?? data.group ?? data.group6 ?? ""),
        local: String(data.local ?? data.local6 ?? ""),
        learning: data.learning === true,
      },
    }),
  };
}

/** With these a port passes all frames; older kernels have fewer. */
const OPEN_PORT: [setting: string, value: unknown, text: string][] = [
  ["state", "forwarding", "state 3"],
  ["isolated", false, "isolated off"],
  ["learning", true, "learning on"],
  ["flood", true, "flood on"],
  ["mcast_flood", true, "mcast_flood on"],
  ["bcast_flood", true, "bcast_flood on"],
  ["locked", false, "locked off"],
];

/** A device that is down is a disabled port. */
function readPort(flags: string[], data: Record<string, unknown>): Pick<LinkFact, "portFaults"> {
  const faults = flags.includes("UP") ? OPEN_PORT.filter(([key, value]) => key in data && data[key] !== value) : [];
  return faults.length > 0 ? { portFaults: faults.map(([, , text]) => text) } : {};
}

/** A list of devices in each line. */
export function readLinks(facts: Facts, body: string): void {
  for (const answer of answerLines(body))
    for (const link of parseHostJson(boundedArray(rawLink), answer)) readLink(facts, link);
}

/** The kernel allows nearly any name. A device whose name cannot be in a command is not ours, and is ignored. */
function readLink(facts: Facts, link: RawLink): void {
  if (!isDeviceText(link.ifname) || (link.master !== undefined && !isDeviceText(link.master))) return;
  facts.links.set(link.ifname, toLinkFact(link));
  for (const { local, prefixlen } of link.addr_info ?? [])
    if (local !== undefined) facts.addresses.add(`${local}/${prefixlen} ${link.ifname}`);
}

/** Entries that lead to another host: of those that a bridge or another device has, none names a destination. */
export const FDB_SCRIPT = "echo '@@ fdb'; bridge fdb show | grep -E ' (dst|nhid) '";

/** For one device `bridge` does not print its name. */
export const fdbScript = (devices: string[]): string =>
  `echo '@@ fdb'; for d in ${devices.join(" ")}; do bridge fdb show dev $d 2>/dev/null | sed "s/ / dev $d /"; done | grep -E ' (dst|nhid) '`;

export function readFdb(facts: Facts, body: string): void {
  for (const link of facts.links.values()) if (link.vxlan) link.fdb = [];
  const isLearned = (dev: string, words: string): boolean =>
    facts.links.get(dev)?.vxlan?.learning === true && !/ (permanent|static)\b/.test(words);
  for (const [, mac, dev, words] of body.matchAll(/^([0-9a-f:]{17}) dev (\S+) (.*)$/gm)) {
    if (isLearned(dev!, words!)) continue;
    const [destination = ""] = /\b(dst|nhid) [0-9a-fA-F.:]+( (port|vni|src_vni|via) \S+)*/.exec(words!) ?? [];
    facts.links.get(dev!)?.fdb?.push({ mac: mac!, destination });
  }
}

const isDeviceText = (name: string): boolean => /^[A-Za-z0-9_.:@-]{1,15}$/.test(name);

const rawNexthop = z.object({
  gateway: z.string().optional(),
  via: z.object({ family: z.string(), host: z.string() }).optional(),
  dev: z.string().optional(),
});

const rawRoute = rawNexthop.extend({
  type: z.string().optional(),
  dst: z.string(),
  metric: z.number().optional(),
  /** `ip` omits `boot` without -d. */
  protocol: z.string().default("boot"),
  table: z.string().optional(),
  scope: z.string().optional(),
  prefsrc: z.string().optional(),
  pref: z.string().optional(),
  nexthops: boundedArray(rawNexthop.extend({ weight: z.number().optional() })).optional(),
});
type RawRoute = z.output<typeof rawRoute>;

const rawRule = z.looseObject({
  priority: z.number().default(0),
  src: z.string(),
  srclen: z.number().optional(),
  dst: z.string().optional(),
  dstlen: z.number().optional(),
  iif: z.string().optional(),
  fwmark: z.string().optional(),
  fwmask: z.string().optional(),
  table: z.string().optional(),
  /** Omitted for the kernel's own rules. */
  protocol: z.string().optional(),
  suppress_prefixlen: z.number().optional(),
  action: z.string().optional(),
});
type RawRule = z.output<typeof rawRule>;

const parseRoutes = (answer = "[]"): RawRoute[] => parseHostJson(boundedArray(rawRoute), answer);
const parseRules = (answer = "[]"): RawRule[] => parseHostJson(boundedArray(rawRule), answer);

/** The answers to `ROUTING4` or `ROUTING6`. */
export function readRouting(facts: Facts, family: Family, body: string): void {
  const [unicast, ours, rules, ...more] = answerLines(body);
  const all = [unicast, ...more].flatMap((answer) => parseRoutes(answer));
  const main = all.filter((raw) => !isOutsideMain(raw));
  const ourOthers = parseRoutes(ours).filter(isOutsideMain).map(toOurRoute(family));
  facts.routes = facts.routes.concat(
    main.map((raw) => toRouteFact(family, raw)),
    ourOthers,
  );
  const others = all.filter((raw) => isOutsideMain(raw) && !isOurs(raw));
  facts.otherTableRoutes = facts.otherTableRoutes.concat(
    others.map((raw) => ({ ...toRouteFact(family, raw), tableName: raw.table! })),
  );
  readRoutingRules(facts, family, parseRules(rules));
}

/** Only our own routes, and the rules. */
export function readOurRouting(facts: Facts, family: Family, body: string): void {
  const [ours, rules] = answerLines(body);
  facts.routes = facts.routes.concat(parseRoutes(ours).map(toOurRoute(family)));
  readRoutingRules(facts, family, parseRules(rules));
}

/** From a list that was selected by protocol, which omits the protocol. */
const toOurRoute =
  (family: Family) =>
  (raw: RawRoute): RouteFact => ({
    ...toRouteFact(family, { ...raw, protocol: String(ROUTE_PROTOCOL) }),
    ...(isOutsideMain(raw) && { table: parseTable(raw.table!) }),
  });

const isOurs = ({ protocol }: { protocol?: string | undefined }): boolean => protocol === String(ROUTE_PROTOCOL);

/** `ip` prints the name of a table if the host gives it one, and not its number: our objects in it would seem missing. */
function parseTable(table: string): number {
  if (/^\d+$/.test(table)) return Number(table);
  throw new OverlayError(
    "HOST_COMMAND_FAILED",
    `a routing table of ours has the name ${JSON.stringify(table.slice(0, 100))} there, so that it cannot be recognized.`,
    "Remove that name from /etc/iproute2/rt_tables or rt_tables.d on that host, and try again.",
  );
}

/** Not in the main table, which is named only with -d. */
const isOutsideMain = ({ table }: RawRoute): boolean => table !== undefined && table !== "main";

const toRouteFact = (family: Family, raw: RawRoute): RouteFact => ({
  family,
  dst: withPrefix(raw.dst, family),
  ...((raw.gateway || raw.via) && { via: raw.gateway ?? raw.via!.host }),
  ...(raw.dev && { dev: raw.dev }),
  ...(raw.prefsrc && { src: raw.prefsrc }),
  ...(raw.nexthops && { nexthopDevices: raw.nexthops.flatMap(({ dev }) => dev ?? []) }),
  ...(raw.metric !== undefined && { metric: raw.metric }),
  protocol: raw.protocol,
  unreachable: raw.type === "unreachable",
  ...(!isOurs(raw) && { text: formatObservedRoute(raw) }),
});

/** `ip` omits the prefix of a single address. */
const withPrefix = (dst: string, family: Family): string =>
  dst === "default" || dst.includes("/") ? dst : `${dst}/${addressBits(family)}`;

function formatObservedRoute(raw: RawRoute): string {
  const words: (string | number | undefined | false)[][] = [
    [raw.type !== "unicast" && raw.type, raw.dst, ...formatHop(raw)],
    raw.protocol === "boot" ? [] : ["proto", raw.protocol],
    raw.scope === undefined || raw.scope === "global" ? [] : ["scope", raw.scope],
    raw.prefsrc ? ["src", raw.prefsrc] : [],
    raw.metric === undefined ? [] : ["metric", raw.metric],
    (raw.nexthops ?? []).flatMap((hop) => ["nexthop", ...formatHop(hop), "weight", hop.weight ?? 1]),
    raw.pref ? ["pref", raw.pref] : [],
  ];
  return words.flat().filter(Boolean).join(" ");
}

const formatHop = ({ gateway, via, dev }: z.output<typeof rawNexthop>): string[] => [
  ...(gateway ? ["via", gateway] : []),
  ...(via ? ["via", via.family, via.host] : []),
  ...(dev ? ["dev", dev] : []),
];

function readRoutingRules(facts: Facts, family: Family, all: RawRule[]): void {
  for (const raw of all) {
    const { src, srclen = addressBits(family), fwmark, fwmask = "0xffffffff", table } = raw;
    const action = REJECTING.find((each) => each === raw.action);
    if (action) facts.routingRules.push({ ...toRuleFact(family, raw, ""), action });
    if (table === undefined) continue;
    const shown = isOurs(raw) ? parseTable(table) : table;
    if (fwmark) facts.policies.add(`${family} ${src}/${srclen} ${fwmark}/${fwmask} ${shown}`);
    if (!isOurs(raw)) facts.routingRules.push(toRuleFact(family, raw, table));
  }
}

const UNSELECTIVE_KEYS = [
  "priority",
  "src",
  "srclen",
  "dst",
  "dstlen",
  "iif",
  "table",
  "protocol",
  "suppress_prefixlen",
  "action",
];

/** `not` with a mark means nearly all packets; `not` with anything else is taken for all of them. */
function toRuleFact(family: Family, raw: RawRule, table: string): RoutingRuleFact {
  const isInverted = "not" in raw;
  const rangeText = (address = "all", length: number = addressBits(family)): string =>
    address === "all" || isInverted ? "all" : `${address}/${length}`;
  return {
    family,
    priority: raw.priority,
    table,
    from: rangeText(raw.src, raw.srclen),
    to: rangeText(raw.dst, raw.dstlen),
    ...(raw.iif && !isInverted && { iif: raw.iif }),
    isSelective: !isInverted && Object.keys(raw).some((key) => !UNSELECTIVE_KEYS.includes(key)),
    suppressPrefixLength: raw.suppress_prefixlen ?? -1,
  };
}
