import { z } from "zod";
import { isOverlayError, OverlayError } from "../errors";
import { forgottenOwner, shortName } from "../owner";
import type { Lease, Pool } from "../pool/types";
import { amendHeld, dataOf, type Held } from "./apply";
import type { World } from "./world";

/** Hosts that do not answer when their resource is deleted, and what `overlay:unreachableOnDelete` makes of that. */

/** Returns the error if its host is to be forgotten, else throws it. `effect`: what the user gets by that, for the advice. */
export function forgetOrThrow(error: unknown, { unreachableOnDelete }: World, effect = ""): OverlayError {
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
 * Keeps the lease of a deleted resource reserved for these hosts, which did not answer (`error`). No hosts: others that were forgotten
 * hold something in the pool that it opens.
 */
export async function keepFor(
  hosts: string[],
  world: World,
  pool: Pool,
  lease: Held & Lease,
  error?: OverlayError,
): Promise<void> {
  const data = { ...dataOf(lease), forgotten: hosts };
  await amendHeld(pool, lease, { owner: forgottenOwner(lease.owner), names: [], data });
  world.warn(error ? describeKept(hosts, error) : describeWithheld(lease));
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

const forgottenNote = z.object({ forgotten: z.array(z.string()) });

/** Hosts that may still use what this lease holds; undefined: it does not say. */
export const forgottenHosts = ({ data }: Lease): string[] | undefined => forgottenNote.safeParse(data).data?.forgotten;
