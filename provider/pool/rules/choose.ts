import type { OverlayError } from "../../errors";
import { isSameStack, isSameTenant } from "../../owner";
import {
  exhaustedError,
  keptForValueError,
  notRequestedError,
  outsideError,
  planStaleError,
  quarantineWarning,
  quotaError,
  reservedError,
  sharingConflictError,
  takenError,
} from "../errors";
import {
  covers,
  intersect,
  isAvoided,
  mergeExtents,
  overlapsAny,
  sameExtents,
  sizeOf,
  total,
  zonesOf,
} from "../extents";
import { type Picker, pickFree } from "../storage/free-space";
import { byTime, countsKey, leaseKey, sharersOf, type TimeClass } from "../storage/keys";
import { appendHistory, holdersOf } from "../storage/leases";
import type { Counts } from "../storage/records";
import { isExpired, noCounts, occupies, sharingKeyOf } from "../storage/rows";
import type { WriteBuffer } from "../storage/write-buffer";
import { type Extent, isCommitted, type Lease, type LeaseEnd, type PoolSpec, type Request } from "../types";
import {
  endLease,
  expireLease,
  expireOverdue,
  isPreemptible,
  NO_QUARANTINE,
  quarantineEnd,
  waiterOf,
} from "./end-lease";
import { lowestOverdue } from "./overdue";
import { heldLeases } from "./pools";
import { isByValue } from "./request-id";
import { findShared, takePorts } from "./share";

/** Which values a request gets, and who has to go for it. */
export interface GrantContext {
  request: Request;
  /** false: an offer, which may move nothing firm. */
  isClaim: boolean;
  /** What it wants was free in a preview, and its user expects exactly that. */
  wasPreviewed: boolean;
  /** A broken promise stops it; in a preview it is a warning. */
  inUp: boolean;
  /** Seconds that a new offer holds. */
  offerTtl: number;
  /** See `Picker`. */
  seed: string;
  /** What this run was to give the owner already. */
  plannedExtents?: Extent[];
  /** Whether this holder is about to leave its value to the asker, as in a swap within one stack. */
  willRelease(holder: Lease): boolean;
  /** The quota that this run gives the pool; absent: the one that it has. */
  quota?: NonNullable<PoolSpec["quota"]>;
  /** Called when the request must be refused in this run although its offer is kept for the next one. */
  refuseLater?(refusal: OverlayError): void;
}

export interface Choice {
  extents: Extent[];
  warnings: string[];
  /** What was only promised or at rest there, and had to go. */
  evicted: Lease[];
  /** Leases that must end or move before these extents can be claimed. */
  waitsFor: Set<string>;
}

export const emptyChoice = (extents: Extent[] = []): Choice => ({
  extents,
  warnings: [],
  evicted: [],
  waitsFor: new Set(),
});

export async function choose(tx: WriteBuffer, spec: PoolSpec, asking: GrantContext, own?: Lease): Promise<Choice> {
  const { want } = asking.request;
  const choice = want ? await chooseRequested(tx, spec, asking, want, own) : await chooseAutomatic(tx, spec, asking);
  await takePorts(
    tx,
    spec,
    choice.extents,
    asking.request.ports ?? [],
    own?.uid,
    portEvictor(tx, spec, asking, choice),
  );
  return choice;
}

async function chooseRequested(
  tx: WriteBuffer,
  spec: PoolSpec,
  asking: GrantContext,
  want: Extent[],
  own?: Lease,
): Promise<Choice> {
  const choice = emptyChoice(want);
  for (const extent of want) {
    mustBeGivable(spec, extent);
    for (const lease of await holdersOf(tx, spec.name, extent)) {
      if (lease.uid === own?.uid) continue;
      await evictOrReject(tx, spec, asking, extent, lease, choice);
      if (!isCommitted(lease)) choice.evicted.push(lease);
    }
  }
  return choice;
}

function mustBeGivable(spec: PoolSpec, extent: Extent): void {
  if (!covers(spec.extents, [extent])) throw outsideError(spec, extent);
  if (isAvoided(spec, extent) || overlapsAny(spec.reserved ?? [], extent)) throw reservedError(spec, extent);
}

/** Whether a lease with these extents is what the request asks for. */
export function isAnswer(
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

/** Clears a requested extent of one holder, or refuses. */
async function evictOrReject(
  tx: WriteBuffer,
  spec: PoolSpec,
  asking: GrantContext,
  extent: Extent,
  holder: Lease,
  choice: Choice,
): Promise<void> {
  const { request } = asking;
  const own = holder.owner === request.owner;
  const end: LeaseEnd = { reason: "taken", takenBy: request.owner };
  if (isExpired(holder, tx.now)) return await expireLease(tx, holder, NO_QUARANTINE, request.owner);
  if (holder.state === "quarantined" && !own) choice.warnings.push(quarantineWarning(spec, holder));
  if (isPreemptible(tx, holder, request.owner) || (own && holder.state === "offered"))
    return await endLease(tx, holder, NO_QUARANTINE, end);
  const key = sharingKeyOf(request);
  if (key !== undefined && key === sharingKeyOf(holder) && sameExtents(holder.extents, request.want!)) return;
  if (isCommitted(holder) && (asking.willRelease(holder) || mayTake(request, holder)))
    return await preempt(tx, spec, asking, holder, "handed over", choice);
  if (isInactive(tx, spec, holder) && !(await pickFree(tx, spec, pickerFor(asking), 1n)))
    return await preempt(tx, spec, asking, holder, "reclaimed", choice);
  const isOfNeighbour = holder.state === "offered" && isSameStack(holder.owner, request.owner) && !isByValue(holder);
  if (asking.refuseLater && isOfNeighbour && (await hasOtherRoom(tx, spec, asking, holder))) {
    asking.refuseLater(keptForValueError(spec, extent, holder, request.owner));
    return await endLease(tx, holder, NO_QUARANTINE, end);
  }
  if (holder.sharingKey !== undefined && key !== undefined)
    throw sharingConflictError(spec, extent, request.sharingKey, holder);
  throw asking.wasPreviewed
    ? planStaleError(spec, extent, holder, request.owner)
    : takenError(spec, extent, holder, request.owner);
}

/** Whether the next run can offer this holder another value. Otherwise the two would take it from each other for ever. */
async function hasOtherRoom(
  tx: WriteBuffer,
  spec: PoolSpec,
  asking: GrantContext,
  { owner, uid, extents }: Lease,
): Promise<boolean> {
  const free = await pickFree(tx, spec, { ...pickerFor(asking), owner }, sizeOf(extents[0]!));
  return free !== undefined || (await pickVictim(tx, spec, zonesOf(spec).automatic, owner, uid))[1] !== undefined;
}

const mayTake = ({ takes, tenant, type }: Request, holder: Lease): boolean =>
  takes === true && type === holder.type && isSameTenant(tenant, holder.tenant);

/** Makes holders of ports leave, if this request may take them away. */
export const portEvictor =
  (tx: WriteBuffer, spec: PoolSpec, asking: GrantContext, choice: Choice = emptyChoice()) =>
  async (holder: Lease): Promise<boolean> => {
    const { request } = asking;
    if (choice.waitsFor.has(holder.uid)) return true;
    if (isPreemptible(tx, holder, request.owner)) {
      await endLease(tx, holder, NO_QUARANTINE, { reason: "taken", takenBy: request.owner });
      return true;
    }
    if (!mayTake(request, holder)) return false;
    await preempt(tx, spec, asking, holder, "handed over", choice);
    return true;
  };

/** A claim ends the lease of a holder that must go. An offer moves nothing that is held: it waits for the holder's end. */
async function preempt(
  tx: WriteBuffer,
  spec: PoolSpec,
  { request, isClaim: firm, wasPreviewed: planned }: GrantContext,
  holder: Lease,
  how: "handed over" | "reclaimed",
  choice: Choice,
): Promise<void> {
  const end: LeaseEnd = { reason: "taken", takenBy: request.owner };
  const waiter = await waiterOf(tx, holder);
  if (waiter && waiter.owner !== request.owner) {
    if (!isPreemptible(tx, waiter, request.owner))
      throw (planned ? planStaleError : takenError)(spec, holder.extents[0]!, waiter, request.owner);
    await endLease(tx, waiter, NO_QUARANTINE, end);
  }
  if (firm || !isCommitted(holder)) {
    if (isCommitted(holder)) await appendHistory(tx, how, holder, { takenBy: request.owner });
    await endLease(tx, holder, NO_QUARANTINE, end);
  } else choice.waitsFor.add(holder.uid);
}

const isInactive = ({ now }: WriteBuffer, { reclaimAfter }: PoolSpec, lease: Lease): boolean =>
  reclaimAfter !== undefined &&
  isCommitted(lease) &&
  lease.expiresAt === undefined &&
  now - lease.lastSeen >= reclaimAfter * 1000;

async function chooseAutomatic(tx: WriteBuffer, spec: PoolSpec, asking: GrantContext): Promise<Choice> {
  const { request } = asking;
  const suits = (extents: Extent[]) => isAnswer({ extents }, request);
  const choice = emptyChoice();
  const shared = await findShared(tx, spec, request, suits, portEvictor(tx, spec, asking, choice));
  if (shared) return { ...choice, extents: shared };
  if (spec.allocation === "external" || spec.autoAssign === false) throw notRequestedError(spec);
  for (const within of [request.within, ...(request.also ?? [])]) {
    choice.extents.push(await findRoom(tx, spec, asking, choice, within));
  }
  return choice;
}

/** Free values first; then those resting longest, then the oldest offers, then whoever was not seen for too long. */
async function findRoom(
  tx: WriteBuffer,
  spec: PoolSpec,
  asking: GrantContext,
  choice: Choice,
  within?: Extent,
): Promise<Extent> {
  const { owner, size = 1n } = asking.request;
  const picker = pickerFor(asking);
  const zone = within ? intersect(zonesOf(spec).automatic, [within]) : zonesOf(spec).automatic;
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
    if (!holder) throw exhaustedError(spec, await heldLeases(tx, spec.name, 5, true));
    if (type === "r" && holder.owner !== owner) choice.warnings.push(quarantineWarning(spec, holder));
    if (type === "h") {
      await preempt(tx, spec, asking, holder, "reclaimed", choice);
      if (choice.waitsFor.has(holder.uid)) return holder.extents[0]!;
    } else {
      await endLease(tx, holder, NO_QUARANTINE, { reason: "taken", takenBy: owner });
      choice.evicted.push(holder);
    }
  }
}

const pickerFor = ({ request: { owner }, seed: chance }: GrantContext): Picker => ({ owner, seed: chance });

async function pickVictim(
  tx: WriteBuffer,
  spec: PoolSpec,
  zone: Extent[],
  owner: string,
  except?: string,
): Promise<[TimeClass, Lease | undefined]> {
  for (const type of ["r", "o", "h"] as const) {
    if (type === "h" && spec.reclaimAfter === undefined) break;
    const holder = await oldestVictim(tx, spec, type, zone, owner, except);
    if (holder) return [type, holder];
  }
  return ["h", undefined];
}

/**
 * The first of its class, by time, that can go for this owner and whose going helps. That may be an offer of an earlier run to
 * a neighbour that this run has not met yet, and which then gets another one: in a full pool, where somebody has to go.
 */
async function oldestVictim(
  tx: WriteBuffer,
  spec: PoolSpec,
  type: TimeClass,
  zone: Extent[],
  owner: string,
  except?: string,
): Promise<Lease | undefined> {
  for (const uid of await tx.range(byTime(spec.name, type), CANDIDATES)) {
    if (uid === except) continue;
    const lease = (await tx.get(leaseKey(spec.name, uid)))!;
    // In the order of when they were last seen: after the first that stays, all do.
    if (type === "h" && !isInactive(tx, spec, lease)) return undefined;
    const goes = type === "h" ? await canBeReclaimed(tx, lease, owner) : isPreemptible(tx, lease, owner);
    if (goes && intersect(zone, lease.extents).length > 0) return lease;
  }
  return undefined;
}

/** Not while the pool that it opened is in use, and not if it is promised to another owner already. */
async function canBeReclaimed(tx: WriteBuffer, lease: Lease, owner: string): Promise<boolean> {
  if (lease.childPool !== undefined && (await heldLeases(tx, lease.childPool, 1)).length > 0) return false;
  const waiter = await waiterOf(tx, lease);
  return !waiter || waiter.owner === owner || isPreemptible(tx, waiter, owner);
}

async function otherOffers(tx: WriteBuffer, spec: PoolSpec, except: string): Promise<Lease[]> {
  const offers: Lease[] = [];
  for (const uid of await tx.range(byTime(spec.name, "o"), CANDIDATES))
    if (uid !== except) offers.push((await tx.get(leaseKey(spec.name, uid)))!);
  return offers;
}

/** So many are looked at for one whose going helps. */
const CANDIDATES = 1000;

/**
 * Asked once a lease is in. Offers count too, so that preview finds what is too much; old offers of others give way.
 * `leaving` are leases that will be gone before the new one is claimed. A lease that was `promised` has been counted: later offers, also
 * those to replace what their owner holds, do not stop it.
 */
export async function mustKeepQuota(
  tx: WriteBuffer,
  spec: PoolSpec,
  { owner, uid }: Pick<Lease, "owner" | "uid">,
  leaving: Lease[] = [],
  promised = false,
): Promise<void> {
  if (!spec.quota) return;
  const { maxIps = Infinity, maxReservations = Infinity } = spec.quota;
  const isKept = async ({ offered, reserved, used, held }: Counts, without: Lease[]): Promise<boolean> =>
    offered + reserved + used - without.length <= maxReservations &&
    held - (await countHeldOnlyBy(tx, without)) <= maxIps;
  for (;;) {
    const counts = (await tx.get(countsKey(spec.name))) ?? noCounts();
    const { offered, reserved, used, held } = counts;
    const leases = offered + reserved + used - leaving.length;
    if (await isKept(counts, leaving)) return;
    if (await expireOverdue(tx, spec.name)) continue;
    if (promised && (await isKept(counts, [...leaving, ...(await otherOffers(tx, spec, uid))]))) return;
    const offer = await oldestVictim(tx, spec, "o", spec.extents, owner, uid);
    if (!offer) throw quotaError(spec, { leases, values: held });
    await endLease(tx, offer, quarantineEnd(tx, offer), { reason: "taken", takenBy: owner });
  }
}

/** Values that would be free without these leases. A value that several of them share counts once, one that another lease shares does not. */
async function countHeldOnlyBy(tx: WriteBuffer, leases: Lease[]): Promise<bigint> {
  const uids = new Set(leases.map(({ uid }) => uid));
  const extents: Extent[] = [];
  for (const lease of leases.filter(occupies)) {
    const key = sharingKeyOf(lease);
    const sharers = key === undefined ? [] : await tx.all(sharersOf(lease.pool, key, lease.extents[0]!.last));
    if (sharers.every((uid) => uids.has(uid))) extents.push(...lease.extents);
  }
  return total(mergeExtents(extents));
}
