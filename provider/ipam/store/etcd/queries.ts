import { Found } from "../queries";
import {
  documents,
  epochs,
  events,
  leaseNames,
  leasePorts,
  leaseRanges,
  leases,
  offerNames,
  offers,
  pools,
  secrets,
  TABLES,
} from "../schema";
import { KEPT_MS, type Query, type Rows } from "../store";
import type { Stored, Table } from "../table";
import { endOfPrefix, indexName, type Keys, padNumber, parseObject, type Range } from "./keys";
import { type Entry, type EtcdKv, type KeyRange, MAX_OPERATIONS } from "./kv";

/** Yields ranges of keys, and gets what they have; those of several plans share a request. */
export type Plan<T> = Generator<KeyRange[], T, Entry[][]>;

/** All reads of a transaction are at the revision of the first one. */
export class Moment {
  #revision: number | undefined;

  constructor(
    private readonly kv: EtcdKv,
    readonly keys: Keys,
    readonly now: number,
  ) {}

  async run<T>(plan: Plan<T>): Promise<T> {
    for (let step = plan.next(); ; ) {
      if (step.done) return step.value;
      step = plan.next(step.value.length > 0 ? await this.#read(step.value) : []);
    }
  }

  async #read(ranges: KeyRange[]): Promise<Entry[][]> {
    const all: Entry[][] = [];
    for (let i = 0; i < ranges.length; i += MAX_OPERATIONS) {
      const { found, revision } = await this.kv.read(ranges.slice(i, i + MAX_OPERATIONS), this.#revision);
      this.#revision ??= revision;
      all.push(...found);
    }
    return all;
  }
}

/** Runs plans side by side. */
export function* together<T extends unknown[]>(plans: { [I in keyof T]: Plan<T[I]> }): Plan<T> {
  const steps = plans.map((plan) => plan.next());
  while (steps.some(({ done }) => !done)) {
    const found = yield steps.flatMap((step) => (step.done ? [] : step.value));
    for (const [i, step] of steps.entries())
      if (!step.done) steps[i] = plans[i]!.next(found.splice(0, step.value.length));
  }
  return steps.map(({ value }) => value) as T;
}

export function* answerAll(moment: Moment, queries: Query[]): Plan<Rows> {
  const found = new Found();
  yield* together(queries.map((query) => answer(moment, query, found)));
  return found.rows;
}

function* answer(moment: Moment, query: Query, found: Found): Plan<void> {
  const [table, rows] = yield* find(moment, query);
  found.add(table, query, rows);
  if (query.of !== "past") return;
  const range = upTo(moment.keys.below(indexName(offers, ["expires_at"])), moment.now - KEPT_MS);
  found.add(offers, query, yield* read(moment.keys, { ...range, limit: query.limit }));
}

function* find({ keys, now }: Moment, query: Query): Plan<[Table, Stored[]]> {
  const index = (table: Table, columns: string[], ...values: (string | number)[]) =>
    keys.below(indexName(table, columns), ...values);
  const live = (rows: Stored[]) => rows.filter(({ expires_at: at }) => !(Number(at) < now));
  switch (query.of) {
    case "pool":
      return [pools, yield* read(keys, { key: keys.at("pool", query.name) })];
    case "pools":
      return [pools, yield* readPools(keys, query)];
    case "activePools":
      return [pools, yield* readActive(keys, query.prefix, now)];
    case "lease":
      return [leases, yield* read(keys, { key: keys.at("lease", query.uid) })];
    case "owner":
      return [leases, yield* read(keys, index(leases, ["owner", "pool"], query.owner, query.pool))];
    case "ended": {
      const range = index(leases, ["owner", "pool", "ended_at"], query.owner, query.pool);
      return [leases, yield* read(keys, { ...range, limit: query.limit })];
    }
    case "name":
      return [leases, yield* join(keys, leaseNames, leases, { key: keys.at("lease_name", query.name) })];
    case "values":
      return [leases, yield* readHolders(keys, query)];
    case "ports": {
      const ports = query.ports.map((port) => ({ key: keys.at("lease_port", query.pool, query.value, port) }));
      return [leases, yield* join(keys, leasePorts, leases, ...ports)];
    }
    case "sharers": {
      const shared = index(leaseRanges, ["pool", "shared_as"], query.pool, query.key);
      return [leases, yield* join(keys, leaseRanges, leases, shared)];
    }
    case "due": {
      const range = upTo(index(leases, ["pool", "due_at", "position"], query.pool), now + 1);
      return [leases, yield* read(keys, { ...range, limit: query.limit })];
    }
    case "resting": {
      const range = index(leases, ["pool", "ended_at"], query.pool);
      return [leases, yield* read(keys, { ...range, limit: query.limit })];
    }
    case "idle": {
      const range = index(leases, ["pool", "last_seen"], query.pool);
      return [leases, yield* read(keys, { ...range, limit: query.limit })];
    }
    case "page":
      return [leases, yield* readPage(keys, query)];
    case "parents":
      return [leases, yield* read(keys, index(leases, ["pool", "child_pool"], query.pool))];
    case "free": {
      const { pool, zone, from, limit } = query;
      const { end } = keys.below("free_range", pool, zone);
      return [
        TABLE.get("free_range")!,
        yield* read(keys, { key: keys.at("free_range", pool, zone, from), end, limit }),
      ];
    }
    case "offersOf":
      return [offers, yield* read(keys, keys.below("offer", query.owner))];
    case "offersIn": {
      const { key, end } = index(offers, ["pool", "expires_at"], query.pool);
      return [offers, yield* read(keys, { key: `${key}${padNumber(now)}`, end })];
    }
    case "offersNamed":
      return [offers, live(yield* join(keys, offerNames, offers, keys.below("offer_name", query.name)))];
    case "offersOfPool":
      return [offers, live(yield* read(keys, index(offers, ["child_name"], query.name)))];
    case "offersWithPool":
      return [offers, live(yield* read(keys, keys.beginning(indexName(offers, ["child_name"]), query.prefix)))];
    case "past": {
      const range = upTo(index(leases, ["ended_at"]), now - KEPT_MS);
      return [leases, yield* read(keys, { ...range, limit: query.limit })];
    }
    case "epoch":
      return [epochs, yield* readEpoch(keys, query.version)];
    case "documents":
      return query.kind === "secret"
        ? [secrets, yield* read(keys, keys.below("secret"))]
        : [documents, yield* read(keys, keys.below("document", query.kind))];
    case "events":
      return [events, yield* readEvents(keys, query)];
    case "table": {
      const { after = [], limit } = {
        ...query,
        after: query.after === undefined ? undefined : JSON.parse(query.after),
      };
      const { key, end } = keys.below(query.table);
      const start = after.length > 0 ? `${keys.at(query.table, ...after)}\0` : key;
      return [TABLE.get(query.table)!, yield* read(keys, { key: start, end, limit })];
    }
  }
}

const TABLE = new Map(TABLES.map((table) => [table.name, table]));

type Of<K extends Query["of"]> = Query & { of: K };

const upTo = ({ key }: Range, before: number): Range => ({ key, end: `${key}${padNumber(before)}` });

/** Rows at their keys, or those that entries of an index lead to. */
function* read({ prefix }: Keys, ...ranges: KeyRange[]): Plan<Stored[]> {
  const entries = (yield ranges).flat();
  if (!entries[0]?.value.startsWith(prefix)) return entries.map(({ value }) => parseObject(value));
  return (yield entries.map(({ value }) => ({ key: value }))).flat().map(({ value }) => parseObject(value));
}

/** The rows of a table whose keys are in those of another table. */
function* join<R>(keys: Keys, from: Table<R>, to: Table, ...ranges: KeyRange[]): Plan<Stored[]> {
  return yield* readAt(keys, to, (yield* read(keys, ...ranges)).map(from.decode));
}

function* readAt(keys: Keys, table: Table, rows: unknown[]): Plan<Stored[]> {
  const all = new Set(rows.map((row) => keys.row(table, row)));
  return all.size === 0 ? [] : yield* read(keys, ...[...all].map((key) => ({ key })));
}

/** Reads pages until there are enough, or to the end. */
function* readPages(range: Range, limit: number, isEnough: (all: Entry[]) => boolean): Plan<Entry[]> {
  const all: Entry[] = [];
  for (let { key } = range; ; key = `${all.at(-1)!.key}\0`) {
    const found = (yield [{ ...range, key, limit }]).flat();
    all.push(...found);
    if (found.length < limit || isEnough(all)) return all;
  }
}

const rowsOf = (entries: Entry[]): Stored[] => entries.map(({ value }) => parseObject(value));

/** Some rows only serve as locks. */
function* readPools(keys: Keys, { prefix, after, limit }: Of<"pools">): Plan<Stored[]> {
  const key = [keys.at("pool", prefix), `${keys.at("pool", after)}\0`].sort()[1]!;
  const end = endOfPrefix(keys.at("pool", prefix));
  if (key >= end) return [];
  const open = (all: Entry[]) => rowsOf(all).filter(({ spec }) => spec !== undefined);
  return open(yield* readPages({ key, end }, limit, (all) => open(all).length >= limit)).slice(0, limit);
}

function* readActive(keys: Keys, prefix: string, now: number): Plan<Stored[]> {
  const range = (table: Table, ...columns: string[]) => ({
    ...keys.beginning(indexName(table, ["pool", ...columns]), prefix),
    keysOnly: true,
  });
  const found = yield [range(leases, "due_at", "position"), range(leases, "ended_at"), range(offers, "expires_at")];
  const [due = [], resting = [], offered = []] = found.map((entries) =>
    entries.map(({ key }) => keys.componentsOf(key)),
  );
  const active = [
    ...due.filter(([, at]) => Number(at) < now),
    ...resting,
    ...offered.filter(([, at]) => Number(at) >= now),
  ];
  const names = [...new Set(active.map(([pool]) => pool!))];
  return names.length === 0 ? [] : yield* read(keys, ...names.map((name) => ({ key: keys.at("pool", name) })));
}

/** Ranges that end in this one, and those that end behind it, until one begins behind it. */
function* readHolders(keys: Keys, { pool, first, last }: Of<"values">): Plan<Stored[]> {
  const { end } = keys.below("lease_range", pool);
  const behind = `${keys.at("lease_range", pool, last)}0`;
  const ranges = (all: Entry[]) => rowsOf(all).map(leaseRanges.decode);
  const [within, next] = yield* together([
    read(keys, { key: keys.at("lease_range", pool, first), end: behind }),
    readPages({ key: behind, end }, 2, (all) => ranges(all).at(-1)!.first > last),
  ]);
  const found = [...within.map(leaseRanges.decode), ...ranges(next).filter((range) => range.first <= last)];
  return yield* readAt(keys, leases, found);
}

/** By position; those with equal positions are not parted. */
function* readPage(keys: Keys, { pool, after, limit }: Of<"page">): Plan<Stored[]> {
  const tree = indexName(leases, ["pool", "position"]);
  const positionOf = ({ key }: Entry) => keys.componentsOf(key)[1]!;
  const range = { key: `${keys.at(tree, pool, after)}0`, end: keys.below(tree, pool).end };
  const listed = (yield [{ ...range, limit }]).flat();
  const last = listed.length === limit ? listed.at(-1) : undefined;
  const equal = last ? (yield [keys.below(tree, pool, positionOf(last))]).flat() : [];
  const found = new Map([...listed, ...equal].map((entry) => [entry.key, { key: entry.value }]));
  return found.size === 0 ? [] : yield* read(keys, ...found.values());
}

/** Epochs are near, as a rule: etcd counts all keys of a range, and there may be 50,000. */
function* readEpoch(keys: Keys, version: number): Plan<Stored[]> {
  for (let span = 1024, end = version + 1; end > 0; end -= span, span *= 16) {
    const found = yield* read(keys, { key: keys.at("epoch", end - span), end: keys.at("epoch", end) });
    if (found.length > 0) return found.slice(-1);
  }
  return [];
}

function* readEvents(keys: Keys, { after, limit, pool, since = 0 }: Of<"events">): Plan<Stored[]> {
  const range = { key: keys.at("event", after + 1), end: keys.below("event").end };
  const wanted = (all: Entry[]) =>
    rowsOf(all).filter((row) => pool === undefined || (row.pool === pool && Number(row.at) >= since));
  return wanted(yield* readPages(range, Math.min(limit, 1000), (all) => wanted(all).length >= limit)).slice(0, limit);
}
