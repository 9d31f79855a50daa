import {
  copiedTable,
  Found,
  indexOf,
  type Parameters,
  parameterOf,
  SEARCHES,
  type Search,
  searchesOf,
} from "../queries";
import { epochs, leaseRanges, leases, offers, pools } from "../schema";
import type { Query, Rows } from "../store";
import type { Stored, Table } from "../table";
import { type Component, indexName, type Keys, parseObject } from "./keys";
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

type Of<K extends Query["of"]> = Query & { of: K };

function* answer({ keys, now }: Moment, query: Query, found: Found): Plan<void> {
  switch (query.of) {
    case "activePools":
      return found.add(pools, query, yield* readActive(keys, query.prefix, now));
    case "values":
      return found.add(leases, query, yield* readHolders(keys, query));
    case "page":
      return found.add(leases, query, yield* readPage(keys, query));
    case "epoch":
      return found.add(epochs, query, yield* readEpoch(keys, query.version));
    case "table":
      return found.add(copiedTable(query.table), query, yield* readTable(keys, query));
  }
  const searches = searchesOf(query).map(([name, parameters]) =>
    readSearch(keys, SEARCHES[name as keyof typeof SEARCHES], { now, ...parameters }),
  );
  for (const [table, rows] of yield* together(searches)) found.add(table, query, rows);
}

function* readSearch(keys: Keys, search: Search, parameters: Parameters): Plan<[Table, Stored[]]> {
  const { table, through, only, isLimited } = search;
  const range = rangeOf(keys, search, parameters);
  const fitting = (rows: Stored[]) => (only ? rows.filter((row) => only.fits(row, parameters)) : rows);
  if (range.end !== undefined && range.key >= range.end) return [table, []];
  if (through) return [table, fitting(yield* readAt(keys, table, (yield* read(keys, range)).map(through.decode)))];
  if (!isLimited) return [table, fitting(yield* read(keys, range))];
  const limit = Number(parameters.limit);
  if (!only) return [table, yield* read(keys, { ...range, limit })];
  const isEnough = (all: Entry[]) => fitting(rowsOf(all)).length >= limit;
  return [table, fitting(rowsOf(yield* readPages(range, Math.min(limit, 1000), isEnough))).slice(0, limit)];
}

/** The keys of a search. */
function rangeOf(keys: Keys, search: Search, parameters: Parameters): KeyRange {
  const { table, through = table, equal, next = [], bounds = {} } = search;
  const index = indexOf(search);
  const tree = index ? indexName(through, index.columns) : through.name;
  const values = equal.map((column) => parameters[parameterOf(search, column)] as Component);
  if (!index && next.length === 0) return { key: keys.at(tree, ...values) };
  const all = keys.below(tree, ...values);
  const isLast = !index && next.length === 1;
  const at = (name?: string) =>
    name === undefined ? [] : [keys.start(tree, isLast, ...values, parameters[name] as Component)];
  const behind = (name?: string) => at(name).map((key) => `${key}${isLast ? "\0" : "0"}`);
  const first = [all.key, ...at(bounds[">="]), ...behind(bounds[">"])].sort().at(-1)!;
  return { key: first, end: [all.end, ...at(bounds["<"]), ...behind(bounds["<="])].sort()[0]! };
}

function* readTable(keys: Keys, { table, after, limit }: Of<"table">): Plan<Stored[]> {
  const { key, end } = keys.below(table);
  const start = after === undefined ? key : `${keys.at(table, ...JSON.parse(after))}\0`;
  return yield* read(keys, { key: start, end, limit });
}

/** Rows at their keys, or those that entries of an index lead to. */
function* read({ prefix }: Keys, ...ranges: KeyRange[]): Plan<Stored[]> {
  const entries = (yield ranges).flat();
  if (!entries[0]?.value.startsWith(prefix)) return entries.map(({ value }) => parseObject(value));
  return (yield entries.map(({ value }) => ({ key: value }))).flat().map(({ value }) => parseObject(value));
}

function* readAt(keys: Keys, table: Table, rows: unknown[]): Plan<Stored[]> {
  const all = new Set(rows.map((row) => keys.row(table, row)));
  return all.size === 0 ? [] : yield* read(keys, ...[...all].map((key) => ({ key })));
}

/** Reads pages until there are enough, or to the end. */
function* readPages(range: KeyRange, limit: number, isEnough: (all: Entry[]) => boolean): Plan<Entry[]> {
  const all: Entry[] = [];
  for (let { key } = range; ; key = `${all.at(-1)!.key}\0`) {
    const found = (yield [{ ...range, key, limit }]).flat();
    all.push(...found);
    if (found.length < limit || isEnough(all)) return all;
  }
}

const rowsOf = (entries: Entry[]): Stored[] => entries.map(({ value }) => parseObject(value));

function* readActive(keys: Keys, prefix: string, now: number): Plan<Stored[]> {
  const range = (table: Table, ...columns: string[]) => {
    const key = keys.start(indexName(table, ["pool", ...columns]), false, prefix);
    return { key, end: `${key}\u{10ffff}`, keysOnly: true };
  };
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
