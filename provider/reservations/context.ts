import { tenantError } from "../ipam/errors";
import type { Ipam, PoolSpec, Tenant } from "../ipam/types";
import { isOfOtherTenant } from "../owner";
import type { TenantDefaults } from "../resource";

/** Passed to all functions of this folder: the pool, and the caller. */
export interface Context {
  pool: Ipam;
  /** The setting of this name, to validate tokens without the store. */
  tokenKeys?: string | undefined;
  /**
   * The tenant of the caller. It sees pools and leases of its own and those without a tenant, and is refused in others. Without one the caller is
   * the operator, who acts in every pool.
   */
  tenant?: Tenant | undefined;
  /** The name of the caller's access token: its owners and idempotency keys are not those of other callers. Default: the command line. */
  caller?: string | undefined;
  /** Whether the caller may make blocks for other tenants than its own. Default: it may, as the command line. */
  mayOpenBlocks?: boolean | undefined;
  /** The setting of this name: blocks for tenants without a pool. */
  tenantDefaults?: TenantDefaults | undefined;
}

/** Whether the caller may see a pool or a lease. */
export const isVisible = (thing: { tenant?: Tenant }, { tenant }: Pick<Context, "tenant">): boolean =>
  !isOfOtherTenant(thing, tenant);

/** Refuses a pool, or a lease in it, that belongs to another tenant, as it is for a resource. */
export function refuseOtherTenant(
  { name, tenant }: Pick<PoolSpec, "name" | "tenant">,
  context: Pick<Context, "tenant">,
): void {
  if (isOfOtherTenant(tenant ? { tenant } : {}, context.tenant)) throw tenantError({ name }, tenant!, context.tenant);
}

/** The same for a lease. */
export const refuseLeaseOfOther = (
  { pool, tenant }: { pool: string; tenant?: Tenant },
  context: Pick<Context, "tenant">,
): void => refuseOtherTenant({ name: pool, ...(tenant && { tenant }) }, context);
