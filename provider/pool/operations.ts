import type { OverlayError } from "../errors";
import type { Access } from "./access";
import type {
  Administration,
  AmendOptions,
  Changes,
  ExistingLease,
  Extent,
  ImportOptions,
  ImportResult,
  Lease,
  LeaseChanges,
  PoolSpec,
  Queries,
  Request,
  StoreIdentity,
  StoreVersion,
  Tokens,
} from "./types";

/**
 * The operations on a store. They keep nothing between two calls: the state of a run of Pulumi is in `run.ts`, which calls them and answers
 * their questions about its stack.
 */
export interface Operations extends Queries, LeaseChanges, Tokens, Administration {
  /** Why a preview can promise nothing; undefined when it can. */
  readonly whyNoOffers: string | undefined;
  /** Why this user may not change leases; undefined if it may. */
  readonly whyNoClaims: OverlayError | undefined;
  offer(request: Request, terms: OfferTerms, plan: StackPlan): Promise<Lease>;
  claim(request: Request, plan: StackPlan): Promise<Committed<Lease>>;
  claimAll(requests: Request[], plan: StackPlan): Promise<Committed<Lease[]>>;
  amend(
    pool: string,
    leaseId: string,
    changes: Changes,
    options: AmendOptions,
    plan: StackPlan,
  ): Promise<Committed<Lease>>;
  importLeases(leases: ExistingLease[], options: ImportOptions, plan: StackPlan): Promise<ImportResult>;
  /** Ends an offer, but no other lease. false: it is not an offer any more. */
  withdraw(pool: string, leaseId: string): Promise<boolean>;
  /** Removes a program from those that offers to this owner were shown to. Offers that were shown to no other one end. */
  retract(pool: string, owner: string, program: string | undefined): Promise<void>;
  /** A pool and the child pools of its leases, which end with it, and the committed leases in each. */
  poolsEndingWith(pool: string): Promise<{ spec: PoolSpec; held: Lease[] }[]>;
  identity(): Promise<StoreIdentity>;
  /** Rejects as `mustInclude` of a pool does. */
  findSeen(seen: StoreIdentity): Promise<SeenEpoch>;
  /** The same operations for another user. Their `end` does not close the store. */
  session(options: SessionOptions): Operations;
  end(): Promise<void>;
}

export interface SessionOptions {
  actor?: string;
  /** What the user may see and change; by default, as much as the user of these operations. */
  access?: Access;
  /** Seconds: at most, and by default, that of the process. */
  offerTtl?: number;
  /** Seconds: at least, and by default, that of the process. */
  quarantine?: number;
  /** Decides random choices: an operation that is repeated with it chooses the same. */
  seed?: string;
  /** Where the store is, for messages. */
  place?: string;
}

/** Thrown by a plan to end an attempt. It is no failure of the operation, which is asked for again. */
export class AttemptEnded extends Error {}

/**
 * What a run knows about the other resources of its stack. Operations ask about leases of these resources that are in the way of a request.
 * The answers are about this run only, so that a transaction that is tried again may ask again.
 */
export interface StackPlan {
  /** Whether the resource that holds this lease releases its values in this run, as in a swap. */
  willRelease(holder: Lease): boolean;
  /** Whether an offer is of an earlier run, to a resource that this run has not checked, or gives other values to. */
  isAbandoned(offer: Lease): boolean;
  /** Runs one attempt of the operation's transaction. What it throws rolls the attempt back. */
  attempt?<T>(work: () => Promise<T>): Promise<T>;
}

export interface OfferTerms {
  /** See `OfferOptions`. */
  inUp: boolean;
  /** What this run has already offered to the owner. */
  plannedExtents?: Extent[];
  /** What the pool will be after this run; absent: what it is. */
  plannedSpec?: PoolSpec;
}

/** A result, and the version of the store that its commit has made; absent if nothing was written. */
export interface Committed<T> {
  value: T;
  version?: StoreVersion;
}

/** The versions of the epoch in which a store was seen. */
export interface SeenEpoch {
  first: number;
  last: number;
  /** The epoch is accepted because the store was rebuilt since. */
  recovered: boolean;
}
