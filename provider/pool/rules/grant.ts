import { isPlacementLeaseName, shownLeaseName } from "../../lease-names";
import { isSameStack, isSameTenant } from "../../owner";
import {
  alreadyHeldError,
  fullnessWarning,
  promiseBrokenError,
  promiseBrokenWarning,
  promiseMovedError,
  promiseMovedWarning,
} from "../errors";
import { commonSpec, covers, fits, overlapsAny, sameExtents, total, zonesOf } from "../extents";
import { countsKey, leaseKey } from "../storage/keys";
import {
  appendHistory,
  holdersOf,
  isByValue,
  isExpired,
  isLive,
  newLeaseId,
  newUid,
  noCounts,
  replaceLease,
  requestId,
  sharingKeyOf,
} from "../storage/leases";

import { omitUndefined, type PoolRecord } from "../storage/records";

import type { WriteBuffer } from "../storage/write-buffer";
import { type Details, type Extent, isCommitted, isShownTo, type Lease, type PoolSpec, type Request } from "../types";
import { isOwnedBy, leasesOfRequester, ownLeases, show } from "./access";
import { amend, retractOffer } from "./amend";
import {
  answersRequest,
  type Choice,
  choose,
  emptyChoice,
  type GrantContext,
  mustKeepQuota,
  portEvictor,
} from "./choose";
import { endLease, expireOverdue, isPreemptible, previousHolder, quarantineEnd } from "./end-lease";
import { isPastEnd, namesOfChosenPool, removeShownTo } from "./end-records";
import { canGive, mustBeOfTenant, requirePool } from "./pools";
import { putLease, takeNames } from "./put-lease";
import { findPromise } from "./queries";

import { canHavePorts, canShare, mustKeepKey, takePorts } from "./share";

/** Offers and claims. Both look first for what the owner already has. */

export async function offer(tx: WriteBuffer, context: GrantContext): Promise<Lease> {
  const { request, plannedSpec } = context;
  const { spec: stored, ...record } = await requirePool(tx, request.pool, false);
  const pool = { ...record, spec: plannedSpec ? commonSpec(stored, plannedSpec) : stored };
  mustBeOfTenant(pool.spec, request.tenant);
  const kept = (await leasesOfRequester(tx, request.pool, request.owner)).filter((lease) => !isPastEnd(lease, tx.now));
  const all = withoutOutdated(context, kept);
  // Offers that the changed pool cannot give belong to other branches of the program.
  const mine = all.filter((lease) => isCommitted(lease) || (lease.state !== "ended" && fits(pool.spec, lease)));
  const found = await findOwn(tx, pool.spec, request, mine);
  if (found && isCommitted(found) && isLive(found, tx.now)) return await checkInPreview(tx, pool.spec, context, found);
  const broken = findBrokenPromise(request, all, found);
  const [promised, warnings] = broken ? await recallPromise(tx, pool.spec, context, broken) : [];
  const elsewhere = await findPromiseElsewhere(tx, request, lastEndOf(kept));
  if (elsewhere && context.inUp) throw promiseMovedError(pool.spec, show(tx, elsewhere));
  const own = promised ? undefined : found;
  const want = promised ?? (own ? undefined : await recallHeld(tx, pool.spec, request, all, broken));
  const lease = await grant(tx, pool, want ? { ...context, request: { ...request, want } } : context, own, request);
  if (broken) await forgetPromise(tx, broken, request.program);
  await mustKeepQuota(tx, pool.spec, lease, {
    isOffer: true,
    formerOwner: request.formerOwner,
    wasCounted: isCounted(own, lease),
  });
  if (elsewhere) await forgetPromiseElsewhere(tx, elsewhere, request.program);
  const allWarnings = [
    ...(lease.warnings ?? []),
    ...(warnings ?? []),
    ...(elsewhere ? [promiseMovedWarning(pool.spec, show(tx, elsewhere))] : []),
  ];
  return allWarnings.length ? { ...lease, warnings: allWarnings } : lease;
}

/** Read again: the lease that was granted may have taken its name. */
async function forgetPromise(tx: WriteBuffer, { pool, uid }: Lease, program: string | undefined): Promise<void> {
  const record = await tx.get(leaseKey(pool, uid));
  if (record) await replaceLease(tx, record, removeShownTo(record, program));
}

const isEndOfLease = ({ state, end }: Lease): boolean =>
  state === "quarantined" || (state === "ended" && !end?.wasOffer);

/** When the last of these leases ended; -Infinity: none has. */
const lastEndOf = (leases: Lease[]): number =>
  Math.max(...leases.filter(isEndOfLease).map(({ updatedAt }) => updatedAt));

/**
 * Of a resource for which a pool is chosen: the offer in another pool that this program was shown. Not one from before the resource was last
 * deleted.
 */
async function findPromiseElsewhere(tx: WriteBuffer, request: Request, deletedAt: number): Promise<Lease | undefined> {
  const { pool, owner, program, names = [], want } = request;
  for (const placement of want ? [] : names.filter(isPlacementLeaseName)) {
    const lease = await findPromise(tx, program === undefined ? placement : shownLeaseName(program, placement));
    const isCurrent = lease && lease.pool !== pool && lease.updatedAt > deletedAt;
    if (isCurrent && isOwnedBy(tx, lease, owner)) return lease;
  }
  return undefined;
}

/** Read again: the lease that was granted has taken its names. */
async function forgetPromiseElsewhere(tx: WriteBuffer, { pool, uid }: Lease, program: string | undefined) {
  const lease = await tx.get(leaseKey(pool, uid));
  if (lease) await retractOffer(tx, lease, program);
}

/**
 * Removes what is older than the end of the owner's last lease: broken promises; and offers, if that is the lease which the state still
 * has (`prefer`), because an up then restores what was held. Offers of this run, and those that wait for other leases, are kept.
 */
function withoutOutdated({ request: { prefer, want }, plannedExtents }: GrantContext, all: Lease[]): Lease[] {
  const ends = all.filter(isEndOfLease);
  const held = ends.filter(({ extents }) => prefer && !want && sameExtents(extents, prefer));
  const [lastEnd, heldUntil] = [lastEndOf(ends), lastEndOf(held)];
  const isOfRun = ({ extents }: Lease) => plannedExtents !== undefined && sameExtents(extents, plannedExtents);
  return all.filter((lease) => {
    if (lease.end?.wasOffer) return lease.updatedAt > lastEnd;
    return lease.state !== "offered" || lease.updatedAt > heldUntil || lease.waitsFor || isOfRun(lease);
  });
}

/**
 * The last offer to this request that ended before it was claimed. If the request has a newer offer, the old one counts only if this
 * program was shown the old one and not the new one.
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
 * Returns the promised extents if they are free. Otherwise an up is rejected, and a preview gets a warning. If the pool was deleted and
 * made anew since, or this run has changed it, an up of a program that was not shown the promise continues.
 */
async function recallPromise(
  tx: WriteBuffer,
  spec: PoolSpec,
  { request, inUp, plannedSpec }: GrantContext,
  broken: Lease,
): Promise<[want: Extent[] | undefined, warnings: string[]]> {
  const [holder] = await liveHoldersOf(tx, spec, broken.extents);
  if (!holder && canGive(spec, request, broken.extents)) return [broken.extents, []];
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
async function recallHeld(
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
  for (const extents of [held?.extents, request.prefer]) {
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

/** A preview does not change a committed lease. It only checks whether its new names and ports are free. */
async function checkInPreview(tx: WriteBuffer, spec: PoolSpec, context: GrantContext, own: Lease): Promise<Lease> {
  const { names = [], ports = [] } = context.request;
  await takeNames(tx, { ...own, names });
  await mustKeepKey(tx, spec, own, sharingKeyOf(context.request));
  await takePorts(tx, spec, own.extents, ports, own.uid, portEvictor(tx, spec, context));
  tx.rollback();
  return own;
}

export async function claim(tx: WriteBuffer, context: GrantContext): Promise<Lease> {
  const { request } = context;
  const pool = await requirePool(tx, request.pool, true);
  mustBeOfTenant(pool.spec, request.tenant);
  const all = await leasesOfRequester(tx, request.pool, request.owner);
  const mine = all.filter(({ state }) => state !== "ended");
  const held = request.idempotent ? mine.find((lease) => isCommitted(lease) && isLive(lease, tx.now)) : undefined;
  if (held) return await claimAgain(tx, pool.spec, request, held);
  const own = await findClaimable(tx, pool.spec, request, mine);
  const lease = await grant(tx, pool, context, own);
  await appendHistory(tx, own && isCommitted(own) ? "renewed" : "claimed", lease);
  // Offers to other requests of this owner are kept: they belong to other branches of its program.
  const answered = own?.request ?? requestId(request);
  for (const { state, uid, request: id } of mine) {
    if (state !== "offered" || uid === lease.uid || (id ?? answered) !== answered) continue;
    const other = await tx.get(leaseKey(request.pool, uid));
    if (other) await endLease(tx, other, quarantineEnd(tx, other));
  }
  await mustKeepQuota(tx, pool.spec, lease, { wasCounted: isCounted(own, lease) });
  return lease;
}

/** Whether a lease has no more values than what was counted for it before. A quarantined lease was not. */
const isCounted = (before: Lease | undefined, { extents }: Lease): boolean =>
  before !== undefined && before.state !== "quarantined" && !before.waitsFor && total(extents) <= total(before.extents);

/** The answer to a retried claim: the lease of the first claim, if it still answers the request. */
async function claimAgain(tx: WriteBuffer, spec: PoolSpec, request: Request, held: Lease): Promise<Lease> {
  const { want = [], ttl, usedBy, labels } = request;
  const isAskedFor = want.every((extent) => held.extents.some((other) => sameExtents([extent], [other])));
  const isInUse = held.state === "used" && held.usedBy !== usedBy;
  if (!isAskedFor || isInUse || !isSameTenant(held.tenant, request.tenant)) throw alreadyHeldError(spec, held);
  if (held.state === "used") return held;
  const use = usedBy === undefined ? {} : ({ state: "used", usedBy } as const);
  return await amend(tx, held.pool, held.leaseId, { ttl: ttl ?? null, ...use, ...(labels && { labels }) });
}

/** The lease that a claim renews: the lease or offer of its owner on these values, or its block that gets other bounds. */
async function findClaimable(
  tx: WriteBuffer,
  spec: PoolSpec,
  request: Request,
  mine: Lease[],
): Promise<Lease | undefined> {
  const own = await findOwn(tx, spec, request, mine);
  const block = own && !own.waitsFor ? undefined : findResized(request, mine);
  if (own && block) await endLease(tx, own); // The offer waited for the block, which gets the values itself.
  return block ?? own;
}

/**
 * The owner's lease that answers the request. With `onPortConflict: anotherAddress`, only one whose ports are free. A past one is not
 * returned to while there are leases to share a value with.
 */
async function findOwn(tx: WriteBuffer, spec: PoolSpec, request: Request, mine: Lease[]): Promise<Lease | undefined> {
  const candidates = findAnswers(tx, spec, request, mine);
  if (request.want) return candidates[0];
  for (const lease of candidates) {
    if (isPast(lease, tx.now) && (await canShare(tx, spec, request))) continue;
    if (request.onPortConflict !== "anotherAddress" || (await canHavePorts(tx, spec, request, lease))) return lease;
  }
  return undefined;
}

const isPast = (lease: Lease, now: number): boolean => lease.state !== "offered" && !isLive(lease, now);

/** The leases that answer the request: committed, then offered, then past ones; in each group first what this program was shown, then the newest. */
function findAnswers({ now }: WriteBuffer, spec: PoolSpec, request: Request, mine: Lease[]): Lease[] {
  const rank = (lease: Lease) => (isPast(lease, now) ? 2 : isCommitted(lease) ? 0 : 1);
  const shown = (lease: Lease) => Number(isShownTo(lease, request.program));
  const isFor = ({ state, request: id }: Lease) =>
    state !== "offered" || request.want !== undefined || id === undefined || id === requestId(request);
  return mine
    .filter(
      (lease) =>
        answersRequest(lease, request) && isFor(lease) && (!isPast(lease, now) || mayReturn(spec, lease, request)),
    )
    .sort((a, b) => rank(a) - rank(b) || shown(b) - shown(a) || b.createdAt - a.createdAt);
}

/** Whether an owner gets a past lease again: if it asks for the value, or if the pool could choose it. */
const mayReturn = (spec: PoolSpec, { extents }: Lease, { want }: Request): boolean =>
  want !== undefined || (spec.autoAssign !== false && covers(zonesOf(spec).automatic, extents));

/** The committed block of the owner that the request resizes. */
const findResized = ({ want = [] }: Request, mine: Lease[]): Lease | undefined =>
  mine.find((lease) => isCommitted(lease) && lease.extents.some((extent) => overlapsAny(want, extent)));

/** `answered`: the request without what was added to it in `context`; the offer is recorded for it. */
async function grant(
  tx: WriteBuffer,
  { spec, until }: PoolRecord,
  context: GrantContext,
  found?: Lease,
  answered = context.request,
): Promise<Lease> {
  const { request } = context;
  await expireOverdue(tx, request.pool, request.owner);
  const choice = await assignValues(tx, spec, context, found);
  const { extents, warnings } = choice;
  // Read again: evictions may have given the values to an offer that waited for them.
  const own = found && (await tx.get(leaseKey(found.pool, found.uid)));
  const lease = buildLease(tx, context, choice, requestId(answered), own);
  const ends = lease.state === "offered" ? Math.min(lease.expiresAt!, until ?? Infinity) : undefined;
  const names =
    lease.state === "offered" ? namesOfOffer(request, answered.want !== undefined, lease, own) : request.names;
  const details = namesAndPool({ ...request, ...(names && { names }) }, extents, own);
  const after = await putLease(tx, own, lease, details, ends);
  // Offers count, too, so that a preview sees its own requests.
  const { held } = (await tx.get(countsKey(spec.name))) ?? noCounts();
  const warning = fullnessWarning(context.plannedSpec ?? spec, held);
  if (warning) warnings.push(warning);
  return warnings.length ? { ...after, warnings } : after;
}

/**
 * Of an offer in a pool that was chosen, the names by which the program finds it again. A requested value tells itself in which pool it is:
 * an offer for it keeps only such names that it has already.
 */
function namesOfOffer(
  { names }: Request,
  isByValue: boolean,
  { shownTo = [] }: Lease,
  own?: Lease,
): string[] | undefined {
  if (!names) return undefined;
  const placements = names.filter(isPlacementLeaseName);
  if (isByValue) return [...names.filter((name) => !placements.includes(name)), ...(own ? namesOfChosenPool(own) : [])];
  return [...names, ...placements.flatMap((name) => shownTo.map((program) => shownLeaseName(program, name)))];
}

/** Names of the containers that use a lease are kept when it is renewed. */
function namesAndPool({ names, childPool, formerOwner }: Request, extents: Extent[], own?: Lease) {
  const users = own?.state === "used" ? (own.names ?? []).filter((name) => name.startsWith("user/")) : [];
  const all = users.length ? [...new Set([...(names ?? []), ...users])] : names;
  const spec = typeof childPool === "function" ? childPool(extents) : childPool;
  return omitUndefined<Pick<Details, "names" | "childPool"> & Pick<Request, "formerOwner">>({
    names: all,
    childPool: spec,
    formerOwner,
  });
}

async function assignValues(tx: WriteBuffer, spec: PoolSpec, context: GrantContext, own?: Lease): Promise<Choice> {
  const keeps = own && !own.waitsFor && answersRequest(own, context.request);
  if (own && !own.waitsFor) await mustKeepKey(tx, spec, own, keeps ? sharingKeyOf(context.request) : undefined);
  if (!keeps) return await choose(tx, spec, context, own);
  const choice = emptyChoice(own.extents);
  await takePorts(tx, spec, own.extents, context.request.ports ?? [], own.uid, portEvictor(tx, spec, context, choice));
  return choice;
}

/** An offer does not shorten the quarantine of its values: if it is not claimed, they stay quarantined until the same time. */
function keepQuarantine(
  tx: WriteBuffer,
  before: Lease,
  owner: string,
): Pick<Lease, "quarantinedUntil" | "quarantinedFor"> {
  const until = before.state === "quarantined" ? before.expiresAt! : quarantineEnd(tx, before, before.expiresAt);
  if (until <= tx.now) return {};
  const former = previousHolder(before);
  return { quarantinedUntil: until, ...(former.owner !== owner && { quarantinedFor: former }) };
}

/** Offers younger than `offerTtl / REWRITES_PER_TTL` are not rewritten: preview, the preview of up, and up request them in a row. */
const isFresh = ({ now }: WriteBuffer, { offerTtl }: GrantContext, own: Lease): boolean =>
  own.state === "offered" && isLive(own, now) && now - own.updatedAt < (offerTtl * 1000) / REWRITES_PER_TTL;

const REWRITES_PER_TTL = 60;

/** Programs that are recorded for an offer. */
const MAX_PROGRAMS = 50;

function addShownTo(offer: Lease | undefined, program: string | undefined): string[] | undefined {
  const before = offer?.shownTo ?? [];
  if (program === undefined) return offer?.shownTo;
  return before.includes(program) ? before : [...before, program].slice(-MAX_PROGRAMS);
}

function buildLease(
  tx: WriteBuffer,
  context: GrantContext,
  { extents, evicted, waitsFor }: Choice,
  answered: string,
  own?: Lease,
): Lease {
  const { request, isClaim, offerTtl } = context;
  const { pool, owner, type, tenant, labels, data, by, sharingKey, ports, ttl } = request;
  const wasUsed = own?.state === "used";
  const usedBy = request.usedBy ?? (wasUsed ? own.usedBy : undefined);
  const state = !isClaim ? "offered" : wasUsed || usedBy !== undefined ? "used" : "reserved";
  const seconds = { offered: offerTtl, reserved: ttl, used: undefined }[state];
  const uid = own?.uid ?? newUid(owner);
  const before = own ?? evicted.find((lease) => sameExtents(lease.extents, extents));
  const at = state === "offered" && own && isFresh(tx, context, own) ? own.updatedAt : tx.now;
  const offered = own?.state === "offered" ? own : undefined;
  const id = offered?.request ?? answered;
  return omitUndefined<Lease>({
    pool,
    owner,
    type,
    extents,
    state,
    uid,
    leaseId: offered && !isClaim ? offered.leaseId : newLeaseId(uid),
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
