import { intersect } from "../extents";
import { allocationsFrom, countsKey, dueBy, type Span } from "../storage/keys";
import { getLeases, leasesAt } from "../storage/leases";
import type { Allocation } from "../storage/records";
import { isExpired, occupies } from "../storage/rows";
import type { WriteBuffer } from "../storage/write-buffer";
import type { Extent, Lease } from "../types";
import { EXPIRING, quarantineEnd } from "./end-lease";

/** Leases, and rows of the expiry index, that are read at a time. */
const PAGE = 100;

/**
 * The overdue lease with the lowest value in `zone` below `limit` whose end makes that value free; undefined if there is none.
 * Cleaning up is bounded per transaction, so overdue leases may stand below the lowest value that is recorded as free.
 *
 * Reads the leases by value and the expiry index in turns, and stops when either of them has the answer: one is short where the
 * lowest values are overdue, the other where few leases are.
 */
export async function lowestOverdue(
  tx: WriteBuffer,
  pool: string,
  zone: Extent[],
  limit: bigint,
): Promise<Lease | undefined> {
  const counts = await tx.get(countsKey(pool));
  if (counts?.soonest === undefined || tx.now <= counts.soonest || zone.length === 0) return undefined;
  const valueIn = ({ extents }: Lease): bigint | undefined =>
    intersect(zone, extents).find(({ first }) => first < limit)?.first;
  const becomesFree = (lease: Lease): boolean =>
    occupies(lease) &&
    isExpired(lease, tx.now) &&
    quarantineEnd(tx, lease, lease.expiresAt) <= tx.now &&
    valueIn(lease) !== undefined;

  // To the end of the pool, so that a far engine fetches whole pages: those of the next claims are among them.
  let seats: Span<Allocation> = allocationsFrom(pool, zone[0]!.first);
  const due = EXPIRING.map((type) => dueBy(pool, type, tx.now));
  let lowest: Lease | undefined;
  while (due.length > 0) {
    const [page, others]: [Allocation[], Span<Allocation> | undefined] = await tx.page(seats, PAGE);
    for (const seat of page) {
      if (seat.extent.last >= limit) return undefined;
      const overdue = (await leasesAt(tx, pool, seat)).find(becomesFree);
      if (overdue) return overdue;
    }
    if (!others) return undefined;
    seats = others;
    const [uids, later]: [string[], Span<string> | undefined] = await tx.page(due[0]!, PAGE);
    for (const lease of (await getLeases(tx, pool, uids)).filter(becomesFree)) {
      if (!lowest || valueIn(lease)! < valueIn(lowest)!) lowest = lease;
    }
    if (later) due[0] = later;
    else due.shift();
  }
  return lowest;
}
