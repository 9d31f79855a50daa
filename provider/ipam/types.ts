import type { Extent, Lease as FormerLease, Request as FormerRequest, PoolSpec } from "../pool/types";

export * from "../pool/types";

export interface Lease extends Omit<FormerLease, "waitsFor" | "quarantinedFor" | "request" | "shownTo"> {
  /** Of an offer: uids of leases that must end before it is claimed. */
  afterLease?: string[];
}

export interface Request extends Omit<FormerRequest, "childPool"> {
  childPool?: PoolSpec;
  /** Values that the program names elsewhere: never chosen automatically. */
  declared?: Extent[];
  /** Identifies the run of Pulumi. */
  run?: string;
  /** What the pool is in the program of the request, if a resource of its stack has the pool. */
  spec?: PoolSpec;
  /** Uids of leases of the same stack that end in this run. */
  mayEnd?: string[];
  /** Uids of leases of the same stack that do not end in this run. */
  stays?: string[];
}
