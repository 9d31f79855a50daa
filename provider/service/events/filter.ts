import { isSameTenant } from "../../owner";
import type { Event, Tenant } from "../../pool/types";
import { networkPool, RUNNERS } from "../../pool-names";

/** A part of the store: of one tenant, and of one network with its runners, or of one pool. */
export interface EventFilter {
  tenant?: Tenant | undefined;
  network?: string | undefined;
  /** Name of the pool in the store. */
  pool?: string | undefined;
}

/** Whether an event is in all of these parts: the filter of a request never shows more than the bounds of its caller. */
export const isInAll = (filters: EventFilter[], event: Event): boolean =>
  filters.every((filter) => isOfPool(filter, event.pool) && isOfTenant(filter, event));

const isOfTenant = ({ tenant }: EventFilter, event: Event): boolean =>
  tenant === undefined || isSameTenant(event.tenant, tenant);

function isOfPool({ network, pool }: EventFilter, name: string): boolean {
  if (network === undefined && pool === undefined) return true;
  const isOfNetwork =
    network !== undefined && (name === networkPool(network) || name.startsWith(`${RUNNERS}${network}/`));
  return isOfNetwork || name === pool;
}
