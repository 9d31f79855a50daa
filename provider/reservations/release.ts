import { isOverlayError, OverlayError } from "../errors";
import { tokenUsedError } from "../ipam/token";
import type { Condition, Ipam, Lease, TokenClaims } from "../ipam/types";
import { describePool } from "../pool-names";
import { requireValue } from "./address-pools";
import { type Context, refuseLeaseOfOther } from "./context";
import type { FreeInput, ReleaseInput } from "./inputs";
import { formatValue, ipOf, isOfStack, userLeaseNames } from "./leases";
import { findLeases } from "./search";
import { mustBeUnused, readToken } from "./tokens";

interface Released {
  /** Released, or no longer used. Empty: there was nothing to release. */
  leases: Lease[];
  /** Those of them that belong to stacks, and stay reserved for them. */
  kept: Lease[];
}

/**
 * By the token of a reservation that is not used, or all addresses of a container, in every pool or in the given ones. It may be repeated: what has
 * ended already needs no release.
 */
export async function release(context: Context, { token, by, ...where }: ReleaseInput): Promise<Released> {
  if (token !== undefined && by === undefined) return releaseByToken(context, token);
  if (token !== undefined || by === undefined)
    throw new OverlayError("INPUT_INVALID", "Neither token nor container is given, or both.", "Give one of them.");
  const released: Released = { leases: [], kept: [] };
  for (const lease of await findLeases(context, { ...where, by })) {
    if (!(await releaseOrReturn(context.pool, lease))) continue;
    released.leases.push(lease);
    if (isOfStack(lease)) released.kept.push(lease);
  }
  return released;
}

async function releaseByToken(context: Context, token: string): Promise<Released> {
  const grant = await readToken(context, token);
  const lease = await findUnused(context, grant);
  if (!lease) return { leases: [], kept: [] };
  if (isOfStack(lease)) return { leases: [lease], kept: [lease] };
  if (await context.pool.release(lease.pool, lease.leaseId, { onlyIf: { state: "reserved" } }))
    return { leases: [lease], kept: [] };
  if (!(await findUnused(context, grant))) return { leases: [], kept: [] };
  throw tokenUsedError(grant);
}

/**
 * The reservation of a token; undefined: it was released, or has expired. A lease with another id shows that, too, because leases that are made
 * at run time get a new id only after their end. Those of stacks get one with each up.
 */
async function findUnused(context: Context, grant: TokenClaims): Promise<Lease | undefined> {
  const lease = await context.pool.find({ pool: grant.pool, uid: grant.leaseId.split(".")[0]! });
  const isCurrent = lease?.leaseId === grant.leaseId;
  if (!lease || (!isCurrent && !isOfStack(lease))) return undefined;
  if (!isCurrent) throw tokenUsedError(grant);
  refuseLeaseOfOther(lease, context);
  return mustBeUnused(grant, lease);
}

/** A stack keeps its lease, and its token can be used again. false: the lease has changed meanwhile. */
export async function releaseOrReturn(pool: Ipam, lease: Lease): Promise<boolean> {
  const onlyIf = unchangedSince(lease);
  if (!isOfStack(lease)) return pool.release(lease.pool, lease.leaseId, { onlyIf });
  const users = userLeaseNames(lease.pool, lease.usedBy);
  const names = (lease.names ?? []).filter((name) => !users.includes(name));
  try {
    await pool.change(lease.pool, lease.leaseId, { state: "reserved", names }, { onlyIf });
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
export async function free(context: Context, input: FreeInput): Promise<Lease> {
  const { pool } = context;
  const { place, value } = await requireValue(context, input, "Give ip or port.");
  const lease = await pool.find({ pool: place.pool, value });
  if (!lease)
    throw new OverlayError(
      "LEASE_NOT_FOUND",
      `${formatValue(value)} in ${describePool(place.pool)} is not held.`,
      "`overlayctl ip list` shows what is held.",
    );
  refuseLeaseOfOther(lease, context);
  if (lease.childPool !== undefined)
    throw new OverlayError(
      "INPUT_INVALID",
      `${ipOf(lease)} is the block of ${lease.childPool}, not an address.`,
      "Delete that pool.",
    );
  if (isOfStack(lease) && !input.force)
    throw new OverlayError(
      "IP_IN_USE",
      `${ipOf(lease)} belongs to ${lease.owner}.`,
      "Remove it from its program, or free it with force.",
    );
  await pool.release(lease.pool, lease.leaseId);
  return lease;
}
