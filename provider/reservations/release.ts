import { isOverlayError, OverlayError } from "../errors";
import { isOfOtherTenant } from "../owner";
import { tokenUsedError } from "../pool/token";
import type { Condition, Lease, Pool } from "../pool/types";
import { findPoolOf, refuseOtherTenant, requestedValue, requireNamedPool } from "./address-pools";
import type { FreeInput, PoolChoice } from "./inputs";
import { ipOf, isHeldBy, isOfStack, userLeaseNames } from "./leases";
import { findLeases } from "./search";
import { type Context, leaseOfToken, mustBeUnused, readToken } from "./tokens";

export interface Released {
  /** Released, or no longer used. */
  leases: Lease[];
  /** Those of them that belong to stacks, and stay reserved for them. */
  kept: Lease[];
}

/** Releases an unused reservation. */
export async function releaseByToken(context: Context, token: string): Promise<Released> {
  const grant = await readToken(context, token);
  const lease = mustBeUnused(grant, await leaseOfToken(context, grant));
  if (isOfStack(lease)) return { leases: [lease], kept: [lease] };
  if (await context.pool.release(lease.pool, lease.leaseId, { onlyIf: { state: "reserved" } }))
    return { leases: [lease], kept: [] };
  mustBeUnused(grant, await leaseOfToken(context, grant));
  throw tokenUsedError(grant);
}

/** Releases all addresses of a container, in every pool or in the given ones. A caller with a tenant releases none of other tenants. */
export async function releaseByContainer(
  { pool, tenant }: Context,
  by: string,
  where: PoolChoice = {},
): Promise<Released> {
  const released: Released = { leases: [], kept: [] };
  for (const lease of await findLeases(pool, where)) {
    if (!isHeldBy(lease, by) || isOfOtherTenant(lease, tenant) || !(await releaseOrReturn(pool, lease))) continue;
    released.leases.push(lease);
    if (isOfStack(lease)) released.kept.push(lease);
  }
  return released;
}

/** A stack keeps its lease, and its token can be used again. false: the lease has changed meanwhile. */
async function releaseOrReturn(pool: Pool, lease: Lease): Promise<boolean> {
  const onlyIf = unchangedSince(lease);
  if (!isOfStack(lease)) return pool.release(lease.pool, lease.leaseId, { onlyIf });
  const users = userLeaseNames(lease.pool, lease.usedBy);
  const names = (lease.names ?? []).filter((name) => !users.includes(name));
  try {
    await pool.amend(lease.pool, lease.leaseId, { state: "reserved", names }, { onlyIf });
    return true;
  } catch (error) {
    if (isOverlayError(error, "LEASE_CHANGED", "LEASE_FENCED", "LEASE_EXPIRED")) return false;
    throw error;
  }
}

const unchangedSince = ({ state, usedBy }: Lease): Condition => ({
  state: state === "used" ? "used" : "reserved",
  ...(usedBy !== undefined && { usedBy }),
});

/** Releases an address of any holder; one of a stack only with `force`. */
export async function free({ pool, tenant }: Context, input: FreeInput): Promise<Lease> {
  const { ip, port, force = false } = input;
  const place = ip === undefined ? await requireNamedPool(pool, input) : await findPoolOf(pool, input, ip);
  refuseOtherTenant(place, tenant);
  const value = requestedValue(place.spec, { ip, port });
  if (value === undefined)
    throw new OverlayError("INPUT_INVALID", "No address given.", "Pass `--ip ADDRESS` or `--port PORT`.");
  const lease = await pool.find(place.pool, { value });
  if (!lease) {
    throw new OverlayError(
      "INPUT_INVALID",
      `${ipOf({ extents: [{ first: value, last: value }] })} in ${place.pool} is not held.`,
      "`overlayctl ip list` shows what is held.",
    );
  }
  if (lease.childPool !== undefined)
    throw new OverlayError(
      "INPUT_INVALID",
      `${ipOf(lease)} is the block of ${lease.childPool}, not an address.`,
      "Delete that pool.",
    );
  if (isOfStack(lease) && !force)
    throw new OverlayError(
      "IP_IN_USE",
      `${ipOf(lease)} belongs to ${lease.owner}.`,
      "Remove it from its program, or use --force.",
    );
  await pool.release(lease.pool, lease.leaseId);
  return lease;
}
