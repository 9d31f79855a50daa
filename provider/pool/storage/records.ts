import { OverlayError } from "../../errors";
import { capacityOf } from "../extents";
import {
  ACCESS_SCOPES,
  type AccessToken,
  type Delivery,
  type Event,
  type Extent,
  type Lease,
  type LeaseEnd,
  type PoolSpec,
  type Port,
  type PreviousHolder,
  type Tenant,
  type Webhook,
} from "../types";
import {
  InvalidField,
  isBoolean,
  isCount,
  isDigits,
  isExtent,
  isJson,
  isLeaseId,
  isListOf,
  isNumber,
  isOf,
  isOneOf,
  isPoolName,
  isPort,
  isRequestId,
  isText,
  isTextMap,
  isUid,
  isWord,
  requireShape,
  type Shape,
  shape,
} from "./fields";

/** The rows of the store, and how they are encoded: JSON, with extents as `FIRST-LAST` in hexadecimal. */
export interface Codec<T> {
  encode(value: T): string;
  decode(text: string): T;
}

/** A pool as stored. */
export interface PoolRecord {
  spec: PoolSpec;
  /** The lease whose child pool it is; address spaces have none. */
  opener?: { pool: string; uid: string };
  /** The child pool of an offer: it ends at this time. */
  until?: number;
  /** It is being deleted: claims are refused. */
  closing?: boolean;
  /** How many values it can give out, in decimal: written for the views of SQL stores, never read here. */
  capacity?: string;
}

/** The holder of an extent: one lease, or all leases that share it under a key. */
export interface Allocation {
  extent: Extent;
  uid?: string;
  sharedAs?: string;
}

export interface Counts {
  offered: number;
  reserved: number;
  used: number;
  quarantined: number;
  /** Values that are held or offered; a shared one counts once. */
  held: bigint;
  /** Nothing in the pool expires before this time. */
  soonest?: number;
  /** Rows of its history. */
  events?: number;
}

export type LeaseRef = { pool: string; uid: string };
/** A deleted pool, and when it was deleted. */
export type DeletedPool = { pool: string; at: number };

const extentText = ({ first, last }: Extent): string => `${first.toString(16)}-${last.toString(16)}`;

function extentOf(text: string): Extent {
  if (!isExtent(text)) throw new InvalidField("extent");
  const dash = text.indexOf("-");
  const [first, last] = [BigInt(`0x${text.slice(0, dash)}`), BigInt(`0x${text.slice(dash + 1)}`)];
  if (first > last) throw new InvalidField("extent");
  return { first, last };
}

const isTenant = isOf(shape<Tenant>({ org: isText, project: isText }));
const portShape = shape<Port>({ protocol: isOneOf("tcp", "udp", "sctp"), port: isPort });

const previousHolderShape = shape<PreviousHolder>(
  { owner: isText, type: isWord, uid: isUid, leaseId: isLeaseId, createdAt: isNumber, lastSeen: isNumber },
  { tenant: isTenant },
);

const leaseShape = shape<Lease>(
  {
    pool: isPoolName,
    owner: isText,
    type: isWord,
    extents: isListOf(isExtent),
    state: isOneOf("offered", "reserved", "used", "quarantined", "ended"),
    leaseId: isLeaseId,
    uid: isUid,
    createdAt: isNumber,
    updatedAt: isNumber,
    lastSeen: isNumber,
  },
  {
    childPool: isPoolName,
    sharingKey: isText,
    ports: isListOf(isOf(portShape)),
    expiresAt: isNumber,
    quarantinedUntil: isNumber,
    quarantinedFor: isOf(previousHolderShape),
    request: isRequestId,
    shownTo: isListOf(isWord),
    waitsFor: isListOf(isUid),
    deletingSince: isNumber,
    end: isOf(
      shape<LeaseEnd>(
        { reason: isOneOf("released", "expired", "taken", "out of range", "pool deleted") },
        { takenBy: isText, wasOffer: isBoolean },
      ),
    ),
    names: isListOf(isText),
    tenant: isTenant,
    labels: isTextMap,
    usedBy: isText,
    ttl: isNumber,
    data: isJson,
    by: isText,
  },
);

const WHAT: Record<Event["what"], true> = {
  claimed: true,
  renewed: true,
  used: true,
  unused: true,
  amended: true,
  renamed: true,
  released: true,
  expired: true,
  reclaimed: true,
  "handed over": true,
  imported: true,
};

const eventShape = shape<Event>(
  {
    at: isNumber,
    what: isOneOf(...Object.keys(WHAT)),
    pool: isPoolName,
    owner: isText,
    uid: isUid,
    leaseId: isLeaseId,
    extents: isListOf(isExtent),
  },
  { tenant: isTenant, usedBy: isText, by: isText, takenBy: isText, formerOwner: isText },
);

const isExtents = isListOf(isExtent);
const specShape = shape<PoolSpec>(
  {
    name: isPoolName,
    kind: isOneOf("space", "address", "id", "port"),
    extents: isExtents,
    allocation: isOneOf("lowest", "hashed", "random", "external"),
  },
  {
    reserved: isExtents,
    staticOnly: isExtents,
    autoAssign: isBoolean,
    avoidBoundaryIps: isBoolean,
    quota: isOf(shape<NonNullable<PoolSpec["quota"]>>({}, { maxIps: isNumber, maxReservations: isNumber })),
    tenant: isTenant,
    warnAtPercent: isNumber,
    reclaimAfter: isNumber,
    data: isJson,
  },
);

const leaseRefShape = shape<LeaseRef>({ pool: isPoolName, uid: isUid });
const poolShape = shape<PoolRecord>(
  { spec: isOf(specShape) },
  { opener: isOf(leaseRefShape), until: isNumber, closing: isBoolean, capacity: isDigits },
);
const allocationShape = shape<Allocation>({ extent: isExtent }, { uid: isUid, sharedAs: isText });
const countsShape = shape<Counts>(
  { offered: isCount, reserved: isCount, used: isCount, quarantined: isCount, held: isDigits },
  { soonest: isNumber, events: isCount },
);

/** Leases and pools contain text of users: text that could not be decoded is not written. All other rows are derived from them. */
function requireWritable<T extends object>(packed: T, form: Shape): T {
  if (form !== leaseShape && form !== poolShape) return packed;
  try {
    requireShape(packed, form);
    return packed;
  } catch (error) {
    if (!(error instanceof InvalidField)) throw error;
    throw new OverlayError(
      "INPUT_INVALID",
      `The ${error.field} of this resource has characters that the store does not take, such as control characters.`,
      "Give it a plain name.",
    );
  }
}

/** JSON, with one field encoded in another way. Every claim decodes a dozen rows, so nothing is copied twice. */
const json = <T extends object, K extends keyof T, P>(
  form: Shape,
  field: K,
  pack: (value: T[K]) => P,
  unpack: (raw: P) => T[K],
): Codec<T> => ({
  encode: (value) => JSON.stringify(requireWritable({ ...value, [field]: pack(value[field]) }, form)),
  decode: (text) => {
    const value = JSON.parse(text);
    requireShape(value, form);
    value[field] = unpack(value[field]);
    return value;
  },
});

/** Caches decoded rows: every operation reads its pool, which hardly ever changes. */
function withCache<T extends object>({ encode, decode }: Codec<T>): Codec<T> {
  const known = new Map<string, T>();
  return {
    encode,
    decode: (text) => {
      const value = known.get(text) ?? decode(text);
      if (known.size > 1000) known.clear();
      known.set(text, value);
      return value;
    },
  };
}

const packSpec = ({ extents, reserved, staticOnly, ...spec }: PoolSpec) => ({
  ...spec,
  extents: extents.map(extentText),
  ...(reserved && { reserved: reserved.map(extentText) }),
  ...(staticOnly && { staticOnly: staticOnly.map(extentText) }),
});

const unpackSpec = ({ extents, reserved, staticOnly, ...spec }: ReturnType<typeof packSpec>): PoolSpec => ({
  ...spec,
  extents: extents.map(extentOf),
  ...(reserved && { reserved: reserved.map(extentOf) }),
  ...(staticOnly && { staticOnly: staticOnly.map(extentOf) }),
});

/** Two specs are equal if their texts are equal. */
export const specText = (spec: PoolSpec): string => JSON.stringify(packSpec(spec));

const extentList = <T extends { extents: Extent[] }>(form: Shape): Codec<T> =>
  json<T, "extents", string[]>(
    form,
    "extents",
    (extents) => extents.map(extentText),
    (texts) => texts.map(extentOf),
  );

export const leaseCodec = extentList<Lease>(leaseShape);
export const eventCodec = extentList<Event>(eventShape);
export const eventsCodec: Codec<Event[]> = {
  encode: (events) => `[${events.map(eventCodec.encode).join(",")}]`,
  decode: (text) => {
    const events = JSON.parse(text);
    if (!Array.isArray(events)) throw new InvalidField("events");
    return events.map((event) => eventCodec.decode(JSON.stringify(event)));
  },
};
const plainPoolCodec = json<PoolRecord, "spec", ReturnType<typeof packSpec>>(poolShape, "spec", packSpec, unpackSpec);
export const poolCodec = withCache({
  ...plainPoolCodec,
  encode: (record) => plainPoolCodec.encode({ ...record, capacity: String(capacityOf(record.spec)) }),
});
export const allocationCodec = json<Allocation, "extent", string>(allocationShape, "extent", extentText, extentOf);
export const countsCodec = json<Counts, "held", string>(countsShape, "held", String, BigInt);

export const plainJson = <T extends object>(form: Shape): Codec<T> => ({
  encode: JSON.stringify,
  decode: (text) => {
    const value = JSON.parse(text);
    requireShape(value, form);
    return value;
  },
});
export const accessTokenCodec = plainJson<AccessToken>(
  shape<AccessToken>(
    {
      id: isWord,
      name: isText,
      hash: isWord,
      scopes: isListOf(isOneOf(...ACCESS_SCOPES)),
      createdAt: isNumber,
    },
    { tenant: isTenant, network: isText, pool: isText, createdBy: isText, expiresAt: isNumber, revokedAt: isNumber },
  ),
);
export const webhookCodec = plainJson<Webhook>(
  shape<Webhook>(
    { id: isWord, url: isText, secret: isWord, createdAt: isNumber },
    { tenant: isTenant, network: isText, pool: isText, createdBy: isText },
  ),
);
export const deliveryCodec = plainJson<Delivery>(
  shape<Delivery>(
    { delivered: isCount },
    {
      holder: isWord,
      heldUntil: isNumber,
      failures: isCount,
      failedSince: isNumber,
      error: isText,
      retryAt: isNumber,
      suspended: isBoolean,
    },
  ),
);
export const leaseRefCodec = plainJson<LeaseRef>(leaseRefShape);
export const deletedPoolCodec = plainJson<DeletedPool>(shape<DeletedPool>({ pool: isPoolName, at: isNumber }));

/** Versions `first` to `last` of a store, which belong to one history of it. */
export interface Epoch {
  id: string;
  first: number;
  last: number;
}
/** The epoch that is still open, with the store's version as its `last`. */
export interface StoreHead extends Epoch {
  /** When the epoch began. */
  since: number;
  /** How many epochs there were before it. */
  number: number;
  /** The id of the newest event in the event log; absent: none. */
  events?: number;
}
const isEpochId = (value: unknown): boolean => value === "" || isWord(value);
const epochFields = { id: isEpochId, first: isCount, last: isCount };
export const epochCodec = plainJson<Epoch>(shape<Epoch>(epochFields));
export const headCodec = plainJson<StoreHead>(
  shape<StoreHead>({ ...epochFields, since: isNumber, number: isCount }, { events: isCount }),
);

export const extentCodec: Codec<Extent> = { encode: extentText, decode: extentOf };
export const textCodec: Codec<string> = { encode: (text) => text, decode: (text) => text };
export const uidCodec: Codec<string> = {
  encode: (uid) => uid,
  decode: (text) => {
    if (isUid(text)) return text;
    throw new InvalidField("uid");
  },
};
/** The id of a store. */
export const wordCodec: Codec<string> = {
  encode: (id) => id,
  decode: (text) => {
    if (isWord(text)) return text;
    throw new InvalidField("id");
  },
};
export const idsCodec: Codec<string[]> = {
  encode: JSON.stringify,
  decode: (text) => {
    const ids = JSON.parse(text);
    if (isListOf(isWord)(ids)) return ids;
    throw new InvalidField("id");
  },
};

/** The row under `key`; `STORE_CORRUPT` names it where it is not in its form. */
export function decodeRow<T>({ decode }: Pick<Codec<T>, "decode">, key: string, text: string): T {
  try {
    return decode(text);
  } catch (error) {
    const reason = error instanceof InvalidField ? error.message : "it is not JSON";
    throw new OverlayError(
      "STORE_CORRUPT",
      `Row ${key} of the store is not valid (${reason}).`,
      "It was damaged, or written by another program. Find out by which, and restore the store from a backup, or rebuild it with `overlayctl recover`.",
    );
  }
}

/** Removes fields that are undefined. */
export function omitUndefined<T extends object>(fields: { [K in keyof T]: T[K] | undefined }): T {
  const result: Partial<T> = {};
  for (const key in fields) if (fields[key] !== undefined) result[key] = fields[key];
  return result as T;
}
