import { isSameStack, isStackOwner } from "../../owner";
import type { Request } from "../types";
import { mayChange, mayHold, mustBeChangeable } from "./access";
import { type Holder, isOwned, type OfferRow, offerKey, offerToLease, toPublic } from "./rows";
import type { State } from "./state";

/** Whose offers they are, and which of them stop a request. */

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
  mayChange(state, offerToLease(offer));

/**
 * Names, and ranges of address spaces, belong to the first claim. Until then an offer keeps them from the other resources of its run only: a
 * preview stops no other stack.
 */
export const isPromisedInRun = ({ run }: OfferRow, request: Request): boolean =>
  request.run !== undefined && run === request.run;

/** Whether the request may dispose of a lease or an offer as its own. */
export const isOwnHolder = (state: State, request: Request, holder: Holder): boolean =>
  isOwned(holder, request) && mayHold(state, toPublic(holder, state.now));

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
