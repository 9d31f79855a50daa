import { isShownLeaseName, placementInLeaseName } from "../../lease-names";
import { isStackOwner } from "../../owner";
import { byTime, dueBy, endRecordsDue, endRecordsKey, poolKey } from "../storage/keys";
import { getLeases, isExpired, replaceRows } from "../storage/leases";
import { omitUndefined } from "../storage/records";

import type { WriteBuffer } from "../storage/write-buffer";
import type { Lease, LeaseEnd, PoolSpec } from "../types";

/**
 * End records: of leases that stacks held, and of broken promises. They replace the rows of their leases for thirty days, also if the pool
 * is deleted: a pool that is created under the same name later has them.
 */

/** End records are kept for thirty days. */
const END_KEPT_MS = 30 * 24 * 3600 * 1000;

/**
 * The end record of a lease. Only owners with a state file have one, because the state may not have the end yet. Offers have one only if a
 * promise was broken; released leases get one when their quarantine ends, or their pool is deleted. `until`: when the quarantine would end
 * of values that an offer has waited for, or that another lease shares.
 */
export function toEndRecord(
  tx: WriteBuffer,
  lease: Lease,
  end: LeaseEnd | undefined,
  until?: number,
): Lease | undefined {
  const { pool, owner, type, uid, leaseId, extents, state, createdAt, updatedAt, lastSeen, request, shownTo, tenant } =
    lease;
  const names = state === "offered" ? namesOfChosenPool(lease) : [];
  if (state === "ended" || !isStackOwner(owner) || (state === "offered" && !end)) return undefined;
  const at = state === "quarantined" ? updatedAt : tx.now;
  if (at + END_KEPT_MS <= tx.now) return undefined;
  const ownQuarantine = lease.quarantinedFor ? undefined : lease.quarantinedUntil;
  const rest = state === "quarantined" ? lease.expiresAt : state === "offered" ? ownQuarantine : until;
  return omitUndefined<Lease>({
    ...{ pool, owner, type, uid, leaseId, extents, createdAt, lastSeen, request, shownTo, tenant },
    names: names.length > 0 ? names : undefined,
    state: "ended",
    updatedAt: at,
    expiresAt: at + END_KEPT_MS,
    quarantinedUntil: rest !== undefined && rest > tx.now ? rest : undefined,
    end: { reason: "released", ...end, ...(state === "offered" && { wasOffer: true }) },
  });
}

/** By these, the owner of an offer finds the pool again that was chosen for it. */
export const namesOfChosenPool = ({ names = [] }: Pick<Lease, "names">): string[] =>
  names.filter((name) => placementInLeaseName(name) !== undefined);

/** Whether it is an end record that is due for removal. */
export const isPastEnd = (lease: Lease, now: number): boolean => lease.state === "ended" && isExpired(lease, now);

/** Replaces all leases of a pool that is deleted by their end records. */
export async function keepEndRecords(tx: WriteBuffer, spec: PoolSpec, leases: Lease[]): Promise<void> {
  let until = 0;
  for (const lease of leases) {
    const end: LeaseEnd | undefined = lease.state === "quarantined" ? undefined : { reason: "pool deleted" };
    const isKept = lease.state === "ended" && !isExpired(lease, tx.now);
    const record = isKept ? lease : toEndRecord(tx, lease, end);
    replaceRows(tx, [lease, spec], record && [record, spec]);
    until = Math.max(until, record?.expiresAt ?? 0);
  }
  if (until > 0) tx.put(endRecordsKey({ pool: spec.name, at: until }), { pool: spec.name, at: until });
  await removeOldEndRecords(tx);
}

/** Records that are removed in one transaction. */
const REMOVE_BATCH = 1000;

/** Removes overdue end records of one deleted pool. A pool that exists again removes its own. */
async function removeOldEndRecords(tx: WriteBuffer): Promise<void> {
  const due = await tx.first(endRecordsDue(tx.now));
  if (!due) return;
  const isBack = await tx.get(poolKey(due.pool));
  const uids = isBack ? [] : await tx.range(dueBy(due.pool, "e", tx.now), REMOVE_BATCH);
  for (const lease of await getLeases(tx, due.pool, uids)) replaceRows(tx, [lease, {}]);
  if (uids.length < REMOVE_BATCH) tx.delete(endRecordsKey(due));
}

/** When the first end record of an earlier pool of this name is due for removal. */
export async function firstEndRecord(tx: WriteBuffer, pool: string): Promise<number | undefined> {
  const [lease] = await getLeases(tx, pool, await tx.range({ ...byTime(pool, "e"), expectEmpty: true }, 1));
  return lease?.expiresAt;
}

/** An offer, or the record of a broken promise, without this program; undefined: no other program was shown it. */
export function removeShownTo(offer: Lease, program: string | undefined): Lease | undefined {
  const shownTo = program === undefined ? [] : (offer.shownTo ?? []).filter((other) => other !== program);
  if (shownTo.length === 0) return undefined;
  const names = offer.names?.filter((name) => !isShownLeaseName(name, program));
  return { ...offer, shownTo, ...(names && { names }) };
}
