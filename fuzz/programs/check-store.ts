import { isStackOwner } from "../../provider/owner";
import { openPool } from "../../provider/pool";
import { isCommitted, type Lease } from "../../provider/pool/types";

/** What is wrong with a store whose stacks have leases of these ids in their states. */
export async function checkStore(store: string, leaseIds: string[]): Promise<string[]> {
  const pool = await openPool(store, { offerTtl: 3600, quarantine: 300 });
  try {
    const findings = (await pool.fsck()).map(({ pool: name, problem }) => `fsck: ${name}: ${problem}`);
    const opened = (await pool.pools()).map(({ name }) => name);
    const ports = opened.map((name) => name.replace(/^pool\//, "space/ports/"));
    const leases: Lease[] = [];
    for (const name of new Set([...opened, ...ports, "space/default", "space/lab"]))
      leases.push(...(await pool.leases(name)).filter((lease) => isCommitted(lease) && isStackOwner(lease.owner)));
    const held = new Set(leases.map(({ leaseId }) => leaseId));
    const known = new Set(leaseIds);
    return [
      ...findings,
      ...leases
        .filter(({ leaseId }) => !known.has(leaseId))
        .map(
          ({ pool: name, owner, extents }) =>
            `no resource has the lease of ${owner} on ${extents[0]!.first} in ${name}`,
        ),
      ...leaseIds.filter((id) => !held.has(id)).map((id) => `a resource has the lease ${id}, which the store has not`),
    ];
  } finally {
    await pool.end();
  }
}
