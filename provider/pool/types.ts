import type { Extent } from "../addressing/ip";
import type { OverlayError } from "../errors";

/**
 * The vocabulary of the pool. Everything given out is an integer: a runner id, a port, an address. Addresses of both
 * families lie on one 128-bit line, IPv4 a.b.c.d at ::ffff:a.b.c.d, so that one allocator, one key format and one
 * overlap check serve both. A lease holds one or more extents of its pool, and may open a pool of its own: a network's
 * lease on the address space opens the pool of its runner ids, a runner's lease opens the pool of its addresses.
 */

export type { Extent };

export type Json = string | number | boolean | null | Json[] | { [key: string]: Json };

export interface Tenant {
  org: string;
  project: string;
}

export interface PoolSpec {
  /** `space/default` (built in), `network/NAME`, `runner/NETWORK/RUNNER`, `pool/NAME`. */
  name: string;
  /** How its integers are written, and in which words its errors speak. */
  kind: "space" | "address" | "id" | "port";
  extents: Extent[];
  /** Inside the extents, never given out. */
  reserved?: Extent[];
  /** Given only when asked for by value. */
  staticOnly?: Extent[];
  allocation: "lowest" | "hashed" | "random" | "external";
  /** false: only what is asked for by value (`vip` pools). */
  autoAssign?: boolean;
  avoidBoundaryIps?: boolean;
  quota?: { maxIps?: number; maxReservations?: number };
  tenant?: Tenant;
  /** Whoever asks in a preview is warned from here on. */
  warnAtPercent?: number;
  /** On exhaustion take the least recently seen lease, if it was not seen for this many seconds. */
  reclaimAfter?: number;
  /** What the opener wants to find again, e.g. a network's settings. No secrets. */
  data?: Json;
}

export interface Port {
  protocol: "tcp" | "udp" | "sctp";
  port: number;
}

/** What describes a lease without deciding its value; all of it may be amended later. */
export interface Details {
  /** Keys that must be nobody else's in the whole store, e.g. `runner/training/node1`. Freed with the lease. */
  names?: string[];
  childPool?: PoolSpec;
  tenant?: Tenant;
  labels?: Record<string, string>;
  usedBy?: string;
  /** Seconds for which it stays reserved without being used; absent: until it is released. */
  ttl?: number;
  data?: Json;
  /** The user that made it, as `USER@HOST`. */
  by?: string;
}

export interface Request extends Omit<Details, "childPool"> {
  pool: string;
  /** A function where the pool follows from what the lease gets. */
  childPool?: PoolSpec | ((extents: Extent[]) => PoolSpec);
  /** scope + the resource's URN. */
  owner: string;
  /** The resource type, e.g. `RunnerSubnet`. */
  type: string;
  /** Exactly these; absent: the pool picks. */
  want?: Extent[];
  /** How many integers in a row when the pool picks; a power of two, aligned. Default 1. */
  size?: bigint;
  /** Pick only inside this. */
  within?: Extent;
  /** One more pick inside each of these, in the same lease: dual stack takes an address of each family. */
  also?: Extent[];
  sharingKey?: string;
  ports?: Port[];
  /** Where no address under its sharing key has its ports free: `fail` (default), or give it another address under that key. */
  onPortConflict?: "fail" | "anotherAddress";
  /** Takes the wanted values and ports away from whoever of the same tenant and type has them. */
  takes?: boolean;
  /**
   * For claims that may be retried: the owner has one lease in the pool. Another claim gets it under the same lease id and
   * starts its ttl again; a claim for other values, or of a lease that is in use, fails with `RESERVATION_EXISTS`.
   */
  idempotent?: boolean;
  /** Picked where the pool has the choice and they are free: what the owner held before it was replaced. */
  prefer?: Extent[];
  /** The owner's name before it was renamed in this run: what that one holds is the owner's own. */
  formerOwner?: string;
  /** Tells programs of a stack apart, such as those of two branches: what a preview of one has shown, the other was not. */
  program?: string;
}

export interface Lease extends Omit<Details, "childPool"> {
  pool: string;
  owner: string;
  type: string;
  extents: Extent[];
  /** `ended`: holds nothing any more; a record of how it ended, kept for thirty days. */
  state: "offered" | "reserved" | "used" | "quarantined" | "ended";
  /** Renewed by every claim; a release by an older one does nothing. */
  leaseId: string;
  /** Made at the first claim; survives renewal and rename. Marks what is ours on hosts. */
  uid: string;
  /** Name of the pool that this lease opens. */
  childPool?: string;
  sharingKey?: string;
  ports?: Port[];
  /** Milliseconds since 1970 by the store's clock. */
  createdAt: number;
  updatedAt: number;
  lastSeen: number;
  expiresAt?: number;
  /**
   * Of an offer whose value was quarantined: unless it is claimed, it goes on resting until then. Of an end: it would rest until then if
   * its pool had not been deleted, or its value not been given to another owner.
   */
  quarantinedUntil?: number;
  /** And for whom, if not for its own owner. */
  quarantinedFor?: PreviousHolder;
  /** Of an offer: the request that it answers. Another request of the same owner gets an offer of its own. */
  request?: string;
  /** Of an offer that the pool has chosen: the programs whose previews have shown it. */
  shownTo?: string[];
  /** Of an offer: uids of leases that still hold its values. They must end, or move, before it can be claimed. */
  waitsFor?: string[];
  /** A delete has begun at this time and is not done. */
  deletingSince?: number;
  /** How it ended. */
  end?: LeaseEnd;
  /** What the user should hear about this answer; not kept. */
  warnings?: string[];
}

export interface LeaseEnd {
  reason: "released" | "expired" | "taken" | "out of range" | "pool deleted";
  /** The owner that has its values now. */
  takenBy?: string;
  /** It was an offer. */
  wasOffer?: boolean;
}

/** Who can come back to a value that rests, and as what. */
export type PreviousHolder = Pick<Lease, "owner" | "type" | "uid" | "leaseId" | "createdAt" | "lastSeen">;

/** Held by its owner, neither only promised nor at rest nor over. */
export const isCommitted = ({ state }: Pick<Lease, "state">): boolean => state === "reserved" || state === "used";

/** What its owner keeps with a lease, by name. */
export const dataEntries = ({ data }: Pick<Lease, "data">): { [key: string]: Json } =>
  typeof data === "object" && data !== null && !Array.isArray(data) ? data : {};

/** What of a lease may be changed in place. What is left out stays as it is. */
export interface Changes extends Omit<Details, "ttl" | "tenant"> {
  /** Of the caller, who must be the tenant of the pool where that has one; null: the caller has none. */
  tenant?: Tenant | null;
  owner?: string;
  state?: "reserved" | "used";
  /** null: held until released. */
  ttl?: number | null;
  /** A pool grows or shrinks: its block in the address space does so with it. */
  extents?: Extent[];
  /** null: exclusive from now on. Only the sole user of a value can change its key. */
  sharingKey?: string | null;
  ports?: Port[];
  /** Takes ports away from whoever of the same tenant and type has them. */
  takes?: boolean;
  /** A delete of its resource has begun; false: the resource is to stay after all. */
  deleting?: boolean;
}

/** What a lease must look like for a change to be made; it is compared in the same transaction. */
export interface Condition {
  state?: "reserved" | "used";
  usedBy?: string;
  /** Entries of its data; undefined: there is no such entry. */
  data?: Record<string, Json | undefined>;
}

/** What is known of a lease that is looked for; `name` is one of its names. */
export type By = { leaseId: string } | { uid: string } | { owner: string } | { value: bigint } | { name: string };

/** A lease that stands outside the store, and must be in it. */
export interface ExistingLease
  extends Omit<Request, "childPool" | "size" | "within" | "also" | "ttl" | "onPortConflict"> {
  want: Extent[];
  childPool?: PoolSpec;
  /** Where it had a place in a store before; else it gets a new one. */
  identity?: Pick<Lease, "uid" | "leaseId">;
  /** `used`: also where it is not known by whom. */
  state?: "used";
}

/** A pool that must be open before facts can be entered in it, and the lease that opens it. */
export interface MissingPool extends Pick<Lease, "pool" | "leaseId"> {
  childPool: PoolSpec;
}

export interface ImportResult {
  added: Lease[];
  /** Stood in the store already, just so. */
  unchanged: Lease[];
  conflicts: { lease: ExistingLease; error: OverlayError }[];
}

/** One line of a pool's history. Offers leave none. */
export interface Event {
  at: number;
  what:
    | "claimed"
    | "renewed"
    | "used"
    | "unused"
    | "amended"
    | "renamed"
    | "released"
    | "expired"
    | "reclaimed"
    | "handed over"
    | "imported";
  pool: string;
  owner: string;
  uid: string;
  leaseId: string;
  extents: Extent[];
  /** The container that used the lease. */
  usedBy?: string;
  /** The user that made the change, as `USER@HOST`; absent when a lease expired. */
  by?: string;
  /** Of a lease that was reclaimed or handed over: the owner that has its values now. */
  takenBy?: string;
  /** Of a lease that was renamed. */
  formerOwner?: string;
}

export interface Usage {
  /** How many values the pool can give out. */
  capacity: bigint;
  /** How many of them are held, offers included. */
  held: bigint;
  /** Leases by state. */
  offered: number;
  reserved: number;
  used: number;
  quarantined: number;
  /** When it is filled to its `warnAtPercent`. */
  warning?: string;
}

export type Finding = { pool: string; problem: string; repairable: boolean };

/** How far a store has come. */
export interface StoreVersion {
  /** Grows with every commit, and never falls unless commits were lost. */
  version: number;
  /** Which of several histories that version is of: after an older backup was restored, another one begins. */
  epoch: string;
}

/** Which store a pool is in, and how far that has come. */
export interface StoreIdentity extends StoreVersion {
  /** Random; stays when the store moves to another engine. */
  id: string;
}

export interface OfferOptions {
  /** This run goes on to claim it: a broken promise stops it. Default: a preview, in which that is a warning. */
  inUp?: boolean;
  /**
   * Whether the resource that holds this lease, of the same stack, asks for other values in this run. undefined, the default: that is
   * not known until it is checked. Then it may be promised, and a claim waits for that check.
   */
  movesAway?(holder: Lease): boolean | undefined;
  /** The quota that this run gives the pool; absent: the one that it has. */
  quota?: NonNullable<PoolSpec["quota"]>;
}

/** A pool that a run deletes in order to make it anew. */
export interface Replacement {
  pool: string;
  /** Its resource, by its names before and after this run. */
  owners: string[];
  /** The properties of its resource that cannot change in place. */
  changed: string[];
}

/** Who holds what. Hides stores, races and arithmetic. Errors are OverlayError. */
export interface Pool {
  /**
   * Finds the owner's lease, else writes an offer that the owner's next claim gets. `IP_IN_USE`, `POOL_EXHAUSTED`, … An offer
   * that was promised earlier and is gone: a preview gets another value and a warning, an up gets `PLAN_STALE`.
   */
  offer(request: Request, options?: OfferOptions): Promise<Lease>;
  /** Why a preview can promise nothing; undefined when it can. */
  readonly whyNoOffers: string | undefined;
  /** Makes it ours, durably, under a new lease id. With `want`: exactly that, or `PLAN_STALE`. */
  claim(request: Request): Promise<Lease>;
  /** Of a lease that `claim` or `amend` has returned: the version that its commit made, which is as durable as the lease. */
  versionOf(lease: Lease): StoreVersion | undefined;
  /** undefined when there is none, or it has expired. */
  find(pool: string, by: By): Promise<Lease | undefined>;
  /** How the lease with this uid ended, if it did within the last thirty days. */
  endOf(pool: string, uid: string): Promise<Lease | undefined>;
  /** Whoever has this name, in whatever pool. */
  holder(name: string): Promise<Lease | undefined>;
  /** For this run: its owner keeps it. Later requests of the run for its values are refused; if one came earlier, this is. */
  markKept(lease: Lease): Promise<void>;
  /**
   * For this run: the pool is to be replaced. `POOL_IN_USE` if it, or a pool that ends with it, has leases of other stacks, or leases
   * that stay; of those that are known to stay later, `stays` is refused.
   */
  planReplacement(replacement: Replacement): Promise<void>;
  /** For this run: the resource of this lease is deleted before its pool is replaced. */
  markEnding(lease: Lease): void;
  /** Before a lease in this pool ends: `POOL_IN_USE` if the pool is to be replaced in this run, and has leases that do not end before it. */
  mustBeReplaceable(pool: string): Promise<void>;
  spec(pool: string): Promise<PoolSpec | undefined>;
  /**
   * Changes details, or the owner (a rename), of exactly this lease; `LEASE_FENCED` when it is no longer current. `dryRun`:
   * only finds out whether that can be. `onlyIf`: `LEASE_CHANGED` unless the lease looks like this.
   */
  amend(
    pool: string,
    leaseId: string,
    changes: Changes,
    options?: { dryRun?: boolean; onlyIf?: Condition },
  ): Promise<Lease>;
  /**
   * Before a delete: no new claims in the pool that this lease opens; `POOL_IN_USE` with the list if it has some. `onlyIf`:
   * `LEASE_CHANGED` unless the lease looks like this.
   */
  close(pool: string, leaseId: string, options?: { onlyIf?: Condition }): Promise<void>;
  /** false: not the current lease, or not as `onlyIf` says; nothing done. */
  release(pool: string, leaseId: string, options?: { onlyIf?: Condition }): Promise<boolean>;
  /** A sign of life: `lastSeen` is now, and a lease with an end stands for `ttl` seconds more. Leaves no history. */
  touch(pool: string, leaseId: string, options?: { ttl?: number }): Promise<void>;
  /** Enters what stands already, in Pulumi's state or on machines: all of it, or with a conflict nothing. */
  importLeases(facts: ExistingLease[], options?: { opening?: MissingPool[]; dryRun?: boolean }): Promise<ImportResult>;
  /** The secret that the store keeps under this name: `initial`, unless somebody was first. */
  secret(name: string, initial: string): Promise<string>;
  /** The same without making one. */
  findSecret(name: string): Promise<string | undefined>;
  replaceSecret(name: string, change: (kept: string | undefined) => string): Promise<string>;
  /** The store gets an id with the first call. */
  identity(): Promise<StoreIdentity>;
  /**
   * `STORE_LOST` unless the store is the one that was `seen` earlier, with all commits up to then. `recovered`: it was rebuilt since,
   * and holds only what it was rebuilt from.
   */
  mustInclude(seen: StoreIdentity): Promise<{ recovered: boolean }>;
  /** After a recovery: stacks that were deployed with the stores `from`, and have seen `version`, accept this one. */
  adoptIdentity(from: string[], version: number, options?: { complete?: boolean }): Promise<void>;
  leases(pool: string, options?: { after?: bigint; limit?: number }): Promise<Lease[]>;
  pools(prefix?: string): Promise<PoolSpec[]>;
  usage(pool: string): Promise<Usage | undefined>;
  /** Of all pools whose name begins so, by name. */
  usages(prefix: string): Promise<Map<string, Usage>>;
  /** Oldest first; also of the hundred pools that went last. */
  history(pool: string, options?: { after?: number; limit?: number }): Promise<Event[]>;
  fsck(options?: { repair?: boolean }): Promise<Finding[]>;
  end(): Promise<void>;
}
