import { isOverlayError } from "../../provider/errors";
import { listSpecs } from "../../provider/ipam/interface";
import { type Ipam, isCommitted, type Lease, type Store } from "../../provider/ipam/types";
import { isSameStack, isStackOwner } from "../../provider/owner";

export type OpenPool = () => Promise<Store>;

/** The last run of a stack that has not succeeded since. */
export type Unfinished = "failed up" | "killed destroy";

/** A lease in the state of a stack. */
export interface StateLease {
  id: string;
  unfinished: Unfinished | undefined;
}

/** What is wrong with a store whose stacks have these leases in their states. */
export async function findStoreFaults(openPool: OpenPool, inStates: StateLease[]): Promise<string[]> {
  const pool = await openPool();
  try {
    const findings = (await pool.admin.fsck()).map(({ pool: name, problem }) => `fsck: ${name}: ${problem}`);
    const leases: Lease[] = [];
    const names = await poolNames(pool);
    for (const name of names)
      leases.push(...(await pool.leases(name)).filter((lease) => isCommitted(lease) && isStackOwner(lease.owner)));
    const held = new Set(leases.map(({ leaseId }) => leaseId));
    const known = new Set(inStates.map(({ id }) => id));
    const lost: string[] = [];
    // A resource that got its former value again, before a failed up deleted the former resource, has renewed that lease.
    const renewed = new Set(leases.filter(({ leaseId }) => known.has(leaseId)).map(({ uid }) => uid));
    for (const lease of inStates.filter(({ id }) => !held.has(id))) {
      const isRenewed = lease.unfinished === "failed up" && renewed.has(uidOf(lease.id));
      if (!isRenewed && !(await hasEnded(pool, names, lease))) lost.push(lease.id);
    }
    return [
      ...findings,
      ...leases
        .filter(({ leaseId }) => !known.has(leaseId))
        .map(
          ({ pool: name, owner, ranges }) => `no resource has the lease of ${owner} on ${ranges[0]!.first} in ${name}`,
        ),
      ...lost.map((id) => `a resource has the lease ${id}, which the store has not`),
    ];
  } finally {
    await pool.end();
  }
}

/** Frees what a killed up has claimed for this stack and its state does not have, as an operator does with `overlayctl`. */
export async function freeUnknownLeases(openPool: OpenPool, stack: string, leaseIds: string[]): Promise<void> {
  const pool = await openPool();
  try {
    const isUnknown = ({ owner, leaseId }: Lease) =>
      owner.includes(`urn:pulumi:${stack}::`) && !leaseIds.includes(leaseId);
    // A pool is released after those that are carved from it, and these after their leases.
    for (let left = DEPTH; left > 0; left--) {
      for (const name of await poolNames(pool))
        for (const lease of (await pool.leases(name)).filter((each) => isCommitted(each) && isUnknown(each)))
          await pool.release(name, lease.leaseId).catch(ignoreInUse);
    }
  } finally {
    await pool.end();
  }
}

/** Leases in a pool, in one that it is carved from, in an address space. */
const DEPTH = 3;

const uidOf = (leaseId: string): string => leaseId.split(".")[0]!;

function ignoreInUse(error: unknown): void {
  if (!isOverlayError(error, "POOL_IN_USE")) throw error;
}

/** All pools that leases of stacks are in. */
async function poolNames(pool: Ipam): Promise<string[]> {
  const opened = (await listSpecs(pool)).map(({ name }) => name);
  const ports = opened.map((name) => name.replace(/^pool\//, "space/ports/"));
  return [...new Set([...opened, ...ports, "space/default", "space/lab"])];
}

/**
 * Whether the end record of a lease explains why only the state has it. After a failed up, one of two resources that swap their values may
 * have taken the lease of the other. After a killed destroy, the state may not know that the lease is released. The next up that succeeds
 * makes both anew.
 */
async function hasEnded(pool: Ipam, names: Iterable<string>, { id, unfinished }: StateLease): Promise<boolean> {
  if (unfinished === undefined) return false;
  for (const name of names) {
    const record = await pool.find({ pool: name, endedUid: uidOf(id) });
    const { reason, takenBy = "" } = record?.end ?? {};
    if (record && (reason === "handed over" || reason === "reclaimed") && isSameStack(record.owner, takenBy))
      return true;
    const isReleased = record?.state === "quarantined" || reason === "released" || reason === "pool deleted";
    if (unfinished === "killed destroy" && isReleased) return true;
  }
  return false;
}
