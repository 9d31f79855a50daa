import type { OverlayError } from "../../errors";
import { isSameStack, isSameTenant } from "../../owner";
import {
  exhaustedError,
  planStaleError,
  quarantineWarning,
  quotaError,
  sharingConflictError,
  takenError,
} from "../errors";
import {
  automaticZone,
  covers,
  fits,
  intersect,
  isAvoided,
  mergeExtents,
  sameExtents,
  sizeOf,
  subtract,
  total,
} from "../extents";
import { type Picker, pickFree } from "../storage/free-space";
import { byTime, countsKey, leaseKey, sharersOf, type TimeClass } from "../storage/keys";
import {
  appendHistory,
  getLeases,
  holdersOf,
  isExpired,
  isInactive,
  leasesOfOwner,
  noCounts,
  occupies,
  sharingKeyOf,
} from "../storage/leases";
import type { Counts } from "../storage/records";
import type { WriteBuffer } from "../storage/write-buffer";
import {
  type Extent,
  isCommitted,
  isWithinQuota,
  type Lease,
  type LeaseEnd,
  type PoolSpec,
  type Request,
} from "../types";
import { isOwnedBy, mayChange, show } from "./access";
import {
  endLease,
  expireLease,
  expireOverdue,
  isPreemptible,
  lowestOverdue,
  NO_QUARANTINE,
  quarantineEnd,
  waiterOf,
} from "./end-lease";
import { heldLeases, mustAllowBlocks, mustAssign, mustBeGivable } from "./pools";
import { findShared, takePorts } from "./share";

/** Chooses the values that a request gets, and evicts leases that it may replace. */
export interface GrantContext {
  request: Request;
  /** false: an offer. It must not change committed leases. */
  isClaim: boolean;
  /** A preview has shown these values: if they are taken, the error is `PLAN_STALE`. */
  wasPreviewed: boolean;
  /** An up stops at a broken promise; a preview warns. */
  inUp: boolean;
  /** Lifetime of a new offer, in seconds. */
  offerTtl: number;
  /** See `Picker`. */
  seed: string;
  /** What this run has already offered to the owner. */
  plannedExtents?: Extent[];
  /** Whether this holder releases its value in the same run, as in a swap within one stack. */
  willRelease(holder: Lease): boolean;
  /** Of an offer: what the pool will be after this run; absent: what it is. */
  plannedSpec?: PoolSpec;
}

export interface Choice {
  extents: Extent[];
  warnings: string[];
  /** Offers and quarantined leases that were ended for it. */
  evicted: Lease[];
  /** Uids of leases that must end or move before these extents can be claimed. */
  waitsFor: Set<string>;
}

export const emptyChoice = (extents: Extent[] = []): Choice => ({
  extents,
  warnings: [],
  evicted: [],
  waitsFor: new Set(),
});

export async function choose(tx: WriteBuffer, spec: PoolSpec, context: GrantContext, own?: Lease): Promise<Choice> {
  const { want } = context.request;
  mustAllowBlocks(spec, context.request);
  const choice = want ? await chooseRequested(tx, spec, context, want, own) : await chooseAutomatic(tx, spec, context);
  await takePorts(
    tx,
    spec,
    choice.extents,
    context.request.ports ?? [],
    own?.uid,
    portEvictor(tx, spec, context, choice),
  );
  return choice;
}

async function chooseRequested(
  tx: WriteBuffer,
  spec: PoolSpec,
  context: GrantContext,
  want: Extent[],
  own?: Lease,
): Promise<Choice> {
  const choice = emptyChoice(want);
  for (const extent of want) {
    mustBeGivable(spec, extent);
    for (const lease of await holdersOf(tx, spec.name, extent)) {
      if (lease.uid === own?.uid) continue;
      await evictOrReject(tx, spec, context, extent, lease, choice);
      if (!isCommitted(lease)) choice.evicted.push(lease);
    }
  }
  return choice;
}

/** Whether a lease with these extents answers the request. */
export function answersRequest(
  { extents }: Pick<Lease, "extents">,
  { want, size = 1n, within, also = [] }: Request,
): boolean {
  if (want) return sameExtents(extents, want);
  const ranges = [within, ...also];
  return (
    extents.length === ranges.length &&
    extents.every((extent, i) => sizeOf(extent) === size && (!ranges[i] || covers([ranges[i]], [extent])))
  );
}

/** Ends the lease of a holder of a requested extent, or rejects the request. */
async function evictOrReject(
  tx: WriteBuffer,
  spec: PoolSpec,
  context: GrantContext,
  extent: Extent,
  holder: Lease,
  choice: Choice,
): Promise<void> {
  const { request } = context;
  const own = isOwnedBy(tx, holder, request.owner);
  const end: LeaseEnd = { reason: "taken", takenBy: request.owner };
  if (isExpired(holder, tx.now)) return await expireLease(tx, holder, NO_QUARANTINE, request.owner);
  const mayShare = request.sharingKey !== undefined && isSameStack(holder.owner, request.owner);
  if (holder.state === "quarantined" && !own && !mayShare)
    choice.warnings.push(quarantineWarning(spec, holder.extents, show(tx, holder)));
  if (isPreemptible(tx, holder, request.owner) || (own && holder.state === "offered"))
    return await endLease(tx, holder, NO_QUARANTINE, end);
  const key = sharingKeyOf(request);
  if (key !== undefined && key === sharingKeyOf(holder) && sameExtents(holder.extents, request.want!)) return;
  if (
    isCommitted(holder) &&
    mayChange(tx, holder) &&
    (context.willRelease(show(tx, holder)) || mayTake(request, holder))
  )
    return await preempt(tx, spec, context, holder, "handed over", choice);
  if (isInactive(tx, spec, holder) && !(await pickFree(tx, spec, pickerFor(context), 1n)))
    return await preempt(tx, spec, context, holder, "reclaimed", choice);
  if (holder.sharingKey !== undefined && key !== undefined)
    throw sharingConflictError(spec, extent, request.sharingKey, show(tx, holder));
  throw context.wasPreviewed
    ? planStaleError(spec, extent, show(tx, holder), request.owner)
    : takenError(spec, extent, show(tx, holder), request.owner);
}

const mayTake = ({ takes, tenant, type }: Request, holder: Lease): boolean =>
  takes === true && type === holder.type && isSameTenant(tenant, holder.tenant);

/** Evicts the holder of a port, if the request may do so. */
export const portEvictor =
  (tx: WriteBuffer, spec: PoolSpec, context: GrantContext, choice: Choice = emptyChoice()) =>
  async (holder: Lease): Promise<boolean> => {
    const { request } = context;
    if (choice.waitsFor.has(holder.uid)) return true;
    if (isPreemptible(tx, holder, request.owner)) {
      await endLease(tx, holder, NO_QUARANTINE, { reason: "taken", takenBy: request.owner });
      return true;
    }
    if (!mayChange(tx, holder) || !mayTake(request, holder)) return false;
    await preempt(tx, spec, context, holder, "handed over", choice);
    return true;
  };

/** A claim ends the lease of the holder. An offer does not: it waits for the end of that lease. */
async function preempt(
  tx: WriteBuffer,
  spec: PoolSpec,
  { request, isClaim, wasPreviewed }: GrantContext,
  holder: Lease,
  how: "handed over" | "reclaimed",
  choice: Choice,
): Promise<void> {
  const end: LeaseEnd = { reason: "taken", takenBy: request.owner };
  const waiter = await waiterOf(tx, holder);
  if (waiter && !isOwnedBy(tx, waiter, request.owner)) {
    if (!isPreemptible(tx, waiter, request.owner))
      throw (wasPreviewed ? planStaleError : takenError)(spec, holder.extents[0]!, show(tx, waiter), request.owner);
    await endLease(tx, waiter, NO_QUARANTINE, end);
  }
  if (isClaim || !isCommitted(holder)) {
    if (isCommitted(holder)) await appendHistory(tx, how, holder, { takenBy: request.owner });
    await endLease(tx, holder, NO_QUARANTINE, end);
  } else choice.waitsFor.add(holder.uid);
}

async function chooseAutomatic(tx: WriteBuffer, spec: PoolSpec, context: GrantContext): Promise<Choice> {
  const { request } = context;
  const suits = (extents: Extent[]) => answersRequest({ extents }, request) && fits(spec, { extents });
  const choice = emptyChoice();
  const shared = await findShared(tx, spec, request, suits, portEvictor(tx, spec, context, choice));
  if (shared) return { ...choice, extents: shared };
  mustAssign(spec);
  for (const within of [request.within, ...(request.also ?? [])]) {
    choice.extents.push(await findRoom(tx, spec, context, choice, within));
  }
  return choice;
}

/** Takes a free value, else that of the oldest quarantined lease, the oldest preemptible offer, or the longest inactive lease. */
async function findRoom(
  tx: WriteBuffer,
  spec: PoolSpec,
  context: GrantContext,
  choice: Choice,
  within?: Extent,
): Promise<Extent> {
  const { owner, size = 1n, declared = [] } = context.request;
  const picker = pickerFor(context);
  const zone = subtract(automaticZone(spec, within), declared);
  for (;;) {
    const found = await pickFree(tx, spec, picker, size, within);
    const overdue =
      found && spec.allocation === "lowest" ? await lowestOverdue(tx, spec.name, zone, found.first) : undefined;
    if (overdue) {
      await expireLease(tx, overdue);
      continue;
    }
    if (found) return found;
    if (await expireOverdue(tx, spec.name)) continue;
    const [type, holder] = await pickVictim(tx, spec, zone, owner);
    if (!holder) throw await noRoomError(tx, spec);
    if (type === "r" && holder.owner !== owner)
      choice.warnings.push(quarantineWarning(spec, holder.extents, show(tx, holder)));
    if (type === "h") {
      await preempt(tx, spec, context, holder, "reclaimed", choice);
      if (choice.waitsFor.has(holder.uid)) return holder.extents[0]!;
    } else {
      await endLease(tx, holder, NO_QUARANTINE, { reason: "taken", takenBy: owner });
      choice.evicted.push(holder);
    }
  }
}

async function noRoomError(tx: WriteBuffer, spec: PoolSpec): Promise<OverlayError> {
  const oldest = await heldLeases(tx, spec.name, 5, true);
  return exhaustedError(
    spec,
    oldest.map((lease) => show(tx, lease)),
  );
}

const pickerFor = ({ request: { owner, declared }, seed }: GrantContext): Picker => ({ owner, seed, avoid: declared });

async function pickVictim(
  tx: WriteBuffer,
  spec: PoolSpec,
  zone: Extent[],
  owner: string,
): Promise<[TimeClass, Lease | undefined]> {
  for (const type of ["r", "o", "h"] as const) {
    if (type === "h" && spec.reclaimAfter === undefined) break;
    const serves = ({ extents }: Lease) => intersect(zone, extents).some((extent) => !isAvoided(spec, extent));
    const holder = await oldestVictim(tx, spec, type, serves, owner);
    if (holder) return [type, holder];
  }
  return ["h", undefined];
}

/**
 * The oldest lease of this class that `serves` and can be evicted for this owner. It may be an offer of an earlier run to
 * a resource of the same stack that this run has not checked yet: that resource gets another value.
 */
async function oldestVictim(
  tx: WriteBuffer,
  spec: PoolSpec,
  type: TimeClass,
  serves: (lease: Lease) => boolean,
  owner: string,
  except?: string,
): Promise<Lease | undefined> {
  for (const uid of await tx.range(byTime(spec.name, type), CANDIDATES)) {
    if (uid === except) continue;
    const lease = (await tx.get(leaseKey(spec.name, uid)))!;
    // Ordered by `lastSeen`: after the first active lease, all are active.
    if (type === "h" && !isInactive(tx, spec, lease)) return undefined;
    const canEnd = type === "h" ? await canBeReclaimed(tx, lease, owner) : isPreemptible(tx, lease, owner);
    if (canEnd && serves(lease)) return lease;
  }
  return undefined;
}

/** Not while its child pool is in use, and not if its value is promised to another owner. */
async function canBeReclaimed(tx: WriteBuffer, lease: Lease, owner: string): Promise<boolean> {
  if (lease.childPool !== undefined && (await heldLeases(tx, lease.childPool, 1)).length > 0) return false;
  const waiter = await waiterOf(tx, lease);
  return !waiter || isOwnedBy(tx, waiter, owner) || isPreemptible(tx, waiter, owner);
}

async function otherOffers(tx: WriteBuffer, spec: PoolSpec, except: string): Promise<Lease[]> {
  const offers: Lease[] = [];
  for (const uid of await tx.range(byTime(spec.name, "o"), CANDIDATES))
    if (uid !== except) offers.push((await tx.get(leaseKey(spec.name, uid)))!);
  return offers;
}

/** Candidates that are read to find a victim. */
const CANDIDATES = 1000;

/**
 * Rejects a lease that was just written if the pool now exceeds its quota. Offers count, so that preview finds it; preemptible offers are
 * ended first. If `isOffer`, leases do not count that end before it is claimed. If `wasCounted`, an earlier offer has counted the lease:
 * later offers do not stop it.
 */
export async function mustKeepQuota(
  tx: WriteBuffer,
  spec: PoolSpec,
  { owner, uid }: Pick<Lease, "owner" | "uid">,
  { isOffer = false, wasCounted = false, formerOwner }: QuotaOptions = {},
): Promise<void> {
  if (!spec.quota) return;
  const isKept = async ({ offered, reserved, used, held }: Counts, without: Lease[]): Promise<boolean> =>
    isWithinQuota(spec, offered + reserved + used - without.length, held - (await countHeldOnlyBy(tx, without)));
  for (;;) {
    const counts = (await tx.get(countsKey(spec.name))) ?? noCounts();
    const { offered, reserved, used, held } = counts;
    if (await isKept(counts, [])) return;
    if (await expireOverdue(tx, spec.name)) continue;
    const ending = isOffer ? await findReplacedLeases(tx, spec, formerOwner) : [];
    if (await isKept(counts, ending)) return;
    if (wasCounted && (await isKept(counts, [...ending, ...(await otherOffers(tx, spec, uid))]))) return;
    const offer = await oldestVictim(tx, spec, "o", () => true, owner, uid);
    if (!offer) throw quotaError(spec, { leases: offered + reserved + used - ending.length, values: held });
    await endLease(tx, offer, quarantineEnd(tx, offer), { reason: "taken", takenBy: owner });
  }
}

interface QuotaOptions {
  isOffer?: boolean;
  wasCounted?: boolean;
  /** Of an offer: the owner before it was renamed in this run. */
  formerOwner?: string | undefined;
}

/** Committed leases whose owners have an offer, too. A claim of the offer releases them first where the quota has no room for both. */
async function findReplacedLeases(tx: WriteBuffer, { name }: PoolSpec, formerOwner?: string): Promise<Lease[]> {
  const offers = await getLeases(tx, name, await tx.all(byTime(name, "o")));
  const replaced: Lease[] = [];
  for (const owner of new Set([...offers.map((offer) => offer.owner), ...(formerOwner ? [formerOwner] : [])]))
    replaced.push(...(await leasesOfOwner(tx, name, owner)).filter((lease) => isCommitted(lease)));
  return replaced;
}

/** How many values would be free without these leases. A value that they share counts once; one that another lease shares or waits for does not. */
async function countHeldOnlyBy(tx: WriteBuffer, leases: Lease[]): Promise<bigint> {
  const uids = new Set(leases.map(({ uid }) => uid));
  const extents: Extent[] = [];
  for (const lease of leases.filter(occupies)) {
    const key = sharingKeyOf(lease);
    const sharers = key === undefined ? [] : await tx.all(sharersOf(lease.pool, key, lease.extents[0]!.last));
    const waiter = await waiterOf(tx, lease);
    if ([...sharers, ...(waiter ? [waiter.uid] : [])].every((uid) => uids.has(uid))) extents.push(...lease.extents);
  }
  return total(mergeExtents(extents));
}
