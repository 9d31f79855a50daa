import { portConflictError, sharingConflictError } from "../errors";
import type { Extent, PoolSpec, Port, Request } from "../types";
import { mayChange, show } from "./access";
import { givesWay, isOwnHolder } from "./offers";
import {
  type Holder,
  isLive,
  isOffer,
  type LeaseRow,
  mayTake,
  portText,
  sharingKeyOf,
  toPublic,
  touches,
} from "./rows";
import type { State } from "./state";

/** Shared values: leases with the same key and tenant share a value if no two of them have the same protocol and port. */

/** The holder of one of these ports on these values, and the port. */
export function findPortHolder(
  state: State,
  request: Request,
  extents: Extent[],
  ports: Port[],
  own?: string,
  except: LeaseRow[] = [],
): { holder: Holder; port: Port } | undefined {
  if (ports.length === 0) return undefined;
  const leases = state.portHolders(request.pool, extents, ports).filter((lease) => {
    return (
      isLive(lease, state.now) && lease.uid !== own && !except.includes(lease) && !isOwnHolder(state, request, lease)
    );
  });
  const offers = state.offersIn(request.pool).filter((offer) => {
    return touches(offer.extents, extents) && !isOwnHolder(state, request, offer) && !givesWay(state, offer, request);
  });
  for (const holder of [...leases, ...offers]) {
    const port = ports.find((each) => holder.ports?.some((other) => portText(other) === portText(each)));
    if (port) return { holder, port };
  }
  return undefined;
}

/** The leases that must end so that the request gets its ports, besides those that are `evicted`; rejects if one may not be ended. */
export function takePorts(
  state: State,
  spec: PoolSpec,
  request: Request,
  extents: Extent[],
  own?: string,
  evicted: LeaseRow[] = [],
): LeaseRow[] {
  const taken: LeaseRow[] = [];
  for (;;) {
    const found = findPortHolder(state, request, extents, request.ports ?? [], own, [...evicted, ...taken]);
    if (!found) return taken;
    const { holder, port } = found;
    const lease = toPublic(holder, state.now);
    if (isOffer(holder) || !mayTake(request, holder) || !mayChange(state, lease))
      throw portConflictError(spec, extents[0]!, port, show(state, lease));
    taken.push(holder);
  }
}

/** Rejects a change of the sharing key, or of shared values, while another lease or an offer shares them. */
export function mustKeepKey(state: State, spec: PoolSpec, lease: LeaseRow, key: string | undefined): void {
  const old = sharingKeyOf(lease);
  if (old === undefined || old === key) return;
  const shares = (other: Holder) => other.owner !== lease.owner && touches(other.extents, lease.extents);
  const leases = state.sharersOf(lease.pool, old).filter((other) => isLive(other, state.now) && shares(other));
  const offers = state.offersIn(lease.pool).filter((offer) => sharingKeyOf(offer) === old && shares(offer));
  const coHolder = [...leases, ...offers][0];
  if (coHolder) throw sharingConflictError(spec, lease.extents[0]!, key, show(state, toPublic(coHolder, state.now)));
}
