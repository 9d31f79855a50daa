import { z } from "zod";
import { isOverlayError, OverlayError } from "../errors";
import { forgottenOwner, shortName } from "../owner";
import type { Lease, Pool } from "../pool/types";
import type { Dependencies } from "./dependencies";
import { amendOwned, type OwnedLease, readLeaseData } from "./owned-lease";

/** Hosts that do not answer when their resource is deleted: the setting `overlay:unreachableOnDelete`. */

/** Returns the error if its host is to be forgotten, else throws it. `effect` of forgetting it, for the advice. */
export function forgetOrThrow(error: unknown, { unreachableOnDelete }: Dependencies, effect = ""): OverlayError {
  if (!isOverlayError(error, "SSH_UNREACHABLE")) throw error;
  if (unreachableOnDelete === "forget") return error;
  const advice = "run `pulumi config set overlay:unreachableOnDelete forget` and destroy again";
  throw new OverlayError(
    error.code,
    error.what,
    `${error.fix} If the host is gone for good, ${advice}${effect && `: ${effect}`}.`,
    error,
  );
}

export const STAY_RESERVED =
  "its addresses then stay reserved, because the host may still be using them, until `overlayctl gc --forgotten` releases them";

/**
 * Keeps the lease of a deleted resource reserved for these hosts, which did not answer (`error`). No hosts: other forgotten hosts have
 * leases in the pool that it opens.
 */
export async function keepReserved(
  hosts: string[],
  deps: Dependencies,
  pool: Pool,
  lease: OwnedLease & Lease,
  error?: OverlayError,
): Promise<void> {
  const data = { ...readLeaseData(lease), forgotten: hosts };
  await amendOwned(pool, lease, { owner: forgottenOwner(lease.owner), names: [], data });
  deps.warn(error ? describeKept(hosts, error) : describeWithheld(lease));
}

function describeKept(hosts: string[], { message }: OverlayError): string {
  const words = hosts.map((host) => (host.includes(" ") ? `'${host}'` : host)).join(" ");
  return (
    `${message} Its addresses stay reserved, because the host may still be using them. Once ${hosts.join(" and ")} cannot use ` +
    `them any more, run \`overlayctl gc --forgotten ${words} --yes\` to release them.`
  );
}

const describeWithheld = ({ owner }: Lease): string =>
  `${shortName(owner)} is deleted, but its range stays reserved, because forgotten hosts may still use addresses in it. ` +
  "`overlayctl gc --forgotten` lists them.";

const forgottenData = z.object({ forgotten: z.array(z.string()) });

/** Hosts that may still use the values of this lease; undefined: it does not say. */
export const forgottenHosts = ({ data }: Lease): string[] | undefined => forgottenData.safeParse(data).data?.forgotten;
