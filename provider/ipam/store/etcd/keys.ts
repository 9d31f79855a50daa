import { type LeaseRow, type OfferRow, portText, sharingKeyOf } from "../../decide/rows";
import { positionOf, sizeOf } from "../../extents";
import type { Event, Extent, LoggedEvent } from "../../types";
import { hex } from "../columns";
import { events, TABLES } from "../schema";
import type { CopiedTable, DocumentKind } from "../store";
import type { Stored, Table } from "../table";
import type { Entry, KeyRange } from "./kv";

export type Range = Required<Pick<KeyRange, "key" | "end">>;

/**
 * The keys of a store, all below its prefix. A row is JSON at `TABLE/KEY`, where KEY is the key of its table. An entry of an index is at
 * `INDEX/COLUMNS/KEY`: its value is the row once more, or the key of the row. `/` parts the components; inside of all but the last it is `%2F`.
 * Values are 32 hexadecimal digits, times and versions 16 decimal ones, so that keys sort as they do.
 *
 *     store                            id and layout, rarely changed: each commit compares its revision
 *     head                             put by each version commit. How often it was put is the version of the store
 *     epoch                            the present one
 *     event/HEAD/AT/COUNT/COMMIT/N     events of a commit; HEAD: the revision of `head` that it has read; 0: of another store
 *     commit/AT/COMMIT                 outcomes of commits without events, kept for some minutes
 *     part/AT/COMMIT/N                 writes of a commit that does not fit into one Txn
 *     lock/RANDOM                      the queue for the lock
 *     pool/NAME                        the row, and the lock of the pool: its revision is compared
 *     secret/KEY                       roles that must not read secrets get all but these
 */
export class Keys {
  readonly store: string;
  readonly head: string;
  readonly epoch: string;

  constructor(readonly prefix: string) {
    this.store = this.at("store");
    this.head = this.at("head");
    this.epoch = this.at("epoch");
  }

  at(tree: string, ...components: Component[]): string {
    const texts = components.map(componentText);
    return [`${this.prefix}${tree}`, ...texts.slice(0, -1).map(escapeText), ...texts.slice(-1)].join("/");
  }

  /** All keys below. */
  below(tree: string, ...components: Component[]): Range {
    const path = this.at(tree, ...components, "").slice(0, -1);
    return { key: `${path}/`, end: `${path}0` };
  }

  /** All keys whose first component begins so, and is not the last. */
  beginning(tree: string, prefix: string): Range {
    const key = this.at(tree, escapeText(prefix));
    return { key, end: endOfPrefix(key) };
  }

  pool(name: string): string {
    return this.at("pool", name);
  }

  row<R>(table: Table<R>, row: R): string {
    return this.at(table.name, ...table.keyOf(row));
  }

  documents(kind: DocumentKind): Range {
    return kind === "secret" ? this.below("secret") : this.below("document", kind);
  }

  /** The components of a key. */
  componentsOf(key: string): string[] {
    return key
      .slice(this.prefix.length)
      .split("/")
      .slice(1)
      .map((text) => text.replace(/%2F|%25/g, (code) => (code === "%2F" ? "/" : "%")));
  }
}

type Component = string | number | bigint;

const componentText = (component: Component): string => {
  if (typeof component === "string") return component;
  return typeof component === "bigint" ? hex(component) : padNumber(component);
};

const escapeText = (text: string): string => text.replace(/[%/]/g, (letter) => (letter === "/" ? "%2F" : "%25"));

export const endOfPrefix = (key: string): string => `${key}\u{10ffff}`;

export const padNumber = (number: number): string =>
  String(Math.min(Math.max(Math.round(number), 0), Number.MAX_SAFE_INTEGER)).padStart(16, "0");

/** Events are numbered by the revision of their commit. */
export const EVENTS_IN_COMMIT = 4096;

/** An entry of an index. */
export interface IndexEntry {
  key: string;
  /** It has the row: most reads need it. */
  hasRow: boolean;
  /** 16 characters before the row, by which etcd can sort. */
  order?: string;
  /** Where other holders of the same would be. */
  holders?: KeyRange;
}

/**
 * Ranges are found by their last value. A range of several values has one more entry, so that those that begin earlier are found. At the lowest
 * value of a lease that has not ended, etcd can sort by when it was last seen.
 */
function rangeEntries(keys: Keys, lease: LeaseRow, ranges: Extent[], isHeld: boolean): IndexEntry[] {
  const { pool, uid, lastSeen } = lease;
  return ranges.flatMap((range) => {
    const path = [pool, range.last, isHeld ? "h" : "r"];
    const entry: IndexEntry = { key: keys.at("at", ...path, uid), hasRow: true };
    if (isHeld) entry.holders = keys.below("at", ...path);
    if (isHeld && range.last === positionOf(lease)) entry.order = padNumber(lastSeen);
    return sizeOf(range) === 1n ? [entry] : [entry, { key: keys.at("block", ...path, uid), hasRow: true }];
  });
}

/** The indexes of leases. */
export function leaseEntries(keys: Keys, lease: LeaseRow): IndexEntry[] {
  const { uid, pool, owner, extents, endedAt, expiresAt, freeAt = 0, resting, childPool, ports = [] } = lease;
  const at = (index: string, ...columns: Component[]) => ({ key: keys.at(index, ...columns), hasRow: false });
  const alone = (index: string, ...columns: Component[]) => ({
    ...at(index, ...columns),
    holders: at(index, ...columns),
  });
  const position = positionOf(lease);
  const byOwner = { key: keys.at("owner", pool, owner, uid), hasRow: true };
  if (endedAt !== undefined) {
    if (!resting) return [byOwner, at("past", endedAt, uid)];
    // Where the list of leases has it, and where it rests.
    const listed = extents.filter(({ last }) => last === position);
    const ranges = [...new Map([...listed, ...resting].map((range) => [range.last, range])).values()];
    const times = [at("past", endedAt, uid), at("ended", pool, endedAt, uid), at("due", pool, freeAt, position, uid)];
    return [byOwner, ...times, ...rangeEntries(keys, lease, ranges, false)];
  }
  const key = sharingKeyOf(lease);
  return [
    byOwner,
    ...rangeEntries(keys, lease, extents, true),
    ...(lease.names ?? []).map((name) => alone("name", name)),
    ...extents.flatMap(({ last }) => ports.map((port) => alone("port", pool, last, portText(port)))),
    ...(key === undefined ? [] : [at("share", pool, key, uid)]),
    ...(childPool === undefined ? [] : [at("parent", pool, uid)]),
    ...(expiresAt === undefined ? [] : [at("due", pool, expiresAt + 1, position, uid)]),
  ];
}

/** The indexes of offers. */
export function offerEntries(keys: Keys, { owner, program, pool, expiresAt, names = [], childPool }: OfferRow) {
  const at = (index: string, ...columns: Component[]): IndexEntry => ({
    key: keys.at(index, ...columns, owner, program),
    hasRow: index === "in",
  });
  return [
    at("in", pool, expiresAt),
    at("offerpast", expiresAt),
    ...names.map((name) => at("offername", name)),
    ...(childPool ? [at("offerpool", childPool.name)] : []),
  ];
}

/** All trees but those of commits and of the lock. */
export const TREES = [
  ..."epoch event pool free_range lease owner at block name port share parent due ended past".split(" "),
  ..."offer in offername offerpool offerpast document secret".split(" "),
];

/** The columns of a row by name; JSON columns are text. */
function storedOf<R>(table: Table<R>, row: R): Stored {
  const stored: Stored = {};
  for (const [i, value] of table.encode(row, JSON.stringify).entries())
    if (value !== null) stored[table.columns[i]!.name] = value;
  return stored;
}

export const rowText = <R>(table: Table<R>, row: R): string => JSON.stringify(storedOf(table, row));

/** What is not JSON has no columns, and is refused as such. */
export const rowOf = <R>(table: Table<R>, { value }: Pick<Entry, "value">): R => table.decode(parseObject(value));
export const rowsOf = <R>(table: Table<R>, entries: Entry[]): R[] => entries.map((entry) => rowOf(table, entry));

export function parseObject(text: string): Stored {
  const value = parse(text);
  return typeof value === "object" && value !== null ? (value as Stored) : {};
}

export function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** What an entry of an index has, if its row is so. */
export const entryText = ({ hasRow, order = UNORDERED }: IndexEntry, rowKey: string, row: string): string =>
  hasRow ? order + row : rowKey;
const UNORDERED = "~".repeat(16);
export const entriesOf = <R>(table: Table<R>, entries: Entry[]): R[] =>
  entries.map(({ value }) => rowOf(table, { value: value.slice(UNORDERED.length) }));

export const eventsText = (list: (Event & { id?: number })[]): string =>
  JSON.stringify(list.map((event) => storedOf(events, { id: 0, ...event })));

/** `offset`: is added to their ids. Those of another store keep theirs. */
export function eventsAt({ value, revision }: Entry, offset: number): LoggedEvent[] {
  const list = parse(value);
  const first = revision * EVENTS_IN_COMMIT + offset;
  return (Array.isArray(list) ? list : [{}]).map((stored: Stored, i) =>
    events.decode({ ...stored, id: stored.id || first + i }),
  );
}

/** Rows of any table, as queries answer them. */
export const rowsAt = (name: CopiedTable, entry: Entry, eventOffset: number): object[] =>
  name === "event"
    ? eventsAt(entry, eventOffset)
    : [
        {
          ...(name === "secret" && { kind: name }),
          ...(rowOf(TABLES.find((table) => table.name === name)!, entry) as object),
        },
      ];
