import type { OverlayError } from "../errors";
import { isSameTenant, sameStack } from "../owner";
import type { Draft } from "./draft";
import { givesWay, lapse, NO_REST, restOf, sweep, vacate, waiterOf } from "./endings";
import { common, covers, isAvoided, meetsAny, mergeExtents, sameExtents, sizeOf, total, zonesOf } from "./extents";
import { type Picker, pick } from "./free";
import { byTime, type Class, countsKey, leaseKey, sharersOf } from "./keys";
import { log, sitting } from "./ledger";
import { lowestOverdue } from "./overdue";
import { holdersIn } from "./pools";
import type { Counts } from "./records";
import { isByValue } from "./request-id";
import { isOver, noCounts, occupies, sharedAs } from "./rows";
import { placeOfKey, takePorts } from "./sharing";
import { type Extent, isFirm, type Lease, type LeaseEnd, type PoolSpec, type Request } from "./types";
import {
  exhausted,
  keptForValue,
  notRequested,
  outside,
  overQuota,
  planStale,
  restingGiven,
  sharingConflict,
  taken,
  withheld,
} from "./wording";

/** Which values a request gets, and who has to go for it. */
export interface Asking {
  request: Request;
  /** false: an offer, which may move nothing firm. */
  firm: boolean;
  /** What it wants was free in a preview, and its user expects exactly that. */
  planned: boolean;
  /** A broken promise stops it; in a preview it is a warning. */
  inUp: boolean;
  /** Seconds that a new offer holds. */
  offerTtl: number;
  /** See `Picker`. */
  chance: string;
  /** What this run was to give the owner already. */
  intended?: Extent[];
  /** Whether this holder is about to leave its value to the asker, as in a swap within one stack. */
  leaves(holder: Lease): boolean;
  /** Called when the request must be refused in this run although its offer is kept for the next one. */
  refuse?(refusal: OverlayError): void;
}

export interface Choice {
  extents: Extent[];
  warnings: string[];
  /** What was only promised or at rest there, and had to go. */
  vacated: Lease[];
  /** Leases that must end or move before these extents can be claimed. */
  waitsFor: Set<string>;
}

export const noChoice = (extents: Extent[] = []): Choice => ({
  extents,
  warnings: [],
  vacated: [],
  waitsFor: new Set(),
});

export async function choose(tx: Draft, spec: PoolSpec, asking: Asking, own?: Lease): Promise<Choice> {
  const { want } = asking.request;
  const choice = want ? await requested(tx, spec, asking, want, own) : await automatic(tx, spec, asking);
  await takePorts(tx, spec, choice.extents, asking.request.ports ?? [], own?.uid, takingFor(tx, spec, asking, choice));
  return choice;
}

async function requested(tx: Draft, spec: PoolSpec, asking: Asking, want: Extent[], own?: Lease): Promise<Choice> {
  const choice = noChoice(want);
  for (const extent of want) {
    mustBeGivable(spec, extent);
    for (const lease of await sitting(tx, spec.name, extent)) {
      if (lease.uid === own?.uid) continue;
      await stepAside(tx, spec, asking, extent, lease, choice);
      if (!isFirm(lease)) choice.vacated.push(lease);
    }
  }
  return choice;
}

function mustBeGivable(spec: PoolSpec, extent: Extent): void {
  if (!covers(spec.extents, [extent])) throw outside(spec, extent);
  if (isAvoided(spec, extent) || meetsAny(spec.reserved ?? [], extent)) throw withheld(spec, extent);
}

/** Whether a lease with these extents is what the request asks for. */
export function answers({ extents }: Pick<Lease, "extents">, { want, size = 1n, within, also = [] }: Request): boolean {
  if (want) return sameExtents(extents, want);
  const ranges = [within, ...also];
  return (
    extents.length === ranges.length &&
    extents.every((extent, i) => sizeOf(extent) === size && (!ranges[i] || covers([ranges[i]], [extent])))
  );
}

/** Clears a requested extent of one holder, or refuses. */
async function stepAside(
  tx: Draft,
  spec: PoolSpec,
  asking: Asking,
  extent: Extent,
  holder: Lease,
  choice: Choice,
): Promise<void> {
  const { request } = asking;
  const own = holder.owner === request.owner;
  const end: LeaseEnd = { reason: "taken", takenBy: request.owner };
  if (isOver(holder, tx.now)) return await lapse(tx, holder, NO_REST, request.owner);
  if (holder.state === "resting" && !own) choice.warnings.push(restingGiven(spec, holder));
  if (givesWay(tx, holder, request.owner) || (own && holder.state === "offered"))
    return await vacate(tx, holder, NO_REST, end);
  const key = sharedAs(request);
  if (key !== undefined && key === sharedAs(holder) && sameExtents(holder.extents, request.want!)) return;
  if (isFirm(holder) && (asking.leaves(holder) || mayTake(request, holder)))
    return await displace(tx, spec, asking, holder, "handed over", choice);
  if (isInactive(tx, spec, holder) && !(await pick(tx, spec, pickerFor(asking), 1n)))
    return await displace(tx, spec, asking, holder, "reclaimed", choice);
  const isOfNeighbour = holder.state === "offered" && sameStack(holder.owner, request.owner) && !isByValue(holder);
  if (asking.refuse && isOfNeighbour && (await hasOtherRoom(tx, spec, asking, holder))) {
    asking.refuse(keptForValue(spec, extent, holder, request.owner));
    return await vacate(tx, holder, NO_REST, end);
  }
  if (holder.sharingKey !== undefined && key !== undefined)
    throw sharingConflict(spec, extent, request.sharingKey, holder);
  throw asking.planned ? planStale(spec, extent, holder, request.owner) : taken(spec, extent, holder, request.owner);
}

/** Whether the next run can offer this holder another value. Otherwise the two would take it from each other for ever. */
async function hasOtherRoom(
  tx: Draft,
  spec: PoolSpec,
  asking: Asking,
  { owner, uid, extents }: Lease,
): Promise<boolean> {
  const free = await pick(tx, spec, { ...pickerFor(asking), owner }, sizeOf(extents[0]!));
  return free !== undefined || (await whoGoes(tx, spec, zonesOf(spec).automatic, owner, uid))[1] !== undefined;
}

const mayTake = ({ takes, tenant, type }: Request, holder: Lease): boolean =>
  takes === true && type === holder.type && isSameTenant(tenant, holder.tenant);

/** Makes holders of ports leave, if this request may take them away. */
export const takingFor =
  (tx: Draft, spec: PoolSpec, asking: Asking, choice: Choice = noChoice()) =>
  async (holder: Lease): Promise<boolean> => {
    const { request } = asking;
    if (choice.waitsFor.has(holder.uid)) return true;
    if (givesWay(tx, holder, request.owner)) {
      await vacate(tx, holder, NO_REST, { reason: "taken", takenBy: request.owner });
      return true;
    }
    if (!mayTake(request, holder)) return false;
    await displace(tx, spec, asking, holder, "handed over", choice);
    return true;
  };

/** A claim ends the lease of a holder that must go. An offer moves nothing that is held: it waits for the holder's end. */
async function displace(
  tx: Draft,
  spec: PoolSpec,
  { request, firm, planned }: Asking,
  holder: Lease,
  how: "handed over" | "reclaimed",
  choice: Choice,
): Promise<void> {
  const end: LeaseEnd = { reason: "taken", takenBy: request.owner };
  const waiter = await waiterOf(tx, holder);
  if (waiter && waiter.owner !== request.owner) {
    if (!givesWay(tx, waiter, request.owner))
      throw (planned ? planStale : taken)(spec, holder.extents[0]!, waiter, request.owner);
    await vacate(tx, waiter, NO_REST, end);
  }
  if (firm || !isFirm(holder)) {
    if (isFirm(holder)) await log(tx, how, holder, { takenBy: request.owner });
    await vacate(tx, holder, NO_REST, end);
  } else choice.waitsFor.add(holder.uid);
}

const isInactive = ({ now }: Draft, { reclaimAfter }: PoolSpec, lease: Lease): boolean =>
  reclaimAfter !== undefined &&
  isFirm(lease) &&
  lease.expiresAt === undefined &&
  now - lease.lastSeen >= reclaimAfter * 1000;

async function automatic(tx: Draft, spec: PoolSpec, asking: Asking): Promise<Choice> {
  const { request } = asking;
  const suits = (extents: Extent[]) => answers({ extents }, request);
  const choice = noChoice();
  const shared = await placeOfKey(tx, spec, request, suits, takingFor(tx, spec, asking, choice));
  if (shared) return { ...choice, extents: shared };
  if (spec.allocation === "external" || spec.autoAssign === false) throw notRequested(spec);
  for (const within of [request.within, ...(request.also ?? [])]) {
    choice.extents.push(await roomFor(tx, spec, asking, choice, within));
  }
  return choice;
}

/** Free values first; then those resting longest, then the oldest offers, then whoever was not seen for too long. */
async function roomFor(tx: Draft, spec: PoolSpec, asking: Asking, choice: Choice, within?: Extent): Promise<Extent> {
  const { owner, size = 1n } = asking.request;
  const picker = pickerFor(asking);
  const zone = within ? common(zonesOf(spec).automatic, [within]) : zonesOf(spec).automatic;
  for (;;) {
    const found = await pick(tx, spec, picker, size, within);
    const overdue =
      found && spec.allocation === "lowest" ? await lowestOverdue(tx, spec.name, zone, found.first) : undefined;
    if (overdue) {
      await lapse(tx, overdue);
      continue;
    }
    if (found) return found;
    if (await sweep(tx, spec.name)) continue;
    const [type, holder] = await whoGoes(tx, spec, zone, owner);
    if (!holder) throw exhausted(spec, await holdersIn(tx, spec.name, 5, true));
    if (type === "r" && holder.owner !== owner) choice.warnings.push(restingGiven(spec, holder));
    if (type === "h") {
      await displace(tx, spec, asking, holder, "reclaimed", choice);
      if (choice.waitsFor.has(holder.uid)) return holder.extents[0]!;
    } else {
      await vacate(tx, holder, NO_REST, { reason: "taken", takenBy: owner });
      choice.vacated.push(holder);
    }
  }
}

const pickerFor = ({ request: { owner }, chance }: Asking): Picker => ({ owner, chance });

async function whoGoes(
  tx: Draft,
  spec: PoolSpec,
  zone: Extent[],
  owner: string,
  except?: string,
): Promise<[Class, Lease | undefined]> {
  for (const type of ["r", "o", "h"] as const) {
    if (type === "h" && spec.reclaimAfter === undefined) break;
    const holder = await oldest(tx, spec, type, zone, owner, except);
    if (holder) return [type, holder];
  }
  return ["h", undefined];
}

/**
 * The first of its class, by time, that can go for this owner and whose going helps. That may be an offer of an earlier run to
 * a neighbour that this run has not met yet, and which then gets another one: in a full pool, where somebody has to go.
 */
async function oldest(
  tx: Draft,
  spec: PoolSpec,
  type: Class,
  zone: Extent[],
  owner: string,
  except?: string,
): Promise<Lease | undefined> {
  for (const uid of await tx.range(byTime(spec.name, type), CANDIDATES)) {
    if (uid === except) continue;
    const lease = (await tx.get(leaseKey(spec.name, uid)))!;
    // In the order of when they were last seen: after the first that stays, all do.
    if (type === "h" && !isInactive(tx, spec, lease)) return undefined;
    const goes = type === "h" ? await canBeReclaimed(tx, lease, owner) : givesWay(tx, lease, owner);
    if (goes && common(zone, lease.extents).length > 0) return lease;
  }
  return undefined;
}

/** Not while the pool that it opened is in use, and not if it is promised to another owner already. */
async function canBeReclaimed(tx: Draft, lease: Lease, owner: string): Promise<boolean> {
  if (lease.opens !== undefined && (await holdersIn(tx, lease.opens, 1)).length > 0) return false;
  const waiter = await waiterOf(tx, lease);
  return !waiter || waiter.owner === owner || givesWay(tx, waiter, owner);
}

async function otherOffers(tx: Draft, spec: PoolSpec, except: string): Promise<Lease[]> {
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
  tx: Draft,
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
    if (await sweep(tx, spec.name)) continue;
    if (promised && (await isKept(counts, [...leaving, ...(await otherOffers(tx, spec, uid))]))) return;
    const offer = await oldest(tx, spec, "o", spec.extents, owner, uid);
    if (!offer) throw overQuota(spec, { leases, values: held });
    await vacate(tx, offer, restOf(tx, offer), { reason: "taken", takenBy: owner });
  }
}

/** Values that would be free without these leases. A value that several of them share counts once, one that another lease shares does not. */
async function countHeldOnlyBy(tx: Draft, leases: Lease[]): Promise<bigint> {
  const uids = new Set(leases.map(({ uid }) => uid));
  const extents: Extent[] = [];
  for (const lease of leases.filter(occupies)) {
    const key = sharedAs(lease);
    const sharers = key === undefined ? [] : await tx.all(sharersOf(lease.pool, key, lease.extents[0]!.last));
    if (sharers.every((uid) => uids.has(uid))) extents.push(...lease.extents);
  }
  return total(mergeExtents(extents));
}
