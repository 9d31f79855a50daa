import { isDeepStrictEqual } from "node:util";
import { describePool, SPACES } from "../../pool-names";
import { addressSpaceError, outsideLeaseError, poolInUseError, takenError, ttlWithPoolError } from "../errors";
import { covers, fits, mergeRanges, overlapsAny, subtract } from "../ranges";
import type { PoolSpec, ValueRange } from "../types";
import { show } from "./access";
import { zonesIn } from "./free-space";
import { endLease, mustFit } from "./lease";
import { createPool, setResting } from "./pools";
import { isLive, type LeaseRow, type PoolRow, toLease } from "./rows";
import type { State } from "./state";

/** Child pools: the ranges of a pool follow from its lease, and a change of them moves values into and out of its free space. */

/** Makes or changes the child pool that a lease was claimed with. */
export function openChildPool(state: State, spec: PoolSpec, lease: LeaseRow): void {
  if (lease.expiresAt !== undefined) throw ttlWithPoolError(toLease(lease, state.now), spec);
  openPool(state, spec, lease);
}

/** Makes or changes the child pool of a lease. It takes the pool over from another lease of its owner, with all leases in it. */
export function openPool(state: State, spec: PoolSpec, lease: LeaseRow): void {
  if (spec.name.startsWith(SPACES)) throw addressSpaceError(spec.name);
  mustFit(lease, spec);
  const row = state.pool(spec.name);
  if (!row?.spec || !hasSameRanges(row.spec, spec)) mustBeInLease(state, spec, lease);
  if (!row?.spec) {
    createPool(state, spec, lease.uid);
    return;
  }
  mustKeepLimits(state, row, spec);
  const opener = row.opener === undefined || row.opener === lease.uid ? undefined : state.lease(row.opener);
  if (opener && opener.endedAt === undefined) {
    const { childPool: _, ...rest } = opener;
    state.leases.put(rest);
  }
  if (!hasSameRanges(row.spec, spec)) resizePool(state, row.spec, spec);
  const { isClosing: _, ...open } = state.pool(spec.name)!;
  state.pools.put({ ...open, spec, opener: lease.uid });
}

/** A user with bounds does not change the limits that the operator has set. */
function mustKeepLimits({ terms: { access } }: State, row: PoolRow, spec: PoolSpec): void {
  if (!access || row.isMadeInBounds || isDeepStrictEqual(limitsOf(row.spec!), limitsOf(spec))) return;
  throw access.denied(`other limits for ${describePool(spec.name)}, which the operator has made`);
}

const limitsOf = ({ quota = {}, reserved = [], staticOnly = [], tenant }: PoolSpec) => ({
  quota,
  reserved: mergeRanges(reserved),
  staticOnly: mergeRanges(staticOnly),
  tenant,
});

/** Changes of other fields do not touch the free space. */
const hasSameRanges = (a: PoolSpec, b: PoolSpec): boolean => rangesText(a) === rangesText(b);

const rangesText = ({ kind, ranges, reserved, staticOnly, avoidBoundaryIps }: PoolSpec): string =>
  `${[ranges, reserved ?? [], staticOnly ?? []]
    .map((each) => mergeRanges(each).map(({ first, last }) => `${first}-${last}`))
    .join("|")}${kind}${avoidBoundaryIps === true}`;

/** Moves values into and out of the free space of the pool. Values that are held must stay in it. */
function resizePool(state: State, old: PoolSpec, spec: PoolSpec): void {
  const all = (each: PoolSpec): ValueRange[] => zonesIn(each).flatMap(([, values]) => values);
  const changed =
    old.avoidBoundaryIps === spec.avoidBoundaryIps ? subtract(all(old), all(spec)) : mergeRanges(all(old));
  const { now } = state;
  for (const lease of state.holdersOf(spec.name, changed))
    if (!isLive(lease, now)) endLease(state, lease, "expired", { at: lease.expiresAt! });
  const lost = state.holdersOf(spec.name, changed).filter((lease) => !fits(spec, lease));
  if (lost.length > 0) {
    const shown = lost.slice(0, 6).map((lease) => show(state, lease));
    throw poolInUseError(old, shown, "cannot lose values that are held");
  }
  for (const lease of state.restingOn(spec.name, changed)) {
    const resting = lease.resting!.filter((range) => fits(spec, { ranges: [range] }));
    if (resting.length < lease.resting!.length) setResting(state, lease, resting);
  }
  for (const [zone, values] of zonesIn(spec)) {
    const before = zonesIn(old).find(([other]) => other === zone)![1];
    const space = state.space(spec.name, zone);
    const isOther = old.avoidBoundaryIps !== spec.avoidBoundaryIps;
    for (const range of isOther ? before : subtract(before, values)) space.drop(spec, range);
    const gained = isOther ? values : subtract(values, before);
    if (gained.length === 0) continue;
    const taken = [
      ...state.holdersOf(spec.name, gained).flatMap(({ ranges }) => ranges),
      ...state.restingOn(spec.name, gained).flatMap(({ resting }) => resting!),
    ];
    for (const range of subtract(gained, taken)) space.add(spec, range);
  }
}

/** Ids and ports. */
const NUMBERS: ValueRange = { first: 0n, last: 0xffff_ffffn };
const hasNumbers = ({ kind }: PoolSpec): boolean => kind === "id" || kind === "port";

/**
 * A pool gives out addresses of its lease, so that two pools do not give out the same ones. The lease of a runner is an id: its addresses are
 * in the block of its network.
 */
function mustBeInLease(state: State, spec: PoolSpec, lease: LeaseRow): void {
  const parent = state.pool(lease.pool);
  const isRunner = !hasNumbers(spec) && parent?.spec !== undefined && hasNumbers(parent.spec);
  const block = isRunner && parent.opener !== undefined ? state.lease(parent.opener) : undefined;
  const held = hasNumbers(spec) ? [NUMBERS] : (block ?? lease).ranges;
  if (!covers(held, spec.ranges)) throw outsideLeaseError(spec, held);
  if (isRunner && state.terms.access) mustNotOverlapSiblings(state, spec, lease);
}

/** Runners of a network: the network's settings decide which addresses belong to an id, but a user with bounds may not follow them. */
function mustNotOverlapSiblings(state: State, spec: PoolSpec, lease: LeaseRow): void {
  for (const sibling of state.parentsIn(lease.pool)) {
    const other = sibling.uid === lease.uid ? undefined : state.pool(sibling.childPool!)?.spec;
    const taken = spec.ranges.find((range) => other && overlapsAny(other.ranges, range));
    if (taken) throw takenError(spec, taken, show(state, sibling), lease.owner);
  }
}
