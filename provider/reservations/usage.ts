import { exactNumber } from "../addressing/ip";
import { OverlayError } from "../errors";
import { formatExtents } from "../pool/errors";
import type { Pool, PoolSpec, Usage } from "../pool/types";
import { capitalize, describePool } from "../pool-names";

/** Usage of a pool, for JSON. Counts past 2^53 are strings. */
export interface PoolUsage {
  pool: string;
  kind: PoolSpec["kind"];
  range: string;
  allocation: PoolSpec["allocation"];
  tenant?: string;
  capacity: number | string;
  allocated: number | string;
  offered: number;
  quarantined: number;
  /** Percentage of values that are held or offered, with two decimals. */
  utilization: number;
}

export async function readUsage(pool: Pool, spec: PoolSpec): Promise<PoolUsage> {
  const usage = await pool.usage(spec.name);
  if (!usage)
    throw new OverlayError(
      "POOL_NOT_FOUND",
      `${capitalize(describePool(spec.name))} was deleted meanwhile.`,
      "Run the command again.",
    );
  return describeUsage(spec, usage);
}

function describeUsage(spec: PoolSpec, { capacity, held, offered, quarantined }: Usage): PoolUsage {
  return {
    pool: spec.name,
    kind: spec.kind,
    range: spec.kind === "space" ? "all addresses" : formatExtents(spec.kind, spec.extents),
    allocation: spec.allocation,
    ...(spec.tenant && { tenant: `${spec.tenant.org}/${spec.tenant.project}` }),
    capacity: exactNumber(capacity),
    allocated: exactNumber(held),
    offered,
    quarantined,
    utilization: capacity === 0n ? 0 : Number((held * 10_000n) / capacity) / 100,
  };
}

/** Of all pools, by name. */
export async function poolUsages(pool: Pool): Promise<PoolUsage[]> {
  const [specs, usages] = [await pool.pools(), await pool.usages("")];
  return specs.flatMap((spec) => {
    const usage = usages.get(spec.name);
    return usage ? [describeUsage(spec, usage)] : []; // deleted meanwhile
  });
}
