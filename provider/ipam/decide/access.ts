import type { OverlayError } from "../../errors";
import { isSameStack, isStackOwner } from "../../owner";
import { describePool } from "../../pool-names";
import type { Lease, PoolSpec, Request } from "../types";
import { type Holder, isLive, isOfferLive, isOwned, type LeaseRow, type OfferRow, offerKey, toPublic } from "./rows";
import type { State } from "./state";

/**
 * The part of a store that the user of a request may see and change. Leases that it may not change are those of strangers, whatever their
 * owner is. A request without it may do everything.
 */
export interface Access {
  /** Whether it may request values of a pool of this name. */
  mayUse(pool: string): boolean;
  /** Whether there is this pool for it. */
  maySeePool(spec: PoolSpec): boolean;
  /** Whether it may change and end this lease. */
  mayChange(lease: Lease): boolean;
  /** Whether it may say that this lease is in use. */
  mayTouch(lease: Lease): boolean;
  /** Whether its requests may write this lease: one that it may change, or one that all tenants have in common. */
  mayHold(lease: Lease): boolean;
  /** Whether others use this pool, too: then offers of the user may hold only a part of it. */
  isShared(spec: PoolSpec): boolean;
  /** Whether this offer was made by the user, or by another one of its tenant. */
  hasOffered(offer: Lease): boolean;
  /** Whether a lease of it may take this name. */
  mayName(name: string, lease: Lease): boolean;
  /** Whether a lease of it may have this child pool. */
  mayOpen(spec: PoolSpec, lease: Lease): boolean;
  /** What it may read of a lease. Of one that it may not see: that there is one, without owner and values. */
  show(lease: Lease): Lease;
  denied(what: string): OverlayError;
}

export const mayChange = ({ terms, now }: State, holder: Holder): boolean =>
  terms.access?.mayChange(toPublic(holder, now)) ?? true;

/** Whether the user may have a lease, also one that all tenants have in common. */
const mayHold = ({ terms, now }: State, holder: Holder): boolean =>
  terms.access?.mayHold(toPublic(holder, now)) ?? true;

/** A lease as errors and warnings may show it. */
export function show({ terms, now }: State, holder: Holder): Lease {
  const lease = toPublic(holder, now);
  return terms.access?.show(lease) ?? lease;
}

export function mustBeNameable({ terms: { access } }: State, name: string, lease: Lease): void {
  if (access && !access.mayName(name, lease)) throw access.denied(`the name ${name}`);
}

export function mustBeOpenable({ terms: { access } }: State, spec: PoolSpec, lease: Lease): void {
  if (access && !access.mayOpen(spec, lease)) throw access.denied(describePool(spec.name));
}

export function mustBeHoldable(state: State, holder: Holder): void {
  const { owner, pool } = holder;
  if (!mayHold(state, holder)) throw state.terms.access!.denied(`the owner ${owner} in ${describePool(pool)}`);
}

export function mustBeChangeable(state: State, holder: Holder): void {
  if (!mayChange(state, holder)) throw strangersError(state, holder);
}

const strangersError = ({ terms }: State, { pool }: Holder): OverlayError =>
  terms.access!.denied(`a lease in ${describePool(pool)} that is not its own`);

export function mustBeTouchable(state: State, holder: Holder): void {
  const { access } = state.terms;
  if (access && !access.mayTouch(toPublic(holder, state.now))) throw strangersError(state, holder);
}

/** Leases of the owner that have not ended or rest. It has one user: a request is refused while another user has a lease or an offer of that owner. */
export function leasesOfRequester(state: State, pool: string, owner: string): LeaseRow[] {
  const leases = state.leasesOf(pool, owner);
  if (!state.terms.access) return leases;
  const isOwn = (holder: Holder) => mayHold(state, holder);
  const offers = state.offersOf(owner).filter((offer) => isOfferLive(offer, state.now));
  const other = [...leases.filter((lease) => isLive(lease, state.now)), ...offers].find((holder) => !isOwn(holder));
  if (other) throw strangersError(state, other);
  return leases.filter(isOwn);
}

// Whose offers they are, and which of them stop a request

/** The program of a request without one: the values that it asks for. */
export const programOf = ({ program, values }: Request): string =>
  program ?? `?${values ? values.map(({ first, last }) => `${first}-${last}`).join(",") : ""}`;

/**
 * Whether an offer does not stop this request: it was shown by another program of the same stack. The first of the two programs that is
 * deployed gets the value.
 */
export const givesWay = (state: State, offer: OfferRow, request: Request): boolean =>
  isSameStack(offer.owner, request.owner) &&
  offer.program !== programOf(request) &&
  offer.run !== request.run &&
  mayChange(state, offer);

/**
 * Names, and ranges of address spaces, belong to the first claim. Until then an offer keeps them from the other resources of its run only: a
 * preview stops no other stack.
 */
export const isPromisedInRun = ({ run }: OfferRow, request: Request): boolean =>
  request.run !== undefined && run === request.run;

/** Whether the request may dispose of a lease or an offer as its own. */
export const isOwnHolder = (state: State, request: Request, holder: Holder): boolean =>
  isOwned(holder, request) && mayHold(state, holder);

/** After a preview that can show no value: what the program was shown before is no promise any more. */
export function withdraw(state: State, owner: string, program: string): void {
  const offer = state.offer(owner, program);
  if (!offer) return;
  mustBeChangeable(state, offer);
  state.offers.delete(offerKey(offer));
}

/** The owner's offers in all programs but this one are no promise after its lease was released: the state shows what the resource held. */
export function forgetOffers(state: State, owner: string, program: string | undefined): void {
  if (!isStackOwner(owner)) return;
  for (const row of state.offersOf(owner)) if (row.program !== program) state.offers.delete(offerKey(row));
}
