import type { Event, Ipam, Lease, PoolList, PoolSpec, Request, Usage } from "./types";

/** Shorthands for what is asked of a store most often. */

export const claimOne = async (ipam: Pick<Ipam, "claim">, request: Request): Promise<Lease> =>
  (await ipam.claim([request]))[0]!;

export const findSpec = async (ipam: Pick<Ipam, "pools">, name: string): Promise<PoolSpec | undefined> =>
  (await ipam.pools({ name }))[0]?.spec;

export const listSpecs = async (ipam: Pick<Ipam, "pools">, list: PoolList = {}): Promise<PoolSpec[]> =>
  (await ipam.pools(list)).map(({ spec }) => spec);

export const findUsage = async (ipam: Pick<Ipam, "pools">, name: string): Promise<Usage | undefined> =>
  (await ipam.pools({ name, withUsage: true }))[0]?.usage;

/** Of all pools whose name begins so, by name. */
export const listUsages = async (ipam: Pick<Ipam, "pools">, prefix: string): Promise<Map<string, Usage>> =>
  new Map((await ipam.pools({ prefix, withUsage: true })).map(({ spec, usage }) => [spec.name, usage!]));

/** Oldest first. */
export const historyOf = async (
  ipam: Pick<Ipam, "events">,
  pool: string,
  options: { since?: number; limit?: number } = {},
): Promise<Event[]> => (await ipam.events({ pool, ...options })).events;
