import { z } from "zod";
import { MAX_IP } from "../../addressing/ip";
import { CODES, type Code, OverlayError } from "../../errors";
import { isJson, isLeaseId, isPoolName, isRange, isText, isUid, isWord, rangeOf, rangeText } from "../store/columns";
import {
  type Changes,
  type Condition,
  EVENT_KINDS,
  type ExistingLease,
  type Extent,
  type Json,
  type Lease,
  type LeaseEnd,
  type LeaseSelector,
  type LoggedEvent,
  type OfferRequest,
  type PoolInfo,
  type PoolSpec,
  type Port,
  type Request,
  type StoreIdentity,
  type StoreInfo,
  type StoreVersion,
  type Tenant,
  type TokenClaims,
  type Usage,
} from "../types";

/**
 * The types of the pool as JSON: extents as `FIRST-LAST` in hexadecimal, as in the rows of a store, other bigints in decimal. Each schema
 * both encodes and decodes. Requests with a field that is not known are refused; in answers such a field is dropped, because a newer service
 * may send more than an older client knows.
 */

/** Entries of a list in a request. */
const MOST = 10_000;

/** A schema for each field of T: a field that is added to the type must be added here, too. */
const fieldsOf =
  <T>() =>
  <F extends { [K in keyof Required<T>]: z.ZodType }>(fields: F) =>
    z.object(fields);

export const text = z.string().refine(isText, "must be plain text of at most 4000 characters");
export const poolName = z.string().refine(isPoolName, "must be the name of a pool");
const word = z.string().refine(isWord, "must be a word");
const uid = z.string().refine(isUid, "must be a uid");
export const leaseId = z.string().refine(isLeaseId, "must be a lease id");
/** Not limited: the store may have later ones. */
export const time = z.number().min(-1);
/** Seconds of a ttl or a quarantine: at most ten years, so that every time in the store is one that can be shown. */
export const seconds = z.number().int().min(0).max(315_360_000, "must be seconds, at most ten years");
export const count = z.number().int().min(0).max(Number.MAX_SAFE_INTEGER);
const json = z.custom<Json>((value) => value !== undefined && isJson(value), "must be JSON with plain text");
const labels = z.record(text, text).refine((map) => Object.keys(map).length <= MOST, `must have at most ${MOST}`);
const list = <S extends z.ZodType>(schema: S) => z.array(schema).max(MOST);
/** Of a lease: that of its child pool, those of devices on its host, or that of its container. */
const names = z.array(text).max(20);

export const bigint = z.codec(z.string().regex(/^-?\d{1,40}$/, "must be a whole number"), z.bigint(), {
  decode: (digits) => BigInt(digits),
  encode: String,
});

/** A value of a pool, or -1: before the first one. */
export const value = bigint.refine((value) => -1n <= value && value <= MAX_IP, "must be a value of a pool");

export const extent = z.codec(
  z.string().refine(isRange, "must be FIRST-LAST in hexadecimal"),
  z.object({ first: z.bigint().min(0n), last: z.bigint().max(MAX_IP) }),
  {
    decode: (hexadecimal, context): Extent => {
      try {
        return rangeOf(hexadecimal);
      } catch {
        context.issues.push({ code: "custom", message: "must not end before it begins", input: hexadecimal });
        return z.NEVER;
      }
    },
    encode: rangeText,
  },
);
export const extents = list(extent);

export const tenant = fieldsOf<Tenant>()({ org: text, project: text });
const port = fieldsOf<Port>()({
  protocol: z.enum(["tcp", "udp", "sctp"]),
  port: z.number().int().min(0).max(65_535),
});
const ports = list(port);

export const quota = z.strictObject({ maxIps: count.exactOptional(), maxReservations: count.exactOptional() });

export const poolSpec = fieldsOf<PoolSpec>()({
  name: poolName,
  kind: z.enum(["space", "address", "id", "port"]),
  extents,
  reserved: extents.exactOptional(),
  staticOnly: extents.exactOptional(),
  allocation: z.enum(["lowest", "hashed", "random", "external"]),
  autoAssign: z.boolean().exactOptional(),
  avoidBoundaryIps: z.boolean().exactOptional(),
  quota: quota.exactOptional(),
  tenant: tenant.exactOptional(),
  warnAtPercent: z.number().exactOptional(),
  reclaimAfter: z.number().exactOptional(),
  data: json.exactOptional(),
});
export const givenSpec = poolSpec
  .extend({ warnAtPercent: z.number().min(0).max(100).exactOptional(), reclaimAfter: seconds.exactOptional() })
  .strict();

/** An owner of leases that a client makes. The service itself is the owner of others. */
export const owner = text.refine((name) => !name.startsWith("service/"), "must not begin with service/");

const requestFields = {
  pool: poolName,
  owner,
  type: word,
  childPool: givenSpec.exactOptional(),
  names: names.exactOptional(),
  tenant: tenant.exactOptional(),
  labels: labels.exactOptional(),
  usedBy: text.exactOptional(),
  data: json.exactOptional(),
  sharingKey: text.exactOptional(),
  ports: ports.exactOptional(),
  evictSameTenant: z.boolean().exactOptional(),
  idempotent: z.boolean().exactOptional(),
  preferred: extents.exactOptional(),
  formerOwner: owner.exactOptional(),
  program: word.exactOptional(),
  declared: extents.exactOptional(),
  run: word.exactOptional(),
  spec: givenSpec.exactOptional(),
  mayEnd: list(uid).exactOptional(),
  stays: list(uid).exactOptional(),
};

const claimFields = {
  ...requestFields,
  values: extents.exactOptional(),
  size: bigint.refine((size) => 0n < size && size <= MAX_IP, "must be positive, and less than 2^128").exactOptional(),
  range: extent.exactOptional(),
  secondRange: extents.exactOptional(),
  onPortConflict: z.enum(["fail", "anotherAddress"]).exactOptional(),
  ttl: seconds.exactOptional(),
};

/** Without `by`: a service takes the user from the access token. */
export const request = fieldsOf<Omit<Request, "by">>()(claimFields).strict();

export const offerRequest = fieldsOf<Omit<OfferRequest, "by">>()({
  ...claimFields,
  inUp: z.boolean().exactOptional(),
}).strict();

export const existingLease = fieldsOf<Omit<ExistingLease, "by">>()({
  ...requestFields,
  values: extents,
  identity: z.strictObject({ uid, leaseId }).exactOptional(),
  state: z.literal("used").exactOptional(),
}).strict();

export const changes = fieldsOf<Omit<Changes, "by">>()({
  names: names.exactOptional(),
  childPool: givenSpec.exactOptional(),
  labels: labels.exactOptional(),
  usedBy: text.exactOptional(),
  data: json.exactOptional(),
  tenant: tenant.nullable().exactOptional(),
  owner: owner.exactOptional(),
  state: z.enum(["reserved", "used"]).exactOptional(),
  ttl: seconds.nullable().exactOptional(),
  extents: extents.exactOptional(),
  sharingKey: text.nullable().exactOptional(),
  ports: ports.exactOptional(),
  evictSameTenant: z.boolean().exactOptional(),
  deleting: z.boolean().exactOptional(),
}).strict();

/** JSON has no undefined, which means in `data` that there is no such entry: an absent `value`. */
const dataEntriesOf = z.codec(
  list(z.strictObject({ key: text, value: json.exactOptional() })),
  z.record(z.string(), z.union([json, z.undefined()])),
  {
    decode: (entries) => Object.fromEntries(entries.map(({ key, value }) => [key, value])),
    encode: (data) =>
      Object.entries(data).map(([key, value]) => (value === undefined ? { key } : { key, value: value as Json })),
  },
);

export const condition = fieldsOf<Condition>()({
  state: z.enum(["reserved", "used"]).exactOptional(),
  usedBy: text.exactOptional(),
  data: dataEntriesOf.exactOptional(),
}).strict();

export const leaseSelector: z.ZodType<LeaseSelector> = z.union([
  z.strictObject({ pool: poolName, leaseId }),
  z.strictObject({ pool: poolName, uid }),
  z.strictObject({ pool: poolName, owner: text }),
  z.strictObject({ pool: poolName, value }),
  z.strictObject({ pool: poolName, name: text }),
  z.strictObject({ pool: poolName, endedUid: uid }),
  z.strictObject({ name: text }),
  z.strictObject({ owner: text, program: text }),
]);

const epoch = z.string().regex(/^[\w.-]{0,200}$/, "must be an epoch");
const storeVersion = fieldsOf<StoreVersion>()({ version: count, epoch });
export const storeIdentity = fieldsOf<StoreIdentity>()({ version: count, epoch, id: word });

const leaseEnd = fieldsOf<LeaseEnd>()({
  reason: z.enum(["released", "expired", "reclaimed", "handed over", "out of range", "pool deleted"]),
  takenBy: text.exactOptional(),
});

export const lease = fieldsOf<Lease>()({
  pool: poolName,
  owner: text,
  type: word,
  extents: z.array(extent).min(1),
  state: z.enum(["offered", "reserved", "used", "quarantined", "ended"]),
  leaseId,
  uid,
  childPool: poolName.exactOptional(),
  sharingKey: text.exactOptional(),
  ports: z.array(port).exactOptional(),
  createdAt: time,
  updatedAt: time,
  lastSeen: time,
  expiresAt: time.exactOptional(),
  quarantinedUntil: time.exactOptional(),
  afterLease: z.array(uid).exactOptional(),
  deletingSince: time.exactOptional(),
  end: leaseEnd.exactOptional(),
  warnings: z.array(text).exactOptional(),
  names: z.array(text).exactOptional(),
  tenant: tenant.exactOptional(),
  labels: z.record(text, text).exactOptional(),
  usedBy: text.exactOptional(),
  ttl: z.number().exactOptional(),
  data: json.exactOptional(),
  by: text.exactOptional(),
  version: storeVersion.exactOptional(),
});

export const event = fieldsOf<LoggedEvent>()({
  id: count,
  at: time,
  what: z.enum(EVENT_KINDS),
  pool: poolName,
  owner: text,
  uid,
  leaseId,
  extents: z.array(extent),
  tenant: tenant.exactOptional(),
  usedBy: text.exactOptional(),
  by: text.exactOptional(),
  takenBy: text.exactOptional(),
  formerOwner: text.exactOptional(),
});

const usage = fieldsOf<Usage>()({
  capacity: bigint,
  held: bigint,
  offered: count,
  reserved: count,
  used: count,
  quarantined: count,
  warning: text.exactOptional(),
});

export const poolInfo = fieldsOf<PoolInfo>()({
  spec: poolSpec,
  usage: usage.exactOptional(),
  held: z.array(lease).exactOptional(),
});

export const grant = fieldsOf<TokenClaims>()({
  pool: poolName,
  value: bigint,
  runner: text,
  owner: text,
  leaseId,
  expiresAt: time.exactOptional(),
});

/** The longest text of an error. */
const sentence = z.string().max(20_000);

/** The lease that keeps a request from its values. One that the sender may not see has no uid, and is left out. */
const holder = fieldsOf<NonNullable<OverlayError["holder"]>>()({
  pool: poolName,
  owner: text,
  uid,
  extents: z.array(extent),
});

/** An error as RFC 9457 has it in `application/problem+json`, as far as it is needed here. */
const problem = z.object({
  code: z.string(),
  what: sentence,
  fix: sentence,
  property: z.string().max(1000).exactOptional(),
  holder: holder.exactOptional(),
});

/** A code that only a newer service knows becomes `INTERNAL`. */
export const overlayError = z.codec(problem, z.instanceof(OverlayError), {
  decode: ({ code, what, fix, property, holder }) => {
    const error = new OverlayError(CODES.find((known) => known === code) ?? ("INTERNAL" satisfies Code), what, fix);
    return Object.assign(error, property !== undefined && { property }, holder && { holder });
  },
  encode: ({ code, what, fix, property, holder }) => ({
    ...{ code, what, fix },
    ...(property !== undefined && { property }),
    ...(holder && holder.uid !== "" && { holder }),
  }),
});

export const storeInfo = fieldsOf<StoreInfo>()({
  ...storeIdentity.shape,
  whyNoOffers: text.exactOptional(),
  whyNoClaims: overlayError.exactOptional(),
  seen: z.object({ first: count, last: count, recovered: z.boolean() }).exactOptional(),
});
