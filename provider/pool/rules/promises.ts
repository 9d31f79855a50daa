import { isPlacementLeaseName, shownLeaseName } from "../../lease-names";
import { isSameStack } from "../../owner";
import { promiseBrokenError, promiseBrokenWarning } from "../errors";
import { covers, overlapsAny, sameExtents, sizeOf, zonesOf } from "../extents";
import { leaseKey } from "../storage/keys";
import { holdersOf, isExpired, isLive, replaceLease, requestId } from "../storage/leases";

import type { WriteBuffer } from "../storage/write-buffer";
import { type Extent, isCommitted, isShownTo, type Lease, type PoolSpec, type Request } from "../types";
import { isOwnedBy, ownLeases, show } from "./access";
import { retractOffer } from "./amend";
import { answersRequest, type GrantContext } from "./choose";
import { isPreemptible } from "./end-lease";
import { removeShownTo } from "./end-records";
import { canGive } from "./pools";
import { findPromise } from "./queries";
import { canShare } from "./share";

/** What an owner was promised or has held before, and gets again if it can. */

/**
 * Removes what is older than the end of the owner's last lease: broken promises; and offers, if that is the lease which the state still
 * has (`prefer`), because an up then restores what was held. Offers of this run, and those that wait for other leases, are kept.
 */
export function withoutOutdated({ request, plannedExtents }: GrantContext, all: Lease[]): Lease[] {
  const ends = all.filter(isEndOfLease);
  const prefer = preferredOf(request);
  const held = ends.filter(({ extents }) => prefer && !request.want && sameExtents(extents, prefer));
  const [lastEnd, heldUntil] = [lastEndOf(ends), lastEndOf(held)];
  const isOfRun = ({ extents }: Lease) => plannedExtents !== undefined && sameExtents(extents, plannedExtents);
  return all.filter((lease) => {
    if (lease.end?.wasOffer) return lease.updatedAt > lastEnd;
    return lease.state !== "offered" || lease.updatedAt > heldUntil || lease.waitsFor || isOfRun(lease);
  });
}

/**
 * Removes what the owner of an automatic request has held or was offered, if this program requests a value of it elsewhere. What this program
 * was shown is kept: the pool had no other value.
 */
export const withoutDeclared = (request: Request, all: Lease[]): Lease[] =>
  all.filter(
    (lease) =>
      isCommitted(lease) || lease.shownTo?.includes(request.program ?? "") || !isDeclared(request, lease.extents),
  );

/** What the owner held before, unless this program requests a value of it elsewhere. */
const preferredOf = (request: Request): Extent[] | undefined =>
  request.prefer && !isDeclared(request, request.prefer) ? request.prefer : undefined;

const isDeclared = ({ want, declared = [] }: Request, extents: Extent[]): boolean =>
  !want && extents.some((extent) => overlapsAny(declared, extent));

/**
 * The last offer to this request that ended before it was claimed. If the request has a newer offer, the old one counts only if this
 * program was shown the old one and not the new one. If the pool was deleted since, it may have other address families now: then a
 * promise that was shown to this program counts as one to this request.
 */
export function findBrokenPromise(request: Request, all: Lease[], own: Lease | undefined): Lease | undefined {
  const shown = (lease: Lease) => Number(isShownTo(lease, request.program));
  if (own?.state === "offered" && shown(own)) return undefined;
  const { program = "", want, size = 1n } = request;
  const isSameOfOtherPool = ({ end, extents, shownTo }: Lease) =>
    end?.reason === "pool deleted" && !want && sizeOf(extents[0]!) === size && shownTo?.includes(program);
  const isFor = (lease: Lease) => lease.request === requestId(request) || isSameOfOtherPool(lease);
  return all
    .filter((lease) => lease.state === "ended" && lease.end?.wasOffer && isFor(lease))
    .filter((ended) => !own || (shown(ended) && !sameExtents(ended.extents, own.extents)))
    .sort((a, b) => shown(b) - shown(a) || b.updatedAt - a.updatedAt)[0];
}

/**
 * Returns the promised extents if they are free. Otherwise an up is rejected, and a preview gets a warning. If the pool was deleted and
 * made anew since, or this run has changed it, an up of a program that was not shown the promise continues.
 */
export async function recallPromise(
  tx: WriteBuffer,
  spec: PoolSpec,
  { request, inUp, plannedSpec }: GrantContext,
  broken: Lease,
): Promise<[want: Extent[] | undefined, warnings: string[]]> {
  const [holder] = await liveHoldersOf(tx, spec, broken.extents);
  if (!holder && answersRequest(broken, request) && canGive(spec, request, broken.extents)) return [broken.extents, []];
  const isOfOtherPool = broken.end?.reason === "pool deleted" || (plannedSpec !== undefined && !holder);
  if (inUp && isOfOtherPool && !isShownTo(broken, request.program)) return [undefined, []];
  const [lost, holding] = [show(tx, broken), holder && show(tx, holder)];
  if (inUp) throw promiseBrokenError(spec, lost, holding);
  return [undefined, [promiseBrokenWarning(spec, lost, holding)]];
}

/**
 * For a request without `want`: the extents that the owner held before it was renamed, or before its lease ended. Offers to other branches
 * of its stack are preempted, but not one that has taken these values from the owner (`broken`).
 */
export async function recallHeld(
  tx: WriteBuffer,
  spec: PoolSpec,
  request: Request,
  all: Lease[],
  broken?: Lease,
): Promise<Extent[] | undefined> {
  if (request.want || (await canShare(tx, spec, request))) return undefined;
  const former = request.formerOwner ? await ownLeases(tx, request.pool, request.formerOwner) : [];
  const held = former.find((lease) => isCommitted(lease) && isLive(lease, tx.now));
  const mayHave = (lease: Lease) =>
    lease.uid === held?.uid ||
    (lease.state === "quarantined" ? isOwnedBy(tx, lease, request.owner) : isPreemptible(tx, lease, request.owner));
  const canHave = async (extents: Extent[], mayHaveFrom: (holder: Lease) => boolean): Promise<boolean> => {
    if (!answersRequest({ extents }, request) || !canGive(spec, request, extents)) return false;
    return (await liveHoldersOf(tx, spec, extents)).every(mayHaveFrom);
  };
  for (const extents of [held?.extents, preferredOf(request)]) {
    const isTaken = extents && broken && sameExtents(extents, broken.extents);
    if (extents && !isTaken && (await canHave(extents, mayHave))) return extents;
  }
  // The resource of the stack that shared the values was the last to release them, and will share them again.
  const wasShared = ({ state, owner }: Lease) =>
    request.sharingKey !== undefined && state === "quarantined" && isSameStack(owner, request.owner);
  for (const { extents } of endedInQuarantine(tx, spec, request, all)) {
    if (await canHave(extents, wasShared)) return extents;
  }
  return undefined;
}

/** End records whose values would still be in quarantine if the pool had not been deleted, or another lease had not shared them; the newest first. */
const endedInQuarantine = ({ now }: WriteBuffer, spec: PoolSpec, request: Request, all: Lease[]): Lease[] =>
  all
    .filter(
      (lease) => lease.state === "ended" && now < (lease.quarantinedUntil ?? 0) && mayReturn(spec, lease, request),
    )
    .sort((a, b) => b.updatedAt - a.updatedAt);

async function liveHoldersOf(tx: WriteBuffer, spec: PoolSpec, extents: Extent[]): Promise<Lease[]> {
  const found: Lease[] = [];
  for (const extent of extents)
    found.push(...(await holdersOf(tx, spec.name, extent)).filter((lease) => !isExpired(lease, tx.now)));
  return found;
}

/** Read again: the lease that was granted may have taken its name. */
export async function forgetPromise(tx: WriteBuffer, { pool, uid }: Lease, program: string | undefined): Promise<void> {
  const record = await tx.get(leaseKey(pool, uid));
  if (record) await replaceLease(tx, record, removeShownTo(record, program));
}

/**
 * Of a resource for which a pool is chosen: the offer in another pool that this program was shown. Not one from before the resource was last
 * deleted.
 */
export async function findPromiseElsewhere(
  tx: WriteBuffer,
  request: Request,
  deletedAt: number,
): Promise<Lease | undefined> {
  const { pool, owner, program, names = [], want } = request;
  for (const placement of want ? [] : names.filter(isPlacementLeaseName)) {
    const lease = await findPromise(tx, shownLeaseName(program, placement));
    const isCurrent = lease && lease.pool !== pool && lease.updatedAt > deletedAt;
    if (isCurrent && isOwnedBy(tx, lease, owner)) return lease;
  }
  return undefined;
}

/** Read again: the lease that was granted has taken its names. */
export async function forgetPromiseElsewhere(tx: WriteBuffer, { pool, uid }: Lease, program: string | undefined) {
  const lease = await tx.get(leaseKey(pool, uid));
  if (lease) await retractOffer(tx, lease, program);
}

const isEndOfLease = ({ state, end }: Lease): boolean =>
  state === "quarantined" || (state === "ended" && !end?.wasOffer);

/** When the last of these leases ended; -Infinity: none has. */
export const lastEndOf = (leases: Lease[]): number =>
  Math.max(...leases.filter(isEndOfLease).map(({ updatedAt }) => updatedAt));

/** Whether an owner gets a past lease again: if it asks for the value, or if the pool could choose it. */
export const mayReturn = (spec: PoolSpec, { extents }: Lease, { want }: Request): boolean =>
  want !== undefined || (spec.autoAssign !== false && covers(zonesOf(spec).automatic, extents));
