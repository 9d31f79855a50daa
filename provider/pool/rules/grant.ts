import { alreadyHeldError, fullnessWarning, promiseBrokenError, promiseBrokenWarning } from "../errors";
import { covers, fits, overlapsAny, sameExtents, total, zonesOf } from "../extents";
import { newLeaseId, newUid } from "../storage/ids";
import { countsKey, leaseKey } from "../storage/keys";
import { appendHistory, holdersOf, leasesOfOwner, replaceLease } from "../storage/leases";
import { omitUndefined, type PoolRecord } from "../storage/records";
import { isExpired, isLive, noCounts, sharingKeyOf } from "../storage/rows";
import type { WriteBuffer } from "../storage/write-buffer";
import { type Details, type Extent, isCommitted, type Lease, type PoolSpec, type Request } from "../types";
import { amend } from "./amend";
import { type Choice, choose, emptyChoice, type GrantContext, isAnswer, mustKeepQuota, portEvictor } from "./choose";
import { endLease, expireOverdue, isPreemptible, previousHolder, quarantineEnd } from "./end-lease";
import { takeNames } from "./names";
import { mustBeOfTenant, requirePool } from "./pools";
import { putLease } from "./put-lease";
import { isByValue, requestId } from "./request-id";
import { canHavePorts, mustKeepKey, takePorts } from "./share";

/** Offers and claims. First of all: what does this owner have already? */

export async function offer(tx: WriteBuffer, asking: GrantContext): Promise<Lease> {
  const { request } = asking;
  const pool = await requirePool(tx, request.pool, false);
  mustBeOfTenant(pool.spec, request.tenant);
  const kept = (await leasesOfOwner(tx, request.pool, request.owner)).filter((lease) => !isPastEnd(lease, tx.now));
  const all = withoutOutdated(asking, kept);
  const mine = all.filter(({ state }) => state !== "ended");
  const found = await findOwn(tx, pool.spec, request, mine);
  if (found && isCommitted(found) && isLive(found, tx.now)) return await checkInPreview(tx, pool.spec, asking, found);
  const broken = findBrokenPromise(request, all, found);
  const [promised, warnings] = broken ? await recallPromise(tx, pool.spec, asking, broken) : [];
  const own = promised ? undefined : found;
  const want = promised ?? (own ? undefined : await recallHeld(tx, pool.spec, request, all, broken));
  const lease = await grant(tx, pool, want ? { ...asking, request: { ...request, want } } : asking, own, request);
  if (broken) await replaceLease(tx, broken, removeShownTo(broken, request.program));
  // What it holds already is given up for this one: before that is claimed, where there is no room for both.
  await mustKeepQuota(
    tx,
    asking.quota ? { ...pool.spec, quota: asking.quota } : pool.spec,
    lease,
    mine.filter((other) => isCommitted(other) && other.uid !== lease.uid),
    own !== undefined && isCoveredBy(own, lease),
  );
  return warnings?.length ? { ...lease, warnings: [...(lease.warnings ?? []), ...warnings] } : lease;
}

/** A record that is to be removed. */
const isPastEnd = (lease: Lease, now: number): boolean => lease.state === "ended" && isExpired(lease, now);

/**
 * Without what is older than the end of the owner's last lease: broken promises; and, if that is the lease which the state still has
 * (`prefer`), offers. An up that puts it back gives what was held. Offers of this run, and those that wait, are not outdated.
 */
function withoutOutdated({ request: { prefer, want }, plannedExtents: intended }: GrantContext, all: Lease[]): Lease[] {
  const ends = all.filter(({ state, end }) => state === "quarantined" || (state === "ended" && !end?.wasOffer));
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
function removeShownTo(broken: Lease, program: string | undefined): Lease | undefined {
  const shownTo = program === undefined ? [] : (broken.shownTo ?? []).filter((other) => other !== program);
  return shownTo.length > 0 ? { ...broken, shownTo } : undefined;
}

/**
 * The last offer to this request that ended before it was claimed. Where the request has another offer by now, it counts only if
 * this program was shown the old one, and not the new one.
 */
function findBrokenPromise(request: Request, all: Lease[], own: Lease | undefined): Lease | undefined {
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
  tx: WriteBuffer,
  spec: PoolSpec,
  { request, inUp }: GrantContext,
  broken: Lease,
): Promise<[want: Extent[] | undefined, warnings: string[]]> {
  const [holder] = await liveHoldersOf(tx, spec, broken.extents);
  if (!holder && canGive(spec, request, broken.extents)) return [broken.extents, []];
  const isOfOtherPool = broken.end?.reason === "pool deleted" && !isShownTo(broken, request.program);
  if (inUp && isOfOtherPool) return [undefined, []];
  if (inUp) throw promiseBrokenError(spec, broken, holder);
  return [undefined, [promiseBrokenWarning(spec, broken, holder)]];
}

/**
 * What a request that leaves the choice to the pool gets before others: what it held before it was renamed, or before it ended.
 * Offers to other branches of its stack give way, but not one that has taken these values from the owner (`broken`).
 */
async function recallHeld(
  tx: WriteBuffer,
  spec: PoolSpec,
  request: Request,
  all: Lease[],
  broken?: Lease,
): Promise<Extent[] | undefined> {
  if (request.want) return undefined;
  const former = request.formerOwner ? await leasesOfOwner(tx, request.pool, request.formerOwner) : [];
  const held = former.find((lease) => isCommitted(lease) && isLive(lease, tx.now));
  const mayHave = (lease: Lease) =>
    lease.uid === held?.uid ||
    (lease.state === "quarantined" ? lease.owner === request.owner : isPreemptible(tx, lease, request.owner));
  const canHave = async (extents: Extent[], mayHaveFrom: (holder: Lease) => boolean): Promise<boolean> => {
    if (!isAnswer({ extents }, request) || !canGive(spec, request, extents)) return false;
    return (await liveHoldersOf(tx, spec, extents)).every(mayHaveFrom);
  };
  for (const extents of [held?.extents, request.prefer]) {
    const isTaken = extents && broken && sameExtents(extents, broken.extents);
    if (extents && !isTaken && (await canHave(extents, mayHave))) return extents;
  }
  for (const { extents } of endedInQuarantine(tx, spec, request, all)) {
    if (await canHave(extents, () => false)) return extents;
  }
  return undefined;
}

/** What would still rest for the owner if its pool had not been deleted since; the last one first. */
const endedInQuarantine = ({ now }: WriteBuffer, spec: PoolSpec, request: Request, all: Lease[]): Lease[] =>
  all
    .filter(
      (lease) => lease.state === "ended" && now < (lease.quarantinedUntil ?? 0) && mayReturn(spec, lease, request),
    )
    .sort((a, b) => b.updatedAt - a.updatedAt);

const canGive = (spec: PoolSpec, { want }: Request, extents: Extent[]): boolean =>
  fits(spec, { extents }) && (want !== undefined || covers(zonesOf(spec).automatic, extents));

async function liveHoldersOf(tx: WriteBuffer, spec: PoolSpec, extents: Extent[]): Promise<Lease[]> {
  const found: Lease[] = [];
  for (const extent of extents)
    found.push(...(await holdersOf(tx, spec.name, extent)).filter((lease) => !isExpired(lease, tx.now)));
  return found;
}

/** A preview changes nothing about a lease that is firm; it only finds out whether its new names and ports are free. */
async function checkInPreview(tx: WriteBuffer, spec: PoolSpec, asking: GrantContext, own: Lease): Promise<Lease> {
  const { names = [], ports = [] } = asking.request;
  await takeNames(tx, { ...own, names });
  await mustKeepKey(tx, spec, own, sharingKeyOf(asking.request));
  await takePorts(tx, spec, own.extents, ports, own.uid, portEvictor(tx, spec, asking));
  tx.rollback();
  return own;
}

export async function claim(tx: WriteBuffer, asking: GrantContext): Promise<Lease> {
  const { request } = asking;
  const pool = await requirePool(tx, request.pool, true);
  mustBeOfTenant(pool.spec, request.tenant);
  const all = await leasesOfOwner(tx, request.pool, request.owner);
  const mine = all.filter(({ state }) => state !== "ended");
  const held = request.idempotent ? mine.find((lease) => isCommitted(lease) && isLive(lease, tx.now)) : undefined;
  if (held) return await claimAgain(tx, pool.spec, request, held);
  const own = await findClaimable(tx, pool.spec, request, mine);
  const lease = await grant(tx, pool, asking, own);
  await appendHistory(tx, own && isCommitted(own) ? "renewed" : "claimed", lease);
  // Offers to other requests of this owner stay: those are of other branches of its program.
  const answered = own?.request ?? requestId(request);
  for (const { state, uid, request: id } of mine) {
    if (state !== "offered" || uid === lease.uid || (id ?? answered) !== answered) continue;
    const other = await tx.get(leaseKey(request.pool, uid));
    if (other) await endLease(tx, other, quarantineEnd(tx, other));
  }
  await mustKeepQuota(tx, pool.spec, lease, [], own !== undefined && isCoveredBy(own, lease));
  return lease;
}

/** Whether a lease takes up no more than the offer to its owner did. */
const isCoveredBy = (offer: Lease, { extents }: Lease): boolean =>
  !offer.waitsFor && total(extents) <= total(offer.extents);

/** The answer to a retried claim: the lease that the first one made, if it is still what is asked for. */
async function claimAgain(tx: WriteBuffer, spec: PoolSpec, request: Request, held: Lease): Promise<Lease> {
  const { want = [], ttl, usedBy, labels } = request;
  const isAskedFor = want.every((extent) => held.extents.some((other) => sameExtents([extent], [other])));
  const isInUse = held.state === "used" && held.usedBy !== usedBy;
  if (!isAskedFor || isInUse) throw alreadyHeldError(spec, held);
  if (held.state === "used") return held;
  const use = usedBy === undefined ? {} : ({ state: "used", usedBy } as const);
  return await amend(tx, held.pool, held.leaseId, { ttl: ttl ?? null, ...use, ...(labels && { labels }) });
}

/** What a claim makes its owner's: its lease or offer on these values, or its block that is to have other bounds. */
async function findClaimable(
  tx: WriteBuffer,
  spec: PoolSpec,
  request: Request,
  mine: Lease[],
): Promise<Lease | undefined> {
  const own = await findOwn(tx, spec, request, mine);
  const block = own && !own.waitsFor ? undefined : findResized(request, mine);
  if (own && block) await endLease(tx, own); // it waited for the block, which gets the values itself
  return block ?? own;
}

/** The owner's lease that answers the request; none on an address where its ports are taken, if it prefers another address then. */
async function findOwn(tx: WriteBuffer, spec: PoolSpec, request: Request, mine: Lease[]): Promise<Lease | undefined> {
  const candidates = findAnswers(tx, spec, request, mine);
  if (request.want || request.onPortConflict !== "anotherAddress") return candidates[0];
  for (const lease of candidates) if (await canHavePorts(tx, spec, request, lease)) return lease;
  return undefined;
}

/** The leases that answer the request: firm, offered, past ones; of these what this program was shown, then the newest, first. */
function findAnswers({ now }: WriteBuffer, spec: PoolSpec, request: Request, mine: Lease[]): Lease[] {
  const isPast = (lease: Lease) => lease.state !== "offered" && !isLive(lease, now);
  const rank = (lease: Lease) => (isPast(lease) ? 2 : isCommitted(lease) ? 0 : 1);
  const shown = (lease: Lease) => Number(isShownTo(lease, request.program));
  const isFor = ({ state, request: id }: Lease) =>
    state !== "offered" || request.want !== undefined || id === undefined || id === requestId(request);
  return mine
    .filter((lease) => isAnswer(lease, request) && isFor(lease) && (!isPast(lease) || mayReturn(spec, lease, request)))
    .sort((a, b) => rank(a) - rank(b) || shown(b) - shown(a) || b.createdAt - a.createdAt);
}

/** Whether an owner finds what it had before: if asked for, or if the pool could have chosen it. */
const mayReturn = (spec: PoolSpec, { extents }: Lease, { want, sharingKey }: Request): boolean =>
  want !== undefined ||
  (sharingKey === undefined && spec.autoAssign !== false && covers(zonesOf(spec).automatic, extents));

/** A block that is asked for larger or smaller than its owner has it: the same lease, with other bounds. */
const findResized = ({ want = [] }: Request, mine: Lease[]): Lease | undefined =>
  mine.find((lease) => isCommitted(lease) && lease.extents.some((extent) => overlapsAny(want, extent)));

/** `answered` is the request that an offer is made to, where `asking` says more than that. */
async function grant(
  tx: WriteBuffer,
  { spec, until }: PoolRecord,
  asking: GrantContext,
  found?: Lease,
  answered = asking.request,
): Promise<Lease> {
  const { request } = asking;
  await expireOverdue(tx, request.pool, request.owner);
  const choice = await assignValues(tx, spec, asking, found);
  const { extents, warnings } = choice;
  // An offer that waited for the values may have got them by now.
  const own = found && (await tx.get(leaseKey(found.pool, found.uid)));
  const lease = buildLease(tx, asking, choice, requestId(answered), own);
  const ends = lease.state === "offered" ? Math.min(lease.expiresAt!, until ?? Infinity) : undefined;
  const after = await putLease(tx, own, lease, detailsOf(request, extents, own), ends);
  // What is only offered counts, too: a preview sees its own requests.
  const { held } = (await tx.get(countsKey(spec.name))) ?? noCounts();
  const warning = fullnessWarning(spec, held);
  if (warning) warnings.push(warning);
  return warnings.length ? { ...after, warnings } : after;
}

/** Whoever uses a lease has given it a name, which it keeps in its next life. */
function detailsOf({ names, childPool, formerOwner }: Request, extents: Extent[], own?: Lease) {
  const users = own?.state === "used" ? (own.names ?? []).filter((name) => name.startsWith("user/")) : [];
  const all = users.length ? [...new Set([...(names ?? []), ...users])] : names;
  const spec = typeof childPool === "function" ? childPool(extents) : childPool;
  return omitUndefined<Pick<Details, "names" | "childPool"> & Pick<Request, "formerOwner">>({
    names: all,
    childPool: spec,
    formerOwner,
  });
}

async function assignValues(tx: WriteBuffer, spec: PoolSpec, asking: GrantContext, own?: Lease): Promise<Choice> {
  const keeps = own && !own.waitsFor && isAnswer(own, asking.request);
  if (own && !own.waitsFor) await mustKeepKey(tx, spec, own, keeps ? sharingKeyOf(asking.request) : undefined);
  if (!keeps) return await choose(tx, spec, asking, own);
  const choice = emptyChoice(own.extents);
  await takePorts(tx, spec, own.extents, asking.request.ports ?? [], own.uid, portEvictor(tx, spec, asking, choice));
  return choice;
}

/** What rests, or would by now, does not rest any shorter because a preview has asked for these very values. */
function keepQuarantine(
  tx: WriteBuffer,
  before: Lease,
  owner: string,
): Pick<Lease, "quarantinedUntil" | "quarantinedFor"> {
  const rest = before.state === "quarantined" ? before.expiresAt! : quarantineEnd(tx, before, before.expiresAt);
  if (rest <= tx.now) return {};
  const former = previousHolder(before);
  return { quarantinedUntil: rest, ...(former.owner !== owner && { quarantinedFor: former }) };
}

/** An offer that was made a moment ago is not made again: preview, the preview of up, and up itself ask one after another. */
const isFresh = ({ now }: WriteBuffer, { offerTtl }: GrantContext, own: Lease): boolean =>
  own.state === "offered" && isLive(own, now) && now - own.updatedAt < (offerTtl * 1000) / REWRITES_PER_TTL;
/** So many are in the time that an offer holds: one is a minute of the usual hour. */
const REWRITES_PER_TTL = 60;

/** So many programs are kept for an offer. */
const MAX_PROGRAMS = 50;

function addShownTo(offer: Lease | undefined, program: string | undefined): string[] | undefined {
  const before = offer?.shownTo ?? [];
  if (program === undefined) return offer?.shownTo;
  return before.includes(program) ? before : [...before, program].slice(-MAX_PROGRAMS);
}

function buildLease(
  tx: WriteBuffer,
  asking: GrantContext,
  { extents, evicted: vacated, waitsFor }: Choice,
  answered: string,
  own?: Lease,
): Lease {
  const { request, isClaim: firm, offerTtl } = asking;
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
  return omitUndefined<Lease>({
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
    ...(state === "offered" && before && keepQuarantine(tx, before, owner)),
    tenant,
    labels,
    usedBy,
    data,
    by: by ?? tx.options.actor,
    sharingKey,
    ports,
    childPool: own?.childPool,
    ...(state === "offered" && {
      request: id,
      shownTo: isByValue({ request: id }) ? undefined : addShownTo(offered, request.program),
      waitsFor: waitsFor.size > 0 ? [...waitsFor] : undefined,
    }),
  });
}
