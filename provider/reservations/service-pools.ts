import { isDeepStrictEqual } from "node:util";
import { isOverlayError, OverlayError } from "../errors";
import { claimOne, findSpec } from "../ipam/interface";
import { equalRanges, total } from "../ipam/ranges";
import type { PlannedRequest } from "../ipam/run-plan";
import type { Ipam, Lease, PoolSpec, Request, Tenant, ValueRange } from "../ipam/types";
import { formatTenant, isOwnerForAllTenants, isSameTenant, isTenantBlockName } from "../owner";
import { capitalize, describePool, IP_POOLS, poolNamed } from "../pool-names";
import { type AllocationContext, parseSettings } from "../resource";
import { ipPool, type PoolSettings, storedPool } from "../resources/ip-pool";
import { chooseTenantPool, claimTenantPool, type TenantPoolRequest, tenantLeaseName } from "../resources/tenants";
import { type AddressPool, requireNamedPool, requirePool } from "./address-pools";
import type { Context } from "./context";
import type { CreatePoolInput } from "./inputs";

/**
 * IPPools that are made at run time, by the definition of the resource. They are leases as those of stacks, which refer to them by name; their
 * owner is `service/NAME`.
 */
const SERVICE = "service/";
const ownerOfPool = (name: string): string => SERVICE + name;

type Inputs = Parameters<typeof ipPool.request>[0];

/** It may be repeated. `POOL_OVERLAP` if another pool has its addresses or its name. */
export async function createPool(context: Context, input: CreatePoolInput): Promise<PoolSpec> {
  const { pool } = context;
  const inputs = await resolveInputs(context, input);
  const owner = ownerOfPool(inputs.poolName);
  const childPool = (ranges: ValueRange[]): PoolSpec => ipPool.childPool!(inputs, ranges);
  const request = { ...ipPool.request(inputs, owner), owner, type: ipPool.type, idempotent: true };
  const name = poolNamed(inputs.poolName);
  if (!(await findSpec(pool, name))) await claimPool(pool, { ...request, childPool });
  const [spec, lease] = [await findSpec(pool, name), await findOpener(pool, name)];
  if (!spec)
    throw new OverlayError(
      "POOL_NOT_FOUND",
      `${capitalize(describePool(name))} was deleted meanwhile.`,
      "Send the request again.",
    );
  if (lease && isAnswer(lease, request) && isDeepStrictEqual(spec, childPool(lease.ranges))) return spec;
  throw new OverlayError(
    "POOL_OVERLAP",
    `There is ${describePool(name)} with other settings${lease ? `, which belongs to ${lease.owner}` : ""}.`,
    "Choose another name, or delete that pool first.",
  );
}

/** The settings of a pool may follow from its values: these are chosen first. */
async function claimPool(ipam: Ipam, { childPool, ...request }: PlannedRequest): Promise<Lease> {
  if (typeof childPool !== "function") return claimOne(ipam, { ...request, ...(childPool && { childPool }) });
  const values = request.values ?? (await ipam.offer(request)).ranges;
  return claimOne(ipam, { ...request, values, childPool: childPool(values) });
}

/** Whether a pool that exists is the one that is requested, and not another one under the same name. */
const isAnswer = ({ owner, pool, ranges }: Lease, request: Request): boolean =>
  owner === request.owner &&
  pool === request.pool &&
  (request.values ? equalRanges(ranges, request.values) : total(ranges) === request.size);

async function resolveInputs(context: Context, input: CreatePoolInput): Promise<Inputs> {
  const { parent, ...rest } = input;
  const tenant = chooseTenant(context, input.tenant);
  const settings = parent === undefined ? undefined : await findParent(context, parent);
  const inputs = { ...rest, ...(tenant && { tenant }), ...(settings && { parent: settings }) } as Inputs;
  const errors = [...(ipPool.crossFieldErrors?.(inputs) ?? [])].map(({ property, reason }) => `${property} ${reason}`);
  if (errors.length === 0) return inputs;
  throw new OverlayError("INPUT_INVALID", `${errors.join("; ")}.`, "Correct the request.");
}

/** The caller's tenant; only the operator acts for others. */
export function chooseTenant(context: Context, given: Tenant | undefined): Tenant | undefined {
  if (given && context.tenant && !isSameTenant(given, context.tenant))
    throw new OverlayError(
      "TENANT_MISMATCH",
      `The request is for tenant ${formatTenant(given)}; the caller is of ${formatTenant(context.tenant)}.`,
      "Leave out the tenant.",
    ).about("tenant");
  return context.tenant ?? given;
}

async function findParent(context: Context, name: string): Promise<PoolSettings> {
  const spec = await requirePool(context, poolNamed(name));
  return parseSettings(storedPool, spec);
}

/** The lease whose child pool it is. */
async function findOpener(pool: Ipam, name: string): Promise<Lease | undefined> {
  const lease = await pool.find({ name });
  return lease?.childPool === name && lease.state !== "offered" ? lease : undefined;
}

/** Made at run time: an IPPool, the block of a tenant, or the range of all tenants. */
function isOfService({ owner, childPool = "" }: Lease): boolean {
  const name = childPool.slice(IP_POOLS.length);
  const isForTenants = isTenantBlockName(owner) || isOwnerForAllTenants(owner);
  return owner === ownerOfPool(name) || (isForTenants && owner === name);
}

/** `POOL_IN_USE` while it has leases. Pools of stacks are deleted by their stack. */
export async function deletePool(context: Context, name: string): Promise<PoolSpec> {
  const { pool } = context;
  const spec = await requirePool(context, name);
  const lease = await findOpener(pool, spec.name);
  if (!lease || !isOfService(lease))
    throw new OverlayError(
      "POOL_IN_USE",
      `${capitalize(describePool(spec.name))} ${lease ? `belongs to ${lease.owner}` : "was not made at run time"}.`,
      "Delete it where it was created.",
    );
  await pool.close(lease.pool, lease.leaseId);
  await pool.release(lease.pool, lease.leaseId);
  return spec;
}

/** The pool of a tenant that was chosen for an owner. */
export interface TenantPool {
  place: AddressPool;
  /** A name for the lease, by which the same pool is found again for this owner. */
  leaseName: string;
}

/**
 * The tenant's own pool of a type. A tenant without one gets a block at first use, as for resources. Blocks are few: other callers than the tenant's
 * own do not use them up.
 */
export async function openTenantPool(context: Context, request: TenantPoolRequest, owner: string): Promise<TenantPool> {
  const mayOpen = context.mayOpenBlocks !== false || isSameTenant(context.tenant, request.tenant);
  const tenantDefaults = mayOpen ? (context.tenantDefaults ?? {}) : {};
  const allocation: AllocationContext = { pool: outsideRuns(context.pool), owner, tenantDefaults };
  const open = async (): Promise<PoolSettings> => {
    const chosen = await chooseTenantPool(request, allocation);
    await claimTenantPool(chosen, allocation);
    return chosen;
  };
  const settings = await open().catch((error: unknown) => {
    throw mayOpen || !isOverlayError(error, "INPUT_INVALID") ? error : blockDeniedError(request);
  });
  const place = await requireNamedPool(context, { pool: settings.poolName });
  return { place, leaseName: tenantLeaseName(request.tenant, request.type, owner) };
}

/** What a run of Pulumi knows besides the store: here nothing. */
const outsideRuns = (ipam: Ipam): AllocationContext["pool"] => ({
  ipam,
  offer: ({ childPool, ...request }) => ipam.offer({ ...request, ...(typeof childPool === "object" && { childPool }) }),
  claim: (request) => claimPool(ipam, request),
  withdrawOffer: ({ pool, owner, program = "" }) => ipam.withdraw({ pool, owner, program }),
  plannedSpec: (spec) => spec,
  isReplaced: () => false,
  isEnding: () => false,
  isInRun: () => false,
});

const blockDeniedError = ({ tenant, type }: TenantPoolRequest): OverlayError =>
  new OverlayError(
    "ACCESS_DENIED",
    `Tenant ${formatTenant(tenant)} has no pool of type ${type} yet, and this access token may not make one for it.`,
    "Send the first request with a token of that tenant, or with the scope admin.",
  );

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
