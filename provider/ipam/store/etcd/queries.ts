import type { FreeRow, LeaseRow, OfferRow, PoolRow } from "../../decide/rows";
import { overlapsAny, positionOf } from "../../extents";
import type { Extent, LoggedEvent } from "../../types";
import { hex } from "../columns";
import { epochs, freeRanges, leases, offers, pools } from "../schema";
import type { DocumentRow, EpochRow, Query, Rows } from "../store";
import type { Opening } from "./head";
import {
  EVENTS_IN_COMMIT,
  endOfPrefix,
  entriesOf,
  eventsAt,
  type Keys,
  padNumber,
  type Range,
  rowOf,
  rowsAt,
  rowsOf,
} from "./keys";
import { type Entry, type EtcdKv, type KeyRange, MAX_OPERATIONS } from "./kv";
import type { LockedPool } from "./writes";

/** Answers queries from ranges of keys, see `keys.ts`. */

/**
 * Keys of events begin with the revision of `head` that their transaction has read. Later commits have higher revisions, and a commit fails if `head`
 * has been put at a revision that is higher by so many: so events after a revision are found by their keys.
 */
export const EVENT_WINDOW = 1000;

/** Yields ranges, and gets what they have; those of several plans share a request. */
export type Plan<T> = Generator<KeyRange[], T, Entry[][]>;

/** All reads of a transaction are at the revision of the first one. */
export class Moment {
  #revision: number | undefined;
  /** Known to each plan after its first answer. */
  opening!: Opening;
  /** The first free ranges of locked pools. */
  readonly ahead = new Map<string, FreeRow[]>();

  constructor(
    private readonly kv: EtcdKv,
    readonly keys: Keys,
    readonly now: number,
  ) {}

  get revision(): number {
    return this.#revision!;
  }

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
  const rows: Record<string, unknown[]> = {};
  const answers = yield* together<Rows[]>(queries.map((query) => answer(moment, query)));
  for (const [field, list] of answers.flatMap((each): [string, unknown[]][] => Object.entries(each)))
    for (const row of list) {
      rows[field] ??= [];
      rows[field].push(row);
    }
  return rows;
}

/** The first free ranges are read with a pool that is locked: most requests for any value need them. */
export function* readLocked(moment: Moment, name: string): Plan<LockedPool> {
  const { keys, ahead } = moment;
  const [[entry] = [], found = []] = yield [
    { key: keys.pool(name) },
    { ...keys.below("free_range", name, "a"), limit: READ_AHEAD },
  ];
  ahead.set(name, rowsOf(freeRanges, found));
  return { name, entry };
}
const READ_AHEAD = 8;

function* readFree({ keys, ahead }: Moment, { pool, zone, from, limit }: Of<"free">): Plan<Extent[]> {
  const known = zone === "a" ? ahead.get(pool) : undefined;
  const after = known?.filter(({ last }) => last >= from) ?? [];
  if (known && (after.length >= limit || known.length < READ_AHEAD)) return after.slice(0, limit);
  const { key, end } = keys.below("free_range", pool, zone);
  return rowsOf(freeRanges, yield* read({ key: `${key}${hex(from)}`, end, limit }));
}

function* answer(moment: Moment, query: Query): Plan<Rows> {
  const { keys } = moment;
  const { now = moment.now } = query as { now?: number };
  switch (query.of) {
    case "pool":
      return { pools: rowsOf(pools, yield* read({ key: keys.pool(query.name) })) };
    case "pools":
      return { pools: yield* readPools(keys, query) };
    case "activePools":
      return { active: yield* readActive(moment, query.prefix) };
    case "lease":
      return { leases: rowsOf(leases, yield* read({ key: keys.at("lease", query.uid) })) };
    case "owner":
      return { leases: entriesOf(leases, yield* read(keys.below("owner", query.pool, query.owner))) };
    case "name":
      return { leases: yield* readLeases({ key: keys.at("name", query.name) }) };
    case "values":
      return { leases: yield* readHolders(keys, query) };
    case "ports": {
      const ports = query.ports.map((port) => ({ key: keys.at("port", query.pool, hex(query.value), port) }));
      return { leases: yield* readLeases(...ports) };
    }
    case "sharers":
      return { leases: yield* readLeases(keys.below("share", query.pool, query.key)) };
    case "due": {
      const { pool, limit } = query;
      return { leases: yield* readLeases({ ...upTo(keys.below("due", pool), now + 1), limit }) };
    }
    case "resting":
      return { leases: yield* readLeases({ ...keys.below("ended", query.pool), limit: query.limit }) };
    case "idle": {
      const { pool, limit } = query;
      const found = yield* read({ ...keys.below("at", pool), limit, orderBy: "VALUE" });
      const idle = found.filter(({ value }) => !value.startsWith("~"));
      return { leases: entriesOf(leases, idle) };
    }
    case "page":
      return { leases: yield* readPage(keys, query) };
    case "parents":
      return { leases: yield* readLeases(keys.below("parent", query.pool)) };
    case "free":
      return { free: [{ query, rows: yield* readFree(moment, query) }] };
    case "offersOf":
      return { offers: rowsOf(offers, yield* read(keys.below("offer", query.owner))) };
    case "offersIn":
      return { offers: entriesOf(offers, yield* read(from(keys.below("in", query.pool), now))) };
    case "offersNamed":
      return { offers: yield* readOffers(now, keys.below("offername", query.name)) };
    case "offersOfPool":
      return { offers: yield* readOffers(now, keys.below("offerpool", query.name)) };
    case "offersWithPool":
      return { offers: yield* readOffers(now, keys.beginning("offerpool", query.prefix)) };
    case "past": {
      const until = (tree: string) => ({ ...upTo(keys.below(tree), query.before), limit: query.limit });
      const past = [readRows(until("past")), readRows(until("offerpast"))];
      const [ended = [], expired = []] = yield* together(past);
      return { leases: rowsOf(leases, ended), offers: rowsOf(offers, expired) };
    }
    case "epoch":
      return { epochs: yield* readEpoch(moment, query.version) };
    case "documents": {
      const found = yield* read(keys.documents(query.kind));
      const table = query.kind === "secret" ? "secret" : "document";
      return { documents: found.flatMap((entry) => rowsAt(table, entry, 0)) as DocumentRow[] };
    }
    case "events":
      return { events: yield* readEvents(moment, query) };
    case "table": {
      const { table, after, limit } = query;
      const { key, end } = keys.below(table);
      const found = yield* read({ key: after === undefined ? key : `${after}\0`, end, limit });
      const rows = found.flatMap((entry) => rowsAt(table, entry, moment.opening.row.eventOffset));
      return { tables: [{ rows, ...(found.length === limit && { next: found.at(-1)!.key }) }] };
    }
  }
}

type Of<K extends Query["of"]> = Query & { of: K };

const upTo = ({ key }: Range, before: number): Range => ({ key, end: `${key}${padNumber(before)}` });
const from = ({ key, end }: Range, time: number): Range => ({ key: `${key}${padNumber(time)}`, end });

function* read(...ranges: KeyRange[]): Plan<Entry[]> {
  return (yield ranges).flat();
}

/** Reads pages until there are enough, or to the end. */
function* readPages(range: Range, limit: number, isEnough: (all: Entry[]) => boolean): Plan<Entry[]> {
  const all: Entry[] = [];
  for (let { key } = range; ; key = `${all.at(-1)!.key}\0`) {
    const found = yield* read({ ...range, key, limit });
    all.push(...found);
    if (found.length < limit || isEnough(all)) return all;
  }
}

/** The rows that entries of an index lead to. */
function* readRows(...ranges: KeyRange[]): Plan<Entry[]> {
  const rows = new Set((yield* read(...ranges)).map(({ value }) => value));
  return rows.size === 0 ? [] : yield* read(...[...rows].map((key) => ({ key })));
}

function* readLeases(...ranges: KeyRange[]): Plan<LeaseRow[]> {
  return rowsOf(leases, yield* readRows(...ranges));
}

/** Those that have not expired. */
function* readOffers(now: number, ...ranges: KeyRange[]): Plan<OfferRow[]> {
  return rowsOf(offers, yield* readRows(...ranges)).filter(({ expiresAt }) => expiresAt >= now);
}

/** Some rows only serve as locks. */
function* readPools(keys: Keys, { prefix, after, limit }: Of<"pools">): Plan<PoolRow[]> {
  const start = [keys.pool(prefix), `${keys.pool(after)}\0`].sort()[1]!;
  const end = endOfPrefix(keys.pool(prefix));
  const toPools = (all: Entry[]) => rowsOf(pools, all).filter(({ spec }) => spec);
  if (start >= end) return [];
  return toPools(yield* readPages({ key: start, end }, limit, (all) => toPools(all).length >= limit)).slice(0, limit);
}

function* readActive({ keys, now }: Moment, prefix: string): Plan<string[]> {
  const range = (tree: string) => ({ ...keys.beginning(tree, prefix), keysOnly: true });
  const [due, resting, offered] = yield ["due", "ended", "in"].map(range);
  const active = (entries: Entry[] = [], isActive: (time: number) => boolean) =>
    entries.map(({ key }) => keys.componentsOf(key)).filter(([, time]) => isActive(Number(time)));
  const all = [
    ...active(due, (time) => time <= now),
    ...active(resting, () => true),
    ...active(offered, (time) => time >= now),
  ];
  return [...new Set(all.map(([pool]) => pool!))];
}

/** Ranges that end in this one, and those that end behind it, until one begins behind it. */
function* readHolders(keys: Keys, { pool, first, last }: Of<"values">): Plan<LeaseRow[]> {
  const { key } = keys.below("at", pool);
  const { key: start, end } = keys.below("block", pool);
  const isIn = (entry: Entry) => {
    const [{ extents, resting = [] }] = entriesOf(leases, [entry]) as [LeaseRow];
    return overlapsAny([...extents, ...resting], { first, last });
  };
  const behind = readPages({ key: `${start}${hex(last)}0`, end }, 16, (all) => !isIn(all.at(-1)!));
  const [within = [], blocks = []] = yield* together([
    read({ key: `${key}${hex(first)}`, end: `${key}${hex(last)}0` }),
    behind,
  ]);
  return entriesOf(leases, [...within, ...blocks.filter(isIn)]);
}

/** By position; those with equal positions are not parted. A lease has an entry for each range, of which one is at its position. */
function* readPage(keys: Keys, { pool, after, limit }: Of<"page">): Plan<LeaseRow[]> {
  const { key, end } = keys.below("at", pool);
  const placeOf = (lease: LeaseRow) => key + hex(positionOf(lease));
  const toListed = (all: Entry[]) =>
    entriesOf(leases, all).filter((lease, i) => all[i]!.key.startsWith(placeOf(lease)));
  const isEnough = (all: Entry[]) => {
    const last = toListed(all)[limit - 1];
    return last !== undefined && !all.at(-1)!.key.startsWith(placeOf(last));
  };
  const listed = toListed(yield* readPages({ key: `${key}${hex(after)}0`, end }, limit + 1, isEnough));
  const last = listed[limit - 1];
  return last ? listed.filter((lease) => positionOf(lease) <= positionOf(last)) : listed;
}

/** The present epoch is known. Older ones are near, as a rule: etcd counts all keys of a range, and there may be 50,000. */
function* readEpoch(moment: Moment, version: number): Plan<EpochRow[]> {
  yield [];
  const { present } = moment.opening;
  if (present && present.first <= version) return [present];
  const { keys } = moment;
  for (let span = 1024, end = version + 1; end > 0; end -= span, span *= 16) {
    const found = yield* read({ key: keys.at("epoch", end - span), end: keys.at("epoch", end) });
    if (found.length > 0) return [rowOf(epochs, found.at(-1)!)];
  }
  return [];
}

/** None, if some of them are no longer kept. Pages of commits, until they are behind all that can have an event of the answer. */
function* readEvents(moment: Moment, { after, limit, pool, since = 0 }: Of<"events">): Plan<LoggedEvent[]> {
  yield [];
  const { keys } = moment;
  const { eventOffset, trimmed = 0 } = moment.opening.row;
  const { key, end } = keys.below("event");
  const revisionOf = (id: number) => Math.floor((id - eventOffset) / EVENTS_IN_COMMIT);
  if (after > 0 && revisionOf(after) < trimmed) return [];
  const toEvents = (all: Entry[]) =>
    all
      .flatMap((entry) => eventsAt(entry, eventOffset))
      .filter(({ id, at, ...event }) => id > after && (pool === undefined || (event.pool === pool && at >= since)))
      .sort((a, b) => a.id - b.id);
  const isEnough = (all: Entry[]) => {
    const last = toEvents(all)[limit - 1];
    return last !== undefined && revisionOf(last.id) < Number(keys.componentsOf(all.at(-1)!.key)[0]);
  };
  const start = `${key}${padNumber(revisionOf(after) - EVENT_WINDOW)}`;
  return toEvents(yield* readPages({ key: start, end }, 1000, isEnough)).slice(0, limit);
}
