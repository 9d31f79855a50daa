import { z } from "zod";
import type { ValueRange } from "../addressing/ip";
import type { OverlayError } from "../errors";
import * as field from "./fields";

/**
 * The types of the pool. All values are integers: runner ids, ports, addresses. Addresses of both families are 128-bit integers, with IPv4
 * a.b.c.d at ::ffff:a.b.c.d, so that one allocator, one key format and one overlap check serve both. A lease holds one or more ranges of its
 * pool, and may have a child pool: the lease of a network in the address space has the pool of its runner ids, the lease of a runner has the
 * pool of its addresses.
 *
 * Each type is that of a schema, with which a service and its clients send it as JSON. Requests with a field that is not known are refused; in
 * answers such a field is dropped, because a newer service may send more than an older client knows.
 */

export type { Json } from "./fields";
export type { ValueRange };

export const tenant = z.object({ org: field.text, project: field.text });
export interface Tenant extends z.output<typeof tenant> {}

const quota = z.strictObject({ maxIps: field.count.exactOptional(), maxReservations: field.count.exactOptional() });

export const poolSpec = z.object({
  /** `space/default` (built in), `network/NAME`, `runner/NETWORK/RUNNER`, `pool/NAME`. */
  name: field.poolName,
  /** How its integers are formatted, and what errors call them. */
  kind: z.enum(["space", "address", "id", "port"]),
  ranges: field.ranges,
  /** Inside the ranges, never given out. */
  reserved: field.ranges.exactOptional(),
  /** Given only to requests by value. */
  staticOnly: field.ranges.exactOptional(),
  allocation: z.enum(["lowest", "hashed", "random", "external"]),
  /** false: requests by value only (`vip` pools). */
  autoAssign: field.flag.exactOptional(),
  avoidBoundaryIps: field.flag.exactOptional(),
  quota: quota.exactOptional(),
  tenant: tenant.exactOptional(),
  /** Previews warn from this percentage on. */
  warnAtPercent: z.number().exactOptional(),
  /** On exhaustion take the least recently seen lease, if it was not seen for this many seconds. */
  reclaimAfter: z.number().exactOptional(),
  /** Data of the resource that owns the pool, e.g. settings of a network. No secrets. */
  data: field.json.exactOptional(),
});
export interface PoolSpec extends z.output<typeof poolSpec> {}

const givenSpec = poolSpec
  .extend({ warnAtPercent: z.number().min(0).max(100).exactOptional(), reclaimAfter: field.seconds.exactOptional() })
  .strict();

const port = z.object({ protocol: z.enum(["tcp", "udp", "sctp"]), port: z.number().int().min(0).max(65_535) });
export interface Port extends z.output<typeof port> {}

/**
 * What a resource says about its lease and may change at any time. A field that is added here is sent, offered, claimed, imported, changed with its
 * resource, and read; it needs a column in `store/schema.ts`, which tsc names.
 */
const plain = {
  labels: field.labels,
};
export const PLAIN_DETAILS = Object.keys(plain) as (keyof typeof plain)[];

/** What a lease, its offer and their rows have as the request has it. Besides plain ones, fields with rules of their own. */
const details = z.object({
  ...field.optional(plain),
  /** The resource type, e.g. `RunnerSubnet`. */
  type: field.word,
  /** Leases with one key may share a value. */
  sharingKey: field.text.exactOptional(),
  ports: z.array(port).max(1000).exactOptional(),
  /** Unique in the whole store, e.g. `runner/training/node1`. Freed with the lease. */
  names: z.array(field.text).max(20).exactOptional(),
  tenant: tenant.exactOptional(),
  /** The container that uses it. */
  usedBy: field.text.exactOptional(),
  data: field.json.exactOptional(),
});
export interface Details extends z.output<typeof details> {
  /** The user that made it, as `USER@HOST`. A service takes it from the access token. */
  by?: string;
}

const DETAILS = details.keyof().options;

/** What a request has that its lease has as it is. */
export function detailsOf(request: Details): Details {
  const found: Details = { type: request.type, ...(request.by !== undefined && { by: request.by }) };
  for (const name of DETAILS) if (request[name] !== undefined) Object.assign(found, { [name]: request[name] });
  return found;
}

const claimFields = {
  ...details.shape,
  pool: field.poolName,
  /** scope + the resource's URN. */
  owner: field.givenOwner,
  childPool: givenSpec.exactOptional(),
  /** Evicts holders of these values and ports that have the same tenant and type. */
  evictSameTenant: field.flag.exactOptional(),
  /**
   * For claims that may be retried: the owner has one lease in the pool. Another claim gets it under the same lease id and
   * starts its ttl again; a claim for other values, or of a lease that is in use, fails with `RESERVATION_EXISTS`.
   */
  idempotent: field.flag.exactOptional(),
  /** Preferred if they are free and the pool chooses: what the owner held before it was replaced. */
  preferred: field.ranges.exactOptional(),
  /** The owner before it was renamed in this run: its leases count as those of the owner. */
  formerOwner: field.givenOwner.exactOptional(),
  /** Identifies the program of a stack, which differs between branches: a preview shows its values to one program only. */
  program: field.word.exactOptional(),
  /** The values that resources of this program ask for: never chosen automatically. */
  declared: field.list(field.range).exactOptional(),
  /** Identifies the run of Pulumi. */
  run: field.word.exactOptional(),
  /** What the pool is in the program of the request, if a resource of its stack has the pool. */
  spec: givenSpec.exactOptional(),
  /** Uids of leases of the same stack that end in this run. */
  mayEnd: field.list(field.uid).exactOptional(),
  /** Uids of leases of the same stack that do not end in this run. */
  stays: field.list(field.uid).exactOptional(),
};

export const request = z.strictObject({
  ...claimFields,
  /** Exactly these; absent: the pool chooses. */
  values: field.ranges.exactOptional(),
  /** How many consecutive integers the pool chooses; a power of two, aligned. Default 1. */
  size: field.size.exactOptional(),
  /** The pool chooses only inside this. */
  range: field.range.exactOptional(),
  /** One more value inside each of these, in the same lease: dual stack takes an address of each family. */
  secondRange: field.ranges.exactOptional(),
  /** Where no address under its sharing key has its ports free: `fail` (default), or give it another address under that key. */
  onPortConflict: z.enum(["fail", "anotherAddress"]).exactOptional(),
  /** Seconds for which it stays reserved without being used; absent: until it is released. */
  ttl: field.seconds.exactOptional(),
});
export interface Request extends z.output<typeof request>, Pick<Details, "by"> {}

/** An up stops if what was shown cannot be given; a preview shows another value. */
export const offerRequest = request.extend({ inUp: field.flag.exactOptional() });
export interface OfferRequest extends z.output<typeof offerRequest>, Pick<Details, "by"> {}

/** A lease that exists outside the store and must be imported. */
export const existingLease = z.strictObject({
  ...claimFields,
  values: field.ranges,
  /** Its ids, if it was in a store before; else it gets new ones. */
  identity: z.strictObject({ uid: field.uid, leaseId: field.leaseId }).exactOptional(),
  /** `used`: even if `usedBy` is unknown. */
  state: z.literal("used").exactOptional(),
});
export interface ExistingLease extends z.output<typeof existingLease>, Pick<Details, "by"> {}

const epoch = z.string().regex(/^[\w.-]{0,200}$/, "must be an epoch");

/** The version of a store. */
export const storeVersion = z.object({
  /** Grows with every commit; lower than before only if commits were lost. */
  version: field.count,
  /** Tells apart equal versions before and after the restore of a backup. */
  epoch,
});
export interface StoreVersion extends z.output<typeof storeVersion> {}

/** The id and version of the store. The id is random, and stays when the store moves to another engine. */
export const storeIdentity = storeVersion.extend({ id: field.word });
export interface StoreIdentity extends z.output<typeof storeIdentity> {}

/** How a lease ended. */
export const leaseEnd = z.object({
  reason: z.enum(["released", "expired", "reclaimed", "handed over", "out of range", "pool deleted"]),
  /** The owner that has its values now. */
  takenBy: field.text.exactOptional(),
});
export interface LeaseEnd extends z.output<typeof leaseEnd> {}

export const lease = z.object({
  ...details.shape,
  pool: field.poolName,
  owner: field.text,
  ranges: z.array(field.range).min(1),
  /** `ended`: an end record, which holds no values and is kept for thirty days. */
  state: z.enum(["offered", "reserved", "used", "quarantined", "ended"]),
  /** Renewed by every claim; a release with an older id does nothing. */
  leaseId: field.leaseId,
  /** Made at the first claim; stays the same when the lease is renewed or renamed. Identifies its items on hosts. */
  uid: field.uid,
  /** Name of its child pool. */
  childPool: field.poolName.exactOptional(),
  by: field.text.exactOptional(),
  ttl: z.number().exactOptional(),
  createdAt: field.time,
  updatedAt: field.time,
  lastSeen: field.time,
  expiresAt: field.time.exactOptional(),
  /** Of an ended lease: until when its owner gets the values before others. */
  quarantinedUntil: field.time.exactOptional(),
  /** Of an offer: uids of leases that must end before it is claimed. */
  afterLease: z.array(field.uid).exactOptional(),
  /** A delete has begun at this time and is not done. */
  deletingSince: field.time.exactOptional(),
  end: leaseEnd.exactOptional(),
  /** Of the commit that has claimed or changed it, where that returns it; not stored. */
  version: storeVersion.exactOptional(),
  /** Warnings for the user; not stored. */
  warnings: z.array(field.text).exactOptional(),
});
export interface Lease extends z.output<typeof lease> {}

/** Held by its owner; not an offer, not quarantined, not ended. */
export const isCommitted = ({ state }: Pick<Lease, "state">): boolean => state === "reserved" || state === "used";

/** Whether so many leases, on so many values, keep the quota of a pool. */
export const isWithinQuota = ({ quota = {} }: Pick<PoolSpec, "quota">, leases: number, values: bigint): boolean =>
  leases <= (quota.maxReservations ?? Infinity) && values <= (quota.maxIps ?? Infinity);

/** The data of a lease as an object. */
export const dataEntries = ({ data }: Pick<Lease, "data">): { [key: string]: field.Json } =>
  typeof data === "object" && data !== null && !Array.isArray(data) ? data : {};

const heldState = z.enum(["reserved", "used"]);

/** Changes of a lease in place. Absent fields stay as they are; null removes them. */
export const changes = z.strictObject({
  ...details.pick({ names: true, ports: true, usedBy: true, data: true }).shape,
  ...field.removable({
    ...plain,
    /** The tenant of the caller, which must be that of the pool, if the pool has one. */
    tenant,
    /** Without it: held until released. */
    ttl: field.seconds,
    /** Without it: not shared any more. Refused while another lease shares the value. */
    sharingKey: field.text,
  }),
  owner: field.givenOwner.exactOptional(),
  childPool: givenSpec.exactOptional(),
  state: heldState.exactOptional(),
  /** The new bounds of a block, when its pool is resized. */
  ranges: field.ranges.exactOptional(),
  /** Evicts holders of the ports that have the same tenant and type. */
  evictSameTenant: field.flag.exactOptional(),
  /** A delete of its resource has begun; false: the delete was cancelled. */
  deleting: field.flag.exactOptional(),
});
export interface Changes extends z.output<typeof changes>, Pick<Details, "by"> {}

/** The state of a lease that a change requires; compared in the same transaction. */
export const condition = z.strictObject({
  state: heldState.exactOptional(),
  usedBy: field.text.exactOptional(),
  /** Entries of its data; undefined: there is no such entry. */
  data: field.dataEntries.exactOptional(),
});
export interface Condition extends z.output<typeof condition> {}

export interface ChangeOptions {
  dryRun?: boolean;
  onlyIf?: Condition;
}

/** How a lease of a pool is looked up; `name` is one of its names. */
export type LeaseKey = { leaseId: string } | { uid: string } | { owner: string } | { value: bigint } | { name: string };

const inPool = <F extends z.ZodRawShape>(fields: F) => z.strictObject({ pool: field.poolName, ...fields });

/** Which lease is read. */
export const leaseSelector = z.union([
  // A lease before an offer.
  inPool({ leaseId: field.leaseId }),
  inPool({ uid: field.uid }),
  inPool({ owner: field.text }),
  inPool({ value: field.value }),
  inPool({ name: field.text }),
  // How the lease with this uid ended, if it did within the last thirty days.
  inPool({ endedUid: field.uid }),
  // The lease or the offer that has this name, in any pool.
  z.strictObject({ name: field.text }),
  // What this program was shown for the owner, in any pool; also if that has expired.
  z.strictObject({ owner: field.text, program: field.text }),
]);
export type LeaseSelector = z.output<typeof leaseSelector>;

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
export const event = z.object({
  at: field.time,
  what: z.enum(EVENT_KINDS),
  pool: field.poolName,
  owner: field.text,
  uid: field.uid,
  leaseId: field.leaseId,
  ranges: z.array(field.range),
  tenant: tenant.exactOptional(),
  /** The container that used the lease. */
  usedBy: field.text.exactOptional(),
  /** The user that made the change, as `USER@HOST`; absent when a lease expired. */
  by: field.text.exactOptional(),
  /** Of a lease that was reclaimed or handed over: the owner that has its values now. */
  takenBy: field.text.exactOptional(),
  /** Of a lease that was renamed. */
  formerOwner: field.text.exactOptional(),
});
export interface Event extends z.output<typeof event> {}

/** A change with its number in the event log: ids have no gaps, and follow the order of the commits. */
const loggedEvent = event.extend({ id: field.count });
export interface LoggedEvent extends z.output<typeof loggedEvent> {}

/** `last`: the id of the newest event of the store; 0: there is none. */
export const eventPage = z.object({ events: z.array(loggedEvent), last: field.count });
export interface EventPage extends z.output<typeof eventPage> {}

/** What the token of a reservation permits: the use of one lease. */
export const tokenClaims = z.object({
  pool: field.poolName,
  value: field.bigint,
  /** `NETWORK/RUNNER`. */
  runner: field.text,
  owner: field.text,
  leaseId: field.leaseId,
  /** Absent: as long as the lease stands. */
  expiresAt: field.time.exactOptional(),
});
export interface TokenClaims extends z.output<typeof tokenClaims> {}

export interface ExpectedToken {
  /** The token must be for this one: `NETWORK/RUNNER`, or the runner's name alone. */
  runner?: string;
  /** For callers that do not read the store. Others leave it out: the clock of the store decides. */
  now?: number;
}

const usage = z.object({
  /** How many values the pool can give out. */
  capacity: field.bigint,
  /** How many of them are held, offers included. */
  held: field.bigint,
  /** Leases by state. */
  offered: field.count,
  reserved: field.count,
  used: field.count,
  quarantined: field.count,
  /** When it is filled to its `warnAtPercent`. */
  warning: field.text.exactOptional(),
});
export interface Usage extends z.output<typeof usage> {}

/** The epochs in which the store was seen are read once for all resources of a stack: versions from `first` to `last` are accepted alike. */
export const seenEpoch = z.object({
  first: field.count,
  last: field.count,
  /** The epoch is accepted because the store was rebuilt since. */
  recovered: field.flag,
});
export interface SeenEpoch extends z.output<typeof seenEpoch> {}

/** A store for one user. */
export interface StoreInfo extends StoreIdentity {
  /** Why a preview can show no new values; absent when it can. */
  whyNoOffers?: string;
  /** Why this user may not change leases; absent if it may. */
  whyNoClaims?: OverlayError;
  /** The epoch of the version that was seen. */
  seen?: SeenEpoch;
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
export type PoolSelector = { name: string; withUsage?: boolean } | PoolList;

export const poolInfo = z.object({
  spec: poolSpec,
  usage: usage.exactOptional(),
});
export interface PoolInfo extends z.output<typeof poolInfo> {}

/** Which events are read. */
export type EventSelector =
  /** Those of a pool, from this time on, after the event with this id. */
  | { pool: string; since?: number; after?: number; limit?: number }
  /** Those of all pools after the event with this id; without `after` none, only the id of the newest one. */
  | { after?: number; limit?: number };

export type { Ipam, Store } from "./interface";
