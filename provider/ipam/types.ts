import type { Extent } from "../addressing/ip";
import type { OverlayError } from "../errors";

/**
 * The types of the pool. All values are integers: runner ids, ports, addresses. Addresses of both families are 128-bit integers, with IPv4
 * a.b.c.d at ::ffff:a.b.c.d, so that one allocator, one key format and one overlap check serve both. A lease holds one or more extents of its
 * pool, and may have a child pool: the lease of a network in the address space has the pool of its runner ids, the lease of a runner has the
 * pool of its addresses.
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
  /** How its integers are formatted, and what errors call them. */
  kind: "space" | "address" | "id" | "port";
  extents: Extent[];
  /** Inside the extents, never given out. */
  reserved?: Extent[];
  /** Given only to requests by value. */
  staticOnly?: Extent[];
  allocation: "lowest" | "hashed" | "random" | "external";
  /** false: requests by value only (`vip` pools). */
  autoAssign?: boolean;
  avoidBoundaryIps?: boolean;
  quota?: { maxIps?: number; maxReservations?: number };
  tenant?: Tenant;
  /** Previews warn from this percentage on. */
  warnAtPercent?: number;
  /** On exhaustion take the least recently seen lease, if it was not seen for this many seconds. */
  reclaimAfter?: number;
  /** Data of the resource that owns the pool, e.g. settings of a network. No secrets. */
  data?: Json;
}

export interface Port {
  protocol: "tcp" | "udp" | "sctp";
  port: number;
}

/** Properties of a lease that do not decide its value. All can be changed later. */
export interface Details {
  /** Unique in the whole store, e.g. `runner/training/node1`. Freed with the lease. */
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
  childPool?: PoolSpec;
  /** scope + the resource's URN. */
  owner: string;
  /** The resource type, e.g. `RunnerSubnet`. */
  type: string;
  /** Exactly these; absent: the pool chooses. */
  values?: Extent[];
  /** How many consecutive integers the pool chooses; a power of two, aligned. Default 1. */
  size?: bigint;
  /** The pool chooses only inside this. */
  range?: Extent;
  /** One more value inside each of these, in the same lease: dual stack takes an address of each family. */
  secondRange?: Extent[];
  sharingKey?: string;
  ports?: Port[];
  /** Where no address under its sharing key has its ports free: `fail` (default), or give it another address under that key. */
  onPortConflict?: "fail" | "anotherAddress";
  /** Evicts holders of these values and ports that have the same tenant and type. */
  evictSameTenant?: boolean;
  /**
   * For claims that may be retried: the owner has one lease in the pool. Another claim gets it under the same lease id and
   * starts its ttl again; a claim for other values, or of a lease that is in use, fails with `RESERVATION_EXISTS`.
   */
  idempotent?: boolean;
  /** Preferred if they are free and the pool chooses: what the owner held before it was replaced. */
  preferred?: Extent[];
  /** The owner before it was renamed in this run: its leases count as those of the owner. */
  formerOwner?: string;
  /** Identifies the program of a stack, which differs between branches: a preview shows its values to one program only. */
  program?: string;
  /** The values that resources of this program ask for: never chosen automatically. */
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

export interface OfferRequest extends Request {
  /** An up stops if what was shown cannot be given; a preview shows another value. */
  inUp?: boolean;
}

export interface Lease extends Omit<Details, "childPool"> {
  pool: string;
  owner: string;
  type: string;
  extents: Extent[];
  /** `ended`: an end record, which holds no values and is kept for thirty days. */
  state: "offered" | "reserved" | "used" | "quarantined" | "ended";
  /** Renewed by every claim; a release with an older id does nothing. */
  leaseId: string;
  /** Made at the first claim; stays the same when the lease is renewed or renamed. Identifies its items on hosts. */
  uid: string;
  /** Name of its child pool. */
  childPool?: string;
  sharingKey?: string;
  ports?: Port[];
  /** Milliseconds since 1970 by the store's clock. */
  createdAt: number;
  updatedAt: number;
  lastSeen: number;
  expiresAt?: number;
  /** Of an ended lease: until when its owner gets the values before others. */
  quarantinedUntil?: number;
  /** Of an offer: uids of leases that must end before it is claimed. */
  afterLease?: string[];
  /** A delete has begun at this time and is not done. */
  deletingSince?: number;
  /** How it ended. */
  end?: LeaseEnd;
  /** Of the commit that has claimed or changed it, where that returns it; not stored. */
  version?: StoreVersion;
  /** Warnings for the user; not stored. */
  warnings?: string[];
}

export interface LeaseEnd {
  reason: "released" | "expired" | "reclaimed" | "handed over" | "out of range" | "pool deleted";
  /** The owner that has its values now. */
  takenBy?: string;
}

/** Held by its owner; not an offer, not quarantined, not ended. */
export const isCommitted = ({ state }: Pick<Lease, "state">): boolean => state === "reserved" || state === "used";

/** Whether so many leases, on so many values, keep the quota of a pool. */
export const isWithinQuota = ({ quota = {} }: Pick<PoolSpec, "quota">, leases: number, values: bigint): boolean =>
  leases <= (quota.maxReservations ?? Infinity) && values <= (quota.maxIps ?? Infinity);

/** The data of a lease as an object. */
export const dataEntries = ({ data }: Pick<Lease, "data">): { [key: string]: Json } =>
  typeof data === "object" && data !== null && !Array.isArray(data) ? data : {};

/** Changes of a lease in place. Absent fields stay as they are. */
export interface Changes extends Omit<Details, "ttl" | "tenant"> {
  /** The tenant of the caller, which must be that of the pool, if the pool has one; null: the caller has none. */
  tenant?: Tenant | null;
  owner?: string;
  state?: "reserved" | "used";
  /** null: held until released. */
  ttl?: number | null;
  /** The new bounds of a block, when its pool is resized. */
  extents?: Extent[];
  /** null: not shared any more. Refused while another lease shares the value. */
  sharingKey?: string | null;
  ports?: Port[];
  /** Evicts holders of the ports that have the same tenant and type. */
  evictSameTenant?: boolean;
  /** A delete of its resource has begun; false: the delete was cancelled. */
  deleting?: boolean;
}

/** The state of a lease that a change requires; compared in the same transaction. */
export interface Condition {
  state?: "reserved" | "used";
  usedBy?: string;
  /** Entries of its data; undefined: there is no such entry. */
  data?: Record<string, Json | undefined>;
}

export interface ChangeOptions {
  dryRun?: boolean;
  onlyIf?: Condition;
}

/** How a lease of a pool is looked up; `name` is one of its names. */
export type LeaseKey = { leaseId: string } | { uid: string } | { owner: string } | { value: bigint } | { name: string };

/** Which lease is read. */
export type LeaseSelector =
  /** A lease before an offer. */
  | ({ pool: string } & LeaseKey)
  /** How the lease with this uid ended, if it did within the last thirty days. */
  | { pool: string; endedUid: string }
  /** The lease or the offer that has this name, in any pool. */
  | { name: string }
  /** What this program was shown for the owner, in any pool; also if that has expired. */
  | { owner: string; program: string };

/** A lease that exists outside the store and must be imported. */
export interface ExistingLease
  extends Omit<Request, "childPool" | "size" | "range" | "secondRange" | "ttl" | "onPortConflict"> {
  values: Extent[];
  childPool?: PoolSpec;
  /** Its ids, if it was in a store before; else it gets new ones. */
  identity?: Pick<Lease, "uid" | "leaseId">;
  /** `used`: even if `usedBy` is unknown. */
  state?: "used";
}

export interface ImportResult {
  added: Lease[];
  /** In the store already, with the same values. */
  unchanged: Lease[];
  conflicts: { lease: ExistingLease; error: OverlayError }[];
}

export const EVENT_KINDS = [
  "claimed",
  "renewed",
  "used",
  "unused",
  "amended",
  "renamed",
  "released",
  "expired",
  "reclaimed",
  "handed over",
  "imported",
] as const;

/** One row of the history of a pool. Offers have none. */
export interface Event {
  at: number;
  what: (typeof EVENT_KINDS)[number];
  pool: string;
  owner: string;
  uid: string;
  leaseId: string;
  extents: Extent[];
  tenant?: Tenant;
  /** The container that used the lease. */
  usedBy?: string;
  /** The user that made the change, as `USER@HOST`; absent when a lease expired. */
  by?: string;
  /** Of a lease that was reclaimed or handed over: the owner that has its values now. */
  takenBy?: string;
  /** Of a lease that was renamed. */
  formerOwner?: string;
}

/** A change with its number in the event log: ids have no gaps, and follow the order of the commits. */
export interface LoggedEvent extends Event {
  id: number;
}

export interface EventPage {
  events: LoggedEvent[];
  /** The id of the newest event of the store; 0: there is none. */
  last: number;
}

export const ACCESS_SCOPES = ["read", "reserve", "admin", "preview", "deploy"] as const;

/** A token that permits calls to the service. Its secret is not stored, only the hash of it. */
export interface AccessToken {
  id: string;
  name: string;
  /** SHA-256, in hexadecimal. */
  hash: string;
  scopes: (typeof ACCESS_SCOPES)[number][];
  /** The only tenant, network and pool that it is for. */
  tenant?: Tenant;
  network?: string;
  pool?: string;
  createdAt: number;
  createdBy?: string;
  expiresAt?: number;
  revokedAt?: number;
}

/** What the token of a reservation permits: the use of one lease. */
export interface TokenClaims {
  pool: string;
  value: bigint;
  /** `NETWORK/RUNNER`. */
  runner: string;
  owner: string;
  leaseId: string;
  /** Milliseconds since 1970; absent: as long as the lease stands. */
  expiresAt?: number;
}

export interface ExpectedToken {
  /** The token must be for this one: `NETWORK/RUNNER`, or the runner's name alone. */
  runner?: string;
  /** For callers that do not read the store. Others leave it out: the clock of the store decides. */
  now?: number;
}

/** A receiver of events by HTTP. */
export interface Webhook {
  id: string;
  url: string;
  /** Signs what is sent. */
  secret: string;
  /** The only events that it gets. */
  tenant?: Tenant;
  network?: string;
  pool?: string;
  createdAt: number;
  createdBy?: string;
}

/** How far a webhook has come. Every process may go on with it, one at a time. */
export interface Delivery {
  /** The newest event that its receiver has accepted, or that is not for it. */
  delivered: number;
  /** The process that sends, and until when no other one may. */
  holder?: string;
  heldUntil?: number;
  /** Failures in a row: how many, the first and the latest reason, and when it is tried again. */
  failures?: number;
  failedSince?: number;
  error?: string;
  retryAt?: number;
  /** It failed for too long, and is not tried again before an operator resumes it. */
  suspended?: boolean;
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

/** The version of a store. */
export interface StoreVersion {
  /** Grows with every commit; lower than before only if commits were lost. */
  version: number;
  /** Tells apart equal versions before and after the restore of a backup. */
  epoch: string;
}

/** The id and version of the store. */
export interface StoreIdentity extends StoreVersion {
  /** Random; stays when the store moves to another engine. */
  id: string;
}

/** The epochs in which the store was seen are read once for all resources of a stack: versions from `first` to `last` are accepted alike. */
export interface SeenEpoch {
  first: number;
  last: number;
  /** The epoch is accepted because the store was rebuilt since. */
  recovered: boolean;
}

/** A store for one user. */
export interface StoreInfo extends StoreIdentity {
  /** Why a preview can show no new values; absent when it can. */
  whyNoOffers?: string;
  /** Why this user may not change leases; absent if it may. */
  whyNoClaims?: OverlayError;
  /** The epoch of the version that was seen. */
  seen?: SeenEpoch;
}

export interface OfferOptions {
  /** This run is an up, which stops at a broken promise. Default: a preview, which warns. */
  inUp?: boolean;
  /**
   * Whether the resource of the same stack that holds this lease asks for other values in this run. undefined, the default: unknown until
   * that resource is checked. Then the value may be promised, and a claim waits for that check.
   */
  movesAway?(holder: Lease): boolean | undefined;
}

/** A pool that a run deletes and creates again. */
export interface Replacement {
  pool: string;
  /** Its resource, by its names before and after this run. */
  owners: string[];
  /** The properties of its resource that cannot change in place. */
  changed: string[];
}

/** Which leases of a pool are read. */
export interface LeaseFilter {
  /** Those of this owner; `after` and `limit` do not apply then. */
  owner?: string;
  /** Those with higher values. */
  after?: bigint;
  limit?: number;
}

export interface PoolPage {
  /** Those after the pool of this name. */
  after?: string;
  limit?: number;
}

/** Pools whose name begins with `prefix`; default: all. */
export interface PoolList extends PoolPage {
  prefix?: string;
  withUsage?: boolean;
}

/** Which pools are read. */
export type PoolSelector =
  | { name: string; withUsage?: boolean }
  | PoolList
  /** A pool and the child pools of its leases, which end with it, and the leases in each. */
  | { endingWith: string };

export interface PoolInfo {
  spec: PoolSpec;
  usage?: Usage;
  held?: Lease[];
}

/** Which events are read. */
export type EventSelector =
  /** Those of a pool, from this time on. */
  | { pool: string; since?: number; limit?: number }
  /** Those of all pools after the event with this id; without `after` none, only the id of the newest one. */
  | { after?: number; limit?: number };

export type { Ipam, Store } from "./interface";
