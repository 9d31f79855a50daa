import { formatIp, overlaps } from "../addressing/ip";
import { OverlayError } from "../errors";
import { findSpec, listSpecs } from "../ipam/interface";
import type { Ipam, PoolSpec, Request, ValueRange } from "../ipam/types";
import {
  capitalize,
  describePool,
  IP_POOLS,
  listNames,
  MOST_NAMES,
  NETWORKS,
  poolNamed,
  runnerOfPool,
  SPACES,
} from "../pool-names";
import { type Context, isVisible, refuseOtherTenant } from "./context";
import type { PoolChoice, PoolPageInput } from "./inputs";
import { findRunner, findRunnerAt, findRunnerNamed, type Runner } from "./runners";

/** A pool that gives out addresses or ports: a runner's subnet, an IPPool, or the block of a tenant. */
export interface AddressPool {
  /** Name of the pool: `runner/NETWORK/RUNNER` or `pool/NAME`. */
  pool: string;
  spec: PoolSpec;
  runner?: Runner;
}

export const addressPoolOf = (runner: Runner): AddressPool => ({ pool: runner.pool, spec: runner.addresses, runner });

/** The pool that is named; undefined when no name is given. Refuses one of another tenant. */
export async function findNamedPool(context: Context, where: PoolChoice): Promise<AddressPool | undefined> {
  const { network, runner, pool: name } = where;
  if (runner !== undefined && name === undefined)
    return addressPoolOf(await findRunnerNamed(context, { network, runner }));
  if (name === undefined && network === undefined) return undefined;
  if (name === undefined)
    throw new OverlayError("INPUT_INVALID", "The network alone names no pool.", `Give ${NAMING}.`);
  if (network !== undefined || runner !== undefined)
    throw new OverlayError("INPUT_INVALID", "Both a pool and a runner or network are given.", `Give ${NAMING}.`);
  return findPoolByName(context, name);
}

const NAMING = "a runner, with its network where several have one of that name, or a pool";

export async function requireNamedPool(context: Context, where: PoolChoice): Promise<AddressPool> {
  const place = await findNamedPool(context, where);
  if (place) return place;
  throw new OverlayError("INPUT_INVALID", "No pool given.", `Give ${NAMING}.`);
}

/** `pool/web` as `pool list` prints it, or only `web`; `runner/NETWORK/RUNNER` too. */
async function findPoolByName(context: Context, name: string): Promise<AddressPool> {
  const { pool } = context;
  const runner = runnerOfPool(name);
  if (runner) return addressPoolOf(await findRunner(pool, runner.network, runner.runner));
  const spec = await findByShortName(pool, name);
  if (spec) refuseOtherTenant(spec, context);
  if (spec && givesAddresses(spec)) return { pool: spec.name, spec };
  const { specs } = await findSpecPage(context, { limit: MOST_NAMES + 1 }, givesAddresses);
  throw new OverlayError(
    "POOL_NOT_FOUND",
    spec
      ? `${capitalize(describePool(spec.name))} gives out neither addresses nor ports.`
      : `There is no pool '${name}' in the store; it has ${listNames(specs.map((each) => each.name))}.`,
    "`overlayctl pool list` shows the names.",
  );
}

/** By the whole name, or that of an IPPool without its prefix. */
export const findByShortName = async (pool: Ipam, name: string): Promise<PoolSpec | undefined> =>
  (await findSpec(pool, poolNamed(name))) ?? (await findSpec(pool, name));

/** Networks give out runner ids, and address spaces give out ranges. */
export const givesAddresses = ({ kind, name }: PoolSpec): boolean =>
  (kind === "address" || kind === "port") && !name.startsWith(SPACES);

export interface SpecPage {
  specs: PoolSpec[];
  /** The cursor of the next page; absent: this is the last. */
  next?: string;
}

/** The pools that the caller may see, by name: the first `limit` after the cursor, for which `isAsked` is true. */
export async function findSpecPage(
  context: Context,
  { prefix = "", limit = Infinity, after }: PoolPageInput,
  isAsked: (spec: PoolSpec) => boolean = () => true,
): Promise<SpecPage> {
  const specs: PoolSpec[] = [];
  for (let last = after; ; ) {
    const found = await listSpecs(context.pool, {
      prefix,
      limit: limit + 1,
      ...(last !== undefined && { after: last }),
    });
    specs.push(...found.filter((spec) => isVisible(spec, context) && isAsked(spec)));
    if (specs.length > limit) return { specs: specs.slice(0, limit), next: specs[limit - 1]!.name };
    if (found.length <= limit) return { specs };
    last = found.at(-1)!.name;
  }
}

/** All open pools that give out addresses or ports, and that the caller may see. */
export const addressPools = async (context: Context, prefix = ""): Promise<PoolSpec[]> =>
  (await listSpecs(context.pool, { prefix })).filter((spec) => givesAddresses(spec) && isVisible(spec, context));

export const hasInRange = ({ ranges }: PoolSpec, value: bigint): boolean =>
  ranges.some((range) => overlaps(range, singleValue(value)));

export const singleValue = (value: bigint): ValueRange => ({ first: value, last: value });

/** The pools that can give out this address, without those where it is in the block of a child pool; also those of other tenants. */
export async function findPoolsOf(pool: Ipam, ip: bigint): Promise<{ places: AddressPool[]; reason: string }> {
  const runner = await findRunnerAt(pool, await listSpecs(pool, { prefix: NETWORKS }), ip);
  if (typeof runner === "object") return { places: [addressPoolOf(runner)], reason: "" };
  const places: AddressPool[] = [];
  for (const spec of await addressPools({ pool }, IP_POOLS)) {
    if (spec.kind !== "address" || !hasInRange(spec, ip)) continue;
    const lease = await pool.find({ pool: spec.name, value: ip });
    if (lease?.childPool === undefined) places.push({ pool: spec.name, spec });
  }
  return { places, reason: runner ?? "it is in no network and no pool of this store" };
}

/** The one pool of an address, whether or not it is named. */
export async function findPoolOf(context: Context, where: PoolChoice, ip: bigint): Promise<AddressPool> {
  const named = await findNamedPool(context, where);
  if (named) return named;
  const { places, reason } = await findPoolsOf(context.pool, ip);
  const visible = places.filter(({ spec }) => isVisible(spec, context));
  const [place, ...others] = visible.length > 0 ? visible : places;
  if (!place)
    throw new OverlayError("IP_OUTSIDE_POOL", `${formatIp(ip)}: ${reason}.`, "Check the address and the store.");
  refuseOtherTenant(place.spec, context);
  if (others.length === 0) return place;
  const names = visible.map((each) => describePool(each.pool)).join(" and ");
  throw new OverlayError("INPUT_INVALID", `${formatIp(ip)} is in ${names}.`, "Name the pool.");
}

/** The pool of a value that is to be used or freed, and the value. */
export async function requireValue(
  context: Context,
  input: PoolChoice & { ip?: bigint | undefined; port?: number | undefined },
  fix: string,
): Promise<{ place: AddressPool; value: bigint }> {
  const { ip, port } = input;
  const place = ip === undefined ? await requireNamedPool(context, input) : await findPoolOf(context, input, ip);
  const value = requestedValue(place.spec, { ip, port });
  if (value === undefined) throw new OverlayError("INPUT_INVALID", "No address given.", fix);
  return { place, value };
}

/** What a request asks for: exactly these values, or one address of each family of the runner's network. */
export function requestedChoice(
  { spec, runner }: AddressPool,
  { ip, ip6, port }: { ip?: bigint | undefined; ip6?: bigint | undefined; port?: number | undefined },
): Pick<Request, "values" | "range" | "secondRange"> {
  const value = requestedValue(spec, { ip, port });
  if (value !== undefined) return { values: [value, ...(ip6 === undefined ? [] : [ip6])].map(singleValue) };
  const [main, ...others] = runner?.layouts.map(({ range }) => range) ?? [];
  return main && others.length > 0 ? { range: main, secondRange: others } : {};
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

/** A pool of any kind by its name, if it is not one of another tenant. */
export async function requirePool(context: Context, name: string): Promise<PoolSpec> {
  const spec = await findByShortName(context.pool, name);
  if (spec) {
    refuseOtherTenant(spec, context);
    return spec;
  }
  const { specs } = await findSpecPage(context, { limit: MOST_NAMES + 1 });
  throw new OverlayError(
    "POOL_NOT_FOUND",
    `There is no pool '${name}'; there are ${listNames(specs.map((other) => other.name))}.`,
    "Check the name and the store.",
  );
}
