import { namePromisedWarning, nameTakenError, ttlWithPoolError } from "../errors";
import type { Lease, Request } from "../types";
import { mustBeNameable, mustBeOpenable, show } from "./access";
import { endLease } from "./lease";
import { isOwnHolder, isPromisedInRun } from "./offers";
import { isLive, isOverdue, type LeaseRow, type OfferRow, offerToLease, toLease } from "./rows";
import type { State } from "./state";

/** Names of leases and of their child pools: each has one holder in the whole store. */

/**
 * Takes the names of a request, and that of its child pool, from leases of its own owner. Rejects if another owner has one. Returns a warning
 * for each name that another run was shown: the first claim gets it.
 */
export function takeNames(state: State, request: Request, lease: Lease, isClaim: boolean): string[] {
  const warnings: string[] = [];
  for (const name of request.names ?? []) {
    const holder = state.leaseNamed(name);
    if (holder?.uid !== lease.uid) mustBeNameable(state, name, lease);
    if (holder && holder.uid !== lease.uid) takeName(state, request, holder, name, isClaim);
    warnings.push(...findPromised(state, request, name, state.offersNamed(name)));
  }
  const { childPool } = request;
  if (!childPool) return warnings;
  mustBeOpenable(state, childPool, lease);
  if (request.ttl !== undefined) throw ttlWithPoolError(lease, childPool);
  const row = state.pool(childPool.name);
  const opener = row?.opener === undefined ? undefined : state.lease(row.opener);
  if (opener && isOverdue(opener, state.now)) endLease(state, opener, "expired", { at: opener.expiresAt! });
  else if (opener && opener.uid !== lease.uid && isLive(opener, state.now) && !isOwnHolder(state, request, opener))
    throw nameTakenError(childPool.name, show(state, toLease(opener, state.now)), request.pool);
  warnings.push(...findPromised(state, request, childPool.name, state.offersOfPool(childPool.name)));
  return [...new Set(warnings)];
}

function takeName(state: State, request: Request, holder: LeaseRow, name: string, isClaim: boolean): void {
  if (isOverdue(holder, state.now)) endLease(state, holder, "expired", { at: holder.expiresAt! });
  else if (!isOwnHolder(state, request, holder))
    throw nameTakenError(name, show(state, toLease(holder, state.now)), request.pool);
  else if (isClaim) state.leases.put({ ...holder, names: holder.names!.filter((other) => other !== name) });
}

/** Rejects a name that another resource of the same run was shown. */
function findPromised(state: State, request: Request, name: string, offers: OfferRow[]): string[] {
  const others = offers.filter((offer) => !isOwnHolder(state, request, offer));
  const shown = others.find((offer) => isPromisedInRun(offer, request)) ?? others[0];
  if (!shown) return [];
  const lease = show(state, offerToLease(shown));
  if (isPromisedInRun(shown, request)) throw nameTakenError(name, lease, request.pool);
  return [namePromisedWarning(name, lease)];
}
