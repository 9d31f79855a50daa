import { exactNumber, parseRange } from "../addressing/ip";
import { isBoundary } from "../pool/extents";
import type { Extent, PoolSpec } from "../pool/types";
import { addressPool, runnerOfPool } from "../pool-names";
import { parseSettings } from "../resource";
import { storedRunner } from "../resources/runner-subnet";
import { addressPools, findNamedPool } from "./address-pools";
import type { Context } from "./context";
import type { AvailableInput } from "./inputs";
import { formatValue } from "./leases";
import { requireNetwork } from "./runners";
import { countRoom } from "./usage";

/** What a runner or another pool can still give out. */
export interface Availability {
  pool: string;
  network?: string;
  runner?: string;
  capacity: number | string;
  held: number | string;
  available: number | string;
  /** The first free ones, in order, without those in quarantine; on a runner with both families, of its first subnet. */
  addresses: string[];
}

/** Of one pool, of the runners of a network, or of all pools that the caller may see. */
export async function availableAddresses(context: Context, input: AvailableInput): Promise<Availability[]> {
  const found: Availability[] = [];
  for (const spec of await findSpecs(context, input)) {
    const usage = await context.pool.usage(spec.name);
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
  return found;
}

async function findSpecs(context: Context, input: AvailableInput): Promise<PoolSpec[]> {
  const { network, runner, pool } = input;
  if (network !== undefined && runner === undefined && pool === undefined) {
    await requireNetwork(context.pool, network);
    return addressPools(context, addressPool(network, ""));
  }
  const place = await findNamedPool(context, input);
  return place ? [(await context.pool.spec(place.pool)) ?? place.spec] : addressPools(context);
}

/** Reads as many free extents as there are addresses to list at most: a subnet may have 2^64. */
async function listFree({ pool }: Context, spec: PoolSpec, limit: number): Promise<string[]> {
  const within = mainSubnet(spec);
  const extents = await pool.freeExtents(spec.name, { limit, ...(within && { within }) });
  const addresses: string[] = [];
  for (const { first, last } of extents)
    for (let value = first; value <= last && addresses.length < limit; value++)
      if (!(spec.avoidBoundaryIps && isBoundary(value))) addresses.push(formatValue(value));
  return addresses;
}

function mainSubnet(spec: PoolSpec): Extent | undefined {
  if (!runnerOfPool(spec.name)) return undefined;
  const [cidr] = parseSettings(storedRunner, spec).subnets;
  return parseRange(cidr!);
}
