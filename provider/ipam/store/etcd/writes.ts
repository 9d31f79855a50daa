import type { LeaseRow, OfferRow } from "../../decide/rows";
import { sharingKeyOf } from "../../decide/rows";
import { hex } from "../columns";
import type { Changes } from "../store";
import type { Compare } from "./api";
import { eventsText, type Keys, padNumber, poolText } from "./keys";
import { type Entry, isAbsent, isPresent, isUnchangedSince, type KeyRange } from "./kv";
import { epochText } from "./queries";

/** What a commit writes. null deletes. */
export type Write = [key: string, value: string | null];

/** What a transaction has read of the pools that it locks. */
export interface LockedPool {
  name: string;
  entry: Entry | undefined;
}

/** Keys of changed rows and of pools whose rows have changed. Each key comes once. */
export function writesOf(
  keys: Keys,
  changes: Changes,
  locked: LockedPool[],
  cleared: string[],
): Map<string, string | null> {
  const { pools, leases, offers, documents, free } = changes;
  const changed = [...changesOf(leases, (row) => keys.ofLease(row)), ...changesOf(offers, (row) => keys.ofOffer(row))];
  const deleted = [
    ...changed.flatMap(({ before, after }) => [...before.keys()].filter((key) => !after.has(key))),
    ...documents.deleted.map(({ kind, key }) => keys.document(kind, key)),
    ...cleared,
    ...free.deleted.map(({ pool, zone, last }) => keys.free(pool, zone, last)),
    ...pools.deleted.map(({ name }) => keys.pool(name)),
  ];
  const put: [string, string][] = [
    ...changed.flatMap(({ before, after }) => [...after].filter(([key, text]) => before.get(key) !== text)),
    ...documents.put.map(({ kind, key, value }): [string, string] => [keys.document(kind, key), value]),
    ...free.put.map(({ pool, zone, first, last }): [string, string] => [keys.free(pool, zone, last), hex(first)]),
    ...pools.put.map((pool): [string, string] => [keys.pool(pool.name), poolText(pool)]),
    ...copiesOf(keys, changes),
  ];
  const writes = new Map<string, string | null>([...deleted.map((key): Write => [key, null]), ...put]);
  for (const [key, text] of touchedPools(keys, changes, locked)) if (!writes.has(key)) writes.set(key, text);
  return writes;
}

/** Events of another store, which keep their ids, and epochs. */
function copiesOf(keys: Keys, { log = { epochs: [], events: [] } }: Changes): [string, string][] {
  const epochs = log.epochs.map(({ first, tag }): [string, string] => [keys.at("epochs", epochText(first)), tag]);
  const events: [string, string][] = [];
  for (let i = 0; i < log.events.length; i += MAX_COPIED) {
    const group = log.events.slice(i, i + MAX_COPIED);
    const [first, last] = [group[0]!, group.at(-1)!];
    events.push([keys.at("event", 0, last.at, group.length, padNumber(first.id), 0), eventsText(group)]);
  }
  return [...epochs, ...events];
}

/** Locked pools that have no row, or whose rows have changed: the key of a pool is put then, so that others notice. */
function touchedPools(keys: Keys, { leases, offers, free }: Changes, locked: LockedPool[]): [string, string][] {
  const before = [
    ...leases.put.flatMap((row) => leases.before(row) ?? []),
    ...offers.put.flatMap((row) => offers.before(row) ?? []),
  ];
  const rows = [
    ...before,
    ...leases.put,
    ...leases.deleted,
    ...offers.put,
    ...offers.deleted,
    ...free.put,
    ...free.deleted,
  ];
  const names = new Set([...rows, ...free.cleared].map(({ pool }) => pool));
  return locked
    .filter(({ name, entry }) => !entry || names.has(name))
    .map(({ name, entry }) => [keys.pool(name), entry?.value ?? poolText(emptyPool(name))]);
}

export const emptyPool = (name: string) => ({ name, reserved: 0, used: 0, resting: 0, held: 0n });

interface Entries {
  before: Map<string, string>;
  after: Map<string, string>;
}

const NONE = new Map<string, string>();

function changesOf<R extends LeaseRow | OfferRow>(
  { put, deleted, before }: { put: R[]; deleted: R[]; before(row: R): R | undefined },
  entriesOf: (row: R) => Map<string, string>,
): Entries[] {
  const entriesBefore = (row: R) => {
    const stored = before(row);
    return stored ? entriesOf(stored) : NONE;
  };
  return [
    ...put.map((row) => ({ before: entriesBefore(row), after: entriesOf(row) })),
    ...deleted.map((row) => ({ before: entriesOf(row), after: NONE })),
  ];
}

/** Events of one key: of a commit, and of another store. */
const [MAX_EVENTS, MAX_COPIED] = [1000, 100];

/** `stem`: the key of the events without their number and count. */
export function eventWrites(
  keys: Keys,
  { events }: Pick<Changes, "events">,
  stem: (count: number) => (string | number)[],
): Write[][] {
  const groups: Write[][] = [];
  for (let i = 0; i < events.length; i += MAX_EVENTS) {
    const group = events.slice(i, i + MAX_EVENTS);
    const key = keys.at("event", ...stem(group.length), i / MAX_EVENTS);
    groups.push([
      [key, eventsText(group)],
      [keys.events, String(group.length)],
    ]);
  }
  return groups;
}

/** Comparisons in a Txn, and of one kind; etcd takes 128 in all. */
const [MAX_COMPARES, MAX_OF_KIND] = [100, 40];

/**
 * Rows that other transactions may change although they lock other pools: names, offers and documents. Behind the locks of pools there is a second
 * guard: new values, names and ports must have no holder, and free ranges that are cut must be there.
 */
export function guardsOf(
  keys: Keys,
  changes: Changes,
  writes: Map<string, string | null>,
  revision: number,
): Compare[] {
  const { leases, documents, free } = changes;
  const unchanged = (tree: string, all: string[]): Compare[] => {
    const { key, end } = keys.below(tree);
    return all.length <= MAX_OF_KIND
      ? all.map((each) => isUnchangedSince(each, undefined, revision))
      : [isUnchangedSince(key, end, revision)];
  };
  const kinds = new Set([...documents.put, ...documents.deleted].map(({ kind }) => kind));
  const needed = [
    ...unchanged("name", keysIn(keys, "name", [...writes.keys()])),
    ...unchanged("offer", keysIn(keys, "offer", [...writes.keys()])),
    ...[...kinds].map((kind) => {
      const { key, end } = kind === "secret" ? keys.below("secret") : keys.below("document", kind);
      return isUnchangedSince(key, end, revision);
    }),
  ];
  const second = [
    ...free.deleted.map(({ pool, zone, last }) => isPresent(keys.free(pool, zone, last))),
    ...newHolders(keys, leases),
  ];
  return [...needed, ...second].slice(0, Math.max(MAX_COMPARES, needed.length));
}

const keysIn = (keys: Keys, tree: string, all: string[]): string[] => {
  const { key: start } = keys.below(tree);
  return all.filter((key) => key.startsWith(start));
};

/** Values, names and ports that no lease had before which this commit changes. */
function newHolders(keys: Keys, { put, deleted, before }: Changes["leases"]): Compare[] {
  const old = [...put.flatMap((lease) => before(lease) ?? []), ...deleted].flatMap((lease) => holdings(keys, lease));
  const had = new Set(old.map(({ key }) => key));
  const added = put.flatMap((lease) => holdings(keys, lease)).filter(({ key }) => !had.has(key));
  return added.map(({ key, end }) => isAbsent(key, end));
}

/** Where another holder of the values, names and ports of a lease would be. */
function holdings(keys: Keys, lease: LeaseRow): KeyRange[] {
  if (lease.endedAt !== undefined) return [];
  const entries = [...keys.ofLease(lease).keys()];
  const alone = [...keysIn(keys, "name", entries), ...keysIn(keys, "port", entries)].map((key) => ({ key }));
  const isShared = sharingKeyOf(lease) !== undefined;
  return [...alone, ...(isShared ? [] : lease.extents.flatMap((extent) => keys.holdersOf(lease.pool, extent)))];
}

/** Operations of a Txn, and bytes, that leave room for those that every commit has. */
const [MAX_WRITES, MAX_BYTES] = [100, 400_000];

/** Parts that fit into one Txn each. No part has a key twice. */
export function splitWrites(writes: Map<string, string | null>, events: Write[][]): Write[][] {
  const parts: Map<string, string | null>[] = [new Map()];
  let bytes = 0;
  for (const group of [...[...writes].map((write) => [write]), ...events]) {
    const length = group.reduce((sum, [key, text]) => sum + key.length + (text?.length ?? 0), 0);
    const part = parts.at(-1)!;
    const isFull =
      part.size + group.length > MAX_WRITES || bytes + length > MAX_BYTES || group.some(([key]) => part.has(key));
    if (isFull && part.size > 0) {
      parts.push(new Map());
      bytes = 0;
    }
    bytes += length;
    for (const [key, text] of group) parts.at(-1)!.set(key, text);
  }
  return parts.map((part) => [...part]);
}
