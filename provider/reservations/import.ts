import { isOverlayError } from "../errors";
import type { ExistingLease, ImportResult, Ipam } from "../ipam/types";
import { describePool } from "../pool-names";
import { type AddressPool, findNamedPool, findPoolsOf, hasInRange, singleValue } from "./address-pools";
import { type Context, refuseOtherTenant } from "./context";
import { formatValue, IMPORTED_LABEL, isHeldBy, ownerFor, RESERVATION } from "./leases";

/** An address that is in use. If its network, runner or pool is given, it must be in it. */
export interface UsedAddress {
  ip: bigint;
  by?: string;
  network?: string;
  runner?: string;
  pool?: string;
}

export interface Imported<A extends UsedAddress> {
  result: ImportResult;
  /** Addresses that their container already has. */
  known: number;
  problems: { address: A; message: string }[];
}

/** Records addresses in their pools: all, or none if there is a problem. */
export async function importAddresses<A extends UsedAddress>(
  context: Context,
  addresses: A[],
  { dryRun = false }: { dryRun?: boolean } = {},
): Promise<Imported<A>> {
  const { pool } = context;
  const facts = new Map<ExistingLease, A>();
  const problems: Imported<A>["problems"] = [];
  let known = 0;
  for (const address of addresses) {
    const place = await findPoolFor(context, address);
    if (typeof place !== "string") refuseOtherTenant(place.spec, context);
    if (typeof place === "string") problems.push({ address, message: place });
    else if (await isKnownAddress(pool, place, address)) known++;
    else facts.set(factIn(place, address), address);
  }
  const result = await pool.importLeases([...facts.keys()], { dryRun: dryRun || problems.length > 0 });
  problems.push(
    ...result.conflicts.map(({ lease: fact, error }) => ({ address: facts.get(fact)!, message: error.message })),
  );
  return { result, known, problems };
}

/** The pool of an address, or why there is none. */
async function findPoolFor(
  context: Context,
  { ip, network, runner, pool: name }: UsedAddress,
): Promise<AddressPool | string> {
  if (name !== undefined) return findPoolNamed(context, name, ip);
  const { places, reason } = await findPoolsOf(context.pool, ip);
  const [place, ...others] = places;
  if (!place) return reason;
  if (others.length > 0)
    return `it is in ${places.map((each) => describePool(each.pool)).join(" and ")}: give the pool`;
  const found = place.runner;
  if (network !== undefined && network !== found?.network)
    return `it is in ${found ? `network ${found.network}` : describePool(place.pool)}, not in network ${network}`;
  if (runner !== undefined && runner !== found?.name)
    return `it is ${found ? `on runner ${found.name}` : `in ${describePool(place.pool)}`}, not on ${runner}`;
  return place;
}

async function findPoolNamed(context: Context, name: string, ip: bigint): Promise<AddressPool | string> {
  try {
    const place = (await findNamedPool(context, { pool: name }))!;
    return hasInRange(place.spec, ip) ? place : `it is not in ${describePool(place.pool)}`;
  } catch (error) {
    if (isOverlayError(error)) return error.message;
    throw error;
  }
}

async function isKnownAddress(pool: Ipam, place: AddressPool, { ip, by }: UsedAddress): Promise<boolean> {
  const holder = by === undefined ? undefined : await pool.find({ pool: place.pool, value: ip });
  return holder !== undefined && isHeldBy(holder, by!);
}

/** Without a container it is held until it is released. Imported twice, it is one lease. */
const factIn = ({ pool, spec }: AddressPool, { ip, by }: UsedAddress): ExistingLease => ({
  pool,
  owner: ownerFor(pool, by ?? `imported-${formatValue(ip)}`),
  type: RESERVATION,
  values: [singleValue(ip)],
  labels: IMPORTED_LABEL,
  ...(spec.tenant && { tenant: spec.tenant }),
  ...(by !== undefined && { usedBy: by }),
});
