import { isPlacementLeaseName, shownLeaseName } from "../../lease-names";
import { isSameTenant } from "../../owner";
import { alreadyHeldError, fullnessWarning, promiseMovedError, promiseMovedWarning } from "../errors";
import { commonSpec, fits, overlapsAny, sameExtents, total } from "../extents";
import { countsKey, leaseKey } from "../storage/keys";
import {
  appendHistory,
  isByValue,
  isLive,
  newLeaseId,
  newUid,
  noCounts,
  requestId,
  sharingKeyOf,
} from "../storage/leases";

import { omitUndefined, type PoolRecord } from "../storage/records";

import type { WriteBuffer } from "../storage/write-buffer";
import { type Details, type Extent, isCommitted, isShownTo, type Lease, type PoolSpec, type Request } from "../types";
import { leasesOfRequester, show } from "./access";
import { amend } from "./amend";
import {
  answersRequest,
  type Choice,
  choose,
  emptyChoice,
  type GrantContext,
  mustKeepQuota,
  portEvictor,
} from "./choose";
import { endLease, expireOverdue, previousHolder, quarantineEnd } from "./end-lease";
import { isPastEnd, namesOfChosenPool } from "./end-records";
import { mustBeOfTenant, requirePool } from "./pools";
import {
  findBrokenPromise,
  findPromiseElsewhere,
  forgetPromise,
  forgetPromiseElsewhere,
  lastEndOf,
  mayReturn,
  recallHeld,
  recallPromise,
  withoutDeclared,
  withoutOutdated,
} from "./promises";
import { putLease, takeNames } from "./put-lease";

import { canHavePorts, canShare, mustKeepKey, takePorts } from "./share";

/** Offers and claims. Both look first for what the owner already has. */

export async function offer(tx: WriteBuffer, context: GrantContext): Promise<Lease> {
  const { request, plannedSpec } = context;
  const { spec: stored, ...record } = await requirePool(tx, request.pool, false);
  const pool = { ...record, spec: plannedSpec ? commonSpec(stored, plannedSpec) : stored };
  mustBeOfTenant(pool.spec, request.tenant);
  const kept = (await leasesOfRequester(tx, request.pool, request.owner)).filter((lease) => !isPastEnd(lease, tx.now));
  const all = withoutDeclared(request, withoutOutdated(context, kept));
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
