import type { FreeRow, LeaseRow, OfferRow, PoolRow } from "../decide/rows";
import { EVENT_KINDS, type Event } from "../types";
import {
  amount,
  anyText,
  count,
  data,
  derived,
  flag,
  isLeaseId,
  isWord,
  labels,
  named,
  number,
  optional,
  poolName,
  ports,
  ranges,
  spec,
  tenant,
  text,
  texts,
  time,
  uid,
  uids,
  value,
  word,
} from "./columns";
import type { DocumentRow, EpochRow, Head } from "./store";
import { type Table, table } from "./table";

/**
 * The tables, the same on SQLite and PostgreSQL. Rows of `lease` and `offer` are complete; `lease_range`, `lease_port`, `lease_name` and
 * `offer_name` are derived from them: they are indexes, and guards that no value, port or name has two holders.
 */

export const pools = table<PoolRow>("pool", ["name"], {
  name: poolName,
  spec: optional(spec),
  opener: optional(uid),
  isClosing: optional(flag),
  isMadeInBounds: optional(flag),
  reserved: count,
  used: count,
  resting: count,
  held: amount,
});

/** What leases and offers have in common. */
const details = {
  type: text(isWord),
  ranges: ranges,
  sharingKey: optional(text()),
  ports: optional(ports),
  names: optional(texts()),
  tenant: optional(tenant),
  labels: optional(labels),
  usedBy: optional(text()),
  data: optional(data),
  by: named("made_by", optional(text())),
};

export interface StoredLease extends LeaseRow {
  /** Its lowest value, as long as it holds values or rests. */
  position?: bigint;
  /** The first moment at which it is overdue, or its quarantine over. */
  dueAt?: number;
}

export const leases = table<StoredLease>(
  "lease",
  ["uid"],
  {
    uid,
    leaseId: text(isLeaseId),
    pool: poolName,
    owner: text(),
    ...details,
    state: word("reserved", "used"),
    childPool: optional(poolName),
    ttl: optional(number),
    createdAt: time,
    updatedAt: time,
    lastSeen: time,
    expiresAt: optional(time),
    deletingSince: optional(time),
    endedAt: optional(time),
    endReason: optional(word("released", "expired", "reclaimed", "handed over", "out of range", "pool deleted")),
    takenBy: optional(text()),
    resting: optional(ranges),
    freeAt: optional(time),
    position: derived(value),
    dueAt: derived(time),
  },
  {
    indexes: [
      { columns: ["owner", "pool"], where: "position IS NOT NULL", isCovering: true },
      { columns: ["owner", "pool", "ended_at"], where: "ended_at IS NOT NULL", isNewestFirst: true },
      { columns: ["pool", "position"], where: "position >= ''" },
      { columns: ["pool", "due_at", "position"], where: "due_at IS NOT NULL" },
      { columns: ["pool", "last_seen"], where: "ended_at IS NULL" },
      { columns: ["pool", "child_pool"], where: "ended_at IS NULL AND child_pool IS NOT NULL" },
      { columns: ["pool", "ended_at"], where: "resting IS NOT NULL" },
      { columns: ["ended_at"], where: "ended_at IS NOT NULL AND resting IS NULL" },
    ],
  },
);

/** A range that a lease holds, or that rests after its end. */
export interface LeaseRange {
  pool: string;
  last: bigint;
  /** Empty if no other lease may have the range; else the uid. */
  coHolder: string;
  first: bigint;
  uid: string;
  isHeld: boolean;
  /** The sharing key with its tenant (`sharingKeyOf`); only equal ranges with the same key overlap. */
  sharedAs?: string;
}

export const leaseRanges = table<LeaseRange>(
  "lease_range",
  ["pool", "last", "co_holder"],
  { pool: poolName, last: value, coHolder: text(), first: value, uid, isHeld: flag, sharedAs: optional(text()) },
  {
    ...{ isLookup: true, isGuard: true },
    indexes: [{ columns: ["pool", "shared_as", "uid"], where: "shared_as IS NOT NULL", isCovering: true }],
  },
);

export interface LeasePort {
  pool: string;
  value: bigint;
  port: string;
  uid: string;
}

export const leasePorts = table<LeasePort>(
  "lease_port",
  ["pool", "value", "port"],
  { pool: poolName, value, port: text(), uid },
  { isLookup: true, isGuard: true },
);

export interface LeaseName {
  name: string;
  uid: string;
}

export const leaseNames = table<LeaseName>(
  "lease_name",
  ["name"],
  { name: text(), uid },
  { isLookup: true, isGuard: true },
);

export const freeRanges = table<FreeRow>(
  "free_range",
  ["pool", "zone", "last"],
  { pool: poolName, zone: word("a", "r"), last: value, first: value },
  { isLookup: true },
);

export interface StoredOffer extends OfferRow {
  /** The name of the child pool. */
  childName?: string;
}

export const offers = table<StoredOffer>(
  "offer",
  ["owner", "program"],
  {
    owner: text(),
    program: text(),
    run: text(),
    pool: poolName,
    ...details,
    byValue: flag,
    afterLease: uids,
    childPool: optional(spec),
    childName: derived(poolName),
    uid,
    createdAt: time,
    updatedAt: time,
    expiresAt: time,
  },
  {
    indexes: [
      { columns: ["pool", "expires_at"], isCovering: true },
      { columns: ["child_name"], where: "child_name IS NOT NULL" },
      { columns: ["expires_at"] },
    ],
  },
);

export interface OfferName {
  name: string;
  owner: string;
  program: string;
}

export const offerNames = table<OfferName>(
  "offer_name",
  ["name", "owner", "program"],
  { name: text(), owner: text(), program: text() },
  { isLookup: true, isGuard: true },
);

export const events = table<Event & { id: number }>("event", ["id"], {
  id: count,
  at: time,
  what: word(...EVENT_KINDS),
  pool: poolName,
  owner: text(),
  uid,
  leaseId: text(isLeaseId),
  ranges: ranges,
  tenant: optional(tenant),
  usedBy: optional(text()),
  by: named("made_by", optional(text())),
  takenBy: optional(text()),
  formerOwner: optional(text()),
});

/** Documents that users without the right to write must not read. */
export const secrets = table<Pick<DocumentRow, "key" | "value">>("secret", ["key"], { key: text(), value: anyText });

export const documents = table<DocumentRow>("document", ["kind", "key"], {
  kind: word("secret", "accessToken", "delivery", "recovered"),
  key: text(),
  value: anyText,
});

const isEpoch = (tag: unknown): boolean => tag === "" || isWord(tag);

export const epochs = table<EpochRow>("epoch", ["first"], { first: count, tag: text(isEpoch) }, { isLookup: true });

/** One row. */
export const store = table<Head & { one: number }>("store", ["one"], {
  one: count,
  id: text(isWord),
  layout: count,
  version: count,
  epoch: text(isEpoch),
  epochSince: time,
  lastEvent: count,
  at: time,
  move: optional(anyText),
});

export const TABLES: Table[] = [
  store,
  epochs,
  pools,
  leases,
  leaseRanges,
  leasePorts,
  leaseNames,
  freeRanges,
  offers,
  offerNames,
  events,
  documents,
  secrets,
];
