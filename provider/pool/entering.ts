import type { Draft } from "./draft";
import { record, specOf } from "./ledger";
import { takeNames } from "./names";
import { mayOpen, open } from "./openings";
import { vanish } from "./pools";
import type { Rule } from "./rule";
import { type Details, isFirm, type Lease, type PoolSpec, type Request } from "./types";
import { opensForever } from "./wording";

/**
 * Puts a lease in the place of an older version of it, with the names that it can have and the pool that it can open.
 * `until` is when that pool ends again, if the lease is only an offer.
 */
export function* enter(
  tx: Draft,
  before: Lease | undefined,
  lease: Lease,
  { names, opens, formerOwner }: Pick<Details, "names" | "opens"> & Pick<Request, "formerOwner">,
  until?: number,
): Rule<Lease> {
  const { opens: _, ...after }: Lease = { ...lease };
  if (names) after.names = yield* takeNames(tx, { ...lease, names }, formerOwner);
  const spec = opens ?? (lease.opens === undefined ? undefined : yield* specOf(tx, lease.opens));
  const mayHave = spec && (yield* clearTheWay(tx, lease, spec, formerOwner));
  const opened: Lease = mayHave ? { ...after, opens: spec.name } : after;
  yield* record(tx, before, opened);
  if (opened.opens) yield* open(tx, opened, spec!, until);
  return opened;
}

function* clearTheWay(tx: Draft, lease: Lease, spec: PoolSpec, formerOwner?: string): Rule<boolean> {
  if (isFirm(lease) && lease.expiresAt !== undefined) throw opensForever(lease, spec);
  if (lease.opens !== undefined && lease.opens !== spec.name) yield* vanish(tx, lease.opens);
  return yield* mayOpen(tx, lease, spec.name, formerOwner);
}
