import { formatIp, overlaps } from "../addressing/ip";
import { OverlayError } from "../errors";
import { isOfOtherTenant } from "../owner";
import { tenantError } from "../pool/errors";
import type { Extent, Pool, PoolSpec, Request, Tenant } from "../pool/types";
import { capitalize, describePool, IP_POOLS, NETWORKS, poolNamed, runnerOfPool, SPACES } from "../pool-names";
import type { PoolChoice } from "./inputs";
import { findRunner, findRunnerAt, openAddressPool, type Runner } from "./runners";

/** A pool that gives out addresses or ports: a runner's subnet, an IPPool, or the block of a tenant. */
export interface AddressPool {
  /** Name of the pool: `runner/NETWORK/RUNNER` or `pool/NAME`. */
  pool: string;
  spec: PoolSpec;
  runner?: Runner;
}

const addressPoolOf = (runner: Runner): AddressPool => ({ pool: runner.pool, spec: runner.addresses, runner });

/** The pool that is named; undefined when no name is given. */
export async function findNamedPool(
  pool: Pool,
  { network, runner, pool: name }: PoolChoice,
): Promise<AddressPool | undefined> {
  if (name === undefined && network === undefined && runner === undefined) return undefined;
  if (name !== undefined && network === undefined && runner === undefined) return findPoolByName(pool, name);
  if (network === undefined || runner === undefined || name !== undefined) {
    throw new OverlayError("INPUT_INVALID", "The pool is not given completely.", `Give ${NAMING}.`);
  }
  return addressPoolOf(await findRunner(pool, network, runner));
}

/**
 * A caller with a tenant (overlay:tenant) is refused in pools of other tenants, as a resource is. A caller without one is the operator,
 * and acts in every pool.
 */
export function refuseOtherTenant({ spec }: AddressPool, tenant: Tenant | undefined): void {
  if (isOfOtherTenant(spec, tenant)) throw tenantError(spec, spec.tenant!, tenant);
}

const NAMING = "network and runner, or pool";

export async function requireNamedPool(pool: Pool, where: PoolChoice): Promise<AddressPool> {
  const place = await findNamedPool(pool, where);
  if (place) return place;
  throw new OverlayError("INPUT_INVALID", "No pool given.", `Give ${NAMING}.`);
}

/** `pool/web` as `pool list` prints it, or only `web`; `runner/NETWORK/RUNNER` too. */
async function findPoolByName(pool: Pool, name: string): Promise<AddressPool> {
  const runner = runnerOfPool(name);
  if (runner) return addressPoolOf(await findRunner(pool, runner.network, runner.runner));
  const spec = (await pool.spec(poolNamed(name))) ?? (await pool.spec(name));
  if (spec && givesAddresses(spec)) return { pool: spec.name, spec };
  const known = (await addressPools(pool)).map((each) => each.name);
  throw new OverlayError(
    "POOL_NOT_FOUND",
    spec
      ? `${capitalize(describePool(spec.name))} gives out neither addresses nor ports.`
      : `There is no pool '${name}' in the store; it has ${known.join(", ") || "none"}.`,
    "`overlayctl pool list` shows the names.",
  );
}

/** Networks give out runner ids, and address spaces give out ranges. */
const givesAddresses = ({ kind, name }: PoolSpec): boolean =>
  (kind === "address" || kind === "port") && !name.startsWith(SPACES);

/** All open pools that give out addresses or ports. */
export const addressPools = async (pool: Pool, prefix = ""): Promise<PoolSpec[]> =>
  (await pool.pools(prefix)).filter(givesAddresses);

export const hasInRange = ({ extents }: PoolSpec, value: bigint): boolean =>
  extents.some((extent) => overlaps(extent, singleValue(value)));

export const singleValue = (value: bigint): Extent => ({ first: value, last: value });

/** The pools that can give out this address, without those where it is in the block of a child pool. */
export async function findPoolsOf(pool: Pool, ip: bigint): Promise<{ places: AddressPool[]; reason: string }> {
  const runner = await findRunnerAt(pool, await pool.pools(NETWORKS), ip);
  if (typeof runner === "object") return { places: [addressPoolOf(runner)], reason: "" };
  const places: AddressPool[] = [];
  for (const spec of await addressPools(pool, IP_POOLS)) {
    if (spec.kind !== "address" || !hasInRange(spec, ip)) continue;
    const lease = await pool.find(spec.name, { value: ip });
    if (lease?.childPool === undefined) places.push({ pool: spec.name, spec });
  }
  return { places, reason: runner ?? "it is in no network and no pool of this store" };
}

/** The one pool of an address, whether or not it is named. */
export async function findPoolOf(pool: Pool, where: PoolChoice, ip: bigint): Promise<AddressPool> {
  const named = await findNamedPool(pool, where);
  if (named) return named;
  const { places, reason } = await findPoolsOf(pool, ip);
  const [place, ...others] = places;
  if (!place)
    throw new OverlayError("IP_OUTSIDE_POOL", `${formatIp(ip)}: ${reason}.`, "Check the address and the store.");
  if (others.length === 0) return place;
  const names = places.map((each) => describePool(each.pool)).join(" and ");
  throw new OverlayError("INPUT_INVALID", `${formatIp(ip)} is in ${names}.`, "Say which pool is meant: --pool NAME.");
}

/** What a request asks for: exactly this value, or one address of each family of the runner's network. */
export function requestedChoice(
  { spec, runner }: AddressPool,
  { ip, port }: { ip?: bigint | undefined; port?: number | undefined },
): Pick<Request, "want" | "within" | "also"> {
  const value = requestedValue(spec, { ip, port });
  if (value !== undefined) return { want: [singleValue(value)] };
  const [main, ...others] = runner?.layouts.map(({ extent }) => extent) ?? [];
  return main && others.length > 0 ? { within: main, also: others } : {};
}

/** The value that is asked for in a pool of addresses or of ports. */
export function requestedValue(
  { name, kind }: PoolSpec,
  { ip, port }: { ip?: bigint | undefined; port?: number | undefined },
): bigint | undefined {
  const wrong = kind === "port" ? ip : port;
  if (wrong !== undefined) {
    const [has, given] = kind === "port" ? ["ports", "an address"] : ["addresses", "a port"];
    throw new OverlayError(
      "INPUT_INVALID",
      `${capitalize(describePool(name))} has ${has}, and ${given} was given.`,
      "Give the other kind of value.",
    );
  }
  return port === undefined ? ip : BigInt(port);
}

export async function openRunnerPool(pool: Pool, { runner }: AddressPool): Promise<void> {
  if (runner) await openAddressPool(pool, runner);
}
