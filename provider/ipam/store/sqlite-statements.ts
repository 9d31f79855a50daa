import { type Ask, columnNames, expand, onConflict, type Statement as Query } from "./sql";
import type { Database, Statement } from "./sqlite-file";
import type { Stored, Table } from "./table";

/** Prepared once, and kept. */
export class Statements {
  readonly #prepared = new Map<string | Query | Table, Statement>();

  constructor(private readonly db: Database) {}

  #get(key: string | Query | Table, text: () => string): Statement {
    let found = this.#prepared.get(key);
    if (!found) {
      found = this.db.prepare(expand(text(), ""));
      this.#prepared.set(key, found);
    }
    return found;
  }

  of(text: string): Statement {
    return this.#get(text, () => text);
  }

  find({ statement, values }: Ask): Stored[] {
    return this.#get(statement, () => findText(statement)).all(...values) as Stored[];
  }

  put<R extends object>(table: Table<R>, row: R): void {
    this.#get(table, () => putText(table)).run(...table.encode(row, JSON.stringify));
  }

  /** Returns whether it was there. */
  delete<R extends object>(table: Table<R>, row: R): boolean {
    const { name, key } = table;
    const text = () => `DELETE FROM ${name} WHERE ${key.map((column) => `${column} = ?`).join(" AND ")}`;
    return Number(this.#get(`delete ${name}`, text).run(...table.keyOf(row)).changes) > 0;
  }
}

const putText = (table: Table): string =>
  `INSERT INTO ${table.name} (${columnNames(table)}) VALUES (${table.columns.map(() => "?").join(", ")}) ${onConflict(table)}`;

/** With numbers for the names of parameters. SQLite plans a statement anew each time a parameter alone is its limit. */
const findText = ({ text, parameters }: Query): string =>
  text
    .replaceAll("LIMIT :", "LIMIT 0 + :")
    .replace(/:(\w+)/g, (_, name: string) => `?${Object.keys(parameters).indexOf(name) + 1}`);
