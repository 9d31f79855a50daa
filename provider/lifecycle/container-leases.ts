import { formatIp } from "../addressing/ip";
import { isOverlayError } from "../errors";
import type { InspectResult } from "../host/reconcile/requests";
import type { RunPlan } from "../ipam/run-plan";
import { type ExistingLease, isCommitted } from "../ipam/types";
import { isContainerOwner } from "../owner";
import type { Definition } from "../resource";
import type { Dependencies } from "./dependencies";
import type { Values } from "./values";

/**
 * Addresses of containers, as Docker reports them. A container that was started by hand has an address without a lease. A refresh
 * shows it as drift and offers it to that container, so that it is not offered to another owner; an up commits the lease.
 */

/** Addresses of containers that have no committed lease. */
async function findUnleased(
  def: Definition,
  pool: RunPlan,
  props: Values,
  seen: InspectResult[],
): Promise<ExistingLease[]> {
  const containers = seen.flatMap(({ containers }) => containers);
  const facts = def.host?.containerLeases?.(props, containers) ?? [];
  if (facts.length === 0) return [];
  const leases = await pool.ipam.leases(facts[0]!.pool);
  const held = new Set(leases.filter(isCommitted).flatMap(({ ranges }) => ranges.map(({ first }) => first)));
  return facts
    .map((fact) => ({ ...fact, values: fact.values.filter(({ first }) => !held.has(first)) }))
    .filter(({ values }) => values.length > 0);
}

/** Commits leases for them, in state `used`. */
export async function importContainerLeases(
  def: Definition,
  deps: Dependencies,
  pool: RunPlan,
  props: Values,
  seen: InspectResult[],
): Promise<void> {
  const facts = await findUnleased(def, pool, props, seen);
  if (facts.length === 0) return;
  const { conflicts } = await pool.ipam.importLeases(facts);
  for (const { lease, error } of conflicts) deps.warn(`Container ${lease.usedBy}: ${error.message}`);
}

/**
 * Leases that were only imported from Docker do not prevent the delete of a runner; a running container does, on the host. Returns
 * what to import again if the delete fails.
 */
export async function releaseContainerLeases(pool: RunPlan, name: string): Promise<ExistingLease[]> {
  const imported = (await pool.ipam.leases(name)).filter(
    ({ owner, state }) => isContainerOwner(owner) && state === "used",
  );
  for (const { leaseId } of imported) await pool.release(name, leaseId);
  return imported.map(({ owner, type, ranges, usedBy }) => ({
    pool: name,
    owner,
    type,
    values: ranges,
    ...(usedBy !== undefined && { usedBy }),
  }));
}

/** Offers them to the containers, and returns them as drift. Offers that a preview has made to others stay. */
export async function offerContainerLeases(
  def: Definition,
  pool: RunPlan,
  props: Values,
  seen: InspectResult[],
): Promise<string[]> {
  const facts = await findUnleased(def, pool, props, seen);
  await Promise.all(facts.map((fact) => pool.offer(fact).catch(ignoreTaken)));
  return facts.map(
    ({ usedBy, values }) =>
      `container ${usedBy} has ${values.map(({ first }) => formatIp(first)).join(" and ")}, which is not reserved`,
  );
}

const ignoreTaken = (error: unknown): void => {
  if (!isOverlayError(error, "IP_IN_USE", "POOL_NOT_FOUND")) throw error;
};
