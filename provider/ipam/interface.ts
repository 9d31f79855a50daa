import type { OverlayError } from "../errors";
import type { StoreAdmin } from "./admin";
import type { SeenEpoch } from "./identity";
import type { IpamSettings } from "./session";
import type {
  AmendOptions,
  By,
  Changes,
  Condition,
  Event,
  EventPage,
  ExistingLease,
  ExpectedToken,
  Extent,
  Grant,
  ImportOptions,
  ImportResult,
  Lease,
  LeaseFilter,
  OfferRequest,
  PoolPage,
  PoolSpec,
  Request,
  StoreIdentity,
  StoreVersion,
  Usage,
} from "./types";

/** Reads of the store. They do not return leases that have expired. */
export interface Queries {
  /** A lease before an offer. undefined when there is none, or it has expired. */
  find(pool: string, by: By): Promise<Lease | undefined>;
  /** How the lease with this uid ended, if it did within the last thirty days. */
  endOf(pool: string, uid: string): Promise<Lease | undefined>;
  /** The lease or the offer that has this name, in any pool. */
  holder(name: string): Promise<Lease | undefined>;
  /** What this program was shown for the owner, in any pool; also if that has expired. */
  findOffer(owner: string, program: string): Promise<Lease | undefined>;
  spec(pool: string): Promise<PoolSpec | undefined>;
  leases(pool: string, filter?: LeaseFilter): Promise<Lease[]>;
  /** By name. */
  pools(prefix?: string, page?: PoolPage): Promise<PoolSpec[]>;
  /** What the pool can give to a request without values, in order, up to `limit` extents; not what is quarantined. */
  freeExtents(pool: string, options?: { within?: Extent; limit?: number }): Promise<Extent[]>;
  usage(pool: string): Promise<Usage | undefined>;
  /** Of all pools whose name begins so, by name. */
  usages(prefix: string): Promise<Map<string, Usage>>;
  /** A pool and the child pools of its leases, which end with it, and the leases in each. */
  poolsEndingWith(pool: string): Promise<{ spec: PoolSpec; held: Lease[] }[]>;
  /** Oldest first. */
  history(pool: string, options?: { after?: number; limit?: number }): Promise<Event[]>;
  /**
   * Changes of all pools after the event with this id, in the order of their commits. `EVENTS_LOST` if some of them are no longer kept.
   * Without `after`: only the id of the newest one.
   */
  events(options: { after?: number; limit?: number }): Promise<EventPage>;
}

/** Allocates values to owners, on a store: in this process, or by a service. Errors are OverlayError. */
export interface Ipam extends Queries {
  /** Why a preview can show no new values; undefined when it can. */
  readonly whyNoOffers: string | undefined;
  /** Why this user may not change leases; undefined if it may. */
  readonly whyNoClaims: OverlayError | undefined;
  /**
   * What the owner holds, or else what its next claim gets: written as shown to the program of the request. If what was shown earlier cannot be
   * given, a preview gets another value and a warning, an up gets `PLAN_STALE`.
   */
  offer(request: OfferRequest): Promise<Lease>;
  /** After a preview that can show no value for this owner: the program was promised nothing. */
  withdraw(owner: string, program: string, pool: string): Promise<void>;
  /** Commits a lease durably, with a new lease id. With `want`: exactly these values, or `PLAN_STALE`. */
  claim(request: Request): Promise<Lease>;
  /** Commits all of these claims, or none. */
  claimAll(requests: Request[]): Promise<Lease[]>;
  /** Changes exactly this lease; `LEASE_FENCED` when it is no longer current. `dryRun`: only checks it. `onlyIf`: `LEASE_CHANGED` otherwise. */
  amend(pool: string, leaseId: string, changes: Changes, options?: AmendOptions): Promise<Lease>;
  /** Before a delete: refuses claims in the child pool from now on; `POOL_IN_USE` with its leases if it has any. */
  close(pool: string, leaseId: string, options?: { onlyIf?: Condition }): Promise<void>;
  /** false: not the current lease, or it does not meet `onlyIf`; nothing was changed. `program`: of the run, whose own offers stay. */
  release(pool: string, leaseId: string, options?: { onlyIf?: Condition; program?: string }): Promise<boolean>;
  /** A heartbeat: sets `lastSeen`; a lease that expires ends `ttl` seconds from now. Not in the history. */
  touch(pool: string, leaseId: string, options?: { ttl?: number }): Promise<void>;
  /** Adds leases that exist in Pulumi's state or on hosts; with a conflict, none of them. */
  importLeases(leases: ExistingLease[], options?: ImportOptions): Promise<ImportResult>;
  /** Of a lease that `claim` or `amend` has returned: the version that its commit made. */
  versionOf(lease: Lease): StoreVersion | undefined;
  /** For each of these leases on addresses, the token that lets its bearer use it. */
  signTokens(leases: Lease[]): Promise<string[]>;
  /** What a token permits. `TOKEN_FORMAT`, `TOKEN_SIGNATURE`, `TOKEN_RUNNER`, `TOKEN_EXPIRED`; whether the lease is held is not checked. */
  openToken(token: string, expected?: ExpectedToken): Promise<Grant>;
  identity(): Promise<StoreIdentity>;
  /** Rejects with `STORE_LOST` unless the store is the one that was `seen`, with all commits up to then. */
  findSeen(seen: StoreIdentity): Promise<SeenEpoch>;
}

/** An open store. */
export interface Store extends Ipam {
  /** `ACCESS_DENIED` if the store is a service: it is administered where it runs. */
  readonly admin: StoreAdmin;
  /** The same store for another user, whose name is in the history of its changes. Its `end` does not close the store. */
  session(options: Partial<IpamSettings>): Store;
  end(): Promise<void>;
}
