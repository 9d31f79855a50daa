import { OverlayError } from "../errors";
import { cannotRemoveWarning } from "../ipam/errors";
import { findSpec } from "../ipam/interface";
import { isDeletedWithRunner, type RunPlan } from "../ipam/run-plan";
import { isCommitted, type Lease } from "../ipam/types";
import { isForgotten, isSameStack, shortName } from "../owner";
import { describePool, RUNNERS, SPACES } from "../pool-names";
import type { Caller, Dependencies } from "./dependencies";
import { readDirectRoutes } from "./mesh-peers";

/**
 * Deletes that would fail. Pulumi asks no provider about deletes in preview, so the check is part of the diff of a resource that stays: it finds
 * those that the program no longer declares.
 */

type Declares = NonNullable<Caller["declares"]>;

/**
 * `POOL_IN_USE` if the resource of this lease stays in the pool of a resource that this up deletes. Pulumi does not say whether it does: one with
 * `retainOnDelete`, one that is no target, or one that is no longer in the state is not deleted. So an up without a preview is not refused.
 */
export async function refuseUndeclaredPool(pool: RunPlan, lease: Lease, declares: Declares): Promise<void> {
  const opener = await pool.ipam.find({ name: lease.pool });
  if (opener && isRemoved(pool, opener, lease, declares)) throw undeclaredError(lease, opener);
}

/**
 * Warns if others, such as `overlayctl`, have leases on a resource beside this one that this up may delete, and names the hosts of a mesh that it
 * leaves. It is no refusal: the program may declare it later, with `retainOnDelete`, or it is no target.
 */
export async function warnOfUndeclaredBeside(
  pool: RunPlan,
  lease: Lease,
  declares: Declares,
  { unreachableOnDelete, warn, note }: Pick<Dependencies, "unreachableOnDelete" | "warn" | "note">,
): Promise<void> {
  const beside = await pool.ipam.leases(lease.pool);
  const allRemoved = beside.filter((each) => isRemoved(pool, each, lease, declares));
  const meshed = beside.filter((each) => isCommitted(each) && readDirectRoutes(each));
  const staying = meshed.filter((each) => !allRemoved.includes(each)).map(({ owner }) => shortName(owner));
  for (const { owner } of meshed.filter((each) => allRemoved.includes(each)))
    note(
      `${shortName(owner)} leaves the mesh, if this up deletes it. These hosts lose it as a peer: ${staying.join(", ")}.`,
    );
  for (const removed of allRemoved) {
    const stays = (held: Lease): boolean =>
      isCommitted(held) &&
      !isSameStack(held.owner, lease.owner) &&
      !isDeletedWithRunner(held) &&
      !(unreachableOnDelete === "forget" && isForgotten(held.owner));
    const spec = removed.childPool === undefined ? undefined : await findSpec(pool.ipam, removed.childPool);
    const left = spec ? (await pool.ipam.leases(spec.name)).filter(stays) : [];
    if (spec && left.length > 0) warn(cannotRemoveWarning(removed, spec, left.slice(0, 10)));
  }
}

/** Whether there can be such resources beside the one with this lease, and the program declares it in its first turn. */
export const mayHaveUndeclaredBeside = (lease: Lease, declares: Declares): boolean =>
  !lease.pool.startsWith(SPACES) && lease.childPool !== undefined && declares(lease.owner);

const isRemoved = (pool: RunPlan, other: Lease, lease: Lease, declares: Declares): boolean =>
  isCommitted(other) && isSameStack(other.owner, lease.owner) && !declares(other.owner) && !pool.isInRun(other);

const NOT_DELETED =
  "If the up does not delete it (retainOnDelete, --target), run `pulumi up --skip-preview`: only preview refuses.";

const undeclaredError = ({ owner, pool }: Lease, opener: Lease): OverlayError =>
  new OverlayError(
    "POOL_IN_USE",
    `${shortName(owner)} is in ${describePool(pool)}, but the program no longer declares ${shortName(opener.owner)}, whose delete would fail.`,
    pool.startsWith(RUNNERS)
      ? `A reservation on any runner moves with \`pulumi up --replace URN\`, once that runner is declared again with \`cordon: true\` (docs/draining.md). Else remove ${shortName(owner)} from the program, too. ${NOT_DELETED}`
      : `Remove ${shortName(owner)} from the program, too, or declare ${shortName(opener.owner)} again. ${NOT_DELETED}`,
  );
