import type { LeaseRow } from "../../decide/rows";
import { sharingKeyOf } from "../../decide/rows";
import { documents, epochs, freeRanges, leases, offers, pools, secrets } from "../schema";
import type { Changed, Changes } from "../store";
import type { Table } from "../table";
import type { Compare } from "./api";
import {
  entryText,
  eventsText,
  type IndexEntry,
  type Keys,
  leaseEntries,
  offerEntries,
  type Range,
  rowText,
  TREES,
} from "./keys";
import { type Entry, isAbsent, isPresent, isUnchangedSince } from "./kv";

/** What a commit writes. null deletes. */
export type Write = [key: string, value: string | null];
type Writes = Map<string, string | null>;

/** Events of another store in one key. */
const MAX_COPIED = 100;

/** What a transaction has read of the pools that it locks. */
export interface LockedPool {
  name: string;
  entry: Entry | undefined;
}

export const emptyPool = (name: string) => ({ name, reserved: 0, used: 0, resting: 0, held: 0n });

/** Each key comes once. The keys of locked pools are put, so that others notice. */
export function writesOf(keys: Keys, changes: Changes, locked: LockedPool[]): Writes {
  const { log = { epochs: [], events: [] }, resetEpochs } = changes;
  const { put, deleted } = changes.documents;
  const only = (isSecret: boolean) => ({
    put: put.filter(({ kind }) => (kind === "secret") === isSecret),
    deleted: deleted.filter(({ kind }) => (kind === "secret") === isSecret),
  });
  const writes = new Map([
    ...locked.map(({ name, entry }): Write => [keys.pool(name), entry?.value ?? rowText(pools, emptyPool(name))]),
    ...rowWrites(keys, pools, changes.pools),
    ...rowWrites(keys, leases, changes.leases, leaseEntries),
    ...rowWrites(keys, offers, changes.offers, offerEntries),
    ...rowWrites(keys, freeRanges, changes.free),
    ...rowWrites(keys, secrets, only(true)),
    ...rowWrites(keys, documents, only(false)),
    ...rowWrites(keys, epochs, { put: [...log.epochs, ...(resetEpochs ? [resetEpochs] : [])], deleted: [] }),
  ]);
  const { events: copied } = log;
  for (let i = 0; i < copied.length; i += MAX_COPIED) {
    const group = copied.slice(i, i + MAX_COPIED);
    writes.set(keys.at("event", 0, group.at(-1)!.at, group.length, group[0]!.id, 0), eventsText(group));
  }
  return writes;
}

function rowWrites<R extends object>(
  keys: Keys,
  table: Table<R>,
  { put, deleted, before }: Changed<R> & { before?(row: R): R | undefined },
  entriesOf: (keys: Keys, row: R) => IndexEntry[] = () => [],
): Writes {
  const old = new Map<string, string>();
  for (const row of [...put.flatMap((row) => before?.(row) ?? []), ...deleted])
    for (const { key } of entriesOf(keys, row)) old.set(key, keys.row(table, row));
  const gone = [...old.keys(), ...deleted.map((row) => keys.row(table, row))];
  const writes: Writes = new Map(gone.map((key) => [key, null]));
  for (const row of put) {
    const [key, text] = [keys.row(table, row), rowText(table, row)];
    writes.set(key, text);
    for (const entry of entriesOf(keys, row)) {
      if (!entry.hasRow && old.get(entry.key) === key) writes.delete(entry.key);
      else writes.set(entry.key, entryText(entry, key, text));
    }
  }
  return writes;
}

/** Ranges that a commit deletes, but for what it puts. */
export const clearedBy = (keys: Keys, { free, resetEpochs, clear }: Changes): Range[] => [
  ...(clear ? TREES.map((tree) => keys.below(tree)) : []),
  ...(resetEpochs ? [keys.below("epoch")] : []),
  ...free.cleared.map(({ pool, zone }) => keys.below("free_range", pool, zone)),
];

/** Comparisons of keys of one tree. If there are more, one for the whole tree stands for them. Those of four trees fit into `MAX_COMPARES`. */
const MAX_OF_TREE = 12;

/**
 * What must hold, the most important first. Locked pools, and rows that other transactions may change although they lock other pools, are as they
 * were read. Behind that is a second guard: new values, names and ports have no holder, and free ranges that are cut are there.
 */
export function guardsOf(keys: Keys, changes: Changes, locked: LockedPool[], revision: number, writes: Writes) {
  const { leases: lease, documents: document, free } = changes;
  const unchanged = (tree: string, all: string[]): Compare[] => {
    const { key, end } = keys.below(tree);
    if (all.length > MAX_OF_TREE) return [isUnchangedSince(revision, key, end)];
    return all.map((each) => isUnchangedSince(revision, each));
  };
  const [name, offer] = [keys.below("name"), keys.below("offer")];
  const written = [...writes.keys()];
  const names = new Set(locked.map((pool) => pool.name));
  const elsewhere = lease.put.filter(({ pool }) => !names.has(pool)).map((row) => keys.row(leases, row));
  const kinds = new Set([...document.put, ...document.deleted].map(({ kind }) => kind));
  return [
    ...unchanged(
      "pool",
      [...names].map((each) => keys.pool(each)),
    ),
    ...unchanged("lease", elsewhere),
    ...unchanged(
      "name",
      written.filter((key) => key.startsWith(name.key)),
    ),
    ...unchanged(
      "offer",
      written.filter((key) => key.startsWith(offer.key)),
    ),
    ...[...kinds].map((kind) => keys.documents(kind)).map(({ key, end }) => isUnchangedSince(revision, key, end)),
    ...free.deleted.map((row) => isPresent(keys.row(freeRanges, row))),
    ...newHolders(keys, lease),
  ];
}

/** Values, names and ports that no lease had before which this commit changes. */
function newHolders(keys: Keys, { put, deleted, before }: Changes["leases"]): Compare[] {
  const held = (lease: LeaseRow) => leaseEntries(keys, lease).flatMap(({ holders }) => holders ?? []);
  const old = new Set([...put.flatMap((row) => before(row) ?? []), ...deleted].flatMap(held).map(({ key }) => key));
  // Leases share values, not names and ports.
  const alone = put.flatMap((lease) =>
    held(lease).filter(({ end }) => end === undefined || sharingKeyOf(lease) === undefined),
  );
  return alone.filter(({ key }) => !old.has(key)).map(({ key, end }) => isAbsent(key, end));
}
