import { hex } from "../columns";
import type { Index, Stored, Table } from "../table";
import type { KeyRange } from "./kv";

export type Range = Required<Pick<KeyRange, "key" | "end">>;

/**
 * The keys of a store, all below its prefix. They are the tables of `schema.ts`: a row is JSON at `TABLE/KEY`, and an index of it has entries at
 * `TABLE.COLUMNS/VALUES/KEY`, whose value is the key of the row, or the row once more. `/` parts the components; inside of all but the last it
 * is `%2F`. Values are 32 hexadecimal digits, times and numbers 16 decimal ones, so that keys sort as they do. Besides:
 *
 *     store        the row of the store. Each commit puts it, and compares its revision with the one that was read
 *     part/AT/N    writes of a commit that does not fit into one Txn
 *
 * Roles that must not read secrets get all keys but `secret/`.
 */
export class Keys {
  readonly store: string;

  constructor(readonly prefix: string) {
    this.store = this.at("store");
  }

  at(tree: string, ...components: Component[]): string {
    const texts = components.map(componentText);
    return [`${this.prefix}${tree}`, ...texts.slice(0, -1).map(escapeText), ...texts.slice(-1)].join("/");
  }

  /** All keys below. */
  below(tree: string, ...components: Component[]): Range {
    const path = this.at(tree, ...components, "").slice(0, -1);
    return { key: `${path}/`, end: `${path}0` };
  }

  /** What keys with these components begin with. `isLast`: they have no others. */
  start(tree: string, isLast: boolean, ...components: Component[]): string {
    return isLast ? this.at(tree, ...components) : this.at(tree, ...components, "").slice(0, -1);
  }

  /** All rows of a table, and their entries in indexes. */
  allOf({ name }: Table): Range {
    return { key: this.at(`${name}.`), end: this.at(`${name}0`) };
  }

  row<R>(table: Table<R>, row: R): string {
    return this.at(table.name, ...table.keyOf(row));
  }

  /** What is stored for a row: its own key first, and its entries in indexes. */
  entriesOf<R>(table: Table<R>, row: R): [key: string, value: string][] {
    const stored = storedOf(table, row);
    const id = table.key.map((column) => stored[column] as Component);
    const [key, text] = [this.at(table.name, ...id), JSON.stringify(stored)];
    const entries = table.indexes
      .filter((index) => isIndexed(index, stored))
      .map(({ columns, isCovering, isNewestFirst }): [string, string] => {
        const values = columns.map((column) => stored[column] as Component);
        if (isNewestFirst) values.push(Number.MAX_SAFE_INTEGER - (values.pop() as number));
        return [this.at(indexName(table, columns), ...values, ...id), isCovering ? text : key];
      });
    return [[key, text], ...entries];
  }

  /** The components of a key. */
  componentsOf(key: string): string[] {
    const texts = key.slice(this.prefix.length).split("/").slice(1);
    return texts.map((text) => text.replace(/%2F|%25/g, (code) => (code === "%2F" ? "/" : "%")));
  }
}

export type Component = string | number | bigint;

const componentText = (component: Component): string => {
  if (typeof component === "string") return component;
  return typeof component === "bigint" ? hex(component) : padNumber(component);
};

const escapeText = (text: string): string => text.replace(/[%/]/g, (letter) => (letter === "/" ? "%2F" : "%25"));

const padNumber = (number: number): string =>
  String(Math.min(Math.max(Math.round(number), 0), Number.MAX_SAFE_INTEGER)).padStart(16, "0");

export const indexName = ({ name }: Table, columns: string[]): string => [name, ...columns].join(".");

const isIndexed = ({ where }: Index, stored: Stored): boolean =>
  where === undefined ||
  where.split(" AND ").every((term) => {
    const [column = "", ...rest] = term.split(" ");
    return (stored[column] !== undefined) === (rest.join(" ") !== "IS NULL");
  });

/** The columns of a row by name; JSON columns are text. */
export function storedOf<R>(table: Table<R>, row: R): Stored {
  const stored: Stored = {};
  for (const [i, value] of table.encode(row, JSON.stringify).entries())
    if (value !== null) stored[table.columns[i]!.name] = value;
  return stored;
}

/** What is not JSON has no columns, and is refused as such. */
export function parseObject(text: string): Stored {
  const value = parse(text);
  return typeof value === "object" && value !== null ? (value as Stored) : {};
}

export function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
