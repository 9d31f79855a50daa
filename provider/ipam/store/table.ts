import { OverlayError } from "../../errors";
import { type Column, InvalidField } from "./columns";

export interface Table<R = unknown> {
  readonly name: string;
  readonly columns: Field[];
  /** Names of columns. */
  readonly key: string[];
  readonly indexes: Index[];
  /** It is only read by its key: the rows are in the index of the key. */
  readonly isLookup: boolean;
  /** Rows are never replaced: one that is there is another holder. */
  readonly isGuard: boolean;
  /** One value for each column; `toJson` is applied to those of JSON columns. Text that could not be decoded is refused. */
  encode(row: R, toJson?: ToJson): unknown[];
  /** The values of the key. */
  keyOf(row: R): (string | number)[];
  /** `STORE_CORRUPT` if the row is not in its form. */
  decode(stored: Stored): R;
}

type ToJson = (value: unknown) => unknown;

interface Field {
  field: string;
  name: string;
  column: Column;
}

export interface Index {
  columns: string[];
  /**
   * Terms `COLUMN IS NULL`, `COLUMN IS NOT NULL` and `COLUMN >= ''`, joined by AND. The latter also means that it is not NULL, but a database
   * takes the index only for queries with this term: not for another column that equals a value.
   */
  where?: string;
  /** On etcd an entry has the row, not only its key: one read finds it. */
  isCovering?: boolean;
  /** On etcd, which reads only upwards: the entries with the highest numbers in the last column come first. */
  isNewestFirst?: boolean;
}

/** A row as an engine gives it, by the names of the columns. */
export type Stored = Record<string, unknown>;

/** Fields that may be absent have columns that may be NULL. */
type Columns<R> = { [K in keyof R]-?: Column<Exclude<R[K], undefined>, undefined extends R[K] ? true : false> };

type Options = Partial<Pick<Table, "indexes" | "isLookup" | "isGuard">>;

export function table<R>(name: string, key: string[], columns: Columns<R>, options: Options = {}): Table<R> {
  const fields = Object.entries(columns as Record<string, Column>).map(
    ([field, column]): Field => ({ field, name: column.name ?? snakeCase(field), column }),
  );
  const keyFields = key.map((name) => fields.find((field) => field.name === name)!);
  const encode = (row: R, field: Field, toJson?: ToJson): unknown => {
    try {
      return encodeField(row as Stored, field, toJson);
    } catch (error) {
      if (!(error instanceof InvalidField)) throw error;
      const id = keyFields.map(({ field }) => (row as Stored)[field]).join(" ");
      throw notStorable(`Row ${id} of the table ${name}`, field.field);
    }
  };
  return {
    ...{ name, key, columns: fields, indexes: [], isLookup: false, isGuard: false, ...options },
    encode: (row, toJson) => fields.map((field) => encode(row, field, toJson)),
    keyOf: (row) => keyFields.map((field) => encode(row, field) as string | number),
    decode: (stored) => decodeRow(name, key, fields, stored) as R,
  };
}

const snakeCase = (field: string): string => field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

function encodeField(row: Stored, { field, column }: Field, toJson?: ToJson): unknown {
  const value = row[field];
  if (value === undefined) return null;
  const encoded = column.encode(value);
  return toJson && column.isJson ? toJson(encoded) : encoded;
}

const notStorable = (row: string, field: string): OverlayError =>
  new OverlayError(
    "INPUT_INVALID",
    `${row} cannot be stored: its field ${field} has control characters, is too long, or is not in its form.`,
    "Correct what was requested.",
  );

function decodeRow(table: string, key: string[], fields: Field[], stored: Stored): Stored {
  const row: Stored = {};
  for (const { field, name, column } of fields) {
    if (column.isDerived) continue;
    const value = stored[name];
    try {
      if (value !== null && value !== undefined) row[field] = column.decode(value);
      else if (!column.isOptional) throw new InvalidField("It is missing.");
    } catch (error) {
      if (!(error instanceof InvalidField)) throw error;
      throw corrupt(table, key, stored, name);
    }
  }
  return row;
}

const corrupt = (table: string, key: string[], stored: Stored, column: string): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    `Row ${key.map((name) => stored[name]).join(" ")} of the table ${table} is not valid (column ${column}).`,
    "It was damaged, or written by another program. Find out by which, and restore the store from a backup, or rebuild it with `overlayctl recover`.",
  );
