import { OverlayError } from "../errors";
import { RunPlan } from "../ipam/run-plan";
import type { Tenant } from "../ipam/types";
import type { AllocationContext } from "../resource";
import { chooseTenantPool, claimTenantPool, type TenantPoolRequest, tenantLeaseName } from "../resources/tenants";
import { type AddressPool, requireNamedPool } from "./address-pools";
import type { Context } from "./context";
import { chooseTenant } from "./service-pools";

/** The pool of a tenant that was chosen for an owner. */
export interface TenantPool {
  place: AddressPool;
  /** A name for the lease, by which the same pool is found again for this owner. */
  leaseName: string;
}

/** The tenant's own pool of a type. A tenant without one gets a block at first use, as for resources. */
export async function openTenantPool(context: Context, request: TenantPoolRequest, owner: string): Promise<TenantPool> {
  const allocation: AllocationContext = {
    pool: new RunPlan(context.pool),
    owner,
    tenantDefaults: context.tenantDefaults ?? {},
  };
  const settings = await chooseTenantPool(request, allocation);
  await claimTenantPool(settings, allocation);
  const place = await requireNamedPool(context, { pool: settings.poolName });
  return { place, leaseName: tenantLeaseName(request.tenant, request.type, owner) };
}

/** That of the caller, or the one that the operator names. */
export function requireTenant(context: Context, given: Tenant | undefined): Tenant {
  const tenant = chooseTenant(context, given);
  if (tenant) return tenant;
  throw new OverlayError(
    "INPUT_INVALID",
    "type names a pool of a tenant, and no tenant is given.",
    "Give the tenant, too.",
  );
}
