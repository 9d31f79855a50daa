import { amend } from "./changing";
import { type Asking, answers, type Choice, choose, mustKeepQuota, takingFor } from "./choice";
import type { Draft } from "./draft";
import { formerOf, restOf, sweep, vacate } from "./endings";
import { enter } from "./entering";
import { covers, meetsAny, sameExtents, zonesOf } from "./extents";
import { newLeaseId, newUid } from "./ids";
import { countsKey, leaseKey } from "./keys";
import { leasesOfOwner, log } from "./ledger";
import { takeNames } from "./names";
import { mustBeOfTenant, poolFor } from "./pools";
import { given, type PoolRecord } from "./records";
import { isLive, noCounts, sharedAs } from "./rows";
import type { Rule } from "./rule";
import { canHavePorts, mayChangeKey, takePorts } from "./sharing";
import { type Details, type Extent, isFirm, type Lease, type PoolSpec, type Request } from "./types";
import { alreadyHeld, nearlyFull } from "./wording";

/** Offers and claims. First of all: what does this owner have already? */

export function* offer(tx: Draft, asking: Asking): Rule<Lease> {
  const { opens: _, ...request } = asking.request;
  const pool = yield* poolFor(tx, request.pool, false);
  mustBeOfTenant(pool.spec, request.tenant);
  const mine = yield* leasesOfOwner(tx, request.pool, request.owner);
  const own = yield* findOwn(tx, pool.spec, request, mine);
  if (own && isFirm(own) && isLive(own, tx.now)) return yield* keptInPreview(tx, pool.spec, asking, own);
  const block = own ? undefined : outgrown(request, mine);
  // Its own block with other bounds, which only a claim can give it. What is in its pool may be replaced before that.
  if (block) tx.onlyImagined = true;
  const lease = yield* grant(tx, pool, block ? { ...asking, request } : asking, own ?? block);
  // What it holds already is given up for this one: before that is claimed, where there is no room for both.
  yield* mustKeepQuota(
    tx,
    pool.spec,
    request.owner,
    mine.filter((other) => isFirm(other) && other.uid !== lease.uid),
  );
  return block ? { ...lease, state: "offered" } : lease;
}

/** A preview changes nothing about a lease that is firm; it only finds out whether its new names and ports are free. */
function* keptInPreview(tx: Draft, spec: PoolSpec, asking: Asking, own: Lease): Rule<Lease> {
  const { names = [], ports = [] } = asking.request;
  yield* takeNames(tx, { ...own, names });
  yield* mayChangeKey(tx, spec, own, sharedAs(asking.request));
  yield* takePorts(tx, spec, own.extents, ports, own.uid, takingFor(tx, asking));
  tx.discard();
  return own;
}

export function* claim(tx: Draft, asking: Asking): Rule<Lease> {
  const { request } = asking;
  const pool = yield* poolFor(tx, request.pool, true);
  mustBeOfTenant(pool.spec, request.tenant);
  const mine = yield* leasesOfOwner(tx, request.pool, request.owner);
  const held = request.idempotent ? mine.find((lease) => isFirm(lease) && isLive(lease, tx.now)) : undefined;
  if (held) return yield* claimAgain(tx, pool.spec, request, held);
  const own = (yield* findOwn(tx, pool.spec, request, mine)) ?? outgrown(request, mine);
  const lease = yield* grant(tx, pool, asking, own);
  yield* log(tx, own && isFirm(own) ? "renewed" : "claimed", lease);
  for (const { state, uid } of mine) {
    const other = state === "offered" && uid !== lease.uid ? yield* tx.get(leaseKey(request.pool, uid)) : undefined;
    if (other) yield* vacate(tx, other, restOf(tx, other));
  }
  yield* mustKeepQuota(tx, pool.spec, request.owner);
  return lease;
}

/** The answer to a retried claim: the lease that the first one made, if it is still what is asked for. */
function* claimAgain(tx: Draft, spec: PoolSpec, request: Request, held: Lease): Rule<Lease> {
  const { want = [], ttl, usedBy, labels } = request;
  const isAskedFor = want.every((extent) => held.extents.some((other) => sameExtents([extent], [other])));
  const isInUse = held.state === "used" && held.usedBy !== usedBy;
  if (!isAskedFor || isInUse) throw alreadyHeld(spec, held);
  if (held.state === "used") return held;
  const use = usedBy === undefined ? {} : ({ state: "used", usedBy } as const);
  return yield* amend(tx, held.pool, held.leaseId, { ttl: ttl ?? null, ...use, ...(labels && { labels }) });
}

/** The owner's lease that answers the request; none on an address where its ports are taken, if it prefers another address then. */
function* findOwn(tx: Draft, spec: PoolSpec, request: Request, mine: Lease[]): Rule<Lease | undefined> {
  const candidates = answering(tx, spec, request, mine);
  if (request.want || request.onPortConflict !== "anotherAddress") return candidates[0];
  for (const lease of candidates) if (yield* canHavePorts(tx, spec, request, lease)) return lease;
  return undefined;
}

/** The leases that answer the request: firm before offered before past ones, then the newest. */
function answering({ now }: Draft, spec: PoolSpec, request: Request, mine: Lease[]): Lease[] {
  const isPast = (lease: Lease) => lease.state !== "offered" && !isLive(lease, now);
  const rank = (lease: Lease) => (isPast(lease) ? 2 : isFirm(lease) ? 0 : 1);
  return mine
    .filter((lease) => answers(lease, request) && (!isPast(lease) || comesBack(spec, lease, request)))
    .sort((a, b) => rank(a) - rank(b) || b.createdAt - a.createdAt);
}

/** Whether an owner finds what it had before: if asked for, or if the pool could have chosen it. */
const comesBack = (spec: PoolSpec, { extents }: Lease, { want, sharingKey }: Request): boolean =>
  want !== undefined ||
  (sharingKey === undefined && spec.autoAssign !== false && covers(zonesOf(spec).automatic, extents));

/** A block that is asked for larger or smaller than its owner has it: the same lease, with other bounds. */
const outgrown = ({ want = [] }: Request, mine: Lease[]): Lease | undefined =>
  mine.find((lease) => isFirm(lease) && lease.extents.some((extent) => meetsAny(want, extent)));

function* grant(tx: Draft, { spec, until }: PoolRecord, asking: Asking, own?: Lease): Rule<Lease> {
  const { request } = asking;
  yield* sweep(tx, request.pool, request.owner);
  const choice = yield* seat(tx, spec, asking, own);
  const { extents, warnings } = choice;
  const lease = newLease(tx, asking, choice, own);
  const ends = lease.state === "offered" ? Math.min(lease.expiresAt!, until ?? Infinity) : undefined;
  const after = yield* enter(tx, own, lease, detailsOf(request, extents, own), ends);
  // What is only offered counts, too: a preview sees its own requests.
  const { held } = (yield* tx.get(countsKey(spec.name))) ?? noCounts();
  const warning = nearlyFull(spec, held);
  if (warning) warnings.push(warning);
  return warnings.length ? { ...after, warnings } : after;
}

/** Whoever uses a lease has given it a name, which it keeps in its next life. */
function detailsOf({ names, opens }: Request, extents: Extent[], own?: Lease): Pick<Details, "names" | "opens"> {
  const users = own?.state === "used" ? (own.names ?? []).filter((name) => name.startsWith("user/")) : [];
  const all = users.length ? [...new Set([...(names ?? []), ...users])] : names;
  return given({ names: all, opens: typeof opens === "function" ? opens(extents) : opens });
}

function* seat(tx: Draft, spec: PoolSpec, asking: Asking, own?: Lease): Rule<Choice> {
  const keeps = own && answers(own, asking.request);
  if (own) yield* mayChangeKey(tx, spec, own, keeps ? sharedAs(asking.request) : undefined);
  if (!keeps) return yield* choose(tx, spec, asking, own);
  yield* takePorts(tx, spec, own.extents, asking.request.ports ?? [], own.uid, takingFor(tx, asking));
  return { extents: own.extents, warnings: [], vacated: [] };
}

/** What rests, or would by now, does not rest any shorter because a preview has asked for these very values. */
function restBehind(tx: Draft, before: Lease, owner: string): Pick<Lease, "restsUntil" | "restsFor"> {
  const rest = before.state === "resting" ? before.expiresAt! : restOf(tx, before, before.expiresAt);
  if (rest <= tx.now) return {};
  const former = formerOf(before);
  return { restsUntil: rest, ...(former.owner !== owner && { restsFor: former }) };
}

/** An offer that was made a moment ago is not made again: preview, the preview of up, and up itself ask one after another. */
const isFresh = ({ now, terms }: Draft, own: Lease): boolean =>
  own.state === "offered" && isLive(own, now) && now - own.updatedAt < (terms.offerTtl * 1000) / MOMENTS;
/** So many are in the time that an offer holds: one is a minute of the usual hour. */
const MOMENTS = 60;

function newLease(tx: Draft, { request, firm }: Asking, { extents, vacated }: Choice, own?: Lease): Lease {
  const { pool, owner, type, tenant, labels, data, by, sharingKey, ports, ttl } = request;
  const wasUsed = own?.state === "used";
  const usedBy = request.usedBy ?? (wasUsed ? own.usedBy : undefined);
  // What is firm stays so in an offer that is only imagined: the next one must find it as it is.
  const firmly = firm || (own !== undefined && isFirm(own) && isLive(own, tx.now));
  const state = !firmly ? "offered" : wasUsed || usedBy !== undefined ? "used" : "reserved";
  const seconds = { offered: tx.terms.offerTtl, reserved: ttl, used: undefined }[state];
  const uid = own?.uid ?? newUid(owner);
  const before = own ?? vacated.find((lease) => sameExtents(lease.extents, extents));
  const at = state === "offered" && own && isFresh(tx, own) ? own.updatedAt : tx.now;
  return given<Lease>({
    pool,
    owner,
    type,
    extents,
    state,
    uid,
    leaseId: own?.state === "offered" && !firm ? own.leaseId : newLeaseId(uid),
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
  });
}
