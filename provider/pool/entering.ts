import type { Draft } from "./draft";
import { record, specOf } from "./ledger";
import { takeNames } from "./names";
import { mayOpen, open } from "./openings";
import { vanish } from "./pools";
import { type Details, isFirm, type Lease, type PoolSpec, type Request } from "./types";
import { opensForever } from "./wording";

/**
 * Puts a lease in the place of an older version of it, with the names that it can have and the pool that it can open.
 * `until` is when that pool ends again, if the lease is only an offer.
 */
export async function enter(
  tx: Draft,
  before: Lease | undefined,
  lease: Lease,
  { names, opens, formerOwner }: Pick<Details, "names" | "opens"> & Pick<Request, "formerOwner">,
  until?: number,
): Promise<Lease> {
  const { opens: _, ...after }: Lease = { ...lease };
  if (names) after.names = await takeNames(tx, { ...lease, names }, formerOwner);
  const spec = opens ?? (lease.opens === undefined ? undefined : await specOf(tx, lease.opens));
  const mayHave = spec && (await clearTheWay(tx, lease, spec, formerOwner));
  const opened: Lease = mayHave ? { ...after, opens: spec.name } : after;
  await record(tx, before, opened);
  if (opened.opens) await open(tx, opened, spec!, until);
  return opened;
}

async function clearTheWay(tx: Draft, lease: Lease, spec: PoolSpec, formerOwner?: string): Promise<boolean> {
  if (isFirm(lease) && lease.expiresAt !== undefined) throw opensForever(lease, spec);
  if (lease.opens !== undefined && lease.opens !== spec.name) await vanish(tx, lease.opens);
  return await mayOpen(tx, lease, spec.name, formerOwner);
}
