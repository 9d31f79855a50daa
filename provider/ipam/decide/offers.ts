import { isSameStack } from "../../owner";
import type { Request } from "../types";
import { mayChange } from "./access";
import { type OfferRow, offerToLease } from "./rows";
import type { State } from "./state";

/** The program of a request without one: the values that it asks for. */
export const programOf = ({ program, want }: Request): string =>
  program ?? `?${want ? want.map(({ first, last }) => `${first}-${last}`).join(",") : ""}`;

/**
 * Whether an offer does not stop this request: it was shown by another program of the same stack. The first of the two programs that is
 * deployed gets the value.
 */
export const givesWay = (state: State, offer: OfferRow, request: Request): boolean =>
  isSameStack(offer.owner, request.owner) &&
  offer.program !== programOf(request) &&
  offer.run !== request.run &&
  mayChange(state, offerToLease(offer));
