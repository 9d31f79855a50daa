import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { OverlayError } from "../../../errors";
import { newPoolRow } from "../../decide/rows";
import { isListOf } from "../columns";
import { epochs, events as eventTable, freeRanges, pools, store, TABLES } from "../schema";
import {
  type Changes,
  type Commit,
  Conflict,
  type Head,
  isTimeToTrim,
  KEPT_EPOCHS,
  KEPT_EVENTS,
  KEPT_MS,
  logOf,
  type Query,
  type Rows,
  StoreUnavailable,
  type Transaction,
} from "../store";
import type { Table } from "../table";
import { writesOf } from "../writes";
import type { Compare, RequestOp } from "./api";
import { type Keys, parse, parseObject, type Range, storedOf } from "./keys";
import {
  del,
  type Entry,
  type EtcdKv,
  get,
  isAbsent,
  isPresent,
  MAX_COMPARES,
  MAX_OPERATIONS,
  put,
  wasPutAt,
} from "./kv";
import { answerAll, type Moment } from "./queries";

/**
 * A commit is one Txn, which compares the revision of the row of the store with the one that was read, and puts that row: so commits are made one
 * after another, each from what the one before has left. The row names its commit, so that the outcome is known even if the answer was lost: then
 * the row is put once more, after which the Txn can no longer be made.
 *
 * Writes that do not fit into one Txn are put as parts first. The Txn names them in the row of the store: with it the commit is made. Nothing else
 * is read or committed before they are in their places, by the process that made it or by the next one.
 */
export interface Parts {
  kv: EtcdKv;
  keys: Keys;
  /** How long to ask for the outcome of a commit, in milliseconds. */
  patience: number;
}

/** The row of the store, and what is known of the last commit. */
export interface Opening {
  head: Head;
  entry?: Entry;
}

/** null deletes. */
type Write = [key: string, value: string | null];

export class EtcdTransaction implements Transaction {
  readonly head: Head;
  readonly rows: Rows;
  readonly #newPools: string[];

  constructor(
    private readonly parts: Parts,
    private readonly moment: Moment,
    private readonly opening: Opening,
    readonly now: number,
    { pools: found = [], ...rows }: Rows,
    locks: string[],
  ) {
    this.head = opening.head;
    const names = new Set(found.map(({ name }) => name));
    this.#newPools = locks.filter((name) => !names.has(name));
    const all = [...found, ...this.#newPools.map(newPoolRow)];
    this.rows = all.length > 0 ? { ...rows, pools: all } : rows;
  }

  load(queries: Query[]): Promise<Rows> {
    return this.moment.run(answerAll(this.moment, queries));
  }

  async rollBack(): Promise<void> {}

  async commit(changes: Changes): Promise<Commit> {
    const { kv, keys } = this.parts;
    const { head, epoch, events } = logOf(this.head, changes, this.now);
    const [writes, guards] = this.#writesOf(changes);
    const log = [
      ...(epoch ? keys.entriesOf(epochs, epoch) : []),
      ...events.flatMap((row) => keys.entriesOf(eventTable, row)),
    ];
    for (const [key, value] of log) writes.set(key, value);
    const id = randomBytes(8).toString("hex");
    const row = { ...storedOf(store, { ...head, one: 1 }), commit: id };
    const groups = partsOf([...writes]);
    const pending = groups.length > 1 ? keys.at("part", this.now, id) : undefined;
    if (pending)
      for (const [i, group] of groups.entries())
        await kv.txn([], [put(keys.at("part", this.now, id, i), JSON.stringify(group))]);
    const kept = pending ? [] : [...writes.keys()];
    const operations = [
      put(keys.store, JSON.stringify({ ...row, pending })),
      ...clearedBy(keys, changes).flatMap((range) => clear(range, kept)),
      ...(pending ? [] : [...writes].map(writeOp)),
    ];
    const revision = await this.#send(guards.slice(0, MAX_COMPARES - 1), operations, id, log.at(-1));
    if (pending) await this.#persist(() => finish(kv, keys, { ...row, pending }, revision));
    if (isTimeToTrim()) await trim(kv, keys, this.now, head.lastEvent).catch(() => {});
    return { version: head.version, epoch: head.epoch, events };
  }

  /**
   * Each key comes once. Behind the comparison of the row of the store are others: new values, ports and names have no holder, and free ranges that
   * are cut are there.
   */
  #writesOf(changes: Changes): [writes: Map<string, string | null>, guards: Compare[]] {
    const { keys } = this.parts;
    const rows = this.#newPools.map(newPoolRow);
    const writes = new Map<string, string | null>(rows.flatMap((row) => keys.entriesOf(pools, row)));
    const guards: Compare[] = [];
    for (const { table, put, deleted, old } of writesOf(changes)) {
      const before = new Map(old.flatMap((row) => keys.entriesOf(table, row)));
      for (const key of before.keys()) writes.set(key, null);
      for (const row of deleted) {
        const key = keys.row(table, row);
        writes.set(key, null);
        if ((table as Table<never>) === freeRanges) guards.push(isPresent(key));
      }
      for (const row of put) {
        const entries = keys.entriesOf(table, row);
        if (table.isGuard && !before.has(entries[0]![0])) guards.push(isAbsent(entries[0]![0]));
        for (const [key, value] of entries) {
          if (before.get(key) === value) writes.delete(key);
          else writes.set(key, value);
        }
      }
    }
    return [writes, guards];
  }

  /** Returns the revision of the commit. `Conflict`: it was not made, and never will be. */
  async #send(guards: Compare[], operations: RequestOp[], id: string, event?: Write): Promise<number> {
    const { kv, keys } = this.parts;
    const { entry } = this.opening;
    const isUnchanged = wasPutAt(keys.store, entry?.revision ?? 0);
    const outcome = [get({ key: keys.store }), ...(event ? [get({ key: event[0] })] : [])];
    const judge = (rows: Entry[][]): number => {
      const [row, logged] = rows.map(([first]) => first);
      if (row && parseObject(row.value).commit === id) return row.revision;
      // Another commit may have followed.
      if (event && logged?.value === event[1]) return logged.revision;
      throw new Conflict();
    };
    try {
      const { succeeded, found, revision } = await kv.txn([isUnchanged, ...guards], operations, outcome);
      return succeeded ? revision : judge(found);
    } catch (error) {
      if (!(error instanceof StoreUnavailable)) throw error;
      const voided = [put(keys.store, entry?.value ?? JSON.stringify(storedOf(store, { ...this.head, one: 1 })))];
      return this.#persist(async () => {
        const { succeeded, found } = await kv.txn([isUnchanged], voided, outcome);
        return judge(succeeded ? [] : found);
      });
    }
  }

  /** Tries again while etcd does not answer, and throws the cause in the end. */
  async #persist<T>(work: () => Promise<T>): Promise<T> {
    for (const deadline = Date.now() + this.parts.patience; ; ) {
      try {
        return await work();
      } catch (error) {
        if (!(error instanceof StoreUnavailable)) throw error;
        if (Date.now() > deadline) throw error.cause;
      }
      await sleep(Math.random() * 200);
    }
  }
}

const writeOp = ([key, text]: Write): RequestOp => (text === null ? del(key) : put(key, text));

/** Ranges that a commit deletes, but for what it puts. */
const clearedBy = (keys: Keys, { free, resetEpochs, clear }: Changes): Range[] => [
  ...(clear ? TABLES.filter((table) => (table as Table<never>) !== store).map((table) => keys.allOf(table)) : []),
  ...(resetEpochs && !clear ? [keys.below("epoch")] : []),
  ...free.cleared.map(({ pool, zone }) => keys.below("free_range", pool, zone)),
];

/** etcd does not take a Txn that puts a key and deletes it. */
function clear({ key, end }: Range, writes: string[]): RequestOp[] {
  const kept = writes.filter((each) => key <= each && each < end).sort();
  return [...kept, end].map((edge, i) => del(i === 0 ? key : `${kept[i - 1]}\0`, edge));
}

/** Operations of a Txn, and bytes, which etcd limits to 1.5 MB. A part is text in JSON again. */
const [MAX_WRITES, MAX_BYTES] = [MAX_OPERATIONS / 2, 700_000];

function partsOf(writes: Write[]): Write[][] {
  const parts: Write[][] = [[]];
  let bytes = 0;
  for (const write of writes) {
    bytes += write[0].length + Buffer.byteLength(write[1] ?? "");
    if (parts.at(-1)!.length === MAX_WRITES || bytes > MAX_BYTES) {
      parts.push([]);
      bytes = 0;
    }
    parts.at(-1)!.push(write);
  }
  return parts;
}

/** Puts the parts of a commit into their places, also of one that another process has made. */
export async function finish(
  kv: EtcdKv,
  keys: Keys,
  row: object & { pending?: unknown },
  revision: number,
): Promise<void> {
  const { pending, ...rest } = row;
  if (!String(pending).startsWith(keys.at("part", ""))) throw corrupt(keys.store);
  const isPending = wasPutAt(keys.store, revision);
  for (;;) {
    const { found } = await kv.read([{ key: `${pending}/`, end: `${pending}0`, limit: 1 }, { key: keys.store }]);
    const [[part], [current]] = found as [Entry[], Entry[]];
    if (current?.revision !== revision) return;
    if (!part) await kv.txn([isPending], [put(keys.store, JSON.stringify(rest))]);
    else await kv.txn([isPending, isPresent(part.key)], [...partOf(part, keys.prefix).map(writeOp), del(part.key)]);
  }
}

function partOf({ key, value }: Entry, prefix: string): Write[] {
  const isKey = (it: unknown) => typeof it === "string" && it.startsWith(prefix);
  const isValue = (it: unknown) => it === null || typeof it === "string";
  const isWrite = (it: unknown) => Array.isArray(it) && it.length === 2 && isKey(it[0]) && isValue(it[1]);
  const part = parse(value);
  if (!isListOf(isWrite)(part)) throw corrupt(key);
  return part as Write[];
}

/** Parts that are older were never committed. A request is not on its way for so long. */
const KEPT_PARTS_MS = 10 * 60_000;

/** Deletes what is no longer kept, a part of it at a time. */
async function trim(kv: EtcdKv, keys: Keys, now: number, lastEvent: number): Promise<void> {
  const logged = keys.below("event");
  const { found } = await kv.read([
    { ...logged, limit: 1000 },
    { ...keys.below("epoch"), keysOnly: true },
  ]);
  const [oldest, begun] = found as [Entry[], Entry[]];
  const kept = oldest.find(({ value }) => Number(parseObject(value).at) >= now - KEPT_MS);
  const firsts = [kept?.key ?? logged.key, keys.at("event", lastEvent - KEPT_EVENTS + 1)].sort();
  const firstEpoch = begun.at(-KEPT_EPOCHS)?.key;
  await kv.txn(
    [],
    [
      del(logged.key, firsts[1]!),
      ...(firstEpoch ? [del(keys.below("epoch").key, firstEpoch)] : []),
      del(keys.below("part").key, keys.at("part", now - KEPT_PARTS_MS)),
    ],
  );
}

const corrupt = (key: string): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    `The key ${key} of the store is not valid.`,
    "It was damaged, or written by another program. Find out by which, and restore the store from a backup, or rebuild it with `overlayctl recover`.",
  );
