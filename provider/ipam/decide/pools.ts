import { MAX_IP } from "../../addressing/ip";
import { isSameStack, isSameTenant } from "../../owner";
import { PORT_SPACES, SPACES } from "../../pool-names";
import {
  addressSpaceError,
  outsideLeaseError,
  poolInUseError,
  poolMissingError,
  takenError,
  tenantError,
} from "../errors";
import { covers, fits, mergeExtents, overlapsAny, subtract } from "../extents";
import type { Extent, PoolSpec, Request, Tenant } from "../types";
import { mayChange, mustBeUsable, show } from "./access";
import { addFree, zonesIn } from "./free-space";
import { endLease, expireOverdue } from "./lease";
import { isLive, type LeaseRow, type PoolRow, toLease } from "./rows";
import type { State } from "./state";

/**
 * Pools: each is the child pool of a lease and ends with it. Only address spaces have no such lease. A pool that only a preview knows has a row
 * without a spec, and the spec is in the offer for its lease.
 */

/** The pool of a request. */
export interface Pool {
  /** By which the request is judged. */
  spec: PoolSpec;
  /** What the store has; its free space is that of this spec. */
  stored?: PoolSpec;
}

const spaceSpec = (name: string): PoolSpec => ({
  name,
  kind: name.startsWith(PORT_SPACES) ? "port" : "space",
  extents: [{ first: 0n, last: MAX_IP }],
  allocation: "external",
});

export const newPoolRow = (name: string): PoolRow => ({ name, reserved: 0, used: 0, resting: 0, held: 0n });

/** The spec of a pool: of the store, or of an offer for its lease. */
export function specOf(state: State, name: string, program?: string): PoolSpec | undefined {
  const row = state.pool(name);
  if (row?.spec) return row.spec;
  if (name.startsWith(SPACES)) return spaceSpec(name);
  const offers = state
    .offersOfPool(name)
    .filter((offer) => specOf(state, offer.pool, program))
    .sort((a, b) => b.updatedAt - a.updatedAt);
  return (offers.find((offer) => offer.program === program) ?? offers[0])?.childPool;
}

/**
 * The pool for a request; rejects if there is none. An offer is judged by what the program declares, if its own stack has the pool; a claim by
 * what is stored.
 */
export function requirePool(state: State, request: Request, isClaim: boolean): Pool {
  const { pool: name, tenant } = request;
  const found = specOf(state, name, request.program);
  mustBeUsable(state, name, found);
  if (!found) throw poolMissingError(name);
  const row = state.pool(name);
  if (isClaim && row?.isClosing) throw poolMissingError(name, "is being deleted");
  if (isClaim && !row?.spec) {
    if (!name.startsWith(SPACES)) throw poolMissingError(name, "exists only in a preview so far");
    createPool(state, found);
  }
  const stored = state.pool(name)?.spec;
  const spec = !isClaim && request.spec && (!stored || isOfStack(state, row, request.owner)) ? request.spec : found;
  mustBeOfTenant(spec, tenant);
  return { spec, ...(stored && { stored }) };
}

function isOfStack(state: State, row: PoolRow | undefined, owner: string): boolean {
  const opener = row?.opener === undefined ? undefined : state.lease(row.opener);
  return opener !== undefined && isSameStack(opener.owner, owner) && mayChange(state, toLease(opener, state.now));
}

/** A tenant's pool serves that tenant only. A request without a tenant is refused, too. */
export function mustBeOfTenant(spec: PoolSpec, tenant: Tenant | undefined): void {
  if (spec.tenant && !isSameTenant(spec.tenant, tenant)) throw tenantError(spec, spec.tenant, tenant);
}

function createPool(state: State, spec: PoolSpec, opener?: string): void {
  state.pools.put({ ...newPoolRow(spec.name), spec, ...(opener !== undefined && { opener }) });
  for (const [zone, values] of zonesIn(spec)) {
    const space = state.space(spec.name)(zone);
    space.clear();
    for (const extent of values) space.add(spec, extent);
  }
}

/** Makes or changes the child pool of a lease. It takes the pool over from another lease of its owner, with all leases in it. */
export function openPool(state: State, spec: PoolSpec, lease: LeaseRow): void {
  if (spec.name.startsWith(SPACES)) throw addressSpaceError(spec.name);
  const row = state.pool(spec.name);
  if (!row?.spec || !hasSameRanges(row.spec, spec)) mustBeInLease(state, spec, lease);
  if (!row?.spec) {
    createPool(state, spec, lease.uid);
    return;
  }
  const opener = row.opener === undefined || row.opener === lease.uid ? undefined : state.lease(row.opener);
  if (opener && opener.endedAt === undefined) {
    const { childPool: _, ...rest } = opener;
    state.leases.put(rest);
  }
  if (!hasSameRanges(row.spec, spec)) resizePool(state, row.spec, spec);
  const { isClosing: _, ...open } = state.pool(spec.name)!;
  state.pools.put({ ...open, spec, opener: lease.uid });
}

/** Changes of other fields do not touch the free space. */
const hasSameRanges = (a: PoolSpec, b: PoolSpec): boolean => rangesText(a) === rangesText(b);

const rangesText = ({ kind, extents, reserved, staticOnly, avoidBoundaryIps }: PoolSpec): string =>
  `${[extents, reserved ?? [], staticOnly ?? []]
    .map((ranges) => mergeExtents(ranges).map(({ first, last }) => `${first}-${last}`))
    .join("|")}${kind}${avoidBoundaryIps === true}`;

/** Moves values into and out of the free space of the pool. Values that are held must stay in it. */
function resizePool(state: State, old: PoolSpec, spec: PoolSpec): void {
  const all = (each: PoolSpec): Extent[] => zonesIn(each).flatMap(([, values]) => values);
  const changed =
    old.avoidBoundaryIps === spec.avoidBoundaryIps ? subtract(all(old), all(spec)) : mergeExtents(all(old));
  const { now } = state;
  for (const lease of state.holdersOf(spec.name, changed))
    if (!isLive(lease, now)) endLease(state, lease, "expired", { at: lease.expiresAt! });
  const lost = state.holdersOf(spec.name, changed).filter((lease) => !fits(spec, lease));
  if (lost.length > 0) {
    const shown = lost.slice(0, 6).map((lease) => show(state, toLease(lease, now)));
    throw poolInUseError(old, shown, "cannot lose values that are held");
  }
  for (const lease of state.restingOn(spec.name, changed)) {
    const resting = lease.resting!.filter((extent) => fits(spec, { extents: [extent] }));
    if (resting.length < lease.resting!.length) setResting(state, lease, resting);
  }
  for (const [zone, values] of zonesIn(spec)) {
    const before = zonesIn(old).find(([other]) => other === zone)![1];
    const space = state.space(spec.name)(zone);
    const isOther = old.avoidBoundaryIps !== spec.avoidBoundaryIps;
    for (const extent of isOther ? before : subtract(before, values)) space.drop(spec, extent);
    const gained = isOther ? values : subtract(values, before);
    if (gained.length === 0) continue;
    const taken = [
      ...state.holdersOf(spec.name, gained).flatMap(({ extents }) => extents),
      ...state.restingOn(spec.name, gained).flatMap(({ resting }) => resting!),
    ];
    for (const extent of subtract(gained, taken)) space.add(spec, extent);
  }
}

/** Replaces the quarantined values of an ended lease. */
export function setResting(state: State, lease: LeaseRow, resting: Extent[]): void {
  const { resting: _, ...rest } = lease;
  state.leases.put(resting.length > 0 ? { ...rest, resting } : rest);
  if (resting.length > 0) return;
  const row = state.pool(lease.pool)!;
  state.pools.put({ ...row, resting: row.resting - 1 });
}

/** Ids and ports. */
const NUMBERS: Extent = { first: 0n, last: 0xffff_ffffn };
const hasNumbers = ({ kind }: PoolSpec): boolean => kind === "id" || kind === "port";

/**
 * A pool gives out addresses of its lease, so that two pools do not give out the same ones. The lease of a runner is an id: its addresses are
 * in the block of its network.
 */
function mustBeInLease(state: State, spec: PoolSpec, lease: LeaseRow): void {
  const parent = state.pool(lease.pool);
  const isRunner = !hasNumbers(spec) && parent?.spec !== undefined && hasNumbers(parent.spec);
  const block = isRunner && parent.opener !== undefined ? state.lease(parent.opener) : undefined;
  const held = hasNumbers(spec) ? [NUMBERS] : (block ?? lease).extents;
  if (!covers(held, spec.extents)) throw outsideLeaseError(spec, held);
  if (isRunner && state.terms.access) mustNotOverlapSiblings(state, spec, lease);
}

/** Runners of a network: the network's settings decide which addresses belong to an id, but a user with bounds may not follow them. */
function mustNotOverlapSiblings(state: State, spec: PoolSpec, lease: LeaseRow): void {
  for (const sibling of state.parentsIn(lease.pool)) {
    const other = sibling.uid === lease.uid ? undefined : state.pool(sibling.childPool!)?.spec;
    const taken = spec.extents.find((extent) => other && overlapsAny(other.extents, extent));
    if (taken) throw takenError(spec, taken, show(state, toLease(sibling, state.now)), lease.owner);
  }
}

/** Leases that are read at once to find held ones. */
const HELD_PAGE = 100;

/** Live leases, longest unseen first. */
export function heldLeases(state: State, pool: string, limit: number): LeaseRow[] {
  for (let page = HELD_PAGE; ; page *= 8) {
    const leases = state.idlest(pool, page);
    const live = leases.filter((lease) => isLive(lease, state.now));
    if (live.length >= limit || leases.length < page) return live.slice(0, limit);
  }
}

export function mustBeUnused(state: State, pool: string): void {
  const holders = heldLeases(state, pool, 10);
  const spec = state.pool(pool)?.spec;
  if (holders.length === 0 || !spec) return;
  const shown = holders.map((lease) => show(state, toLease(lease, state.now)));
  throw poolInUseError(spec, shown, "still has leases");
}

/** Ends an unused pool. Its ended leases and its offers stay as long as those of other pools. */
export function dropPool(state: State, row: PoolRow): void {
  mustBeUnused(state, row.name);
  while (expireOverdue(state, row.name));
  for (const lease of state.restingIn(row.name, Number.MAX_SAFE_INTEGER)) setResting(state, lease, []);
  state.pools.put(newPoolRow(row.name));
  for (const [zone] of zonesIn(row.spec!)) state.space(row.name)(zone).clear();
}

/** Returns quarantined values to the free space of their pool. */
export function freeResting(state: State, lease: LeaseRow): void {
  const { spec } = state.pool(lease.pool)!;
  const { resting = [] } = lease;
  setResting(state, lease, []);
  if (spec) addFree(spec, state.space(spec.name), resting);
}
