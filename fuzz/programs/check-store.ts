import { isSameStack, isStackOwner } from "../../provider/owner";
import { openPool } from "../../provider/pool";
import { uidOf } from "../../provider/pool/storage/leases";
import { isCommitted, type Lease, type Pool } from "../../provider/pool/types";

/** The last run of a stack that has not succeeded since. */
export type Unfinished = "failed up" | "killed destroy";

/** A lease in the state of a stack. */
export interface StateLease {
  id: string;
  unfinished: Unfinished | undefined;
}

/** What is wrong with a store whose stacks have these leases in their states. */
export async function findStoreFaults(store: string, inStates: StateLease[]): Promise<string[]> {
  const pool = await openPool(store, { offerTtl: 3600, quarantine: 300 });
  try {
    const findings = (await pool.fsck()).map(({ pool: name, problem }) => `fsck: ${name}: ${problem}`);
    const opened = (await pool.pools()).map(({ name }) => name);
    const ports = opened.map((name) => name.replace(/^pool\//, "space/ports/"));
    const leases: Lease[] = [];
    const names = new Set([...opened, ...ports, "space/default", "space/lab"]);
    for (const name of names)
      leases.push(...(await pool.leases(name)).filter((lease) => isCommitted(lease) && isStackOwner(lease.owner)));
    const held = new Set(leases.map(({ leaseId }) => leaseId));
    const known = new Set(inStates.map(({ id }) => id));
    const lost: string[] = [];
    for (const lease of inStates.filter(({ id }) => !held.has(id)))
      if (!(await hasEnded(pool, names, lease))) lost.push(lease.id);
    return [
      ...findings,
      ...leases
        .filter(({ leaseId }) => !known.has(leaseId))
        .map(
          ({ pool: name, owner, extents }) =>
            `no resource has the lease of ${owner} on ${extents[0]!.first} in ${name}`,
        ),
      ...lost.map((id) => `a resource has the lease ${id}, which the store has not`),
    ];
  } finally {
    await pool.end();
  }
}

/**
 * Whether the end record of a lease explains why only the state has it. After a failed up, one of two resources that swap their values may
 * have taken the lease of the other. After a killed destroy, the state may not know that the lease is released. The next up that succeeds
 * makes both anew.
 */
async function hasEnded(pool: Pool, names: Iterable<string>, { id, unfinished }: StateLease): Promise<boolean> {
  if (unfinished === undefined) return false;
  for (const name of names) {
    const record = await pool.endOf(name, uidOf(id));
    const { reason, takenBy = "" } = record?.end ?? {};
    if (record && reason === "taken" && isSameStack(record.owner, takenBy)) return true;
    const isReleased = record?.state === "quarantined" || reason === "released" || reason === "pool deleted";
    if (unfinished === "killed destroy" && isReleased) return true;
  }
  return false;
}
