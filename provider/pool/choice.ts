import { isSameTenant } from "../owner";
import type { Draft } from "./draft";
import { givesWay, lapse, NO_REST, restOf, sweep, vacate } from "./endings";
import { common, covers, isBoundary, meetsAny, sameExtents, sizeOf, total, zonesOf } from "./extents";
import { type Picker, pick } from "./free";
import { byTime, type Class, countsKey, leaseKey } from "./keys";
import { log, sitting } from "./ledger";
import { lowestOverdue } from "./overdue";
import { holdersIn } from "./pools";
import { isOver, noCounts, sharedAs } from "./rows";
import type { Rule } from "./rule";
import { placeOfKey, takePorts } from "./sharing";
import { type Extent, isFirm, type Lease, type PoolSpec, type Request } from "./types";
import {
  exhausted,
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
  /** See `Picker`. */
  chance: string;
  /** Whether this holder is about to leave its value to the asker, as in a swap within one stack. */
  leaves(holder: Lease): boolean;
}

export interface Choice {
  extents: Extent[];
  warnings: string[];
  /** What was only promised or at rest there, and had to go. */
  vacated: Lease[];
}

export function* choose(tx: Draft, spec: PoolSpec, asking: Asking, own?: Lease): Rule<Choice> {
  const { want } = asking.request;
  const choice = want ? yield* requested(tx, spec, asking, want, own) : yield* automatic(tx, spec, asking);
  yield* takePorts(tx, spec, choice.extents, asking.request.ports ?? [], own?.uid, takingFor(tx, asking));
  return choice;
}

function* requested(tx: Draft, spec: PoolSpec, asking: Asking, want: Extent[], own?: Lease): Rule<Choice> {
  const choice: Choice = { extents: want, warnings: [], vacated: [] };
  for (const extent of want) {
    mustBeGivable(spec, extent);
    for (const lease of yield* sitting(tx, spec.name, extent)) {
      if (lease.uid === own?.uid) continue;
      yield* stepAside(tx, spec, asking, extent, lease, choice.warnings);
      if (!isFirm(lease)) choice.vacated.push(lease);
    }
  }
  return choice;
}

function mustBeGivable(spec: PoolSpec, extent: Extent): void {
  if (!covers(spec.extents, [extent])) throw outside(spec, extent);
  const avoided = spec.avoidBoundaryIps && (sizeOf(extent) > 1n || isBoundary(extent.first));
  if (avoided || meetsAny(spec.reserved ?? [], extent)) throw withheld(spec, extent);
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
function* stepAside(
  tx: Draft,
  spec: PoolSpec,
  asking: Asking,
  extent: Extent,
  holder: Lease,
  warnings: string[],
): Rule<void> {
  const { request } = asking;
  const own = holder.owner === request.owner;
  if (isOver(holder, tx.now)) return yield* lapse(tx, holder, NO_REST);
  if (holder.state === "resting" && !own) warnings.push(restingGiven(spec, holder));
  if (givesWay(tx, holder, request.owner) || (own && holder.state === "offered")) return yield* vacate(tx, holder);
  const key = sharedAs(request);
  if (key !== undefined && key === sharedAs(holder) && sameExtents(holder.extents, request.want!)) return;
  if (asking.leaves(holder) || mayTake(request, holder)) return yield* oust(tx, asking, holder, "handed over");
  if (isInactive(tx, spec, holder) && !(yield* pick(tx, spec, pickerFor(asking), 1n))) {
    return yield* oust(tx, asking, holder, "reclaimed");
  }
  if (holder.sharingKey !== undefined && key !== undefined)
    throw sharingConflict(spec, extent, request.sharingKey, holder);
  throw asking.planned ? planStale(spec, extent, holder, request.owner) : taken(spec, extent, holder, request.owner);
}

const mayTake = ({ takes, tenant, type }: Request, holder: Lease): boolean =>
  takes === true && type === holder.type && isSameTenant(tenant, holder.tenant);

/** Makes holders of ports leave, if this request may take them away. */
export const takingFor = (tx: Draft, asking: Asking) =>
  function* (holder: Lease): Rule<boolean> {
    if (!mayTake(asking.request, holder)) return false;
    yield* oust(tx, asking, holder, "handed over");
    return true;
  };

/** Takes a lease away from its holder. An offer can only imagine that. */
function* oust(tx: Draft, { firm }: Asking, holder: Lease, how: "handed over" | "reclaimed"): Rule<void> {
  if (isFirm(holder) && !firm) tx.onlyImagined = true;
  yield* log(tx, how, holder);
  yield* vacate(tx, holder);
}

const isInactive = ({ now }: Draft, { reclaimAfter }: PoolSpec, lease: Lease): boolean =>
  reclaimAfter !== undefined &&
  isFirm(lease) &&
  lease.expiresAt === undefined &&
  now - lease.lastSeen >= reclaimAfter * 1000;

function* automatic(tx: Draft, spec: PoolSpec, asking: Asking): Rule<Choice> {
  const { request } = asking;
  const suits = (extents: Extent[]) => answers({ extents }, request);
  const shared = yield* placeOfKey(tx, spec, request, suits, takingFor(tx, asking));
  if (shared) return { extents: shared, warnings: [], vacated: [] };
  if (spec.allocation === "external" || spec.autoAssign === false) throw notRequested(spec);
  const choice: Choice = { extents: [], warnings: [], vacated: [] };
  for (const within of [request.within, ...(request.also ?? [])]) {
    choice.extents.push(yield* roomFor(tx, spec, asking, choice, within));
  }
  return choice;
}

/** Free values first; then those resting longest, then the oldest offers, then whoever was not seen for too long. */
function* roomFor(
  tx: Draft,
  spec: PoolSpec,
  asking: Asking,
  { warnings, vacated }: Choice,
  within?: Extent,
): Rule<Extent> {
  const { owner, size = 1n } = asking.request;
  const picker = pickerFor(asking);
  const zone = within ? common(zonesOf(spec).automatic, [within]) : zonesOf(spec).automatic;
  for (;;) {
    const found = yield* pick(tx, spec, picker, size, within);
    const overdue =
      found && spec.allocation === "lowest" ? yield* lowestOverdue(tx, spec.name, zone, found.first) : undefined;
    if (overdue) {
      yield* lapse(tx, overdue);
      continue;
    }
    if (found) return found;
    if (yield* sweep(tx, spec.name)) continue;
    const [type, holder] = yield* whoGoes(tx, spec, zone, owner);
    if (!holder) throw exhausted(spec, yield* holdersIn(tx, spec.name, 5, true));
    if (type === "r" && holder.owner !== owner) warnings.push(restingGiven(spec, holder));
    if (type === "h") yield* oust(tx, asking, holder, "reclaimed");
    else {
      yield* vacate(tx, holder);
      vacated.push(holder);
    }
  }
}

const pickerFor = ({ request: { owner }, chance }: Asking): Picker => ({ owner, chance });

function* whoGoes(tx: Draft, spec: PoolSpec, zone: Extent[], owner: string): Rule<[Class, Lease | undefined]> {
  for (const type of ["r", "o", "h"] as const) {
    if (type === "h" && spec.reclaimAfter === undefined) break;
    const holder = yield* oldest(tx, spec, type, zone, owner);
    if (holder) return [type, holder];
  }
  return ["h", undefined];
}

/**
 * The first of its class, by time, that can go for this owner and whose going helps. That may be an offer of an earlier run to
 * a neighbour that this run has not met yet, and which then gets another one: in a full pool, where somebody has to go.
 */
function* oldest(tx: Draft, spec: PoolSpec, type: Class, zone: Extent[], owner: string): Rule<Lease | undefined> {
  for (const uid of yield* tx.range(byTime(spec.name, type), CANDIDATES)) {
    const lease = (yield* tx.get(leaseKey(spec.name, uid)))!;
    // In the order of when they were last seen: after the first that stays, all do.
    if (type === "h" && !isInactive(tx, spec, lease)) return undefined;
    const goes = type === "h" ? !(yield* isOpenForOthers(tx, lease)) : givesWay(tx, lease, owner);
    if (goes && common(zone, lease.extents).length > 0) return lease;
  }
  return undefined;
}

function* isOpenForOthers(tx: Draft, { opens }: Lease): Rule<boolean> {
  return opens !== undefined && (yield* holdersIn(tx, opens, 1)).length > 0;
}

/** So many are looked at for one whose going helps. */
const CANDIDATES = 1000;

/**
 * Asked once a lease is in. Offers count too, so that preview finds what is too much; old offers of others give way.
 * `leaving` are leases that will be gone before the new one is claimed.
 */
export function* mustKeepQuota(tx: Draft, spec: PoolSpec, owner: string, leaving: Lease[] = []): Rule<void> {
  if (!spec.quota) return;
  const { maxIps = Infinity, maxReservations = Infinity } = spec.quota;
  for (;;) {
    const { offered, reserved, used, held } = (yield* tx.get(countsKey(spec.name))) ?? noCounts();
    const leases = offered + reserved + used - leaving.length;
    if (leases <= maxReservations && held - total(leaving.flatMap(({ extents }) => extents)) <= maxIps) return;
    if (yield* sweep(tx, spec.name)) continue;
    const offer = yield* oldest(tx, spec, "o", spec.extents, owner);
    if (!offer) throw overQuota(spec, { leases, values: held });
    yield* vacate(tx, offer, restOf(tx, offer));
  }
}
