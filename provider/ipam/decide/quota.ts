import { SPACES } from "../../pool-names";
import { offerShareError, quotaError } from "../errors";
import { capacityOf, fits, max, mergeExtents, subtract, total } from "../extents";
import { isWithinQuota } from "../types";
import type { Ask } from "./choose";
import { givesWay, isOwnHolder } from "./offers";
import type { Pool } from "./pools";
import { type Holder, isLive, offerToLease } from "./rows";
import type { State } from "./state";

/** Quotas of pools, and how full they are. Offers count. */

/**
 * Rejects a lease or an offer that was just put if the pool now exceeds its quota. Offers count, so that preview finds it; leases that end
 * before an offer is claimed do not. `wasCounted`: the offer that the claim answers, or the lease that it renews, has counted it.
 */
export function mustKeepQuota({ state, pool, request, isClaim }: Ask, put: Holder, wasCounted = false): void {
  const { spec } = pool;
  if (!spec.quota) return;
  const counted = state.offersIn(spec.name).filter((row) => {
    if (row === put) return true;
    const isOther = !isOwnHolder(state, request, row) && !givesWay(state, row, request);
    return isOther && !(isClaim && wasCounted) && fits(spec, row);
  });
  const owners = isClaim
    ? []
    : [...new Set([...counted.map(({ owner }) => owner), ...(request.formerOwner ? [request.formerOwner] : [])])];
  const moving = owners
    .flatMap((owner) => state.leasesOf(spec.name, owner))
    .filter((lease) => isLive(lease, state.now));
  const offered = mergeExtents(counted.flatMap(({ extents }) => extents));
  const staying =
    offered.length > 0 ? state.holdersOf(spec.name, offered).filter((lease) => !moving.includes(lease)) : [];
  const { reserved, used, held } = state.pool(spec.name) ?? { reserved: 0, used: 0, held: 0n };
  const leases = reserved + used - moving.length + counted.length;
  const gone = moving.reduce((sum, lease) => sum + state.countOwn(lease), 0n);
  const values =
    held -
    gone +
    total(
      subtract(
        offered,
        staying.flatMap(({ extents }) => extents),
      ),
    );
  if (!isWithinQuota(spec, leases, values)) throw quotaError(spec, { leases, values });
}

/** Offers of a user with bounds hold at most half of a pool that others use, too. In address spaces, offers keep nothing from others. */
export function mustKeepShare({ state, pool: { spec } }: Ask): void {
  const { access } = state.terms;
  if (!access?.isShared(spec) || spec.name.startsWith(SPACES)) return;
  const own = state.offersIn(spec.name).filter((row) => access.hasOffered(offerToLease(row)));
  const held = total(mergeExtents(own.flatMap(({ extents }) => extents)));
  const most = max(capacityOf(spec) / 2n, 1n);
  if (held > most) throw offerShareError(spec, held, most);
}

/** Values that are held or offered. */
export function countHeld(state: State, { spec }: Pick<Pool, "spec">): bigint {
  const offers = state.offersIn(spec.name);
  const offered = mergeExtents(offers.flatMap(({ extents }) => extents));
  const mayBeHeld = offers.some((row) => row.afterLease.length > 0 || row.sharingKey !== undefined);
  const held = mayBeHeld ? state.holdersOf(spec.name, offered).flatMap(({ extents }) => extents) : [];
  return (state.pool(spec.name)?.held ?? 0n) + total(subtract(offered, held));
}
