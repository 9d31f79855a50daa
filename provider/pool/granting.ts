import { amend } from "./changing";
import { type Asking, answers, type Choice, choose, mustKeepQuota, noChoice, takingFor } from "./choice";
import type { Draft } from "./draft";
import { formerOf, givesWay, restOf, sweep, vacate } from "./endings";
import { enter } from "./entering";
import { covers, fits, meetsAny, sameExtents, total, zonesOf } from "./extents";
import { newLeaseId, newUid } from "./ids";
import { countsKey, leaseKey } from "./keys";
import { leasesOfOwner, log, record, sitting } from "./ledger";
import { takeNames } from "./names";
import { mustBeOfTenant, poolFor } from "./pools";
import { given, type PoolRecord } from "./records";
import { isByValue, requestId } from "./request-id";
import { isLive, isOver, noCounts, sharedAs } from "./rows";
import { canHavePorts, mayChangeKey, takePorts } from "./sharing";
import { type Details, type Extent, isFirm, type Lease, type PoolSpec, type Request } from "./types";
import { alreadyHeld, nearlyFull, promiseBroken, promiseBrokenWarning } from "./wording";

/** Offers and claims. First of all: what does this owner have already? */

export async function offer(tx: Draft, asking: Asking): Promise<Lease> {
  const { request } = asking;
  const pool = await poolFor(tx, request.pool, false);
  mustBeOfTenant(pool.spec, request.tenant);
  const kept = (await leasesOfOwner(tx, request.pool, request.owner)).filter((lease) => !isPastEnd(lease, tx.now));
  const all = withoutOutdated(asking, kept);
  const mine = all.filter(({ state }) => state !== "ended");
  const found = await findOwn(tx, pool.spec, request, mine);
  if (found && isFirm(found) && isLive(found, tx.now)) return await keptInPreview(tx, pool.spec, asking, found);
  const broken = brokenPromise(request, all, found);
  const [promised, warnings] = broken ? await recallPromise(tx, pool.spec, asking, broken) : [];
  const own = promised ? undefined : found;
  const want = promised ?? (own ? undefined : await recallHeld(tx, pool.spec, request, all, broken));
  const lease = await grant(tx, pool, want ? { ...asking, request: { ...request, want } } : asking, own, request);
  if (broken) await record(tx, broken, shownToOthers(broken, request.program));
  // What it holds already is given up for this one: before that is claimed, where there is no room for both.
  await mustKeepQuota(
    tx,
    pool.spec,
    lease,
    mine.filter((other) => isFirm(other) && other.uid !== lease.uid),
    own !== undefined && isCounted(own, lease),
  );
  return warnings?.length ? { ...lease, warnings: [...(lease.warnings ?? []), ...warnings] } : lease;
}

/** A record that is to be removed. */
const isPastEnd = (lease: Lease, now: number): boolean => lease.state === "ended" && isOver(lease, now);

/**
 * Without what is older than the end of the owner's last lease: broken promises; and, if that is the lease which the state still has
 * (`prefer`), offers. An up that puts it back gives what was held. Offers of this run, and those that wait, are not outdated.
 */
function withoutOutdated({ request: { prefer, want }, intended }: Asking, all: Lease[]): Lease[] {
  const ends = all.filter(({ state, end }) => state === "resting" || (state === "ended" && !end?.wasOffer));
  const held = ends.filter(({ extents }) => prefer && !want && sameExtents(extents, prefer));
  const [lastEnd, heldUntil] = [ends, held].map((leases) => Math.max(...leases.map(({ updatedAt }) => updatedAt)));
  const isOfRun = ({ extents }: Lease) => intended !== undefined && sameExtents(extents, intended);
  return all.filter((lease) => {
    if (lease.end?.wasOffer) return lease.updatedAt > lastEnd!;
    return lease.state !== "offered" || lease.updatedAt > heldUntil! || lease.waitsFor || isOfRun(lease);
  });
}

/** Whether a preview of this program has shown the offer; yes where that is not known. */
const isShownTo = ({ shownTo }: Lease, program: string | undefined): boolean =>
  shownTo === undefined || program === undefined || shownTo.includes(program);

/** The record of a broken promise, for the programs that have yet to learn of it. */
function shownToOthers(broken: Lease, program: string | undefined): Lease | undefined {
  const shownTo = program === undefined ? [] : (broken.shownTo ?? []).filter((other) => other !== program);
  return shownTo.length > 0 ? { ...broken, shownTo } : undefined;
}

/**
 * The last offer to this request that ended before it was claimed. Where the request has another offer by now, it counts only if
 * this program was shown the old one, and not the new one.
 */
function brokenPromise(request: Request, all: Lease[], own: Lease | undefined): Lease | undefined {
  const shown = (lease: Lease) => Number(isShownTo(lease, request.program));
  if (own?.state === "offered" && shown(own)) return undefined;
  return all
    .filter(({ state, end, request: id }) => state === "ended" && end?.wasOffer && id === requestId(request))
    .filter((ended) => !own || (shown(ended) && !sameExtents(ended.extents, own.extents)))
    .sort((a, b) => shown(b) - shown(a) || b.updatedAt - a.updatedAt)[0];
}

/**
 * What was promised, if it is free. Otherwise an up stops, and a preview gets a warning. Where the pool was deleted and is another one
 * now, an up of a program that was not shown the promise goes on.
 */
async function recallPromise(
  tx: Draft,
  spec: PoolSpec,
  { request, inUp }: Asking,
  broken: Lease,
): Promise<[want: Extent[] | undefined, warnings: string[]]> {
  const [holder] = await holdersOf(tx, spec, broken.extents);
  if (!holder && canGive(spec, request, broken.extents)) return [broken.extents, []];
  const isOfOtherPool = broken.end?.reason === "pool deleted" && !isShownTo(broken, request.program);
  if (inUp && isOfOtherPool) return [undefined, []];
  if (inUp) throw promiseBroken(spec, broken, holder);
  return [undefined, [promiseBrokenWarning(spec, broken, holder)]];
}

/**
 * What a request that leaves the choice to the pool gets before others: what it held before it was renamed, or before it ended.
 * Offers to other branches of its stack give way, but not one that has taken these values from the owner (`broken`).
 */
async function recallHeld(
  tx: Draft,
  spec: PoolSpec,
  request: Request,
  all: Lease[],
  broken?: Lease,
): Promise<Extent[] | undefined> {
  if (request.want) return undefined;
  const former = request.formerOwner ? await leasesOfOwner(tx, request.pool, request.formerOwner) : [];
  const held = former.find((lease) => isFirm(lease) && isLive(lease, tx.now));
  const mayHave = (lease: Lease) =>
    lease.uid === held?.uid ||
    (lease.state === "resting" ? lease.owner === request.owner : givesWay(tx, lease, request.owner));
  const canHave = async (extents: Extent[], mayHaveFrom: (holder: Lease) => boolean): Promise<boolean> => {
    if (!answers({ extents }, request) || !canGive(spec, request, extents)) return false;
    return (await holdersOf(tx, spec, extents)).every(mayHaveFrom);
  };
  for (const extents of [held?.extents, request.prefer]) {
    const isTaken = extents && broken && sameExtents(extents, broken.extents);
    if (extents && !isTaken && (await canHave(extents, mayHave))) return extents;
  }
  for (const { extents } of restedIn(tx, spec, request, all)) {
    if (await canHave(extents, () => false)) return extents;
  }
  return undefined;
}

/** What would still rest for the owner if its pool had not been deleted since; the last one first. */
const restedIn = ({ now }: Draft, spec: PoolSpec, request: Request, all: Lease[]): Lease[] =>
  all
    .filter((lease) => lease.state === "ended" && now < (lease.restsUntil ?? 0) && comesBack(spec, lease, request))
    .sort((a, b) => b.updatedAt - a.updatedAt);

const canGive = (spec: PoolSpec, { want }: Request, extents: Extent[]): boolean =>
  fits(spec, { extents }) && (want !== undefined || covers(zonesOf(spec).automatic, extents));

async function holdersOf(tx: Draft, spec: PoolSpec, extents: Extent[]): Promise<Lease[]> {
  const found: Lease[] = [];
  for (const extent of extents)
    found.push(...(await sitting(tx, spec.name, extent)).filter((lease) => !isOver(lease, tx.now)));
  return found;
}

/** A preview changes nothing about a lease that is firm; it only finds out whether its new names and ports are free. */
async function keptInPreview(tx: Draft, spec: PoolSpec, asking: Asking, own: Lease): Promise<Lease> {
  const { names = [], ports = [] } = asking.request;
  await takeNames(tx, { ...own, names });
  await mayChangeKey(tx, spec, own, sharedAs(asking.request));
  await takePorts(tx, spec, own.extents, ports, own.uid, takingFor(tx, spec, asking));
  tx.discard();
  return own;
}

export async function claim(tx: Draft, asking: Asking): Promise<Lease> {
  const { request } = asking;
  const pool = await poolFor(tx, request.pool, true);
  mustBeOfTenant(pool.spec, request.tenant);
  const all = await leasesOfOwner(tx, request.pool, request.owner);
  const mine = all.filter(({ state }) => state !== "ended");
  const held = request.idempotent ? mine.find((lease) => isFirm(lease) && isLive(lease, tx.now)) : undefined;
  if (held) return await claimAgain(tx, pool.spec, request, held);
  const own = await claimable(tx, pool.spec, request, mine);
  const lease = await grant(tx, pool, asking, own);
  await log(tx, own && isFirm(own) ? "renewed" : "claimed", lease);
  // Offers to other requests of this owner stay: those are of other branches of its program.
  const answered = own?.request ?? requestId(request);
  for (const { state, uid, request: id } of mine) {
    if (state !== "offered" || uid === lease.uid || (id ?? answered) !== answered) continue;
    const other = await tx.get(leaseKey(request.pool, uid));
    if (other) await vacate(tx, other, restOf(tx, other));
  }
  await mustKeepQuota(tx, pool.spec, lease, [], own !== undefined && isCounted(own, lease));
  return lease;
}

/** Whether a lease takes up no more than the offer to its owner did. */
const isCounted = (offer: Lease, { extents }: Lease): boolean =>
  !offer.waitsFor && total(extents) <= total(offer.extents);

/** The answer to a retried claim: the lease that the first one made, if it is still what is asked for. */
async function claimAgain(tx: Draft, spec: PoolSpec, request: Request, held: Lease): Promise<Lease> {
  const { want = [], ttl, usedBy, labels } = request;
  const isAskedFor = want.every((extent) => held.extents.some((other) => sameExtents([extent], [other])));
  const isInUse = held.state === "used" && held.usedBy !== usedBy;
  if (!isAskedFor || isInUse) throw alreadyHeld(spec, held);
  if (held.state === "used") return held;
  const use = usedBy === undefined ? {} : ({ state: "used", usedBy } as const);
  return await amend(tx, held.pool, held.leaseId, { ttl: ttl ?? null, ...use, ...(labels && { labels }) });
}

/** What a claim makes its owner's: its lease or offer on these values, or its block that is to have other bounds. */
async function claimable(tx: Draft, spec: PoolSpec, request: Request, mine: Lease[]): Promise<Lease | undefined> {
  const own = await findOwn(tx, spec, request, mine);
  const block = own && !own.waitsFor ? undefined : outgrown(request, mine);
  if (own && block) await vacate(tx, own); // it waited for the block, which gets the values itself
  return block ?? own;
}

/** The owner's lease that answers the request; none on an address where its ports are taken, if it prefers another address then. */
async function findOwn(tx: Draft, spec: PoolSpec, request: Request, mine: Lease[]): Promise<Lease | undefined> {
  const candidates = answering(tx, spec, request, mine);
  if (request.want || request.onPortConflict !== "anotherAddress") return candidates[0];
  for (const lease of candidates) if (await canHavePorts(tx, spec, request, lease)) return lease;
  return undefined;
}

/** The leases that answer the request: firm, offered, past ones; of these what this program was shown, then the newest, first. */
function answering({ now }: Draft, spec: PoolSpec, request: Request, mine: Lease[]): Lease[] {
  const isPast = (lease: Lease) => lease.state !== "offered" && !isLive(lease, now);
  const rank = (lease: Lease) => (isPast(lease) ? 2 : isFirm(lease) ? 0 : 1);
  const shown = (lease: Lease) => Number(isShownTo(lease, request.program));
  const isFor = ({ state, request: id }: Lease) =>
    state !== "offered" || request.want !== undefined || id === undefined || id === requestId(request);
  return mine
    .filter((lease) => answers(lease, request) && isFor(lease) && (!isPast(lease) || comesBack(spec, lease, request)))
    .sort((a, b) => rank(a) - rank(b) || shown(b) - shown(a) || b.createdAt - a.createdAt);
}

/** Whether an owner finds what it had before: if asked for, or if the pool could have chosen it. */
const comesBack = (spec: PoolSpec, { extents }: Lease, { want, sharingKey }: Request): boolean =>
  want !== undefined ||
  (sharingKey === undefined && spec.autoAssign !== false && covers(zonesOf(spec).automatic, extents));

/** A block that is asked for larger or smaller than its owner has it: the same lease, with other bounds. */
const outgrown = ({ want = [] }: Request, mine: Lease[]): Lease | undefined =>
  mine.find((lease) => isFirm(lease) && lease.extents.some((extent) => meetsAny(want, extent)));

/** `answered` is the request that an offer is made to, where `asking` says more than that. */
async function grant(
  tx: Draft,
  { spec, until }: PoolRecord,
  asking: Asking,
  found?: Lease,
  answered = asking.request,
): Promise<Lease> {
  const { request } = asking;
  await sweep(tx, request.pool, request.owner);
  const choice = await seat(tx, spec, asking, found);
  const { extents, warnings } = choice;
  // An offer that waited for the values may have got them by now.
  const own = found && (await tx.get(leaseKey(found.pool, found.uid)));
  const lease = newLease(tx, asking, choice, requestId(answered), own);
  const ends = lease.state === "offered" ? Math.min(lease.expiresAt!, until ?? Infinity) : undefined;
  const after = await enter(tx, own, lease, detailsOf(request, extents, own), ends);
  // What is only offered counts, too: a preview sees its own requests.
  const { held } = (await tx.get(countsKey(spec.name))) ?? noCounts();
  const warning = nearlyFull(spec, held);
  if (warning) warnings.push(warning);
  return warnings.length ? { ...after, warnings } : after;
}

/** Whoever uses a lease has given it a name, which it keeps in its next life. */
function detailsOf({ names, opens, formerOwner }: Request, extents: Extent[], own?: Lease) {
  const users = own?.state === "used" ? (own.names ?? []).filter((name) => name.startsWith("user/")) : [];
  const all = users.length ? [...new Set([...(names ?? []), ...users])] : names;
  const spec = typeof opens === "function" ? opens(extents) : opens;
  return given<Pick<Details, "names" | "opens"> & Pick<Request, "formerOwner">>({
    names: all,
    opens: spec,
    formerOwner,
  });
}

async function seat(tx: Draft, spec: PoolSpec, asking: Asking, own?: Lease): Promise<Choice> {
  const keeps = own && !own.waitsFor && answers(own, asking.request);
  if (own && !own.waitsFor) await mayChangeKey(tx, spec, own, keeps ? sharedAs(asking.request) : undefined);
  if (!keeps) return await choose(tx, spec, asking, own);
  const choice = noChoice(own.extents);
  await takePorts(tx, spec, own.extents, asking.request.ports ?? [], own.uid, takingFor(tx, spec, asking, choice));
  return choice;
}

/** What rests, or would by now, does not rest any shorter because a preview has asked for these very values. */
function restBehind(tx: Draft, before: Lease, owner: string): Pick<Lease, "restsUntil" | "restsFor"> {
  const rest = before.state === "resting" ? before.expiresAt! : restOf(tx, before, before.expiresAt);
  if (rest <= tx.now) return {};
  const former = formerOf(before);
  return { restsUntil: rest, ...(former.owner !== owner && { restsFor: former }) };
}

/** An offer that was made a moment ago is not made again: preview, the preview of up, and up itself ask one after another. */
const isFresh = ({ now }: Draft, { offerTtl }: Asking, own: Lease): boolean =>
  own.state === "offered" && isLive(own, now) && now - own.updatedAt < (offerTtl * 1000) / MOMENTS;
/** So many are in the time that an offer holds: one is a minute of the usual hour. */
const MOMENTS = 60;

/** So many programs are kept for an offer. */
const SHOWN_TO = 50;

function shownAlsoTo(offer: Lease | undefined, program: string | undefined): string[] | undefined {
  const before = offer?.shownTo ?? [];
  if (program === undefined) return offer?.shownTo;
  return before.includes(program) ? before : [...before, program].slice(-SHOWN_TO);
}

function newLease(
  tx: Draft,
  asking: Asking,
  { extents, vacated, waitsFor }: Choice,
  answered: string,
  own?: Lease,
): Lease {
  const { request, firm, offerTtl } = asking;
  const { pool, owner, type, tenant, labels, data, by, sharingKey, ports, ttl } = request;
  const wasUsed = own?.state === "used";
  const usedBy = request.usedBy ?? (wasUsed ? own.usedBy : undefined);
  const state = !firm ? "offered" : wasUsed || usedBy !== undefined ? "used" : "reserved";
  const seconds = { offered: offerTtl, reserved: ttl, used: undefined }[state];
  const uid = own?.uid ?? newUid(owner);
  const before = own ?? vacated.find((lease) => sameExtents(lease.extents, extents));
  const at = state === "offered" && own && isFresh(tx, asking, own) ? own.updatedAt : tx.now;
  const offered = own?.state === "offered" ? own : undefined;
  const id = offered?.request ?? answered;
  return given<Lease>({
    pool,
    owner,
    type,
    extents,
    state,
    uid,
    leaseId: offered && !firm ? offered.leaseId : newLeaseId(uid),
    createdAt: own && isLive(own, tx.now) ? own.createdAt : tx.now,
    updatedAt: at,
    lastSeen: at,
    ttl,
    expiresAt: seconds === undefined ? undefined : at + seconds * 1000,
    ...(state === "offered" && before && restBehind(tx, before, owner)),
    tenant,
    labels,
    usedBy,
    data,
    by: by ?? tx.terms.actor,
    sharingKey,
    ports,
    opens: own?.opens,
    ...(state === "offered" && {
      request: id,
      shownTo: isByValue({ request: id }) ? undefined : shownAlsoTo(offered, request.program),
      waitsFor: waitsFor.size > 0 ? [...waitsFor] : undefined,
    }),
  });
}
