import { isOverlayError, OverlayError } from "../errors";
import { type Changes, type Condition, dataEntries, type Json, type Lease, type Pool } from "../pool/types";
import { describePool } from "../pool-names";

/** Fencing: a run that was overtaken by a later one must change neither the lease nor the hosts. */

/** A lease, and the run that works with it. */
export interface OwnedLease extends Pick<Lease, "pool" | "leaseId" | "uid" | "owner"> {
  /** Stored with the lease, and replaced by each create, update and delete: if it differs, a later run has taken over. */
  run: string;
  /** Id of its store. */
  store: string;
}

/** Records on hosts carry this id: those of another store are not ours to change. */
export const readStoreId = async (pool: Pool): Promise<string> => (await pool.identity()).id;

/** Called before each write to a host, because a provider process can outlive its run. */
export async function fence(pool: Pool, { pool: name, leaseId, run }: OwnedLease): Promise<void> {
  const lease = await pool.find(name, { leaseId });
  if (lease && readLeaseData(lease).run === run) return;
  throw fencedError(name, leaseId);
}

/** Whether no lease of this uid is left in the same pool. */
export const isLeaseGone = async (
  pool: Pool,
  { pool: name }: Pick<OwnedLease, "pool">,
  uid: string,
): Promise<boolean> => (await pool.find(name, { uid })) === undefined;

/** Rejects with `LEASE_FENCED` if a later run has taken the lease over. */
export const amendOwned = (pool: Pool, owned: OwnedLeaseId, changes: Changes): Promise<Lease> =>
  pool.amend(owned.pool, owned.leaseId, changes, ifOwned(owned)).catch(throwFenced(owned));

type OwnedLeaseId = Pick<OwnedLease, "pool" | "leaseId"> & { run: Json | undefined };

export const ifOwned = ({ run }: Pick<OwnedLeaseId, "run">): { onlyIf: Condition } => ({ onlyIf: { data: { run } } });

export const throwFenced =
  ({ pool, leaseId }: Pick<OwnedLeaseId, "pool" | "leaseId">) =>
  (error: unknown): never => {
    throw isOverlayError(error, "LEASE_CHANGED") ? fencedError(pool, leaseId) : error;
  };

export const fencedError = (pool: string, leaseId: string): OverlayError =>
  new OverlayError(
    "LEASE_FENCED",
    `Lease ${leaseId} in ${describePool(pool)} is no longer ours: its time is over, or a later run has taken over.`,
    "Nothing was changed. Run up again if this one should go on.",
  );

/** What the lifecycle stores with a lease. */
export const readLeaseData = (lease: Lease): { run?: Json; name?: Json; clean?: Json } => dataEntries(lease);
