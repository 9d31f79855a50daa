import { isOverlayError, OverlayError } from "../errors";
import type { Lease, Pool } from "../pool/types";
import { DEFAULT_TTL } from "../resources/ip-reservation";
import {
  type AddressPool,
  openRunnerPool,
  refuseOtherTenant,
  requestedChoice,
  requireNamedPool,
} from "./address-pools";
import type { ReserveInput } from "./inputs";
import { ownerFor, RESERVATION, userLeaseNames, vmLabel } from "./leases";
import type { Context } from "./tokens";

export interface Reservation {
  lease: Lease;
  token: string;
  /** Of the runner's subnets, one for each address family. */
  gateways: string[];
}

/** Holds an address until it is used, and signs a token for it. The same container gets the same lease again. */
export async function reserve(context: Context, input: ReserveInput): Promise<Reservation> {
  const { ttl = input.vm ? DEFAULT_TTL.vm : DEFAULT_TTL.container, ...rest } = input;
  const place = await requireNamedPool(context.pool, input);
  refuseOtherTenant(place, context.tenant);
  const lease = await claimAddress(context.pool, place, { ...rest, ttl });
  const token = await context.pool.signToken(lease);
  return { lease, token, gateways: gatewaysOf(place) };
}

export const gatewaysOf = ({ runner }: AddressPool): string[] => runner?.layouts.map(({ gateway }) => gateway) ?? [];

/** The lease is durable when it returns. */
export async function claimAddress(
  pool: Pool,
  place: AddressPool,
  { ip, port, ttl, by, vm, usedBy }: Omit<ReserveInput, "network" | "runner" | "pool"> & { usedBy?: string },
): Promise<Lease> {
  const choice = requestedChoice(place, { ip, port });
  await openRunnerPool(pool, place);
  const { tenant } = place.spec;
  const names = userLeaseNames(place.pool, by);
  const request = {
    pool: place.pool,
    owner: ownerFor(place.pool, by),
    type: RESERVATION,
    idempotent: true,
    ...choice,
    ...(ttl !== undefined && { ttl }),
    ...(names.length > 0 && { names }),
    ...(usedBy !== undefined && { usedBy }),
    ...(vm && { labels: vmLabel(vm) }),
    ...(tenant && { tenant }),
  };
  return pool.claim(request).catch((error: unknown) => {
    throw explainClaimError(error, by);
  });
}

/** Errors of the pool are written for stacks. Here there is no preview. */
function explainClaimError(error: unknown, by: string | undefined): unknown {
  if (isOverlayError(error, "PLAN_STALE"))
    return new OverlayError(
      "IP_IN_USE",
      error.what.replace(/ now\.$/, "."),
      "Request another value, or release that one first.",
      error,
    );
  if (isOverlayError(error, "RESERVATION_EXISTS") && by !== undefined)
    return new OverlayError(error.code, error.what, `\`overlayctl ip release --by ${by}\` releases it.`, error);
  return error;
}
