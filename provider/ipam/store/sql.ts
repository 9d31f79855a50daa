import { type Column, hex } from "./columns";
import { copiedTable, indexOf, type Parameters, parameterOf, SEARCHES, type Search, searchesOf } from "./queries";
import { epochs, leases, pools, TABLES } from "./schema";
import { COPIED, type CopiedTable, type Query } from "./store";
import type { Table } from "./table";

/**
 * The SQL that SQLite and PostgreSQL share: parameters are `:name`, tables `{name}`, and `{lease.*}` stands for the columns of a table. Each
 * statement is a few seeks in indexes.
 */
export interface Statement {
  text: string;
  /** In their order. */
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

function statementOf(search: Search): Statement {
  const { table, through = table, equal, next = [], bounds = {}, only, isLimited } = search;
  const index = indexOf(search);
  const column = (name: string) => `${through.name}.${name}`;
  const conditions = [
    ...equal.map((name) => `${column(name)} = :${parameterOf(search, name)}`),
    ...Object.entries(bounds).map(([sign, parameter]) => `${column(next[0]!)} ${sign} :${parameter}`),
    ...(index?.where ? [index.where] : []),
    ...(only ? [only.text] : []),
  ];
  const keys = table.key.map((name) => `${table.name}.${name} = ${column(name)}`).join(" AND ");
  const joined = through === table ? "" : ` JOIN {${table.name}} AS ${table.name} ON ${keys}`;
  const isSorted = next.length > 0 && (isLimited || !index);
  const order = next.map((name) => (index?.isNewestFirst ? `${column(name)} DESC` : column(name)));
  // A statement without a parameter would have no rows of them.
  const from = `{${through.name}} AS ${through.name}${joined} WHERE ${conditions.join(" AND ") || ":kind = 'secret'"}`;
  const sorted = `${isSorted ? ` ORDER BY ${order.join(", ")}` : ""}${isLimited ? " LIMIT :limit" : ""}`;
  return { ...select(table, from + sorted), order: isSorted && !index ? next.join(", found.") : undefined };
}

/** Parameters that are numbers; the others are text. */
const NUMBERS = ["limit", "now", "before", "version", "since"];

function select(table: Table, from: string): Statement {
  const names = from.match(/(?<=:)\w+/g) ?? [];
  const isNumber = (name: string) => NUMBERS.includes(name) || from.includes(`event.id > :${name}`);
  const parameters = names.map((name) => [name, isNumber(name) ? "bigint" : "text"] as const);
  const text = `SELECT {${table.name}.*} FROM ${from}`;
  return { table, text, parameters: Object.fromEntries(parameters), order: undefined };
}

const LEASES = "{lease} AS lease";
const POSITION = `${LEASES} WHERE pool = :pool AND position > :after AND position >= ''`;

const OTHERS = {
  activePools: select(
    pools,
    `{pool} AS pool WHERE name >= :prefix AND name < :until AND (resting > 0
      OR (SELECT min(due_at) FROM ${LEASES} WHERE pool = pool.name AND due_at IS NOT NULL) < :now
      OR (SELECT max(expires_at) FROM {offer} AS offer WHERE pool = pool.name) >= :now)`,
  ),
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
  // Up to the position of the last one, so that leases with equal positions are not parted.
  page: select(
    leases,
    `${POSITION}
      AND position <= coalesce((SELECT position FROM ${POSITION} ORDER BY position LIMIT 1 OFFSET :limit - 1), 'g')
    ORDER BY position`,
  ),
  epoch: select(epochs, "{epoch} AS epoch WHERE first <= :version ORDER BY first DESC LIMIT 1"),
};

const keyColumns = ({ key, columns }: Table) => key.map((name) => columns.find((it) => it.name === name)!.column);
const isText = ({ sqlite }: Column) => sqlite === "TEXT";
const pageName = (table: CopiedTable) => `page of ${table}`;

/** A page of a whole table. */
function pageOf(table: Table): Statement {
  const { name, key } = table;
  const types = keyColumns(table).map((column, i) => [key[i], isText(column) ? "text" : "bigint"] as const);
  const [columns, after] = [key.join(", "), key.map((column) => `:${column}`).join(", ")];
  return {
    ...select(table, `{${name}} AS ${name} WHERE (${columns}) > (${after}) ORDER BY ${columns} LIMIT :limit`),
    parameters: { ...Object.fromEntries(types), limit: "bigint" },
    order: key.join(", found."),
  };
}

/** By name. */
export const statements: Record<string, Statement> = {
  ...Object.fromEntries(Object.entries(SEARCHES).map(([name, search]) => [name, statementOf(search)])),
  ...OTHERS,
  ...Object.fromEntries(COPIED.map((name) => [pageName(name), pageOf(copiedTable(name))])),
};

/** `now`: the time of the transaction; undefined: that of the server. */
export function askFor(query: Query, now: number | undefined): Ask[] {
  const searches = query.of === "table" ? [pageAfter(query)] : searchesOf(query);
  return searches.map(([name, given]) => {
    const statement = statements[name]!;
    const parameters: Parameters = { now, ...given };
    return { name, statement, query, values: Object.keys(statement.parameters).map((key) => encode(parameters[key])) };
  });
}

/** The parameters of a page are the key after which it begins. */
function pageAfter({ table: name, after, limit }: Query & { of: "table" }): [name: string, Parameters] {
  const table = copiedTable(name);
  const first = keyColumns(table).map((column) => (isText(column) ? "" : -1));
  const values: unknown[] = after === undefined ? first : JSON.parse(after);
  return [pageName(name), { limit, ...Object.fromEntries(table.key.map((column, i) => [column, values[i]])) }];
}

function encode(value: unknown): string | number | null {
  if (typeof value === "bigint") return hex(value);
  return typeof value === "number" ? Math.min(value, Number.MAX_SAFE_INTEGER) : ((value as string | undefined) ?? null);
}

/** Replaces what stands for tables and columns. */
export const expand = (text: string, prefix: string): string =>
  text.replace(/\{(\w+)(\.\*)?\}/g, (_, name: string, columns?: string) => {
    const { columns: fields } = TABLES.find((table) => table.name === name)!;
    const read = fields.filter(({ column }) => !column.isDerived);
    return columns ? read.map((field) => `${name}.${field.name}`).join(", ") : prefix + name;
  });

export interface Dialect {
  type(column: Column): string;
  /** What goes before the name of a table. */
  prefix: string;
  /** After the columns of a lookup table. */
  lookup: string;
}

/** Makes the table and its indexes. */
export function createText(
  { name, columns, key, indexes, isLookup }: Table,
  { type, prefix, lookup }: Dialect,
): string {
  const lines = columns.map(({ name, column }) => `${name} ${type(column)}${column.isOptional ? "" : " NOT NULL"}`);
  const create = `CREATE TABLE ${prefix}${name} (${lines.join(", ")}, PRIMARY KEY (${key.join(", ")}))${isLookup ? lookup : ""};`;
  const more = indexes.map(
    ({ columns, where }) =>
      `CREATE INDEX ${name}_${columns.join("_")} ON ${prefix}${name} (${columns.join(", ")})${where ? ` WHERE ${where}` : ""};`,
  );
  return [create, ...more].join("\n");
}

/** What follows the rows of an INSERT. */
export function onConflict({ columns, key, isGuard }: Table): string {
  const others = columns.map(({ name }) => name).filter((name) => !key.includes(name));
  const set = others.map((name) => `${name} = excluded.${name}`).join(", ");
  return isGuard ? "" : `ON CONFLICT (${key.join(", ")}) DO UPDATE SET ${set}`;
}

export const columnNames = ({ columns }: Table): string => columns.map(({ name }) => name).join(", ");
