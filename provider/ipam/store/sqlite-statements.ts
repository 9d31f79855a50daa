import { type Ask, expand, type Statement as Query } from "./queries";
import type { Database, Statement } from "./sqlite-file";
import { columnNames, onConflict, type Stored, type Table } from "./table";

/** Prepared once, and kept. */
export class Statements {
  readonly #prepared = new Map<string | Query | Table, Statement>();
  readonly #deletes = new Map<Table, Statement>();

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
    const { text, order } = unnamed(statement);
    return this.#get(statement, () => text).all(...order.map((i) => values[i])) as Stored[];
  }

  put<R extends object>(table: Table<R>, row: R): void {
    this.#get(table, () => putText(table)).run(...table.encode(row, JSON.stringify));
  }

  /** Returns whether it was there. */
  delete<R extends object>(table: Table<R>, row: R): boolean {
    const { name, key } = table;
    let found = this.#deletes.get(table);
    if (!found) {
      found = this.db.prepare(`DELETE FROM ${name} WHERE ${key.map((column) => `${column} = ?`).join(" AND ")}`);
      this.#deletes.set(table, found);
    }
    return Number(found.run(...table.keyOf(row)).changes) > 0;
  }
}

const putText = (table: Table): string =>
  `INSERT INTO ${table.name} (${columnNames(table)}) VALUES (${table.columns.map(() => "?").join(", ")}) ${onConflict(table)}`;

interface Unnamed {
  text: string;
  /** Which parameter each `?` is. */
  order: number[];
}

const unnamedTexts = new Map<Query, Unnamed>();

function unnamed(statement: Query): Unnamed {
  const known = unnamedTexts.get(statement);
  if (known) return known;
  const names = Object.keys(statement.parameters);
  const order: number[] = [];
  const text = statement.text.replace(/:(\w+)/g, (_, name: string) => {
    order.push(names.indexOf(name));
    return "?";
  });
  // SQLite plans a statement anew each time a parameter alone is its limit.
  const found = { text: text.replaceAll("LIMIT ?", "LIMIT 0 + ?"), order };
  unnamedTexts.set(statement, found);
  return found;
}
