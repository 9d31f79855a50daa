import {
  documents,
  epochs,
  events,
  freeRanges,
  leaseNames,
  leasePorts,
  leaseRanges,
  leases,
  offerNames,
  offers,
  pools,
  secrets,
  TABLES,
} from "./schema";
import type { CopiedTable, Query, Rows } from "./store";
import type { Stored, Table } from "./table";

/** Rows in the order of an index. Engines read them alike, with SQL or by keys. */
export interface Search {
  /** The table of the rows. */
  table: Table;
  /** The table with the index, if it is another one: its rows have the keys of those of `table`. */
  through?: Table;
  /** The first columns of the index, or of the key. Each equals the parameter of its field. */
  equal: string[];
  /** The other columns of it: the order of the rows. */
  next?: string[];
  /** Parameters that bound the first of these columns. */
  bounds?: { [sign in ">=" | ">" | "<=" | "<"]?: string };
  /** Other rows are left out. */
  only?: { text: string; fits(row: Stored, parameters: Parameters): boolean };
  /** Only the first `limit` rows. */
  isLimited?: boolean;
}

const LIVE: Search["only"] = {
  text: "offer.expires_at >= :now",
  fits: ({ expires_at: at }, { now }) => Number(at) >= Number(now),
};
const WITH_SPEC: Search["only"] = { text: "pool.spec IS NOT NULL", fits: ({ spec }) => spec !== undefined };
const OF_POOL: Search["only"] = {
  text: "event.pool = :pool AND event.at >= :since",
  fits: (row, { pool, since }) => row.pool === pool && Number(row.at) >= Number(since),
};

/** The text begins with `prefix`. */
const BEGINS = { ">=": "prefix", "<": "until" };

const isLimited = true;

/** By the names of queries. Those that are missing are written for each kind of engine: `sql.ts`, `etcd/queries.ts`. */
export const SEARCHES = {
  pool: { table: pools, equal: ["name"] },
  pools: { table: pools, equal: [], next: ["name"], bounds: { ...BEGINS, ">": "after" }, only: WITH_SPEC, isLimited },
  lease: { table: leases, equal: ["uid"] },
  owner: { table: leases, equal: ["owner", "pool"] },
  ended: { table: leases, equal: ["owner", "pool"], next: ["ended_at"], isLimited },
  name: { table: leases, through: leaseNames, equal: ["name"] },
  port: { table: leases, through: leasePorts, equal: ["pool", "value", "port"] },
  sharers: { table: leases, through: leaseRanges, equal: ["pool", "shared_as"], next: ["uid"] },
  due: { table: leases, equal: ["pool"], next: ["due_at", "position"], bounds: { "<=": "now" }, isLimited },
  resting: { table: leases, equal: ["pool"], next: ["ended_at"], isLimited },
  idle: { table: leases, equal: ["pool"], next: ["last_seen"], isLimited },
  parents: { table: leases, equal: ["pool"], next: ["child_pool"] },
  free: { table: freeRanges, equal: ["pool", "zone"], next: ["last"], bounds: { ">=": "from" }, isLimited },
  offersOf: { table: offers, equal: ["owner"], next: ["program"] },
  offersIn: { table: offers, equal: ["pool"], next: ["expires_at"], bounds: { ">=": "now" } },
  offersNamed: { table: offers, through: offerNames, equal: ["name"], next: ["owner", "program"], only: LIVE },
  offersOfPool: { table: offers, equal: ["child_name"], only: LIVE },
  offersWithPool: { table: offers, equal: [], next: ["child_name"], bounds: BEGINS, only: LIVE },
  pastLeases: { table: leases, equal: [], next: ["ended_at"], bounds: { "<": "before" }, isLimited },
  pastOffers: { table: offers, equal: [], next: ["expires_at"], bounds: { "<": "before" }, isLimited },
  documents: { table: documents, equal: ["kind"], next: ["key"] },
  secrets: { table: secrets, equal: [], next: ["key"] },
  events: { table: events, equal: [], next: ["id"], bounds: { ">": "after" }, isLimited },
  eventsIn: { table: events, equal: [], next: ["id"], bounds: { ">": "after" }, only: OF_POOL, isLimited },
} satisfies Record<string, Search>;

/** The index of a search; undefined: it is the key. */
export function indexOf({ table, through = table, equal, next = [] }: Search): Table["indexes"][number] | undefined {
  const columns = [...equal, ...next].join();
  return through.key.join() === columns
    ? undefined
    : through.indexes.find((index) => index.columns.join() === columns)!;
}

/** The parameter that a column equals. */
export const parameterOf = ({ table, through = table }: Search, column: string): string =>
  through.columns.find(({ name }) => name === column)!.field;

export type Parameters = Record<string, unknown>;

/** The searches of a query, by name, with their parameters. */
export function searchesOf(query: Query): [name: string, parameters: Parameters][] {
  switch (query.of) {
    case "ports":
      return query.ports.map((port) => ["port", { ...query, port }]);
    case "pools":
    case "activePools":
    case "offersWithPool":
      return [[query.of, { ...query, until: `${query.prefix}\u{10ffff}` }]];
    case "documents":
      return [[query.kind === "secret" ? "secrets" : "documents", { ...query }]];
    case "events":
      return [[query.pool === undefined ? "events" : "eventsIn", { since: 0, ...query }]];
    default:
      return [[query.of, { ...query }]];
  }
}

const TABLE = new Map(TABLES.map((table) => [table.name, table]));

export const copiedTable = (name: CopiedTable): Table => TABLE.get(name)!;

const decode = (table: Table, stored: Stored): object =>
  table === secrets ? { kind: "secret", ...secrets.decode(stored) } : (table.decode(stored) as object);

/** Decodes what was found, and adds it. */
export class Found {
  readonly rows: Rows = {};

  add(table: Table, query: Query, stored: Stored[]): void {
    if (query.of === "free") this.#push("free", { query, rows: stored.map((row) => freeRanges.decode(row)) });
    else if (query.of === "activePools") for (const row of stored) this.#push("active", pools.decode(row).name);
    else if (query.of === "table") {
      const last = stored.length === query.limit ? stored.at(-1) : undefined;
      const next = last && { next: JSON.stringify(table.key.map((column) => last[column])) };
      this.#push("tables", { rows: stored.map((row) => decode(table, row)), ...next });
    } else for (const row of stored) this.addRow(table, row);
  }

  addRow(table: Table, stored: Stored): void {
    this.#push(LISTS.get(table)!, decode(table, stored));
  }

  #push(list: keyof Rows, entry: unknown): void {
    this.rows[list] ??= [];
    (this.rows[list] as unknown[]).push(entry);
  }
}

const LISTS = new Map<Table, keyof Rows>([
  [pools, "pools"],
  [leases, "leases"],
  [offers, "offers"],
  [documents, "documents"],
  [secrets, "documents"],
  [epochs, "epochs"],
  [events, "events"],
]);
