import { OverlayError } from "../errors";
import { claimOne } from "../ipam/interface";
import type { Lease, Request, Tenant } from "../ipam/types";
import { formatTenant } from "../owner";
import { IP_POOLS } from "../pool-names";
import { tenantLeaseName } from "../resources/tenants";
import { type AddressPool, addressPools, requestedChoice, requireNamedPool } from "./address-pools";
import type { Context } from "./context";
import type { AllocateInput, AllocationInput } from "./inputs";
import { RESERVATION } from "./leases";
import { releaseOrReturn } from "./release";
import { chooseTenant, openTenantPool, requireTenant } from "./service-pools";

/**
 * Addresses of services, held until they are released. A service is known by its uid, and has one address in a pool. In the tenant's own pool of
 * a type, that pool is made at first use, as for resources.
 */
const ownerOfService = (uid: string, tenant: Tenant | undefined): string =>
  tenant ? `service/${formatTenant(tenant)}/${uid}` : `service/${uid}`;

/** It may be repeated; `RESERVATION_EXISTS` if the service has another address in the pool. */
export async function allocate(context: Context, input: AllocateInput): Promise<Lease> {
  const { uid, ip, port, labels } = input;
  const { place, tenant, names } = await placeFor(context, input);
  const request: Request = {
    pool: place.pool,
    owner: ownerOfService(uid, tenant),
    type: RESERVATION,
    idempotent: true,
    ...requestedChoice(place, { ip, port }),
    ...(names && { names }),
    ...(labels && { labels }),
    ...(tenant && { tenant }),
  };
  return claimOne(context.pool, request);
}

interface AllocationPlace {
  place: AddressPool;
  tenant: Tenant | undefined;
  /** By which the pool that was chosen for the service is found again. */
  names?: string[];
}

async function placeFor(context: Context, input: AllocateInput): Promise<AllocationPlace> {
  const { pool, type, ip, port, uid } = input;
  if ((pool === undefined) === (type === undefined)) throw placeError();
  if (type === undefined) {
    const place = await requireNamedPool(context, { pool });
    return { place, tenant: place.spec.tenant ?? chooseTenant(context, input.tenant) };
  }
  const tenant = requireTenant(context, input.tenant);
  const value = ip ?? (port === undefined ? undefined : BigInt(port));
  const owner = ownerOfService(uid, tenant);
  const { place, leaseName } = await openTenantPool(context, { tenant, type, value }, owner);
  return { place, tenant, names: [leaseName] };
}

const placeError = (): OverlayError =>
  new OverlayError("INPUT_INVALID", "Neither pool nor type was given, or both.", "Give a pool, or tenant and type.");

/** The addresses of a service: in a pool, in its tenant's pool of a type, or in all that the caller may see. */
export async function findAllocations(context: Context, input: AllocationInput): Promise<Lease[]> {
  const { uid, pool, type } = input;
  const given = chooseTenant(context, input.tenant);
  if (pool === undefined && type !== undefined) {
    const tenant = requireTenant(context, input.tenant);
    const lease = await context.pool.find({ name: tenantLeaseName(tenant, type, ownerOfService(uid, tenant)) });
    return lease ? [lease] : [];
  }
  const specs =
    pool === undefined ? await addressPools(context, IP_POOLS) : [(await requireNamedPool(context, { pool })).spec];
  const leases = await Promise.all(
    specs.map(({ name, tenant }) => context.pool.find({ pool: name, owner: ownerOfService(uid, tenant ?? given) })),
  );
  return leases.filter((lease) => lease !== undefined);
}

/** Releases them, and returns what was released. It may be repeated. */
export async function deallocate(context: Context, input: AllocationInput): Promise<Lease[]> {
  const released: Lease[] = [];
  for (const lease of await findAllocations(context, input))
    if (await releaseOrReturn(context.pool, lease)) released.push(lease);
  return released;
}
