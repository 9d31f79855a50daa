import { hex } from "./columns";
import { documents, epochs, events, freeRanges, leases, offers, pools, secrets, TABLES } from "./schema";
import { COPIED, KEPT_MS, type Query, type Rows } from "./store";
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
  order: string | undefined;
}

/** A statement with values for its parameters, in their order. */
export interface Ask {
  /** Of the statement. */
  name: string;
  statement: Statement;
  values: (string | number | null)[];
  query: Query;
}

/** Parameters that are numbers; the others are text. */
const NUMBERS = ["limit", "now", "version", "since", "afterId"];

function select(table: Table, from: string, order?: string): Statement {
  const names = from.match(/(?<=:)\w+/g) ?? [];
  const parameters = names.map((name) => [name, NUMBERS.includes(name) ? "bigint" : "text"] as const);
  const text = `SELECT {${table.name}.*} FROM ${from}`;
  return { table, text, parameters: Object.fromEntries(parameters), order };
}

const LEASES = "{lease} AS lease";
const OFFERS = "{offer} AS offer";
const POSITION = `${LEASES} WHERE pool = :pool AND position > :after`;

const STATEMENTS = {
  pool: select(pools, "{pool} AS pool WHERE name = :name"),
  pools: select(
    pools,
    `{pool} AS pool WHERE name >= :prefix AND name < :until AND name > :after AND spec IS NOT NULL
    ORDER BY name LIMIT :limit`,
    "name",
  ),
  activePools: select(
    pools,
    `{pool} AS pool WHERE name >= :prefix AND name < :until AND (resting > 0
      OR (SELECT min(due_at) FROM ${LEASES} WHERE pool = pool.name AND due_at IS NOT NULL) < :now
      OR (SELECT max(expires_at) FROM ${OFFERS} WHERE pool = pool.name) >= :now)`,
  ),
  lease: select(leases, `${LEASES} WHERE uid = :uid`),
  owner: select(leases, `${LEASES} WHERE owner = :owner AND pool = :pool AND position IS NOT NULL`),
  ended: select(
    leases,
    `${LEASES} WHERE owner = :owner AND pool = :pool AND ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT :limit`,
  ),
  name: select(leases, `{lease_name} AS held JOIN ${LEASES} ON lease.uid = held.uid WHERE held.name = :name`),
  // Ranges do not overlap, but for equal ones that are shared: those that end in the range, and the next ones if they begin in it.
  values: select(
    leases,
    `(
      SELECT uid FROM {lease_range} AS inner_range WHERE pool = :pool AND last >= :first AND last <= :last
      UNION
      SELECT uid FROM {lease_range} AS next_range WHERE pool = :pool AND first <= :last
        AND last = (SELECT min(last) FROM {lease_range} AS later_range WHERE pool = :pool AND last > :last)
    ) AS found JOIN ${LEASES} ON lease.uid = found.uid`,
  ),
  ports: select(
    leases,
    `{lease_port} AS used JOIN ${LEASES} ON lease.uid = used.uid
    WHERE used.pool = :pool AND used.value = :value AND used.port = :port`,
  ),
  sharers: select(
    leases,
    `(SELECT DISTINCT uid FROM {lease_range} AS shared WHERE pool = :pool AND shared_as = :key) AS found
    JOIN ${LEASES} ON lease.uid = found.uid`,
  ),
  due: select(leases, `${LEASES} WHERE pool = :pool AND due_at <= :now ORDER BY due_at, position LIMIT :limit`),
  resting: select(leases, `${LEASES} WHERE pool = :pool AND resting IS NOT NULL ORDER BY ended_at LIMIT :limit`),
  idle: select(leases, `${LEASES} WHERE pool = :pool AND ended_at IS NULL ORDER BY last_seen LIMIT :limit`),
  // Up to the position of the last one, so that leases with equal positions are not parted.
  page: select(
    leases,
    `${POSITION}
      AND position <= coalesce((SELECT position FROM ${POSITION} ORDER BY position LIMIT 1 OFFSET :limit - 1), 'g')
    ORDER BY position`,
  ),
  parents: select(leases, `${LEASES} WHERE pool = :pool AND ended_at IS NULL AND child_pool IS NOT NULL`),
  free: select(
    freeRanges,
    "{free_range} AS free_range WHERE pool = :pool AND zone = :zone AND last >= :from ORDER BY last LIMIT :limit",
    "last",
  ),
  offersOf: select(offers, `${OFFERS} WHERE owner = :owner`),
  offersIn: select(offers, `${OFFERS} WHERE pool = :pool AND expires_at >= :now`),
  offersNamed: select(
    offers,
    `{offer_name} AS shown JOIN ${OFFERS} ON offer.owner = shown.owner AND offer.program = shown.program
    WHERE shown.name = :name AND expires_at >= :now`,
  ),
  offersOfPool: select(offers, `${OFFERS} WHERE child_name = :name AND expires_at >= :now`),
  offersWithPool: select(
    offers,
    `${OFFERS} WHERE child_name >= :prefix AND child_name < :until AND expires_at >= :now ORDER BY child_name`,
  ),
  pastLeases: select(
    leases,
    `${LEASES} WHERE ended_at < :now - ${KEPT_MS} AND resting IS NULL ORDER BY ended_at LIMIT :limit`,
  ),
  pastOffers: select(offers, `${OFFERS} WHERE expires_at < :now - ${KEPT_MS} ORDER BY expires_at LIMIT :limit`),
  epoch: select(epochs, "{epoch} AS epoch WHERE first <= :version ORDER BY first DESC LIMIT 1"),
  documents: select(documents, "{document} AS document WHERE kind = :kind ORDER BY key", "key"),
  secrets: select(secrets, "{secret} AS secret WHERE :kind = 'secret' ORDER BY key", "key"),
  events: select(events, "{event} AS event WHERE id > :afterId ORDER BY id LIMIT :limit", "id"),
  eventsIn: select(
    events,
    "{event} AS event WHERE pool = :pool AND id > :afterId AND at >= :since ORDER BY id LIMIT :limit",
    "id",
  ),
} satisfies Record<string, Statement>;

const keyColumns = ({ key, columns }: Table) => key.map((name) => columns.find((it) => it.name === name)!.column);

/** A page of a whole table. */
function pageOf(table: Table): Statement {
  const { name, key } = table;
  const types = keyColumns(table).map(({ sqlite }, i) => [key[i], sqlite === "TEXT" ? "text" : "bigint"] as const);
  const after = key.map((column) => `:${column}`).join(", ");
  const from = `{${name}} AS ${name} WHERE (${key.join(", ")}) > (${after}) ORDER BY ${key.join(", ")} LIMIT :limit`;
  return {
    ...select(table, from, key.join(", found.")),
    parameters: { ...Object.fromEntries(types), limit: "bigint" },
  };
}

const PAGES = new Map(COPIED.map((name) => [name, pageOf(TABLES.find((table) => table.name === name)!)]));

function askForPage(query: Query & { of: "table" }): Ask {
  const statement = PAGES.get(query.table)!;
  const first = keyColumns(statement.table).map(({ sqlite }) => (sqlite === "TEXT" ? "" : -1));
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

/** `now`: the time of the transaction; undefined: that of the server. */
export function askFor(query: Query, now: number | undefined): Ask[] {
  const ask = (name: Name, more: Values = {}): Ask => {
    const statement: Statement = STATEMENTS[name];
    const toValue = (key: string) => more[key] ?? (key === "now" ? now : (query as unknown as Values)[key]);
    return { name, statement, query, values: Object.keys(statement.parameters).map((key) => encode(toValue(key))) };
  };
  switch (query.of) {
    case "pools":
    case "activePools":
    case "offersWithPool":
      return [ask(query.of, { until: `${query.prefix}\u{10ffff}` })];
    case "ports":
      return query.ports.map((port) => ask("ports", { port }));
    case "past":
      return [ask("pastLeases"), ask("pastOffers")];
    case "documents":
      return [ask(query.kind === "secret" ? "secrets" : "documents")];
    case "events":
      return [ask(query.pool === undefined ? "events" : "eventsIn", { afterId: query.after, since: query.since ?? 0 })];
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
