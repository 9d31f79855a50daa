import { exactNumber, familyOf } from "../addressing/ip";
import { OverlayError } from "../errors";
import { formatExtents } from "../pool/errors";
import { capacityOf, min } from "../pool/extents";
import type { PoolSpec, Usage } from "../pool/types";
import { capitalize, describePool, IP_POOLS, runnerOfPool } from "../pool-names";
import { parseSettings } from "../resource";
import { type PoolSettings, storedPool } from "../resources/ip-pool";
import { findSpec, givesAddresses } from "./address-pools";
import { type Context, isVisible, refuseOtherTenant } from "./context";
import { type Growth, readGrowth } from "./growth";
import type { PoolPageInput } from "./inputs";

/** Usage of a pool, for JSON. Counts past 2^53 are strings. */
export interface PoolUsage {
  pool: string;
  kind: PoolSpec["kind"];
  /** Of an IPPool. */
  type?: PoolSettings["type"];
  range: string;
  allocation: PoolSpec["allocation"];
  tenant?: string;
  capacity: number | string;
  /** Held or offered. */
  allocated: number | string;
  /** Neither held nor offered; those in quarantine are given out last. */
  available: number | string;
  /** Leases by state. */
  offered: number;
  reserved: number;
  used: number;
  quarantined: number;
  /** Percentage of values that are held or offered, with two decimals. */
  utilization: number;
}

/** A pool, and how fast it fills. */
export interface PoolStatus extends PoolUsage, Growth {}

/** A page of the pools that the caller may see, by name. */
export async function poolUsages(context: Context, page: PoolPageInput = {}): Promise<PoolUsage[]> {
  const { prefix = "", limit = Infinity } = page;
  const specs = await readPage(context, page);
  const usages = limit < Infinity ? await readUsages(context, specs) : await context.pool.usages(prefix);
  return specs.flatMap((spec) => {
    const usage = usages.get(spec.name);
    return usage ? [describeUsage(spec, usage)] : []; // deleted meanwhile
  });
}

async function readPage(
  context: Context,
  { prefix = "", limit = Infinity, after }: PoolPageInput,
): Promise<PoolSpec[]> {
  const specs: PoolSpec[] = [];
  for (let last = after; ; ) {
    const found = await context.pool.pools(prefix, { limit, ...(last !== undefined && { after: last }) });
    specs.push(...found.filter((spec) => isVisible(spec, context)));
    if (found.length < limit || specs.length >= limit) return specs.slice(0, limit);
    last = found.at(-1)!.name;
  }
}

async function readUsages({ pool }: Context, specs: PoolSpec[]): Promise<Map<string, Usage>> {
  const usages = await Promise.all(specs.map(({ name }) => pool.usage(name)));
  return new Map(specs.flatMap(({ name }, i) => (usages[i] ? [[name, usages[i]]] : [])));
}

/** One pool, by its name, or that of an IPPool without its prefix. */
export async function showPool(context: Context, name: string, now = Date.now()): Promise<PoolStatus> {
  const spec = await requirePool(context, name);
  const usage = await context.pool.usage(spec.name);
  if (!usage)
    throw new OverlayError(
      "POOL_NOT_FOUND",
      `${capitalize(describePool(spec.name))} was deleted meanwhile.`,
      "Run the command again.",
    );
  return { ...describeUsage(spec, usage), ...(await readGrowth(context.pool, spec.name, countRoom(spec, usage), now)) };
}

/** A pool of any kind by its name, if it is not one of another tenant. */
export async function requirePool(context: Context, name: string): Promise<PoolSpec> {
  const spec = await findSpec(context.pool, name);
  if (spec) {
    refuseOtherTenant(spec, context);
    return spec;
  }
  const known = (await context.pool.pools()).filter((other) => isVisible(other, context)).map((other) => other.name);
  throw new OverlayError(
    "POOL_NOT_FOUND",
    `There is no pool '${name}'; there are ${known.join(", ") || "none"}.`,
    "Check the name and the store.",
  );
}

export interface Room {
  capacity: bigint;
  held: bigint;
}

/**
 * How many requests a pool can serve. On a runner with both address families each takes an address of both, so the smaller family decides;
 * its IPv6 subnet would hide that no IPv4 address is left.
 */
export function countRoom(spec: PoolSpec, usage: Usage): Room {
  const families = new Set(spec.extents.map(({ first }) => familyOf(first)));
  if (families.size < 2 || !runnerOfPool(spec.name)) return usage;
  const capacities = [...families].map((family) =>
    capacityOf({ ...spec, extents: spec.extents.filter(({ first }) => familyOf(first) === family) }),
  );
  const capacity = capacities.reduce((least, each) => min(least, each));
  return { capacity, held: BigInt(usage.offered + usage.reserved + usage.used) };
}

export function describeUsage(spec: PoolSpec, usage: Usage): PoolUsage {
  const { offered, reserved, used, quarantined } = usage;
  return {
    pool: spec.name,
    kind: spec.kind,
    ...(spec.name.startsWith(IP_POOLS) && { type: parseSettings(storedPool, spec).type }),
    range: spec.kind === "space" ? "all addresses" : formatExtents(spec.kind, spec.extents),
    allocation: spec.allocation,
    ...(spec.tenant && { tenant: `${spec.tenant.org}/${spec.tenant.project}` }),
    ...describeRoom(countRoom(spec, usage)),
    ...{ offered, reserved, used, quarantined },
  };
}

const describeRoom = ({ capacity, held }: Room) => ({
  capacity: exactNumber(capacity),
  allocated: exactNumber(held),
  available: exactNumber(capacity > held ? capacity - held : 0n),
  utilization: capacity === 0n ? 0 : Number((held * 10_000n) / capacity) / 100,
});

/** All pools of addresses and ports that the caller may see, together. A block that is a pool of its own counts in its parent, too. */
export interface PoolTotals extends Omit<PoolUsage, "pool" | "kind" | "range" | "allocation" | "tenant"> {
  pools: number;
}

export async function poolStats(context: Context): Promise<PoolTotals> {
  const specs = (await context.pool.pools()).filter((spec) => givesAddresses(spec) && isVisible(spec, context));
  const usages = await context.pool.usages("");
  const all = specs.flatMap((spec) => {
    const usage = usages.get(spec.name);
    return usage ? [{ ...usage, ...countRoom(spec, usage) }] : [];
  });
  const add = (key: "offered" | "reserved" | "used" | "quarantined") => all.reduce((sum, each) => sum + each[key], 0);
  const addValues = (key: keyof Room) => all.reduce((sum, each) => sum + each[key], 0n);
  return {
    pools: all.length,
    ...describeRoom({ capacity: addValues("capacity"), held: addValues("held") }),
    offered: add("offered"),
    reserved: add("reserved"),
    used: add("used"),
    quarantined: add("quarantined"),
  };
}
