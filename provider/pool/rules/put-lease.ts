import { ttlWithPoolError } from "../errors";
import { replaceLease, specOf } from "../storage/leases";
import type { WriteBuffer } from "../storage/write-buffer";
import { type Details, isCommitted, type Lease, type PoolSpec, type Request } from "../types";
import { openChildPool, takePoolName } from "./child-pools";
import { takeNames } from "./names";
import { dropPool } from "./pools";

/**
 * Puts a lease in the place of an older version of it, with the names that it can have and the pool that it can open.
 * `until` is when that pool ends again, if the lease is only an offer.
 */
export async function putLease(
  tx: WriteBuffer,
  before: Lease | undefined,
  lease: Lease,
  { names, childPool, formerOwner }: Pick<Details, "names" | "childPool"> & Pick<Request, "formerOwner">,
  until?: number,
): Promise<Lease> {
  const { childPool: _, ...after }: Lease = { ...lease };
  if (names) after.names = await takeNames(tx, { ...lease, names }, formerOwner);
  const spec = childPool ?? (lease.childPool === undefined ? undefined : await specOf(tx, lease.childPool));
  const mayHave = spec && (await mayHaveChildPool(tx, lease, spec, formerOwner));
  const opened: Lease = mayHave ? { ...after, childPool: spec.name } : after;
  await replaceLease(tx, before, opened);
  if (opened.childPool) await openChildPool(tx, opened, spec!, until);
  return opened;
}

async function mayHaveChildPool(tx: WriteBuffer, lease: Lease, spec: PoolSpec, formerOwner?: string): Promise<boolean> {
  if (isCommitted(lease) && lease.expiresAt !== undefined) throw ttlWithPoolError(lease, spec);
  if (lease.childPool !== undefined && lease.childPool !== spec.name) await dropPool(tx, lease.childPool);
  return await takePoolName(tx, lease, spec.name, formerOwner);
}
