import { addressBits, familyOf, formatRange, parseRange } from "../addressing/ip";
import { OverlayError } from "../errors";
import { findSpec } from "../ipam/interface";
import type { PlannedRequest } from "../ipam/run-plan";
import type { ExistingLease, Json, Lease, PoolSpec, Tenant, Usage, ValueRange } from "../ipam/types";
import { isSameTenant, tenantBlockName } from "../owner";
import { capitalize, DEFAULT_SPACE, describePool, placementLeaseName, poolNamed } from "../pool-names";
import { type AllocationContext, parseSettings, type TenantDefaults } from "../resource";
import { type PoolSettings, storedPool } from "./ip-pool";
import { findChosen, isOnlyOffered, mayLeavePool, withdrawChosen } from "./placement";

/**
 * The pool of an address that is requested by `tenant` and `type`: an IPPool of that tenant and type, if there is one.
 *
 * For a tenant without a pool, the first request allocates a block from a range that all tenants share. Blocks are leases, so blocks
 * of two tenants never overlap. They stay when the last address is released, because other systems may be configured with them, until they are
 * deleted over the API, or the range is full and another tenant needs one. No stack owns them: all stacks of a tenant use the same block.
 */
type AllocationMethod = "offer" | "claim";

export interface TenantPoolRequest {
  tenant: Tenant;
  type: string;
  /** The requested address or port, if any. */
  value: bigint | undefined;
}

/** A block without leases that was made so many seconds ago is given to another tenant if no other one is left. */
const EMPTY_BLOCK_KEPT = 86_400;

/** Names with slashes, which names of IPPools cannot have. */
const sharedRangeName = (type: string): string => `tenants/${type}`;

/** A name of the lease, by which the pool that was chosen for its owner is found again. */
export const tenantLeaseName = (tenant: Tenant, type: string, owner: string): string =>
  placementLeaseName(tenantBlockName(tenant, type), owner);

/**
 * A resource stays in the pool where it is, by its state, its lease or a preview's offer. A new one gets the tenant's own pool. A pool that the
 * program does not create is left by a preview, and by an up of a program to which it was not shown.
 */
export async function chooseTenantPool(request: TenantPoolRequest, context: AllocationContext): Promise<PoolSettings> {
  const { tenant, type } = request;
  const { pool, owner } = context;
  const before = formerPool(request, context.olds);
  const chosen = await findChosen(tenantLeaseName(tenant, type, owner), context);
  const mayLeave = mayLeavePool(context, chosen);
  const formerName = before && poolNamed(before.poolName);
  const blockName = poolNamed(tenantBlockName(tenant, type));
  for (const name of [formerName, chosen?.pool]) {
    const stored = name === undefined ? undefined : await findSpec(pool.ipam, name);
    const spec = stored && pool.plannedSpec(stored);
    if (
      spec &&
      isSameTenant(spec.tenant, tenant) &&
      hasValue(spec, request) &&
      (name === formerName || (typeOf(spec) === type && !pool.isReplaced(spec.name))) &&
      !(mayLeave && (await isPoolOnlyOffered(spec, pool)))
    )
      return name === blockName ? allocateBlock(tenant, type, context, "offer") : parseSettings(storedPool, spec);
  }
  const all = await findOwnPools(request, pool);
  const replaced = all.find(({ name }) => pool.isReplaced(name));
  if (replaced && context.dryRun) await rejectReplacedPool(replaced, request, context);
  const [own] = all.filter(({ name }) => !pool.isReplaced(name)); // In an up, it is still the old pool, which is about to be deleted.
  return own ? parseSettings(storedPool, own) : allocateBlock(tenant, type, context, "offer");
}

const typeOf = (spec: PoolSpec): string => parseSettings(storedPool, spec).type;

/** In which of its pools the tenant gets an address then cannot be promised. */
async function rejectReplacedPool(
  { name }: PoolSpec,
  { tenant, type }: TenantPoolRequest,
  context: AllocationContext,
): Promise<never> {
  await withdrawChosen(tenantLeaseName(tenant, type, context.owner), context);
  throw new OverlayError(
    "POOL_NOT_FOUND",
    `${capitalize(describePool(name))} is being replaced.`,
    "A pool of the tenant is chosen once it exists.",
  );
}

function formerPool({ tenant, type }: TenantPoolRequest, olds: AllocationContext["olds"]): PoolSettings | undefined {
  const before = olds as { tenant?: Tenant; type?: string; pool?: PoolSettings } | undefined;
  return before?.type === type && isSameTenant(before.tenant, tenant) ? before.pool : undefined;
}

/** The tenant's pools of this type that have the value: those with room first, then by name. */
async function findOwnPools(request: TenantPoolRequest, pool: AllocationContext["pool"]): Promise<PoolSpec[]> {
  const own: PoolSpec[] = [];
  const pools = await pool.ipam.pools({ prefix: poolNamed(""), withUsage: true });
  for (const spec of pools.map((stored) => pool.plannedSpec(stored.spec))) {
    const isOwn =
      isSameTenant(spec.tenant, request.tenant) &&
      typeOf(spec) === request.type &&
      spec.name !== poolNamed(tenantBlockName(request.tenant, request.type));
    if (isOwn && !(await isPoolOnlyOffered(spec, pool))) own.push(spec);
  }
  if (own.length === 0) return [];
  const usages = new Map(pools.map(({ spec, usage }) => [spec.name, usage]));
  const isFull = (spec: PoolSpec): number => Number(!hasRoom(spec, usages.get(spec.name), request));
  const isElsewhere = (spec: PoolSpec): number => Number(!hasValue(spec, request));
  return own.sort((a, b) => isElsewhere(a) - isElsewhere(b) || isFull(a) - isFull(b) || (a.name < b.name ? -1 : 1));
}

/** Not so for blocks: they are created when they are needed. */
async function isPoolOnlyOffered(spec: PoolSpec, pool: AllocationContext["pool"]): Promise<boolean> {
  const lease = await pool.ipam.find({ name: spec.name });
  const isBlock = lease?.owner === spec.name.slice(poolNamed("").length);
  return !isBlock && isOnlyOffered(lease, pool);
}

const hasValue = ({ ranges }: PoolSpec, { value }: TenantPoolRequest): boolean =>
  value === undefined || ranges.some(({ first, last }) => first <= value && value <= last);

function hasRoom(spec: PoolSpec, usage: Usage | undefined, { value }: TenantPoolRequest): boolean {
  if (!usage) return false;
  const { maxIps = Infinity, maxReservations = Infinity } = spec.quota ?? {};
  const picks = value !== undefined || (spec.autoAssign !== false && spec.allocation !== "external");
  const leases = usage.offered + usage.reserved + usage.used;
  return picks && usage.held < usage.capacity && usage.held < maxIps && leases < maxReservations;
}

/** Claims the block that a preview has offered. An IPPool has a lease of its own. */
export async function claimTenantPool(
  { poolName, tenant, type }: PoolSettings,
  context: AllocationContext,
): Promise<void> {
  if (tenant && poolName === tenantBlockName(tenant, type)) await allocateBlock(tenant, type, context, "claim");
}

/** An offered block is offered again: it must not expire before the addresses in it. */
async function allocateBlock(
  tenant: Tenant,
  type: string,
  context: AllocationContext,
  ask: AllocationMethod,
): Promise<PoolSettings> {
  const { pool, tenantDefaults } = context;
  const known = await findSpec(pool.ipam, poolNamed(tenantBlockName(tenant, type)));
  if (known && (await isClaimed(context, tenant, type))) return parseSettings(storedPool, known);
  const { range, prefixLength } = tenantDefaults[type] ?? rejectUnknownType(type, Object.keys(tenantDefaults));
  const shared = await pool.ipam.find({ pool: DEFAULT_SPACE, owner: sharedRangeName(type) });
  if (!shared || shared.state === "offered")
    await pool[ask](sharedRangeRequest(type, range)).catch(explainOverlap(type));
  const size = 1n << BigInt(addressBits(familyOf(range.first)) - prefixLength);
  const { ranges } = await pool[ask](blockRequest(tenant, type, size));
  return parseSettings(storedPool, blockSpec(tenant, type, ranges));
}

async function isClaimed({ pool }: AllocationContext, tenant: Tenant, type: string): Promise<boolean> {
  const lease = await pool.ipam.find({ pool: poolNamed(sharedRangeName(type)), owner: tenantBlockName(tenant, type) });
  return lease !== undefined && lease.state !== "offered";
}

/** The leases of a tenant's block and of the shared range, for a store that is rebuilt; none for an IPPool. */
export function tenantBlockLeases(
  { poolName, tenant, type, ranges }: PoolSettings,
  tenantDefaults: TenantDefaults,
): ExistingLease[] {
  if (poolName !== tenantBlockName(tenant!, type)) return [];
  const values = ranges.map((text) => parseRange(text)!);
  const { size: _, ...request } = blockRequest(tenant!, type, 1n);
  const range = tenantDefaults[type]?.range;
  return [
    ...(range ? [sharedRangeRequest(type, range)] : []),
    { ...request, values, childPool: blockSpec(tenant!, type, values) },
  ];
}

/** The leases of all shared ranges. They belong to no tenant. */
export const sharedRangeLeases = (tenantDefaults: TenantDefaults): ExistingLease[] =>
  Object.entries(tenantDefaults).map(([type, { range }]) => sharedRangeRequest(type, range));

const sharedRangeRequest = (type: string, range: ValueRange) => ({
  pool: DEFAULT_SPACE,
  owner: sharedRangeName(type),
  type: "IPPool",
  values: [range],
  names: [poolNamed(sharedRangeName(type))],
  childPool: {
    name: poolNamed(sharedRangeName(type)),
    kind: "address",
    ranges: [range],
    allocation: "lowest",
    reclaimAfter: EMPTY_BLOCK_KEPT,
    data: {
      settings: { poolName: sharedRangeName(type), addressSpace: "default", type, ranges: [formatRange(range)] },
    },
  } satisfies PoolSpec,
});

const blockRequest = (tenant: Tenant, type: string, size: bigint): PlannedRequest => ({
  pool: poolNamed(sharedRangeName(type)),
  owner: tenantBlockName(tenant, type),
  type: "IPPool",
  size,
  tenant,
  names: [poolNamed(tenantBlockName(tenant, type))],
  childPool: (ranges) => blockSpec(tenant, type, ranges),
});

function blockSpec(tenant: Tenant, type: string, ranges: ValueRange[]): PoolSpec {
  const poolName = tenantBlockName(tenant, type);
  const settings = { poolName, addressSpace: "default", type, ranges: ranges.map(formatRange), tenant };
  return {
    name: poolNamed(poolName),
    kind: "address",
    ranges,
    allocation: "hashed",
    tenant,
    warnAtPercent: 80,
    data: { settings: settings as unknown as Json },
  };
}

function rejectUnknownType(type: string, known: string[]): never {
  throw new OverlayError(
    "INPUT_INVALID",
    `Tenants get pools of type ${known.join(" and ")} by default, but not of type ${type}.`,
    "Give a pool, or add the type to overlay:tenantDefaults.",
  ).about("type");
}

/** The shared range is claimed as a whole: the error says what it overlaps with. */
const explainOverlap =
  (type: string) =>
  (error: unknown): Promise<Lease> => {
    if (!(error instanceof OverlayError) || error.code !== "POOL_OVERLAP") throw error;
    throw new OverlayError(
      error.code,
      `The range that tenants share for ${type}: ${error.what}`,
      "Give tenants another range with overlay:tenantDefaults, or this one a pool of its own.",
      error,
    );
  };
