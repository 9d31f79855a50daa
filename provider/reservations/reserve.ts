import { OverlayError } from "../errors";
import type { Json, Lease } from "../ipam/types";
import { tenantBlockName } from "../owner";
import { networkPool, poolNamed, runnerOfPool } from "../pool-names";
import { DEFAULT_TTL } from "../resources/ip-reservation";
import { type AddressPool, addressPoolOf, requireNamedPool } from "./address-pools";
import { claimOnAnyRunner } from "./any-runner";
import { type AddressClaim, buildRequest, throwExplained } from "./claim";
import type { Context } from "./context";
import type { ReserveInput } from "./inputs";
import { ownerFor, ownerOfCaller } from "./leases";
import { claimOnce, describeRequest, type Repeatable, toRepeatable } from "./repeat";
import { findRunner } from "./runners";
import { openTenantPool, requireTenant } from "./service-pools";

export interface Reservation {
  lease: Lease;
  token: string;
  /** Of the runner's subnets, one for each address family. */
  gateways: string[];
}

/** Holds an address until it is used, and signs a token for it. The same container, owner or key gets the same lease again. */
export const reserve = async (context: Context, input: Omit<ReserveInput, "count">): Promise<Reservation> =>
  (await reserveMany(context, input))[0]!;

/** `count` addresses in one transaction: all of them, or none. */
export async function reserveMany(context: Context, input: ReserveInput): Promise<Reservation[]> {
  rejectContradictions(input);
  const { name, place, leaseName } = await findPlace(context, input);
  const repeatable = toRepeatable(context, input, describeRequest(name, input));
  const claim = () =>
    claimReservations(context, place, input, { repeatable, leaseName }).catch(throwExplained(input.by));
  return signAll(context, place, repeatable ? await claimOnce(context, repeatable, claim) : await claim());
}

interface Place {
  /** The same for a repeated request. */
  name: string;
  /** undefined: any runner of the network. */
  place?: AddressPool;
  /** In the pool of a tenant: a name for the first lease. */
  leaseName?: string;
}

async function findPlace(context: Context, input: ReserveInput): Promise<Place> {
  if (isForAnyRunner(input)) return { name: networkPool(input.network!) };
  if (input.type !== undefined) return findTenantPlace(context, input, input.type);
  const place = await requireNamedPool(context, input);
  return { name: place.pool, place };
}

/** The same container, owner or key is in the same pool of the tenant again. */
async function findTenantPlace(context: Context, input: ReserveInput, type: string): Promise<Place> {
  const { ip, port, by, owner, key } = input;
  const tenant = requireTenant(context, input.tenant);
  const value = ip ?? (port === undefined ? undefined : BigInt(port));
  const name = tenantBlockName(tenant, type);
  const holder =
    by === undefined
      ? ownerOfCaller(context, name, key === undefined ? owner : `key/${key}`)
      : ownerFor(name, by, context.tenant);
  const { place, leaseName } = await openTenantPool(context, { tenant, type, value }, holder);
  return { name: poolNamed(name), place, leaseName };
}

const isForAnyRunner = ({ anyRunner, placement }: ReserveInput): boolean =>
  anyRunner === true || placement !== undefined;

function rejectContradictions(input: ReserveInput): void {
  const { network, runner, pool, by, owner, count = 1, ip, port } = input;
  const given = Object.entries({ container: by, ip, port }).find(([, value]) => value !== undefined)?.[0];
  if (isForAnyRunner(input) && (network === undefined || runner !== undefined || pool !== undefined))
    throw new OverlayError(
      "INPUT_INVALID",
      "A reservation on any runner is for a network, without a runner or a pool.",
      "Give network, and neither runner nor pool.",
    );
  if (count > 1 && given !== undefined)
    throw new OverlayError(
      "INPUT_INVALID",
      `A request with ${given} is for one address, and ${count} are requested.`,
      `Leave out ${given}; owner or key names a request for several.`,
    );
  if (input.type === undefined ? input.tenant !== undefined : (network ?? runner ?? pool) !== undefined)
    throw new OverlayError(
      "INPUT_INVALID",
      input.type === undefined ? "tenant is given without type." : "type is given with a pool, a runner or a network.",
      "Give type, and the tenant if the access token has none; or a pool or a runner.",
    );
  if (by !== undefined && owner !== undefined)
    throw new OverlayError("INPUT_INVALID", "Both container and owner are given.", "Give one of them.");
}

interface LeaseNames {
  repeatable: Repeatable | undefined;
  leaseName: string | undefined;
}

/** `place`: undefined for any runner. */
async function claimReservations(
  context: Context,
  place: AddressPool | undefined,
  input: ReserveInput,
  names: LeaseNames,
): Promise<Lease[]> {
  const { count = 1, placement = "mostFree" } = input;
  const toRequest = (at: AddressPool, index: number) => buildRequest(context, at, claimAt(input, index, names));
  if (!place) return claimOnAnyRunner(context, { ...input, network: input.network!, placement, count }, toRequest);
  return context.pool.claim(Array.from({ length: count }, (_, i) => toRequest(place, i)));
}

function claimAt(input: ReserveInput, index: number, { repeatable, leaseName }: LeaseNames): AddressClaim {
  const { ip, port, vm, by, owner, count = 1, ttl = vm ? DEFAULT_TTL.vm : DEFAULT_TTL.container } = input;
  return {
    ...{ ip, port, vm, by, ttl },
    owner: owner === undefined || count === 1 ? owner : `${owner} (${index + 1} of ${count})`,
    names: [
      ...(repeatable ? [repeatable.names[index]!] : []),
      ...(leaseName !== undefined && index === 0 ? [leaseName] : []),
    ],
    ...(repeatable && { data: { request: repeatable.request as unknown as Json } }),
  };
}

async function signAll(context: Context, place: AddressPool | undefined, leases: Lease[]): Promise<Reservation[]> {
  const tokens = await context.pool.signTokens(leases);
  const gateways = new Map(place && [[place.pool, gatewaysOf(place)]]);
  for (const { pool } of leases) if (!gateways.has(pool)) gateways.set(pool, await findGateways(context, pool));
  return leases.map((lease, i) => ({ lease, token: tokens[i]!, gateways: gateways.get(lease.pool)! }));
}

async function findGateways({ pool }: Context, name: string): Promise<string[]> {
  const at = runnerOfPool(name);
  return at ? gatewaysOf(addressPoolOf(await findRunner(pool, at.network, at.runner))) : [];
}

export const gatewaysOf = ({ runner }: AddressPool): string[] => runner?.layouts.map(({ gateway }) => gateway) ?? [];
