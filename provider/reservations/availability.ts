import { exactNumber, parseRange } from "../addressing/ip";
import type { Availability } from "../answers";
import { findSpec, findUsage } from "../ipam/interface";
import { isBoundary } from "../ipam/ranges";
import type { PoolSpec, ValueRange } from "../ipam/types";
import { addressPool, runnerOfPool } from "../pool-names";
import { parseSettings } from "../resource";
import { storedRunner } from "../resources/runner-subnet";
import { findNamedPool, findSpecPage, givesAddresses, type SpecPage } from "./address-pools";
import type { Context } from "./context";
import type { AvailableInput } from "./inputs";
import { formatValue } from "./leases";
import { requireNetwork } from "./runners";
import { countRoom } from "./usage";

/** Pools of a page: each of them is read for itself. */
const POOLS = 100;

/** Of one pool, of the runners of a network, or of all pools that the caller may see: the first ones after the cursor. */
export async function availableAddresses(
  context: Context,
  input: AvailableInput,
): Promise<{ pools: Availability[]; next?: string }> {
  const found: Availability[] = [];
  const { specs, next } = await findSpecs(context, input);
  for (const spec of specs) {
    const usage = await findUsage(context.pool, spec.name);
    if (!usage) continue; // deleted meanwhile
    const { capacity, held } = countRoom(spec, usage);
    found.push({
      pool: spec.name,
      ...runnerOfPool(spec.name),
      capacity: exactNumber(capacity),
      held: exactNumber(held),
      available: exactNumber(capacity > held ? capacity - held : 0n),
      addresses: input.limit === 0 ? [] : await listFree(context, spec, input.limit),
    });
  }
  return { pools: found, ...(next !== undefined && { next }) };
}

async function findSpecs(context: Context, input: AvailableInput): Promise<SpecPage> {
  const { network, runner, pool, after } = input;
  const page = { limit: POOLS, after };
  if (network !== undefined && runner === undefined && pool === undefined) {
    await requireNetwork(context.pool, network);
    return findSpecPage(context, { ...page, prefix: addressPool(network, "") }, givesAddresses);
  }
  const place = await findNamedPool(context, input);
  if (!place) return findSpecPage(context, page, givesAddresses);
  return { specs: [(await findSpec(context.pool, place.pool)) ?? place.spec] };
}

/** Reads as many free ranges as there are addresses to list at most: a subnet may have 2^64. */
async function listFree({ pool }: Context, spec: PoolSpec, limit: number): Promise<string[]> {
  const range = mainSubnet(spec);
  const ranges = await pool.freeRanges(spec.name, { limit, ...(range && { range }) });
  const addresses: string[] = [];
  for (const { first, last } of ranges)
    for (let value = first; value <= last && addresses.length < limit; value++)
      if (!(spec.avoidBoundaryIps && isBoundary(value))) addresses.push(formatValue(value));
  return addresses;
}

function mainSubnet(spec: PoolSpec): ValueRange | undefined {
  if (!runnerOfPool(spec.name)) return undefined;
  const [cidr] = parseSettings(storedRunner, spec).subnets;
  return parseRange(cidr!);
}
