import type { OverlayError } from "../../errors";
import { describePool } from "../../pool-names";
import type { Lease, PoolSpec } from "../types";
import { isLive, type LeaseRow, toLease } from "./rows";
import type { State } from "./state";

/**
 * The part of a store that the user of a request may see and change. Leases that it may not change are those of strangers, whatever their
 * owner is. A request without it may do everything.
 */
export interface Access {
  /** Whether it may request values of this pool; `spec` is absent if there is no such pool. */
  mayUse(pool: string, spec: PoolSpec | undefined): boolean;
  /** Whether it may change and end this lease. */
  mayChange(lease: Lease): boolean;
  /** Whether its requests may write this lease: one that it may change, or one that all tenants have in common. */
  mayHold(lease: Lease): boolean;
  /** Whether a lease of it may take this name. */
  mayName(name: string, lease: Lease): boolean;
  /** Whether a lease of it may have this child pool. */
  mayOpen(spec: PoolSpec, lease: Lease): boolean;
  /** What it may read of a lease. Of one that it may not see: that there is one, without owner and values. */
  show(lease: Lease): Lease;
  denied(what: string): OverlayError;
}

export const mayChange = ({ terms }: State, lease: Lease): boolean => terms.access?.mayChange(lease) ?? true;

/** A lease as errors and warnings may show it. */
export const show = ({ terms }: State, lease: Lease): Lease => terms.access?.show(lease) ?? lease;

export function mustBeUsable({ terms: { access } }: State, pool: string, spec: PoolSpec | undefined): void {
  if (access && !access.mayUse(pool, spec)) throw access.denied(describePool(pool));
}

export function mustBeNameable({ terms: { access } }: State, name: string, lease: Lease): void {
  if (access && !access.mayName(name, lease)) throw access.denied(`the name ${name}`);
}

export function mustBeOpenable({ terms: { access } }: State, spec: PoolSpec, lease: Lease): void {
  if (access && !access.mayOpen(spec, lease)) throw access.denied(describePool(spec.name));
}

export function mustBeHoldable({ terms: { access } }: State, lease: Lease): void {
  if (access && !access.mayHold(lease)) throw access.denied(`the owner ${lease.owner} in ${describePool(lease.pool)}`);
}

export function mustBeChangeable(state: State, lease: LeaseRow): void {
  if (!mayChange(state, toLease(lease, state.now))) throw strangersError(state, lease);
}

const strangersError = ({ terms }: State, { pool }: LeaseRow): OverlayError =>
  terms.access!.denied(`a lease in ${describePool(pool)} that is not its own`);

/** Leases of the owner, also ended ones. It has one user: a request is refused while another user holds a lease of that owner. */
export function leasesOfRequester(state: State, pool: string, owner: string): LeaseRow[] {
  const leases = state.leasesOf(pool, owner);
  const { access } = state.terms;
  if (!access) return leases;
  const mayHold = (lease: LeaseRow) => access.mayHold(toLease(lease, state.now));
  const other = leases.find((lease) => isLive(lease, state.now) && !mayHold(lease));
  if (other) throw strangersError(state, other);
  return leases.filter(mayHold);
}
