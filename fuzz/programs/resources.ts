import { isDeepStrictEqual } from "node:util";
import { formatIp, parseRange } from "../../provider/addressing/ip";
import type { Random } from "../random";
import type { Arg, Declaration, Program } from "./program";

/** Random resources. Pools are small, so that conflicts are frequent. */

/** What names and address blocks the programs of one store have used. */
export class Naming {
  #count = 0;
  #blocks = 0;
  #values = 0;

  name(prefix: string): string {
    this.#count += 1;
    return `${prefix}${this.#count}`;
  }

  /** A block of addresses that no pool has yet; rarely one that another pool has. */
  block(random: Random): number {
    this.#blocks += 1;
    return random.chance(0.04) ? random.integer(1, this.#blocks) : this.#blocks;
  }

  valueId(): number {
    this.#values += 1;
    return this.#values;
  }
}

const TENANTS: [Arg, Arg] = [
  { org: "acme", project: "web" },
  { org: "acme", project: "db" },
];

const V4_RANGES: [(block: number) => string[], ...((block: number) => string[])[]] = [
  (block) => [`10.${block}.0.0/29`],
  (block) => [`10.${block}.0.0/28`],
  (block) => [`10.${block}.0.0/30`],
  (block) => [`10.${block}.0.2-10.${block}.0.9`],
  (block) => [`10.${block}.0.0/30`, `10.${block}.1.0/30`],
];

const V6_RANGES: typeof V4_RANGES = [
  (block) => [`fd00:${block}::/125`],
  (block) => [`fd00:${block}::10-fd00:${block}::17`],
];

export function newPool(random: Random, naming: Naming, program: Program): Declaration {
  const name = naming.name("p");
  const kind = random.pickWeighted({ ranges: 10, nodePort: 1, child: 2 });
  const parent = random.pick(program.filter(({ type, args }) => type === "IPPool" && isWide(args)));
  if (kind === "child" && parent) {
    const prefixLength = String((parent.args.ranges as string[])[0]).includes(":") ? 126 : 30;
    return { type: "IPPool", name, args: { parent: { $resource: parent.name }, prefixLength, ...rules(random) } };
  }
  if (kind === "nodePort") {
    const portRange = random.pickOne(["30000-30005", "30000-30011"]);
    return { type: "IPPool", name, args: { type: "nodePort", portRange, ...rules(random) } };
  }
  const block = naming.block(random);
  const ranges = random.pickOne(random.chance(0.2) ? V6_RANGES : V4_RANGES)(block);
  const args: Declaration["args"] = { ranges, ...rules(random) };
  const type = random.pickWeighted({ default: 6, loadBalancer: 2, clusterIP: 1, vip: 1 });
  if (type !== "default") args.type = type;
  if (random.chance(0.1)) args.tenant = random.pickOne(TENANTS);
  if (random.chance(0.1)) args.addressSpace = "lab";
  if (random.chance(0.15)) args.reserved = [addressIn(ranges, random.integer(0, 2))!];
  if (random.chance(0.1)) args.staticOnly = [addressIn(ranges, random.integer(1, 3))!];
  return { type: "IPPool", name, args, ...(random.chance(0.1) && { component: "g1" }) };
}

const isWide = ({ ranges, type }: Declaration["args"]): boolean =>
  type === undefined && Array.isArray(ranges) && /\/(28|29|125)$/.test(String(ranges[0]));

function rules(random: Random): Declaration["args"] {
  const args: Declaration["args"] = {};
  const allocation = random.pickWeighted({ default: 4, lowest: 4, random: 3, external: 0.3 });
  if (allocation !== "default") args.allocation = allocation;
  if (random.chance(0.1)) args.quota = random.chance(0.5) ? { maxReservations: 3 } : { maxIps: 4 };
  if (random.chance(0.05)) args.autoAssign = false;
  if (random.chance(0.05)) args.avoidBoundaryIps = true;
  return args;
}

/** The nth address of the first of these ranges that has so many. */
export function addressIn(ranges: readonly Arg[], offset: number): string | undefined {
  for (const text of ranges) {
    const range = parseRange(String(text));
    if (range && range.first + BigInt(offset) <= range.last) return formatIp(range.first + BigInt(offset));
  }
  return undefined;
}

/** `others`: pools and runners of other stacks, which are named by their names. */
export function newReservation(
  random: Random,
  naming: Naming,
  program: Program,
  others: Declaration[],
): Declaration | undefined {
  if (random.chance(0.1)) return tenantReservation(random, naming, program);
  const own = program.filter(({ type }) => type === "IPPool");
  const isForeign = others.length > 0 && random.chance(own.length > 0 ? 0.25 : 1);
  const pool = random.pick(isForeign ? others : own);
  if (!pool) return undefined;
  const declaration: Declaration = {
    type: "IPReservation",
    name: naming.name("r"),
    args: { ...inPool(pool, isForeign), ...pinIn(random, pool, mustPin(pool) ? 0.9 : 0.25) },
  };
  if (random.chance(0.1)) declaration.args.kind = "vm";
  if (random.chance(0.1)) declaration.args.ttl = 86_400;
  if (random.chance(0.1)) declaration.args.labels = { tier: random.pickOne(["a", "b"]) };
  if (random.chance(0.1)) declaration.component = random.pickOne(["g1", "g2"]);
  const before = random.pick(program.filter(({ type }) => type === "IPReservation"));
  if (before && random.chance(0.15)) declaration.dependsOn = [before.name];
  return declaration;
}

/** In a tenant's pool of a type: one of the program or the store, or the tenant's default block. */
function tenantReservation(random: Random, naming: Naming, program: Program): Declaration {
  const tenant = random.pickOne(TENANTS);
  const own = program.filter(({ type, args }) => type === "IPPool" && isDeepStrictEqual(args.tenant, tenant));
  return {
    type: "IPReservation",
    name: naming.name("r"),
    args: { tenant, type: random.pickOne(["clusterIP", "loadBalancer"]) },
    ...(own.length > 0 && { dependsOn: own.map(({ name }) => name) }),
  };
}

/** How a reservation names its pool or runner, with the tenant whose pool it is. */
export function inPool(pool: Declaration, isForeign: boolean): Declaration["args"] {
  if (pool.type === "RunnerSubnet") return { runner: nameAtCreation(pool) };
  return {
    pool: isForeign ? nameAtCreation(pool) : { $resource: pool.name },
    ...(pool.args.tenant !== undefined && { tenant: pool.args.tenant }),
  };
}

/** A pool keeps the name that it was created with. */
export const nameAtCreation = ({ name, aliases }: Declaration): string => aliases?.at(-1) ?? name;

const mustPin = ({ args }: Declaration): boolean =>
  args.type === "vip" || args.autoAssign === false || args.allocation === "external";

/** A requested address or port, or none. */
export function pinIn(random: Random, { args }: Declaration, probability: number): Declaration["args"] {
  if (!random.chance(probability)) return {};
  if (args.type === "nodePort") return { port: 30_000 + random.integer(0, 5) };
  const ip = addressIn((args.ranges ?? []) as Arg[], random.integer(0, 7));
  return ip === undefined ? {} : { ip };
}
