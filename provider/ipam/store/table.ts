import { OverlayError } from "../../errors";
import type { Column } from "./columns";
import { InvalidField } from "./fields";

export interface Table<R = unknown> {
  readonly name: string;
  readonly columns: Field[];
  /** Names of columns. */
  readonly key: string[];
  readonly indexes: Index[];
  /** It is only read by its key: the rows are in the index of the key. */
  readonly isLookup: boolean;
  /** One value for each column. JSON is not yet text. Text that could not be decoded is refused. */
  encode(row: R): unknown[];
  /** `STORE_CORRUPT` if the row is not in its form. */
  decode(stored: Stored): R;
}

interface Field {
  field: string;
  name: string;
  column: Column;
}

interface Index {
  unique?: boolean;
  columns: string;
  where?: string;
}

/** A row as an engine gives it, by the names of the columns. */
export type Stored = Record<string, unknown>;

/** Fields that may be absent have columns that may be NULL. */
type Columns<R> = { [K in keyof R]-?: Column<Exclude<R[K], undefined>, undefined extends R[K] ? true : false> };

export function table<R>(
  name: string,
  key: string[],
  columns: Columns<R>,
  { indexes = [], isLookup = false }: { indexes?: Index[]; isLookup?: boolean } = {},
): Table<R> {
  const fields = Object.entries(columns as Record<string, Column>).map(
    ([field, column]): Field => ({ field, name: column.name ?? snakeCase(field), column }),
  );
  return {
    name,
    columns: fields,
    key,
    indexes,
    isLookup,
    encode: (row) => fields.map((field) => encodeField(row as Record<string, unknown>, field)),
    decode: (stored) => decodeRow<R>(name, key, fields, stored),
  };
}

const snakeCase = (field: string): string => field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

function encodeField(row: Record<string, unknown>, { field, column }: Field): unknown {
  const value = row[field];
  if (value === undefined) return null;
  try {
    return column.encode(value);
  } catch (error) {
    if (!(error instanceof InvalidField)) throw error;
    throw new OverlayError(
      "INPUT_INVALID",
      `The field ${field} of this resource has characters that the store does not take, such as control characters.`,
      "Give it a plain name.",
    );
  }
}

function decodeRow<R>(table: string, key: string[], fields: Field[], stored: Stored): R {
  const row: Record<string, unknown> = {};
  for (const { field, name, column } of fields) {
    if (column.isDerived) continue;
    const value = stored[name];
    if (value === null || value === undefined) {
      if (!column.isOptional) throw corrupt(table, key, stored, name);
      continue;
    }
    try {
      row[field] = column.decode(value);
    } catch (error) {
      if (!(error instanceof InvalidField)) throw error;
      throw corrupt(table, key, stored, name);
    }
  }
  return row as R;
}

const corrupt = (table: string, key: string[], stored: Stored, column: string): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    `Row ${key.map((name) => stored[name]).join(" ")} of the table ${table} is not valid (column ${column}).`,
    "It was damaged, or written by another program. Find out by which, and restore the store from a backup, or rebuild it with `overlayctl recover`.",
  );

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
    ({ unique, columns, where }) =>
      `CREATE ${unique ? "UNIQUE " : ""}INDEX ${name}_${columns.replaceAll(", ", "_")} ON ${prefix}${name} (${columns})${where ? ` WHERE ${where}` : ""};`,
  );
  return [create, ...more].join("\n");
}

/** What follows the rows of an INSERT that may replace rows; rows of a lookup table with all columns in its key are never replaced. */
export function onConflict({ columns, key }: Table): string {
  const others = columns.map(({ name }) => name).filter((name) => !key.includes(name));
  return `ON CONFLICT (${key.join(", ")}) DO UPDATE SET ${others.map((name) => `${name} = excluded.${name}`).join(", ")}`;
}

export const columnNames = ({ columns }: Table): string => columns.map(({ name }) => name).join(", ");
