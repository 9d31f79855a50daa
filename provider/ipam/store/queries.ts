import { hex } from "./columns";
import { documents, epochs, events, freeRanges, leases, offers, pools, secrets, TABLES } from "./schema";
import { COPIED, type Query, type Rows } from "./store";
import type { Stored, Table } from "./table";

/**
 * The queries in SQL, which is the same for SQLite and PostgreSQL: parameters are `:name`, tables `{name}`, and `{lease.*}` stands for the
 * columns of a table. Each is a few seeks in indexes.
 */
export interface Statement {
  text: string;
  parameters: Record<string, "text" | "bigint">;
  table: Table;
  /** The order of the answer. */
  order?: string;
}

/** A statement with values for its parameters, in their order. */
export interface Ask {
  /** Of the statement. */
  name: string;
  statement: Statement;
  values: (string | number | null)[];
  query: Query;
}

const [TEXT, NUMBER] = ["text", "bigint"] as const;

const statement = (table: Table, parameters: Statement["parameters"], text: string, order?: string): Statement => ({
  table,
  parameters,
  text,
  ...(order !== undefined && { order }),
});

const inPool = { pool: TEXT };
const inPoolLimited = { ...inPool, limit: NUMBER };
const POSITION = "{lease} AS lease WHERE pool = :pool AND position > :after";

const STATEMENTS = {
  pool: statement(pools, { name: TEXT }, "SELECT {pool.*} FROM {pool} AS pool WHERE name = :name"),
  pools: statement(
    pools,
    { prefix: TEXT, until: TEXT, after: TEXT, limit: NUMBER },
    `SELECT {pool.*} FROM {pool} AS pool
    WHERE name >= :prefix AND name < :until AND name > :after AND spec IS NOT NULL ORDER BY name LIMIT :limit`,
    "name",
  ),
  activePools: statement(
    pools,
    { prefix: TEXT, until: TEXT, now: NUMBER },
    `SELECT {pool.*} FROM {pool} AS pool WHERE name >= :prefix AND name < :until AND (resting > 0
      OR (SELECT min(due_at) FROM {lease} AS lease WHERE pool = pool.name AND due_at IS NOT NULL) < :now
      OR (SELECT max(expires_at) FROM {offer} AS offer WHERE pool = pool.name) >= :now)`,
  ),
  lease: statement(leases, { uid: TEXT }, "SELECT {lease.*} FROM {lease} AS lease WHERE uid = :uid"),
  owner: statement(
    leases,
    { ...inPool, owner: TEXT },
    "SELECT {lease.*} FROM {lease} AS lease WHERE owner = :owner AND pool = :pool",
  ),
  name: statement(
    leases,
    { name: TEXT },
    "SELECT {lease.*} FROM {lease_name} AS held JOIN {lease} AS lease ON lease.uid = held.uid WHERE held.name = :name",
  ),
  // Ranges do not overlap, but for equal ones that are shared: those that end in the range, and the next ones if they begin in it.
  values: statement(
    leases,
    { ...inPool, first: TEXT, last: TEXT },
    `SELECT {lease.*} FROM (
      SELECT uid FROM {lease_range} AS inner_range WHERE pool = :pool AND last >= :first AND last <= :last
      UNION
      SELECT uid FROM {lease_range} AS next_range WHERE pool = :pool AND first <= :last
        AND last = (SELECT min(last) FROM {lease_range} AS later_range WHERE pool = :pool AND last > :last)
    ) AS found JOIN {lease} AS lease ON lease.uid = found.uid`,
  ),
  ports: statement(
    leases,
    { ...inPool, value: TEXT, port: TEXT },
    `SELECT {lease.*} FROM {lease_port} AS used JOIN {lease} AS lease ON lease.uid = used.uid
    WHERE used.pool = :pool AND used.value = :value AND used.port = :port`,
  ),
  sharers: statement(
    leases,
    { ...inPool, key: TEXT },
    `SELECT {lease.*} FROM (SELECT DISTINCT uid FROM {lease_range} AS shared WHERE pool = :pool AND shared_as = :key) AS found
    JOIN {lease} AS lease ON lease.uid = found.uid`,
  ),
  due: statement(
    leases,
    { ...inPoolLimited, now: NUMBER },
    "SELECT {lease.*} FROM {lease} AS lease WHERE pool = :pool AND due_at <= :now ORDER BY due_at LIMIT :limit",
  ),
  resting: statement(
    leases,
    inPoolLimited,
    `SELECT {lease.*} FROM {lease} AS lease WHERE pool = :pool AND resting IS NOT NULL ORDER BY ended_at LIMIT :limit`,
  ),
  idle: statement(
    leases,
    inPoolLimited,
    `SELECT {lease.*} FROM {lease} AS lease WHERE pool = :pool AND ended_at IS NULL ORDER BY last_seen LIMIT :limit`,
  ),
  // Up to the position of the last one, so that leases with equal positions are not parted.
  page: statement(
    leases,
    { ...inPoolLimited, after: TEXT },
    `SELECT {lease.*} FROM ${POSITION}
      AND position <= coalesce((SELECT position FROM ${POSITION} ORDER BY position LIMIT 1 OFFSET :limit - 1), 'g')
    ORDER BY position`,
  ),
  parents: statement(
    leases,
    inPool,
    "SELECT {lease.*} FROM {lease} AS lease WHERE pool = :pool AND ended_at IS NULL AND child_pool IS NOT NULL",
  ),
  free: statement(
    freeRanges,
    { ...inPoolLimited, zone: TEXT, from: TEXT },
    `SELECT {free_range.*} FROM {free_range} AS free_range WHERE pool = :pool AND zone = :zone AND last >= :from
    ORDER BY last LIMIT :limit`,
    "last",
  ),
  offersOf: statement(offers, { owner: TEXT }, "SELECT {offer.*} FROM {offer} AS offer WHERE owner = :owner"),
  offersIn: statement(
    offers,
    { ...inPool, now: NUMBER },
    "SELECT {offer.*} FROM {offer} AS offer WHERE pool = :pool AND expires_at >= :now",
  ),
  offersNamed: statement(
    offers,
    { name: TEXT, now: NUMBER },
    `SELECT {offer.*} FROM {offer_name} AS shown JOIN {offer} AS offer ON offer.owner = shown.owner AND offer.program = shown.program
    WHERE shown.name = :name AND expires_at >= :now`,
  ),
  offersOfPool: statement(
    offers,
    { name: TEXT, now: NUMBER },
    "SELECT {offer.*} FROM {offer} AS offer WHERE child_name = :name AND expires_at >= :now",
  ),
  offersWithPool: statement(
    offers,
    { prefix: TEXT, until: TEXT, now: NUMBER },
    `SELECT {offer.*} FROM {offer} AS offer
    WHERE child_name >= :prefix AND child_name < :until AND expires_at >= :now ORDER BY child_name`,
  ),
  pastLeases: statement(
    leases,
    { before: NUMBER, limit: NUMBER },
    "SELECT {lease.*} FROM {lease} AS lease WHERE ended_at < :before ORDER BY ended_at LIMIT :limit",
  ),
  pastOffers: statement(
    offers,
    { before: NUMBER, limit: NUMBER },
    "SELECT {offer.*} FROM {offer} AS offer WHERE expires_at < :before ORDER BY expires_at LIMIT :limit",
  ),
  epoch: statement(
    epochs,
    { version: NUMBER },
    "SELECT {epoch.*} FROM {epoch} AS epoch WHERE first <= :version ORDER BY first DESC LIMIT 1",
  ),
  documents: statement(
    documents,
    { kind: TEXT },
    "SELECT {document.*} FROM {document} AS document WHERE kind = :kind ORDER BY key",
    "key",
  ),
  secrets: statement(
    secrets,
    { kind: TEXT },
    "SELECT {secret.*} FROM {secret} AS secret WHERE :kind = 'secret' ORDER BY key",
    "key",
  ),
  events: statement(
    events,
    { after: NUMBER, limit: NUMBER },
    "SELECT {event.*} FROM {event} AS event WHERE id > :after ORDER BY id LIMIT :limit",
    "id",
  ),
  eventsIn: statement(
    events,
    { ...inPool, after: NUMBER, since: NUMBER, limit: NUMBER },
    `SELECT {event.*} FROM {event} AS event WHERE pool = :pool AND id > :after AND at >= :since ORDER BY id LIMIT :limit`,
    "id",
  ),
} satisfies Record<string, Statement>;

type KeyColumn = Pick<Table["columns"][number], "name" | "column">;

const keyColumns = ({ key, columns }: Table): KeyColumn[] => key.map((name) => columns.find((it) => it.name === name)!);

/** A page of a whole table. */
function pageOf(table: Table): Statement {
  const [{ name }, key] = [table, table.key.join(", ")];
  const types = keyColumns(table).map(({ name, column }) => [name, column.sqlite === "TEXT" ? TEXT : NUMBER] as const);
  const after = table.key.map((column) => `:${column}`).join(", ");
  const text = `SELECT {${name}.*} FROM {${name}} AS ${name} WHERE (${key}) > (${after}) ORDER BY ${key} LIMIT :limit`;
  return statement(table, { ...Object.fromEntries(types), limit: NUMBER }, text, table.key.join(", found."));
}

const PAGES = new Map(COPIED.map((name) => [name, pageOf(TABLES.find((table) => table.name === name)!)]));

/** The key of the last row, as text. */
const positionAfter = ({ key }: Table, row: Stored): string => JSON.stringify(key.map((column) => row[column]));

function askForPage(query: Query & { of: "table" }): Ask {
  const statement = PAGES.get(query.table)!;
  const first = keyColumns(statement.table).map(({ column }) => (column.sqlite === "TEXT" ? "" : -1));
  const after: (string | number)[] = query.after === undefined ? first : JSON.parse(query.after);
  return { name: `page of ${query.table}`, statement, values: [...after, query.limit], query };
}

type Name = keyof typeof STATEMENTS;
type Values = Record<string, string | number | bigint | undefined>;

/** For tests. */
export const statements: Record<string, Statement> = {
  ...STATEMENTS,
  ...Object.fromEntries([...PAGES].map(([name, page]) => [`page of ${name}`, page])),
};

/** The end of the names with a prefix. */
const afterPrefix = (prefix: string): string => `${prefix}\u{10ffff}`;

/** `now`: the time of the transaction; undefined: that of the server. */
export function askFor(query: Query, now: number | undefined): Ask[] {
  const ask = (name: Name, values: Values = query as unknown as Values): Ask => ({
    name,
    statement: STATEMENTS[name],
    values: Object.keys(STATEMENTS[name].parameters).map((key) => encode(key === "now" ? now : values[key])),
    query,
  });
  switch (query.of) {
    case "pools":
    case "activePools":
    case "offersWithPool":
      return [ask(query.of, { ...query, until: afterPrefix(query.prefix) })];
    case "ports":
      return query.ports.map((port) => ask("ports", { ...query, ports: "", port }));
    case "past":
      return [ask("pastLeases"), ask("pastOffers")];
    case "documents":
      return [ask(query.kind === "secret" ? "secrets" : "documents")];
    case "events":
      return [query.pool === undefined ? ask("events") : ask("eventsIn", { ...query, since: query.since ?? 0 })];
    case "table":
      return [askForPage(query)];
    default:
      return [ask(query.of)];
  }
}

function encode(value: string | number | bigint | undefined): string | number | null {
  if (typeof value === "bigint") return hex(value);
  return typeof value === "number" ? Math.min(value, Number.MAX_SAFE_INTEGER) : (value ?? null);
}

/** Replaces what stands for tables and columns. */
export const expand = (text: string, prefix: string): string =>
  text.replace(/\{(\w+)(\.\*)?\}/g, (_, name: string, columns?: string) => {
    const { columns: fields } = TABLES.find((table) => table.name === name)!;
    const read = fields.filter(({ column }) => !column.isDerived);
    return columns ? read.map((field) => `${name}.${field.name}`).join(", ") : prefix + name;
  });

const decode = (table: Table, stored: Stored): object => ({
  ...(table === secrets && { kind: "secret" }),
  ...(table.decode(stored) as object),
});

/** Decodes what was found, and adds it. */
export class Found {
  readonly rows: Rows = {};

  add({ statement, query }: Ask, stored: Stored[]): void {
    const { rows } = this;
    const { table } = statement;
    if (query.of === "free") {
      rows.free ??= [];
      rows.free.push({ query, rows: stored.map((row) => freeRanges.decode(row)) });
    } else if (query.of === "activePools") {
      rows.active ??= [];
      rows.active.push(...stored.map((row) => pools.decode(row).name));
    } else if (query.of === "table") {
      const [list, last] = [stored.map((row) => decode(table, row)), stored.at(-1)];
      rows.tables ??= [];
      rows.tables.push({
        rows: list,
        ...(last && list.length === query.limit && { next: positionAfter(table, last) }),
      });
    } else for (const row of stored) this.addRow(table, row);
  }

  addRow(table: Table, stored: Stored): void {
    const field = LISTS.get(table)!;
    this.rows[field] ??= [];
    (this.rows[field] as unknown[]).push(decode(table, stored));
  }
}

const LISTS = new Map<Table, "pools" | "leases" | "offers" | "documents" | "epochs" | "events">([
  [pools, "pools"],
  [leases, "leases"],
  [offers, "offers"],
  [documents, "documents"],
  [secrets, "documents"],
  [epochs, "epochs"],
  [events, "events"],
]);
