import { type Ask, expand, type Statement as Query } from "./queries";
import type { Database, Statement } from "./sqlite-file";
import { columnNames, onConflict, type Stored, type Table } from "./table";

/** Prepared once, and kept. */
export class Statements {
  readonly #byText = new Map<string, Statement>();
  readonly #byQuery = new Map<Query, Prepared>();
  readonly #puts = new Map<Table, Statement>();
  readonly #deletes = new Map<Table, Statement>();

  constructor(private readonly db: Database) {}

  of(text: string): Statement {
    const found = this.#byText.get(text) ?? this.db.prepare(expand(text, ""));
    this.#byText.set(text, found);
    return found;
  }

  find({ statement, values }: Ask): Stored[] {
    const found = this.#byQuery.get(statement) ?? prepareQuery(this.db, statement);
    this.#byQuery.set(statement, found);
    return found.statement.all(...found.order.map((i) => values[i])) as Stored[];
  }

  put<R extends object>(table: Table<R>, row: R, isGuard = false): void {
    const found = this.#puts.get(table) ?? this.db.prepare(putText(table, isGuard));
    this.#puts.set(table, found);
    found.run(...storable(table, row));
  }

  /** Returns how many rows were deleted. */
  delete<R extends object>(table: Table<R>, row: R): number {
    const { name, key, columns } = table;
    const text = () => `DELETE FROM ${name} WHERE ${key.map((column) => `${column} = ?`).join(" AND ")}`;
    const found = this.#deletes.get(table) ?? this.db.prepare(text());
    this.#deletes.set(table, found);
    const fields = key.map((name) => columns.find((field) => field.name === name)!);
    return Number(found.run(...fields.map(({ field, column }) => column.encode(row[field as keyof R]))).changes);
  }
}

/** A statement whose parameters have no names, and which value each of them is. */
interface Prepared {
  statement: Statement;
  order: number[];
}

function prepareQuery(db: Database, { text, parameters }: Query): Prepared {
  const names = Object.keys(parameters);
  const order: number[] = [];
  const unnamed = expand(text, "").replace(/:(\w+)/g, (_, name: string) => {
    order.push(names.indexOf(name));
    return "?";
  });
  // SQLite plans a statement anew each time a parameter alone is its limit.
  return { statement: db.prepare(unnamed.replaceAll("LIMIT ?", "LIMIT 0 + ?")), order };
}

function putText(table: Table, isGuard: boolean): string {
  const insert = `INSERT INTO ${table.name} (${columnNames(table)}) VALUES (${table.columns.map(() => "?").join(", ")})`;
  return isGuard ? insert : `${insert} ${onConflict(table)}`;
}

const storable = (table: Table, row: object): unknown[] =>
  table.encode(row).map((value, i) => {
    if (typeof value === "boolean") return value ? 1 : 0;
    return value !== null && table.columns[i]!.column.isJson ? JSON.stringify(value) : value;
  });
