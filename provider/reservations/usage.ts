import { z } from "zod";
import { exactNumber, familyOf } from "../addressing/ip";
import type { Growth, PoolStatus, PoolTotals, PoolUsage } from "../answers";
import { OverlayError } from "../errors";
import { formatRangesOf } from "../ipam/errors";
import { findUsage, historyOf, listSpecs, listUsages } from "../ipam/interface";
import { capacityOf, min } from "../ipam/ranges";
import type { Event, Ipam, PoolSpec, Usage } from "../ipam/types";
import { formatTenant } from "../owner";
import { capitalize, describePool, IP_POOLS, runnerOfPool } from "../pool-names";
import { parseSettings } from "../resource";
import { poolSettings, storedPool } from "../resources/ip-pool";
import { findSpecPage, givesAddresses, requirePool } from "./address-pools";
import { type Context, isVisible } from "./context";
import { isBeginning, isEnd } from "./history";
import type { PoolPageInput } from "./inputs";

/** The pools that the caller may see, by name. */
export const poolUsages = async (context: Context, page: PoolPageInput = {}): Promise<PoolUsage[]> =>
  (await poolUsagePage(context, page)).pools;

export async function poolUsagePage(
  context: Context,
  page: PoolPageInput = {},
): Promise<{ pools: PoolUsage[]; next?: string }> {
  const { prefix = "", limit } = page;
  const { specs, next } = await findSpecPage(context, page);
  const usages = limit === undefined ? await listUsages(context.pool, prefix) : await readUsages(context, specs);
  const pools = specs.flatMap((spec) => {
    const usage = usages.get(spec.name);
    return usage ? [describeUsage(spec, usage)] : []; // deleted meanwhile
  });
  return { pools, ...(next !== undefined && { next }) };
}

async function readUsages({ pool }: Context, specs: PoolSpec[]): Promise<Map<string, Usage>> {
  const usages = await Promise.all(specs.map(({ name }) => findUsage(pool, name)));
  return new Map(specs.flatMap(({ name }, i) => (usages[i] ? [[name, usages[i]]] : [])));
}

/** One pool, by its name, or that of an IPPool without its prefix. */
export async function showPool(context: Context, name: string, now = Date.now()): Promise<PoolStatus> {
  const spec = await requirePool(context, name);
  const usage = await findUsage(context.pool, spec.name);
  if (!usage)
    throw new OverlayError(
      "POOL_NOT_FOUND",
      `${capitalize(describePool(spec.name))} was deleted meanwhile.`,
      "Run the command again.",
    );
  const isShared = context.tenant !== undefined && spec.tenant === undefined;
  const growth = isShared ? {} : await readGrowth(context.pool, spec.name, countRoom(spec, usage), now);
  return { ...describeUsage(spec, usage), ...growth };
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
  const families = new Set(spec.ranges.map(({ first }) => familyOf(first)));
  if (families.size < 2 || !runnerOfPool(spec.name)) return usage;
  const capacities = [...families].map((family) =>
    capacityOf({ ...spec, ranges: spec.ranges.filter(({ first }) => familyOf(first) === family) }),
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
    range: spec.kind === "space" ? "all addresses" : formatRangesOf(spec.kind, spec.ranges),
    allocation: spec.allocation,
    ...(spec.tenant && { tenant: formatTenant(spec.tenant) }),
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
export async function poolStats(context: Context): Promise<PoolTotals> {
  const specs = (await listSpecs(context.pool)).filter((spec) => givesAddresses(spec) && isVisible(spec, context));
  const usages = await listUsages(context.pool, "");
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

const HOUR = 3600;
const DAY = 24 * HOUR;

/** How many changes a pool keeps at least. */
const KEPT = 10_000;

/** How fast a pool fills, by its history. `now` is in milliseconds. If the changes that a pool keeps are of less than a day, the rate is that of their time. */
export async function readGrowth(
  pool: Pick<Ipam, "events">,
  name: string,
  { capacity, held }: { capacity: bigint; held: bigint },
  now: number,
): Promise<Growth> {
  const events = await historyOf(pool, name, now - DAY * 1000);
  const coveredSeconds = events.length >= KEPT ? Math.max(1, (now - events[0]!.at) / 1000) : DAY;
  // What has expired is in the history only after the next change, so the pool cannot have grown by more than it holds.
  const growth = (seconds: number) => Math.min(netGrowth(events, now - seconds * 1000), Number(held));
  const rate = (seconds: number) => growth(seconds) / Math.min(seconds, coveredSeconds);
  const fastest = Math.max(rate(HOUR), rate(DAY));
  return {
    growthLastHour: growth(HOUR),
    growthLastDay: growth(DAY),
    ...(fastest > 0 && { exhaustedInSeconds: Math.max(0, Math.round(Number(capacity - held) / fastest)) }),
  };
}

const netGrowth = (events: Event[], since: number): number =>
  events
    .filter(({ at }) => at > since)
    .reduce((sum, event) => sum + Number(isBeginning(event)) * sizeOf(event) - Number(isEnd(event)) * sizeOf(event), 0);

/** A second range is the address of the other family. */
const sizeOf = ({ ranges: [main] }: Event): number => Number(main!.last - main!.first + 1n);

const storedSettings = z.object({ settings: poolSettings.pick({ type: true }) });

/** `clusterIP`, `container` and so on for an IPPool, `runner`, `network` or `space` for others; "" for a pool without settings. */
export function poolTypeOf({ name, data }: PoolSpec): string {
  if (!name.startsWith(IP_POOLS)) return name.slice(0, name.indexOf("/"));
  const parsed = storedSettings.safeParse(data);
  return parsed.success ? parsed.data.settings.type : "";
}
