import { isOverlayError, OverlayError } from "../errors";
import { claimOne } from "../ipam/interface";
import type { Json, Lease, Request } from "../ipam/types";
import { type AddressPool, requestedChoice } from "./address-pools";
import type { Context } from "./context";
import { ownerFor, ownerOfCaller, RESERVATION, userLeaseNames, vmLabel } from "./leases";

/** Claims of addresses, for a container or for an owner that the caller names. */
export interface AddressClaim {
  ip?: bigint | undefined;
  /** The address of the other family, together with `ip`. */
  ip6?: bigint | undefined;
  port?: number | undefined;
  ttl?: number | undefined;
  vm?: boolean | undefined;
  /** The container that it is for. */
  by?: string | undefined;
  /** The container that uses it at once. */
  usedBy?: string | undefined;
  /** Instead of a container. */
  owner?: string | undefined;
  /** Names of the lease, in addition to that of its container. */
  names?: string[];
  data?: Json;
}

/** The lease is durable when it returns. */
export async function claimAddress(context: Context, place: AddressPool, claim: AddressClaim): Promise<Lease> {
  const request = buildRequest(context, place, claim);
  return claimOne(context.pool, request).catch(throwExplained(claim.by));
}

/** A request that may be repeated: its owner has one lease in the pool. */
export function buildRequest(context: Context, place: AddressPool, claim: AddressClaim): Request {
  const { ip, ip6, port, ttl, by, usedBy, vm, owner, data } = claim;
  const names = [...userLeaseNames(place.pool, by), ...(claim.names ?? [])];
  const tenant = place.spec.tenant ?? context.tenant;
  return {
    pool: place.pool,
    owner: by === undefined ? ownerOfCaller(context, place.pool, owner) : ownerFor(place.pool, by, context.tenant),
    type: RESERVATION,
    idempotent: true,
    ...requestedChoice(place, { ip, ip6, port }),
    ...(ttl !== undefined && { ttl }),
    ...(names.length > 0 && { names }),
    ...(usedBy !== undefined && { usedBy }),
    ...(vm && { labels: vmLabel(vm) }),
    ...(data !== undefined && { data }),
    ...(tenant && { tenant }),
  };
}

/** For `.catch`: a user that has reserved already is told whose addresses to release. */
export const throwExplained =
  (by?: string) =>
  (error: unknown): never => {
    if (!isOverlayError(error, "RESERVATION_EXISTS") || by === undefined) throw error;
    throw new OverlayError(error.code, error.what, `Release the addresses of ${by} first.`, error);
  };
