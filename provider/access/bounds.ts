import { isSameTenant } from "../owner";
import type { AccessToken, Event } from "../pool/types";
import { networkPool, RUNNERS } from "../pool-names";

/** A part of the store: of one tenant, and of one network with its runners, or of one pool. Without any, all of it. */
export type Bounds = Pick<AccessToken, "tenant" | "network" | "pool">;

export const isPoolInBounds = ({ network, pool }: Bounds, name: string): boolean =>
  (network === undefined && pool === undefined) ||
  (network !== undefined && (name === networkPool(network) || name.startsWith(`${RUNNERS}${network}/`))) ||
  name === pool;

export const isEventInBounds = (bounds: Bounds, { pool, tenant }: Event): boolean =>
  isPoolInBounds(bounds, pool) && (bounds.tenant === undefined || isSameTenant(tenant, bounds.tenant));
