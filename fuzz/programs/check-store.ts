import { isSameStack, isStackOwner } from "../../provider/owner";
import { openPool } from "../../provider/pool";
import { uidOf } from "../../provider/pool/storage/leases";
import { isCommitted, type Lease, type Pool } from "../../provider/pool/types";

/**
 * What is wrong with a store whose stacks have leases of these ids in their states. `hasFailed`: an up has just failed. Pulumi makes resources one
 * after another, so that one of two that swap their values may have taken the lease of the other, which the next up creates again.
 */
export async function findStoreFaults(store: string, leaseIds: string[], hasFailed: boolean): Promise<string[]> {
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
    const known = new Set(leaseIds);
    const lost: string[] = [];
    for (const id of leaseIds.filter((each) => !held.has(each)))
      if (!hasFailed || !(await isTakenInStack(pool, names, id))) lost.push(id);
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

async function isTakenInStack(pool: Pool, names: Iterable<string>, leaseId: string): Promise<boolean> {
  for (const name of names) {
    const record = await pool.endOf(name, uidOf(leaseId));
    if (record?.end?.reason === "taken" && isSameStack(record.owner, record.end.takenBy ?? "")) return true;
  }
  return false;
}
