import type { LeaseRow, OfferRow, Zone } from "../../decide/rows";
import { overlapsAny, positionOf } from "../../extents";
import type { LoggedEvent } from "../../types";
import { hex, InvalidField } from "../columns";
import { documents, epochs, freeRanges, leaseNames } from "../schema";
import type { CopiedTable, EpochRow, Query, Rows } from "../store";
import { headOf } from "./head";
import {
  componentText,
  EVENTS_IN_COMMIT,
  endOfPrefix,
  eventsOf,
  fromBytes,
  isHeld,
  type Keys,
  lastComponents,
  leaseBelowValue,
  leaseOf,
  offerOf,
  padNumber,
  poolOf,
} from "./keys";
import type { Entry, KeyRange } from "./kv";
import type { Reader } from "./reader";

/** Answers queries: each is one or two ranges, see `keys.ts`. */

export interface Moment {
  reader: Reader;
  keys: Keys;
  now: number;
}

/**
 * Keys of events begin with the revision of `head` that their transaction has read. Later commits have higher revisions, and a commit fails if `head`
 * has been put at a revision that is higher by so many: so events after a revision are found by their keys.
 */
export const EVENT_WINDOW = 1000;

/** Rows that several queries find come once. */
export async function answerQueries(moment: Moment, queries: Query[]): Promise<Rows> {
  const found = await Promise.all(queries.map((query) => answer(moment, query)));
  const all = <K extends Exclude<keyof Rows, "free" | "active" | "tables">>(
    field: K,
    keyOf: (row: NonNullable<Rows[K]>[number]) => string,
  ) => {
    const rows = found.flatMap((each) => (each[field] ?? []) as NonNullable<Rows[K]>[number][]);
    return [...new Map(rows.map((row) => [keyOf(row), row])).values()];
  };
  const rows: Rows = {
    pools: all("pools", ({ name }) => name),
    leases: all("leases", ({ uid }) => uid),
    offers: all("offers", ({ owner, program }) => `${owner}\n${program}`),
    documents: all("documents", ({ kind, key }) => `${kind}/${key}`),
    epochs: all("epochs", ({ first }) => String(first)),
    events: all("events", ({ id }) => String(id)),
    free: found.flatMap(({ free = [] }) => free),
    active: found.flatMap(({ active = [] }) => active),
    tables: found.flatMap(({ tables = [] }) => tables),
  };
  return Object.fromEntries(Object.entries(rows).filter(([, list]) => list.length > 0));
}

async function answer(moment: Moment, query: Query): Promise<Rows> {
  const { reader, keys } = moment;
  const { now = moment.now } = query as { now?: number };
  const read = (range: KeyRange) => reader.read(range);
  switch (query.of) {
    case "pool":
      return { pools: (await read({ key: keys.pool(query.name) })).map(({ value }) => poolOf(value)) };
    case "pools":
      return { pools: await readPools(moment, query) };
    case "activePools":
      return { active: await readActive(moment, query.prefix) };
    case "lease":
      return { leases: await readLeases(moment, [query.uid]) };
    case "owner":
      return { leases: rowsOf(await read(keys.below("owner", query.pool, query.owner))) };
    case "name":
      return { leases: await leasesAt(moment, [await read({ key: keys.at("name", query.name) })]) };
    case "values":
      return { leases: await readHolders(moment, query) };
    case "ports": {
      const ports = query.ports.map((port) => read({ key: keys.at("port", query.pool, hex(query.value), port) }));
      return { leases: await leasesAt(moment, await Promise.all(ports)) };
    }
    case "sharers":
      return { leases: await leasesBelow(moment, [await read(keys.below("share", query.pool, query.key))]) };
    case "due": {
      const { pool, limit } = query;
      const until = (tree: string, time: number) => read({ ...upTo(keys.below(tree, pool), time), limit });
      const due = await Promise.all([until("expires", now), until("rested", now + 1)]);
      return { leases: await leasesBelow(moment, due) };
    }
    case "resting":
      return {
        leases: await leasesBelow(moment, [await read({ ...keys.below("ended", query.pool), limit: query.limit })]),
      };
    case "idle":
      return { leases: await readIdle(moment, query) };
    case "page":
      return { leases: await readPage(moment, query) };
    case "parents":
      return { leases: await leasesBelow(moment, [await read(keys.below("parent", query.pool))]) };
    case "free":
      return { free: [{ query, rows: await readFree(moment, query) }] };
    case "offersOf":
      return { offers: (await read(keys.below("offer", query.owner))).map(({ value }) => offerOf(value)) };
    case "offersIn": {
      const found = await read(from(keys.below("offerin", query.pool), now));
      return { offers: found.map(({ value }) => offerOf(value)) };
    }
    case "offersNamed":
      return { offers: await offersBelow({ ...moment, now }, await read(keys.below("offername", query.name))) };
    case "offersOfPool":
      return { offers: await offersBelow({ ...moment, now }, await read(keys.below("offerpool", query.name))) };
    case "offersWithPool": {
      const key = `${keys.at("offerpool")}/${componentText(query.prefix)}`;
      return { offers: await offersBelow({ ...moment, now }, await read({ key, end: endOfPrefix(key) })) };
    }
    case "past": {
      const until = (tree: string) => read({ ...upTo(keys.below(tree), query.before), limit: query.limit });
      const [ended, expired] = await Promise.all([until("past"), until("offerpast")]);
      const [leases, offers] = await Promise.all([leasesBelow(moment, [ended]), readOffers(moment, expired)]);
      return { leases, offers };
    }
    case "epoch":
      return { epochs: await readEpoch(moment, query.version) };
    case "documents":
      return { documents: await readDocuments(moment, query) };
    case "events":
      return { events: await readEvents(moment, query) };
    case "table":
      return { tables: [await readTable(moment, query)] };
  }
}

type Of<K extends Query["of"]> = Query & { of: K };
type Range = Required<Pick<KeyRange, "key" | "end">>;

const upTo = ({ key }: Range, before: number): Range => ({ key, end: `${key}${timeText(before)}` });
const from = ({ key, end }: Range, time: number): Range => ({ key: `${key}${timeText(time)}`, end });
const timeText = (time: number): string => padNumber(Math.min(Math.max(time, 0), Number.MAX_SAFE_INTEGER));

const rowsOf = (entries: Entry[]): LeaseRow[] => entries.map(({ value }) => leaseOf(value));
const lastOf = (key: string): string => lastComponents(key, 1)[0]!;

/** The leases with these uids. All that another key names are there. */
async function readLeases({ reader, keys }: Moment, uids: string[]): Promise<LeaseRow[]> {
  const found = await Promise.all([...new Set(uids)].map((uid) => reader.read({ key: keys.at("lease", uid) })));
  return rowsOf(found.flat());
}

const leasesBelow = (moment: Moment, found: Entry[][]): Promise<LeaseRow[]> =>
  readLeases(
    moment,
    found.flat().map(({ key }) => lastOf(key)),
  );

/** The value of each key is a uid. */
const leasesAt = (moment: Moment, found: Entry[][]): Promise<LeaseRow[]> =>
  readLeases(
    moment,
    found.flat().map(({ key, value }) => leaseNames.decode({ name: key, uid: value }).uid),
  );

async function readOffers({ reader, keys }: Moment, entries: Entry[]): Promise<OfferRow[]> {
  const pointers = entries.map(({ key }) => lastComponents(key, 2));
  const found = await Promise.all(pointers.map((pointer) => reader.read({ key: keys.at("offer", ...pointer) })));
  return found.flat().map(({ value }) => offerOf(value));
}

/** Those that have not expired. */
const offersBelow = async (moment: Moment, entries: Entry[]): Promise<OfferRow[]> =>
  (await readOffers(moment, entries)).filter(({ expiresAt }) => expiresAt >= moment.now);

async function readPools({ reader, keys }: Moment, { prefix, after, limit }: Of<"pools">) {
  const start = keys.pool(prefix);
  const end = endOfPrefix(start);
  const pools = [];
  for (let key = [start, `${keys.pool(after)}\0`].sort()[1]!; key < end; ) {
    const found = await reader.read({ key, end, limit });
    for (const { value } of found) {
      const pool = poolOf(value);
      if (pool.spec) pools.push(pool);
    }
    if (found.length < limit || pools.length >= limit) break;
    key = `${found.at(-1)!.key}\0`;
  }
  return pools.slice(0, limit);
}

async function readActive({ reader, keys, now }: Moment, prefix: string): Promise<string[]> {
  const below = (tree: string) => {
    const key = `${keys.at(tree)}/${componentText(prefix)}`;
    return reader.read({ key, end: endOfPrefix(key), keysOnly: true });
  };
  const [expires, rested, offered] = await Promise.all([below("expires"), below("rested"), below("offerin")]);
  const names = [
    ...expires.map(({ key }) => lastComponents(key, 4)).filter(([, expiresAt]) => Number(expiresAt) < now),
    ...rested.map(({ key }) => lastComponents(key, 4)),
    ...offered.map(({ key }) => lastComponents(key, 4)).filter(([, expiresAt]) => Number(expiresAt) >= now),
  ].map(([pool]) => pool!);
  return [...new Set(names)];
}

/** Single values that end in the range, and blocks that meet it. */
async function readHolders(moment: Moment, query: Of<"values">): Promise<LeaseRow[]> {
  const { reader, keys } = moment;
  const { pool, first, last } = query;
  const { key } = keys.below("at", pool);
  const [singles, blocks] = await Promise.all([
    reader.read({ key: `${key}${hex(first)}`, end: `${key}${hex(last)}0` }),
    readBlocks(moment, query),
  ]);
  return [...singles.map(({ value }) => leaseBelowValue(value)), ...blocks];
}

/** Those that end in the range or behind it, until one begins behind it. */
async function readBlocks({ reader, keys }: Moment, { pool, first, last }: Of<"values">): Promise<LeaseRow[]> {
  const { key, end } = keys.below("block", pool);
  const leases: LeaseRow[] = [];
  const limit = 16;
  for (let start = `${key}${hex(first)}`; ; ) {
    const found = await reader.read({ key: start, end, limit });
    const page = found.map(({ value }) => leaseBelowValue(value));
    const held = page.map(({ extents, resting = [] }) => [...extents, ...resting]);
    leases.push(...page.filter((_, i) => overlapsAny(held[i]!, { first, last })));
    if (found.length < limit || held.at(-1)!.every((extent) => extent.first > last)) return leases;
    start = `${found.at(-1)!.key}\0`;
  }
}

async function readIdle({ reader, keys }: Moment, { pool, limit }: Of<"idle">): Promise<LeaseRow[]> {
  const trees = ["at", "block"].map((tree) => reader.read({ ...keys.below(tree, pool), limit, orderBy: "VALUE" }));
  const found = (await Promise.all(trees)).flat().filter(({ value }) => isHeld(value));
  const leases = found.map(({ value }) => leaseBelowValue(value)).sort((a, b) => a.lastSeen - b.lastSeen);
  return leases.slice(0, limit);
}

async function readPage(moment: Moment, { pool, after, limit }: Of<"page">): Promise<LeaseRow[]> {
  const trees = await Promise.all(["at", "block"].map((tree) => readPositions(moment, tree, pool, after, limit)));
  const leases = trees.flat().sort((a, b) => (positionOf(a) < positionOf(b) ? -1 : 1));
  const last = leases[limit - 1];
  return last ? leases.filter((lease) => positionOf(lease) <= positionOf(last)) : leases;
}

/** At least so many leases, or all, with their position in this tree. The last position is complete. */
async function readPositions(
  { reader, keys }: Moment,
  tree: string,
  pool: string,
  after: bigint,
  limit: number,
): Promise<LeaseRow[]> {
  const { key, end } = keys.below(tree, pool);
  const leases = new Map<string, LeaseRow>();
  const digits = (at: string) => at.slice(key.length, key.length + 32);
  for (let start = `${key}${hex(after)}0`, isLast = false; ; ) {
    const found = await reader.read({
      key: start,
      end: isLast ? `${key}${digits(start)}0` : end,
      limit: isLast ? 0 : limit,
    });
    for (const entry of found) {
      const lease = leaseBelowValue(entry.value);
      if (hex(positionOf(lease)) === digits(entry.key)) leases.set(lease.uid, lease);
    }
    if (isLast || found.length < limit) return [...leases.values()];
    isLast = leases.size >= limit;
    start = `${found.at(-1)!.key}\0`;
  }
}

async function readFree(moment: Moment, { pool, zone, from, limit }: Of<"free">) {
  const { reader, keys } = moment;
  const { key, end } = keys.below("free", pool, zone);
  const start = `${key}${hex(from)}`;
  const ahead = (await reader.known(firstFree(keys, pool, zone))) ?? [];
  const after = ahead.filter((entry) => entry.key >= start).slice(0, limit);
  const isEnough = after.length === limit || (ahead.length > 0 && ahead.length < READ_AHEAD);
  const found = isEnough ? after : await reader.read({ key: start, end, limit });
  return found.map((entry) => freeRanges.decode({ pool, zone, last: lastOf(entry.key), first: entry.value }));
}

/** Read together with a pool that is locked: most requests for any value need it. */
const READ_AHEAD = 8;
export const firstFree = (keys: Keys, pool: string, zone: Zone = "a"): KeyRange => ({
  ...keys.below("free", pool, zone),
  limit: READ_AHEAD,
});

/** The newest one is near, as a rule: etcd counts all keys of a range, and there may be 50,000. */
async function readEpoch({ reader, keys }: Moment, version: number): Promise<EpochRow[]> {
  const { key, end } = keys.below("epochs");
  for (let span = 1024, start = version; start >= 0; start -= span, span *= 16) {
    const until = start - span >= 0 ? `${key}${epochText(start - span)}` : end;
    const [found] = await reader.read({ key: `${key}${epochText(start)}`, end: until, limit: 1 });
    if (found) return [epochs.decode({ first: firstOf(found.key), tag: found.value })];
  }
  return [];
}

/** Epochs sort from the newest to the oldest. */
export const epochText = (first: number): string => padNumber(Number.MAX_SAFE_INTEGER - first);
const firstOf = (key: string): number => Number.MAX_SAFE_INTEGER - Number(lastOf(key));

async function readDocuments({ reader, keys }: Moment, { kind }: Of<"documents">) {
  const found = await reader.read(kind === "secret" ? keys.below("secret") : keys.below("document", kind));
  return found.map(({ key, value }) => documents.decode({ kind, key: lastOf(key), value }));
}

/** None, if some of them are no longer kept. Pages of commits, in the order of their keys, until they are behind all that can have an event of the answer. */
async function readEvents({ reader, keys }: Moment, query: Of<"events">): Promise<LoggedEvent[]> {
  const { after, limit, pool, since = 0 } = query;
  const { key, end } = keys.below("event");
  const { eventOffset } = headOf({ store: (await reader.read({ key: keys.store }))[0] });
  const revisionOf = (id: number) => Math.floor((id - eventOffset) / EVENTS_IN_COMMIT);
  const revision = revisionOf(after);
  const events: LoggedEvent[] = [];
  const page = 1000;
  const [trimmed] = after > 0 ? await reader.read({ key: keys.trimmed }) : [];
  if (trimmed && revision < Number(trimmed.value)) return [];
  for (let start = `${key}${padNumber(Math.max(0, revision - EVENT_WINDOW))}`; ; ) {
    const found = await reader.read({ key: start, end, limit: page });
    const all = found.flatMap((entry) => eventsAt(entry, eventOffset));
    events.push(
      ...all.filter((event) => event.id > after && (pool === undefined || (event.pool === pool && event.at >= since))),
    );
    events.sort((a, b) => a.id - b.id);
    const last = events[limit - 1];
    const read = found.length > 0 ? headRevisionOf(found.at(-1)!.key) : 0;
    if (found.length < page || (last && revisionOf(last.id) < read)) return events.slice(0, limit);
    start = `${found.at(-1)!.key}\0`;
  }
}

const headRevisionOf = (key: string): number => Number(lastComponents(key, 5)[0]);

export function eventsAt({ key, value, revision }: Entry, offset: number): LoggedEvent[] {
  try {
    return eventsOf(value, revision * EVENTS_IN_COMMIT + offset);
  } catch (error) {
    if (!(error instanceof InvalidField || error instanceof SyntaxError)) throw error;
    throw new InvalidField(fromBytes(key));
  }
}

/** The tree of each table that is copied, and the rows of one key. */
const COPIES: Record<CopiedTable, [tree: string, rowsOf: (entry: Entry, eventOffset: number) => object[]]> = {
  epoch: ["epochs", ({ key, value }) => [epochs.decode({ first: firstOf(key), tag: value })]],
  pool: ["pool", ({ value }) => [poolOf(value)]],
  lease: ["lease", ({ value }) => [leaseOf(value)]],
  free_range: [
    "free",
    ({ key, value }) => {
      const [pool, zone, last] = lastComponents(key, 3);
      return [freeRanges.decode({ pool, zone, last, first: value })];
    },
  ],
  offer: ["offer", ({ value }) => [offerOf(value)]],
  event: ["event", eventsAt],
  document: [
    "document",
    ({ key, value }) => {
      const [kind, name] = lastComponents(key, 2);
      return [documents.decode({ kind, key: name, value })];
    },
  ],
  secret: ["secret", ({ key, value }) => [documents.decode({ kind: "secret", key: lastOf(key), value })]],
};

async function readTable({ reader, keys }: Moment, { table, after, limit }: Of<"table">) {
  const [tree, rowsOf] = COPIES[table];
  const { key, end } = keys.below(tree);
  const { eventOffset } = headOf({ store: (await reader.read({ key: keys.store }))[0] });
  const found = await reader.read({ key: after === undefined ? key : `${after}\0`, end, limit });
  const next = found.length === limit ? found.at(-1)!.key : undefined;
  return { rows: found.flatMap((entry) => rowsOf(entry, eventOffset)), ...(next !== undefined && { next }) };
}
