import { type LeaseRow, type OfferRow, type PoolRow, portText, sharingKeyOf, type Zone } from "../../decide/rows";
import { positionOf, sizeOf } from "../../extents";
import type { Event, Extent } from "../../types";
import { hex, InvalidField } from "../columns";
import { events, leases, offers, pools } from "../schema";
import type { DocumentKind } from "../store";
import type { Stored, Table } from "../table";
import type { KeyRange } from "./kv";

/**
 * The keys of a store, all below its prefix. Values are 32 hexadecimal digits, times and versions 16 decimal ones, so that keys sort as they
 * do. `/` parts the components; inside of one it is `%2F`. Rows are JSON.
 *
 *     store                                  id and layout, rarely changed: each commit compares its revision
 *     head                                   put by each version commit. How often it was put is the version of the store
 *     epoch, epochs/MAX-FIRST                the present epoch, and all of them, the newest first
 *     events                                 put by each commit with events
 *     event/HEAD/AT/COUNT/COMMIT/N           events of a commit; HEAD: the revision of `head` that it has read; 0: of another store
 *     trimmed                                the last revision of events that are no longer kept
 *     commit/AT/COMMIT                       outcomes of commits, kept for some minutes
 *     pending, part/AT/COMMIT/N              a commit that is made, with writes that are not in their places yet
 *     lock/RANDOM                            the queue for the lock
 *
 *     pool/NAME                              the row, and the lock of the pool: its revision is compared
 *     free/POOL/ZONE/LAST                    free ranges
 *     lease/UID, owner/POOL/OWNER/UID        the row, twice
 *     at/POOL/LAST/h or r/UID                the row once more, below each value that it holds, or that rests
 *     block/POOL/LAST/h or r/UID             the same for ranges of several values. Those of one pool are disjoint, or shared and equal
 *     name/NAME, port/POOL/VALUE/PORT        the uid of a lease that has not ended
 *     share/POOL/KEY/UID, parent/POOL/UID, expires/POOL/TIME/LOWEST-VALUE/UID       of leases that have not ended
 *     rested/POOL/FREE-AT/LOWEST-VALUE/UID, ended/POOL/ENDED-AT/UID                 of leases that rest
 *     past/ENDED-AT/UID                                                of leases that ended
 *     offer/OWNER/PROGRAM, offerin/POOL/EXPIRES-AT/OWNER/PROGRAM       the row, twice
 *     offername/NAME/OWNER/PROGRAM, offerpool/NAME/OWNER/PROGRAM, offerpast/EXPIRES-AT/OWNER/PROGRAM
 *     document/KIND/KEY, secret/KEY          roles that must not read secrets get all but `secret/`
 *
 * Each query reads one or two ranges. Those whose keys only end with a uid, or an owner and a program, read the rows with a second request.
 */
export class Keys {
  constructor(readonly prefix: string) {}

  get store(): string {
    return this.at("store");
  }

  get head(): string {
    return this.at("head");
  }

  get epoch(): string {
    return this.at("epoch");
  }

  get events(): string {
    return this.at("events");
  }

  get trimmed(): string {
    return this.at("trimmed");
  }

  get pending(): string {
    return this.at("pending");
  }

  at(tree: string, ...components: (string | number)[]): string {
    return [`${this.prefix}${tree}`, ...components.map(componentText)].join("/");
  }

  /** Not escaped, so that pools sort by name. */
  pool(name: string): string {
    return `${this.prefix}pool/${toBytes(name)}`;
  }

  document(kind: DocumentKind, key: string): string {
    return kind === "secret" ? this.at("secret", key) : this.at("document", kind, key);
  }

  free(pool: string, zone: Zone, last: bigint): string {
    return this.at("free", pool, zone, hex(last));
  }

  /** All keys below. */
  below(tree: string, ...components: (string | number)[]): Required<Pick<KeyRange, "key" | "end">> {
    const path = this.at(tree, ...components);
    return { key: `${path}/`, end: `${path}0` };
  }

  /** The keys of a lease, with what is stored there. */
  ofLease(lease: LeaseRow): Map<string, string> {
    const { uid, pool, owner, endedAt, expiresAt, freeAt, resting, childPool } = lease;
    const row = leaseText(lease);
    const entries = new Map([
      [this.at("lease", uid), row],
      [this.at("owner", pool, owner, uid), row],
    ]);
    const point = (tree: string, ...components: (string | number)[]) =>
      entries.set(this.at(tree, ...components, uid), "");
    const position = hex(positionOf(lease));
    if (endedAt === undefined) {
      for (const extent of lease.extents) entries.set(this.#valueKey(pool, extent, "h", uid), heldText(lease, row));
      for (const name of lease.names ?? []) entries.set(this.at("name", name), uid);
      for (const { last } of lease.ports ? lease.extents : [])
        for (const port of lease.ports!) entries.set(this.at("port", pool, hex(last), portText(port)), uid);
      const key = sharingKeyOf(lease);
      if (key !== undefined) point("share", pool, key);
      if (childPool !== undefined) point("parent", pool);
      if (expiresAt !== undefined) point("expires", pool, expiresAt, position);
      return entries;
    }
    point("past", endedAt);
    if (!resting) return entries;
    const listed = lease.extents.filter(({ last }) => hex(last) === position);
    for (const extent of [...listed, ...resting])
      entries.set(this.#valueKey(pool, extent, "r", uid), `${RESTING}${row}`);
    point("ended", pool, endedAt);
    if (freeAt !== undefined) point("rested", pool, freeAt, position);
    return entries;
  }

  ofOffer(offer: OfferRow): Map<string, string> {
    const { owner, program, pool, expiresAt, names = [], childPool } = offer;
    const row = rowText(offers, { ...offer, ...(childPool && { childName: childPool.name }) });
    return new Map([
      [this.at("offer", owner, program), row],
      [this.at("offerin", pool, expiresAt, owner, program), row],
      [this.at("offerpast", expiresAt, owner, program), ""],
      ...names.map((name): [string, string] => [this.at("offername", name, owner, program), ""]),
      ...(childPool ? [[this.at("offerpool", childPool.name, owner, program), ""] as [string, string]] : []),
    ]);
  }

  /** The keys of leases that hold ranges with the same end. */
  holdersOf(pool: string, { last }: Extent): Required<Pick<KeyRange, "key" | "end">>[] {
    return ["at", "block"].map((tree) => this.below(tree, pool, hex(last), "h"));
  }

  #valueKey(pool: string, extent: Extent, kind: "h" | "r", uid: string): string {
    return this.at(treeOf(extent), pool, hex(extent.last), kind, uid);
  }
}

const treeOf = (extent: Extent): "at" | "block" => (sizeOf(extent) === 1n ? "at" : "block");

export const toBytes = (text: string): string => Buffer.from(text).toString("latin1");
export const fromBytes = (key: string): string => Buffer.from(key, "latin1").toString();

/** In a key; prefixes of a text give prefixes of this. */
export const componentText = (component: string | number): string =>
  typeof component === "number"
    ? padNumber(component)
    : toBytes(component).replace(/[%/]/g, (letter) => (letter === "/" ? "%2F" : "%25"));

/** The components of a key, from the end. */
export const lastComponents = (key: string, count: number): string[] =>
  key.split("/").slice(-count).map(unescapeComponent);

const unescapeComponent = (text: string): string =>
  fromBytes(text.replace(/%2F|%25/g, (code) => (code === "%2F" ? "/" : "%")));

export const padNumber = (number: number): string => String(Math.round(number)).padStart(16, "0");

/** Events are numbered by the revision of their commit. */
export const EVENTS_IN_COMMIT = 4096;

/** The end of the range of all keys that begin with these bytes. */
export const endOfPrefix = (key: string): string =>
  `${key.slice(0, -1)}${String.fromCharCode(key.charCodeAt(key.length - 1) + 1)}`;

/** Leases below their values sort by when they were last seen; those that rest come last. */
const RESTING = "~";
const SEEN_DIGITS = 16;
const heldText = ({ lastSeen }: LeaseRow, row: string): string => `${padNumber(lastSeen)}${row}`;
export const isHeld = (value: string): boolean => !value.startsWith(RESTING);
const rowBelowValue = (value: string): string => value.slice(isHeld(value) ? SEEN_DIGITS : RESTING.length);

/** The columns of the row by name; JSON columns are text. */
function storedOf<R>(table: Table<R>, row: R): Stored {
  const values = table.encode(row);
  const fields = table.columns.flatMap(({ name, column }, i) =>
    values[i] === null ? [] : [[name, column.isJson ? JSON.stringify(values[i]) : values[i]]],
  );
  return Object.fromEntries(fields);
}

const rowText = <R>(table: Table<R>, row: R): string => JSON.stringify(storedOf(table, row));

export const leaseText = (lease: LeaseRow): string => rowText(leases, lease);
export const poolText = (pool: PoolRow): string => rowText(pools, pool);
export const eventsText = (list: (Event & { id?: number })[]): string =>
  JSON.stringify(list.map((event) => storedOf(events, { id: 0, ...event })));

export const leaseOf = (text: string): LeaseRow => {
  const { position: _, ...lease } = leases.decode(parseObject(text));
  return lease;
};
export const leaseBelowValue = (value: string): LeaseRow => leaseOf(rowBelowValue(value));
/** All trees but those of commits and of the lock. */
export const TREES = [
  ...["epochs", "event", "pool", "free", "lease", "owner", "at", "block", "name", "port", "share", "parent", "expires"],
  ...["rested", "ended", "past", "offer", "offerin", "offername", "offerpool", "offerpast", "document", "secret"],
];

export const poolOf = (text: string): PoolRow => pools.decode(parseObject(text));
export const offerOf = (text: string): OfferRow => {
  const { childName: _, ...offer } = offers.decode(parseObject(text));
  return offer;
};

/** `first`: the id of the first one. Those of another store keep theirs. */
export function eventsOf(text: string, first: number) {
  const list: unknown = JSON.parse(text);
  if (!Array.isArray(list)) throw new InvalidField("events");
  return list.map((stored: Stored, i) => events.decode({ ...stored, id: stored.id || first + i }));
}

/** Fields that are missing are found by the table. */
export function parseObject(text: string): Stored {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null) return value as Stored;
  } catch {}
  return {};
}
