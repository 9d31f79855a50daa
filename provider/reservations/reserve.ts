import { isOverlayError, OverlayError } from "../errors";
import { tokenOf } from "../pool/token";
import type { Lease, Pool } from "../pool/types";
import type { ReserveInput } from "./inputs";
import { ownerIn, RESERVATION, userNamesIn, vmLabel } from "./leases";
import { choiceIn, mustBeNamed, openPlace, type Place, refuseOtherTenant } from "./places";
import { type Context, keyRingOf } from "./tokens";

const TTL = 300;
/** A virtual machine takes longer to boot than a container. */
const VM_TTL = 1800;
export const DEFAULT_TTL = { container: TTL, vm: VM_TTL };

export interface Reservation {
  lease: Lease;
  token: string;
  /** Of the runner's subnets, one for each address family. */
  gateways: string[];
}

/** Holds an address until it is used, and signs a token for it. The same container gets the same lease again. */
export async function reserve(context: Context, input: ReserveInput): Promise<Reservation> {
  const { ttl = input.vm ? VM_TTL : TTL, ...rest } = input;
  const place = await mustBeNamed(context.pool, input);
  refuseOtherTenant(place, context.tenant);
  const lease = await claimAddress(context.pool, place, { ...rest, ttl });
  const token = tokenOf(lease, await keyRingOf(context));
  return { lease, token, gateways: gatewaysOf(place) };
}

export const gatewaysOf = ({ runner }: Place): string[] => runner?.layouts.map(({ gateway }) => gateway) ?? [];

/** Durable when it returns. */
export async function claimAddress(
  pool: Pool,
  place: Place,
  { ip, port, ttl, by, vm, usedBy }: Omit<ReserveInput, "network" | "runner" | "pool"> & { usedBy?: string },
): Promise<Lease> {
  const choice = choiceIn(place, { ip, port });
  await openPlace(pool, place);
  const { tenant } = place.spec;
  const names = userNamesIn(place.pool, by);
  const request = {
    pool: place.pool,
    owner: ownerIn(place.pool, by),
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
    throw explain(error, by);
  });
}

/** The pool's words are for stacks: no preview has promised anything here. */
function explain(error: unknown, by: string | undefined): unknown {
  if (isOverlayError(error, "PLAN_STALE"))
    return new OverlayError(
      "IP_IN_USE",
      error.what.replace(/ now\.$/, "."),
      "Ask for another one, or release that one first.",
      error,
    );
  if (isOverlayError(error, "RESERVATION_EXISTS") && by !== undefined)
    return new OverlayError(error.code, error.what, `\`overlayctl ip release --by ${by}\` releases it.`, error);
  return error;
}
