import { isStackOwner } from "../owner";
import type { Draft } from "./draft";
import { byTime, dueBy, endsDue, endsKey, poolKey } from "./keys";
import { leasesIn, replaceRows } from "./ledger";
import { given } from "./records";
import { isOver } from "./rows";
import type { Lease, LeaseEnd, PoolSpec } from "./types";

/**
 * Records of ends: of leases that stacks held, and of promises that were not kept. They stay in the place of their leases for
 * thirty days, also when the pool is deleted: a pool that is opened under its name later has them.
 */

/** Ends are kept for this long. */
const END_KEPT_MS = 30 * 24 * 3600 * 1000;

/**
 * The record of an end: for owners with a state file, which may not know of it yet. Offers leave one only where a promise was
 * broken; what was released and rested leaves one when its rest is over, or its pool is deleted.
 */
export function endRecord(tx: Draft, lease: Lease, end: LeaseEnd | undefined): Lease | undefined {
  const { pool, owner, type, uid, leaseId, extents, state, createdAt, updatedAt, lastSeen, request, shownTo } = lease;
  if (state === "ended" || !isStackOwner(owner) || (state === "offered" && !end)) return undefined;
  const at = state === "resting" ? updatedAt : tx.now;
  if (at + END_KEPT_MS <= tx.now) return undefined;
  const rest =
    state === "resting" ? lease.expiresAt : state === "offered" && !lease.restsFor ? lease.restsUntil : undefined;
  return given<Lease>({
    ...{ pool, owner, type, uid, leaseId, extents, createdAt, lastSeen, request, shownTo },
    state: "ended",
    updatedAt: at,
    expiresAt: at + END_KEPT_MS,
    restsUntil: rest !== undefined && rest > tx.now ? rest : undefined,
    end: { reason: "released", ...end, ...(state === "offered" && { wasOffer: true }) },
  });
}

/** Puts the records of their ends in the place of all leases of a pool that is deleted. */
export async function leaveEnds(tx: Draft, spec: PoolSpec, leases: Lease[]): Promise<void> {
  let until = 0;
  for (const lease of leases) {
    const end: LeaseEnd | undefined = lease.state === "resting" ? undefined : { reason: "pool deleted" };
    const isKept = lease.state === "ended" && !isOver(lease, tx.now);
    const record = isKept ? lease : endRecord(tx, lease, end);
    replaceRows(tx, [lease, spec], record && [record, spec]);
    until = Math.max(until, record?.expiresAt ?? 0);
  }
  if (until > 0) tx.put(endsKey({ pool: spec.name, at: until }), { pool: spec.name, at: until });
  await removeEnds(tx);
}

/** So many records are removed at once. */
const REMOVED = 1000;

/** Removes what is over of the records of one deleted pool. A pool that was opened again removes its own. */
async function removeEnds(tx: Draft): Promise<void> {
  const due = await tx.first(endsDue(tx.now));
  if (!due) return;
  const isBack = await tx.get(poolKey(due.pool));
  const uids = isBack ? [] : await tx.range(dueBy(due.pool, "e", tx.now), REMOVED);
  for (const lease of await leasesIn(tx, due.pool, uids)) replaceRows(tx, [lease, {}]);
  if (uids.length < REMOVED) tx.delete(endsKey(due));
}

/** When the first record that a pool of this name has left goes. */
export async function firstEndIn(tx: Draft, pool: string): Promise<number | undefined> {
  const [lease] = await leasesIn(tx, pool, await tx.range({ ...byTime(pool, "e"), expectEmpty: true }, 1));
  return lease?.expiresAt;
}
