import { formatIp } from "../addressing/ip";
import { isOverlayError } from "../errors";
import type { InspectResult } from "../host/reconcile/types";
import { isContainers } from "../owner";
import { type Fact, isFirm, type Pool } from "../pool/types";
import type { Definition } from "../resource";
import type { Values } from "./values";
import type { World } from "./world";

/**
 * Docker's own view of who has which address. A container that was started by hand has one that the pool did not give out:
 * a look shows it and promises it to that container, so that nobody else is promised it; an up makes that firm.
 */

/** What containers have and nobody holds. */
async function unheld(def: Definition, pool: Pool, props: Values, seen: InspectResult[]): Promise<Fact[]> {
  const containers = seen.flatMap(({ containers }) => containers);
  const facts = def.host?.containerLeases?.(props, containers) ?? [];
  if (facts.length === 0) return [];
  const leases = await pool.leases(facts[0]!.pool);
  const held = new Set(leases.filter(isFirm).flatMap(({ extents }) => extents.map(({ first }) => first)));
  return facts
    .map((fact) => ({ ...fact, want: fact.want.filter(({ first }) => !held.has(first)) }))
    .filter(({ want }) => want.length > 0);
}

/** They are `used` from now on. */
export async function enter(
  def: Definition,
  world: World,
  pool: Pool,
  props: Values,
  seen: InspectResult[],
): Promise<void> {
  const facts = await unheld(def, pool, props, seen);
  if (facts.length === 0) return;
  const { conflicts } = await pool.enrol(facts);
  for (const { fact, error } of conflicts) world.warn(`Container ${fact.usedBy}: ${error.message}`);
}

/**
 * What only repeats what Docker showed keeps nobody from deleting the runner; the machine does, while a container runs. Returns
 * what to enter again in that case.
 */
export async function forget(pool: Pool, name: string): Promise<Fact[]> {
  const entered = (await pool.leases(name)).filter(({ owner, state }) => isContainers(owner) && state === "used");
  for (const { leaseId } of entered) await pool.release(name, leaseId);
  return entered.map(({ owner, type, extents, usedBy }) => ({
    pool: name,
    owner,
    type,
    want: extents,
    ...(usedBy !== undefined && { usedBy }),
  }));
}

/** Returns them as drift. What a preview has promised to others is not taken from them by a look. */
export async function promise(def: Definition, pool: Pool, props: Values, seen: InspectResult[]): Promise<string[]> {
  const facts = await unheld(def, pool, props, seen);
  await Promise.all(facts.map((fact) => pool.offer(fact).catch(unlessTaken)));
  return facts.map(
    ({ usedBy, want }) =>
      `container ${usedBy} has ${want.map(({ first }) => formatIp(first)).join(" and ")}, which is not reserved`,
  );
}

const unlessTaken = (error: unknown): void => {
  if (!isOverlayError(error, "IP_IN_USE", "POOL_NOT_FOUND")) throw error;
};
