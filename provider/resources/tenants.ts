import { familyOf, widthOf } from "../addressing/line";
import { rangeOf, rangeText } from "../addressing/ranges";
import { OverlayError } from "../errors";
import type { Extent, Fact, Json, Lease, PoolSpec, Request, Tenant } from "../pool/types";
import { type Settling, settingsIn, type TenantDefaults } from "../resource";
import { type PoolSettings, poolNamed } from "./ip-pool";

/**
 * A tenant that has no pool gets a block of its own out of a range that all tenants share, when it first asks. Blocks are
 * leases like any other, so that no two tenants ever overlap; they stay when the last address of a tenant goes, since it
 * may have told others about them. No stack owns them: all stacks of a tenant find the same.
 */
export type Ask = "offer" | "claim";

/** With slashes, which no pool of a user can have in its name. */
const sharedName = (type: string): string => `tenants/${type}`;
const blockName = ({ org, project }: Tenant, type: string): string => `tenant/${org}/${project}/${type}`;

export async function tenantPool(tenant: Tenant, type: string, settling: Settling, ask: Ask): Promise<PoolSettings> {
  const { pool, tenantDefaults } = settling;
  const known = await pool.spec(poolNamed(blockName(tenant, type)));
  if (known && (ask === "offer" || (await isClaimed(settling, tenant, type)))) return settingsIn(known);
  const { range, prefixLength } = tenantDefaults[type] ?? unknownType(type, Object.keys(tenantDefaults));
  const shared = await pool.find("space/default", { owner: sharedName(type) });
  if (!shared || shared.state === "offered") await pool[ask](sharedRange(type, range)).catch(explained(type));
  const size = 1n << BigInt(widthOf(familyOf(range.first)) - prefixLength);
  const { extents } = await pool[ask](block(tenant, type, size));
  return settingsIn(blockSpec(tenant, type, extents));
}

async function isClaimed({ pool }: Settling, tenant: Tenant, type: string): Promise<boolean> {
  const lease = await pool.find(poolNamed(sharedName(type)), { owner: blockName(tenant, type) });
  return lease !== undefined && lease.state !== "offered";
}

/** The leases of a tenant's block and of the range that it is in, as they must stand. */
export function tenantFacts({ tenant, type, ranges }: PoolSettings, tenantDefaults: TenantDefaults): Fact[] {
  const want = ranges.map((text) => rangeOf(text)!);
  const { size: _, ...request } = block(tenant!, type, 1n);
  const range = tenantDefaults[type]?.range;
  return [...(range ? [sharedRange(type, range)] : []), { ...request, want, opens: blockSpec(tenant!, type, want) }];
}

const sharedRange = (type: string, range: Extent) => ({
  pool: "space/default",
  owner: sharedName(type),
  type: "IPPool",
  want: [range],
  names: [poolNamed(sharedName(type))],
  opens: {
    name: poolNamed(sharedName(type)),
    kind: "address",
    extents: [range],
    allocation: "lowest",
    data: { settings: { poolName: sharedName(type), addressSpace: "default", type, ranges: [rangeText(range)] } },
  } satisfies PoolSpec,
});

const block = (tenant: Tenant, type: string, size: bigint): Request => ({
  pool: poolNamed(sharedName(type)),
  owner: blockName(tenant, type),
  type: "IPPool",
  size,
  tenant,
  names: [poolNamed(blockName(tenant, type))],
  opens: (extents) => blockSpec(tenant, type, extents),
});

function blockSpec(tenant: Tenant, type: string, extents: Extent[]): PoolSpec {
  const poolName = blockName(tenant, type);
  const settings = { poolName, addressSpace: "default", type, ranges: extents.map(rangeText), tenant };
  return {
    name: poolNamed(poolName),
    kind: "address",
    extents,
    allocation: "hashed",
    tenant,
    warnAtPercent: 80,
    data: { settings: settings as unknown as Json },
  };
}

function unknownType(type: string, known: string[]): never {
  throw new OverlayError(
    "INPUT_INVALID",
    `Tenants get pools of type ${known.join(" and ")} by themselves, but not of type ${type}.`,
    "Give a pool, or add the type to overlay:tenantDefaults.",
  ).about("type");
}

/** The range is taken as a whole; what is already in it must be known to whoever reads the refusal. */
const explained =
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
