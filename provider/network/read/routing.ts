import { z } from "zod";
import { type Family, widthOf } from "../../addressing/ip";
import type { Facts, RouteFact, RoutingRule } from "../model/facts";
import { listOf, parseAnswer } from "../model/host-json";
import { ROUTE_PROTOCOL } from "../model/items";

/** In all tables. Without the protocol, since that is what was asked for. */
const OURS = `route show table all proto ${ROUTE_PROTOCOL}`;
export const OUR_ROUTES4 = `${OURS} root 0/0`;
export const OUR_ROUTES6 = OURS;

/** The kernel filters by type: what the local table has (types local, broadcast, anycast) is never sent. */
const ofType = (type: string, range = ""): string => `route show table all type ${type}${range && ` root ${range}`}`;
const REJECTING = ["blackhole", "unreachable", "prohibit"];

/** The order in which `readRouting` expects the answers. */
export const ROUTING4 = [
  ofType("unicast", "0/0"),
  OUR_ROUTES4,
  "rule show",
  ...REJECTING.map((type) => ofType(type, "0/0")),
];
/** Not the routes to link-local addresses, of which each device has one, nor to where no layout can be (`layout.ts`). */
export const ROUTING6 = [
  ofType("unicast", "::/1"),
  OUR_ROUTES6,
  "rule show",
  ofType("unicast", "fc00::/7"),
  "route show default",
  ...REJECTING.map((type) => ofType(type)),
];

const rawNexthop = z.object({
  gateway: z.string().optional(),
  via: z.object({ family: z.string(), host: z.string() }).optional(),
  dev: z.string().optional(),
});

const rawRoute = rawNexthop.extend({
  type: z.string().optional(),
  dst: z.string(),
  metric: z.number().optional(),
  /** `ip` leaves `boot` out unless it is asked for details. */
  protocol: z.string().default("boot"),
  table: z.string().optional(),
  scope: z.string().optional(),
  prefsrc: z.string().optional(),
  pref: z.string().optional(),
  nexthops: listOf(rawNexthop.extend({ weight: z.number().optional() })).optional(),
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
  suppress_prefixlen: z.number().optional(),
});
type RawRule = z.output<typeof rawRule>;

/** A line for each question; none where there is no such family. */
const answers = (body: string): string[] => body.split("\n").filter(Boolean);

const routesIn = (answer = "[]"): RawRoute[] => parseAnswer(listOf(rawRoute), answer);
const rulesIn = (answer = "[]"): RawRule[] => parseAnswer(listOf(rawRule), answer);

export function readRouting(facts: Facts, family: Family, body: string): void {
  const [unicast, ours, rules, ...more] = answers(body);
  const all = [unicast, ...more].flatMap((answer) => routesIn(answer));
  const main = all.filter((raw) => !isElsewhere(raw));
  const ourOthers = routesIn(ours).filter(isElsewhere).map(ourRoute(family));
  facts.routes = facts.routes.concat(
    main.map((raw) => routeFact(family, raw)),
    ourOthers,
  );
  const others = all.filter((raw) => isElsewhere(raw) && raw.protocol !== String(ROUTE_PROTOCOL));
  facts.otherTables = facts.otherTables.concat(
    others.map((raw) => ({ ...routeFact(family, raw), tableName: raw.table! })),
  );
  readRules(facts, family, rulesIn(rules));
}

/** Only our own routes, and the rules. */
export function readOurRouting(facts: Facts, family: Family, body: string): void {
  const [ours, rules] = answers(body);
  facts.routes = facts.routes.concat(routesIn(ours).map(ourRoute(family)));
  readRules(facts, family, rulesIn(rules));
}

/** From a list that was asked for by protocol, which does not repeat the protocol. */
const ourRoute =
  (family: Family) =>
  (raw: RawRoute): RouteFact => ({
    ...routeFact(family, { ...raw, protocol: String(ROUTE_PROTOCOL) }),
    ...(isElsewhere(raw) && { table: Number(raw.table) }),
  });

/** Not in the main table, which has a name only where details are asked for. */
const isElsewhere = ({ table }: RawRoute): boolean => table !== undefined && table !== "main";

const routeFact = (family: Family, raw: RawRoute): RouteFact => ({
  family,
  dst: raw.dst,
  ...(raw.gateway && { via: raw.gateway }),
  ...(raw.dev && { dev: raw.dev }),
  ...(raw.metric !== undefined && { metric: raw.metric }),
  protocol: raw.protocol,
  unreachable: raw.type === "unreachable",
  ...(raw.protocol !== String(ROUTE_PROTOCOL) && { text: routeText(raw) }),
});

function routeText(raw: RawRoute): string {
  const words: (string | number | undefined | false)[][] = [
    [raw.type !== "unicast" && raw.type, raw.dst, ...hopWords(raw)],
    raw.protocol === "boot" ? [] : ["proto", raw.protocol],
    raw.scope === undefined || raw.scope === "global" ? [] : ["scope", raw.scope],
    raw.prefsrc ? ["src", raw.prefsrc] : [],
    raw.metric === undefined ? [] : ["metric", raw.metric],
    (raw.nexthops ?? []).flatMap((hop) => ["nexthop", ...hopWords(hop), "weight", hop.weight ?? 1]),
    raw.pref ? ["pref", raw.pref] : [],
  ];
  return words.flat().filter(Boolean).join(" ");
}

const hopWords = ({ gateway, via, dev }: z.output<typeof rawNexthop>): string[] => [
  ...(gateway ? ["via", gateway] : []),
  ...(via ? ["via", via.family, via.host] : []),
  ...(dev ? ["dev", dev] : []),
];

function readRules(facts: Facts, family: Family, all: RawRule[]): void {
  for (const { src, srclen = widthOf(family), fwmark, fwmask = "0xffffffff", table } of all) {
    if (fwmark && table) facts.policies.add(`${family} ${src}/${srclen} ${fwmark}/${fwmask} ${table}`);
  }
  facts.rules = facts.rules.concat(
    all.flatMap((raw) => (raw.table === undefined ? [] : [ruleFact(family, raw, raw.table)])),
  );
}

const UNSELECTIVE = ["priority", "src", "srclen", "dst", "dstlen", "iif", "table", "protocol", "suppress_prefixlen"];

/** `not` with a mark means nearly all packets; `not` with anything else is taken for all of them. */
function ruleFact(family: Family, raw: RawRule, table: string): RoutingRule {
  const isInverted = "not" in raw;
  const rangeText = (address = "all", length: number = widthOf(family)): string =>
    address === "all" || isInverted ? "all" : `${address}/${length}`;
  return {
    family,
    priority: raw.priority,
    table,
    from: rangeText(raw.src, raw.srclen),
    to: rangeText(raw.dst, raw.dstlen),
    ...(raw.iif && !isInverted && { iif: raw.iif }),
    isSelective: !isInverted && Object.keys(raw).some((key) => !UNSELECTIVE.includes(key)),
    suppressed: raw.suppress_prefixlen ?? -1,
  };
}
