import type {
  Extent,
  Lease as FormerLease,
  LeaseEnd as FormerLeaseEnd,
  Request as FormerRequest,
  PoolSpec,
} from "../pool/types";
import type { EndReason } from "./decide/rows";

export * from "../pool/types";

export interface Lease extends Omit<FormerLease, "end" | "waitsFor" | "quarantinedFor" | "request" | "shownTo"> {
  end?: Omit<FormerLeaseEnd, "reason"> & { reason: EndReason };
  /** Of an offer: uids of leases that must end before it is claimed. */
  afterLease?: string[];
}

export interface Request extends Omit<FormerRequest, "childPool"> {
  /** With `layout`, the pool follows from the values that the lease gets. */
  childPool?: PoolSpec | ((extents: Extent[]) => PoolSpec);
  declared?: Extent[];
  /** Identifies the run of Pulumi. */
  run?: string;
  /** What the pool is in the program of the request, if a resource of its stack has the pool. */
  spec?: PoolSpec;
  /** Uids of leases of the same stack that end in this run. */
  mayEnd?: string[];
}
