import { MAX_IP } from "../../addressing/ip";
import { isSameStack, isSameTenant } from "../../owner";
import { describePool, PORT_SPACES, SPACES } from "../../pool-names";
import { poolInUseError, poolMissingError, tenantError } from "../errors";
import type { PoolSpec, Request, Tenant, ValueRange } from "../types";
import { mayChange, show } from "./access";
import { addFree, zonesIn } from "./free-space";
import { isLive, type LeaseRow, newPoolRow, type PoolRow } from "./rows";
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
  ranges: [{ first: 0n, last: MAX_IP }],
  allocation: "external",
});

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
  const { access } = state.terms;
  if (access && !access.mayUse(name)) throw access.denied(describePool(name));
  if (!found || access?.maySeePool(found) === false) throw poolMissingError(name);
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
  return opener !== undefined && isSameStack(opener.owner, owner) && mayChange(state, opener);
}

/** A tenant's pool serves that tenant only. A request without a tenant is refused, too. */
export function mustBeOfTenant(spec: PoolSpec, tenant: Tenant | undefined): void {
  if (spec.tenant && !isSameTenant(spec.tenant, tenant)) throw tenantError(spec, spec.tenant, tenant);
}

export function createPool(state: State, spec: PoolSpec, opener?: string): void {
  const made = { ...(opener !== undefined && { opener }), ...(state.terms.access && { isMadeInBounds: true }) };
  state.pools.put({ ...newPoolRow(spec.name), spec, ...made });
  for (const [zone, values] of zonesIn(spec)) {
    const space = state.space(spec.name, zone);
    space.clear();
    for (const range of values) space.add(spec, range);
  }
}

/** Replaces the quarantined values of an ended lease. */
export function setResting(state: State, lease: LeaseRow, resting: ValueRange[]): void {
  const { resting: _, ...rest } = lease;
  state.leases.put(resting.length > 0 ? { ...rest, resting } : rest);
  if (resting.length > 0) return;
  const row = state.pool(lease.pool)!;
  state.pools.put({ ...row, resting: row.resting - 1 });
}

/** Returns quarantined values to the free space of their pool. */
export function freeResting(state: State, lease: LeaseRow): void {
  const { spec } = state.pool(lease.pool)!;
  const { resting = [] } = lease;
  setResting(state, lease, []);
  if (spec) addFree(state, spec, resting);
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
  const shown = holders.map((lease) => show(state, lease));
  throw poolInUseError(spec, shown, "still has leases");
}

/** Whether the user may end the lease with its child pool: a user with bounds does not end a pool of the operator. */
export function isEndable(state: State, { uid, childPool }: LeaseRow): boolean {
  const row = state.terms.access && childPool !== undefined ? state.pool(childPool) : undefined;
  return !row?.spec || row.opener !== uid || row.isMadeInBounds === true;
}

export function mustBeEndable(state: State, lease: LeaseRow): void {
  if (!isEndable(state, lease))
    throw state.terms.access!.denied(`the end of ${describePool(lease.childPool!)}, which the operator has made`);
}
