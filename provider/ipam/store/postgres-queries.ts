import type { QueryConfig } from "pg";
import { events, freeRanges, store, TABLES } from "./schema";
import { type Ask, columnNames, expand, onConflict, type Statement } from "./sql";
import type { Changes } from "./store";
import { EPOCH_MS, KEPT_MS, TRIM } from "./store";
import type { Table } from "./table";
import type { Write } from "./writes";

/**
 * Statements for PostgreSQL. All queries of one kind are one statement, and so are all rows that a commit writes to one table. Each is planned
 * once for a connection, by its name.
 */
export type Named = Required<Pick<QueryConfig, "name" | "text" | "values">>;

/** Waits for the disk also if the server is configured not to. */
const DURABLE = `CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END`;
const NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now";

export class Statements {
  readonly #texts = new Map<string, string>();

  constructor(private readonly prefix: string) {}

  #named(name: string, values: unknown[], text: () => string): Named {
    const found = this.#texts.get(name) ?? expand(text(), this.prefix);
    this.#texts.set(name, found);
    return { name: `overlay ${name}`, text: found, values };
  }

  /** Rows for names that have none, so that there is something to lock. */
  addPools = (names: string[]): Named =>
    this.#named(
      "add pools",
      [names],
      () => `INSERT INTO {pool} (name, reserved, used, resting, held)
      SELECT name, 0, 0, 0, 0 FROM unnest($1::text[]) AS name ON CONFLICT DO NOTHING`,
    );

  lockPools = (names: string[]): Named =>
    this.#named(
      "lock pools",
      [names],
      () => "SELECT {pool.*} FROM {pool} AS pool WHERE name = ANY ($1::text[]) ORDER BY name FOR NO KEY UPDATE",
    );

  /** Waits for all transactions that have locked a pool, and keeps others from it. */
  lockAll = (): Named => this.#named("lock all", [], () => "LOCK TABLE {pool} IN EXCLUSIVE MODE");

  clearAll = (): Named =>
    this.#named("clear all", [], () => {
      const names = TABLES.map(({ name }) => name).filter((name) => name !== store.name);
      return `TRUNCATE ${names.map((name) => `{${name}}`).join(", ")}`;
    });

  /** The time, and the row of the store. `isWrite`: also the id of the transaction. */
  head = (isWrite: boolean): Named =>
    this.#named(
      isWrite ? "head to write" : "head",
      [],
      () =>
        `SELECT ${NOW}, {store.*}${isWrite ? `, txid_current() AS transaction, ${DURABLE}` : ""} FROM {store} AS store`,
    );

  /** What became of a transaction. A standby does not know before it takes over. */
  status = (transaction: string): Named =>
    this.#named(
      "status",
      [transaction],
      () =>
        `SELECT CASE WHEN pg_is_in_recovery() THEN 'in recovery' ELSE txid_status($1::bigint) END AS status, version, epoch
        FROM {store} AS store`,
    );

  /** The events that a transaction has written, after this one. */
  eventsOf = (transaction: string, lastEvent: number): Named =>
    this.#named(
      "events of",
      [transaction, lastEvent],
      () => `SELECT {event.*} FROM {event} AS event
        WHERE id > $2::bigint AND event.xmin::text = ($1::bigint & 4294967295)::text ORDER BY id`,
    );

  /** One for all asks with the same statement. `n` counts them from one. */
  find(asks: Ask[]): Named {
    const { name, statement } = asks[0]!;
    const columns = Object.keys(statement.parameters).map((_, i) => asks.map(({ values }) => values[i]));
    return this.#named(`find ${name}`, columns, () => findText(statement));
  }

  delete({ table, deleted }: Write): Named[] {
    if (deleted.length === 0) return [];
    const { name, key } = table;
    const condition = key.map((column) => `gone.${column} = given.${column}`).join(" AND ");
    const seek = `SELECT gone.ctid FROM {${name}} AS gone WHERE ${condition} ${FENCE}`;
    const text = `DELETE FROM {${name}} WHERE ctid = ANY (ARRAY(
      SELECT found.ctid FROM ${given(table, 1)} CROSS JOIN LATERAL (${seek}) AS found))`;
    const rows = recordset(table, deleted);
    if (table !== freeRanges) return [this.#named(`delete ${name}`, [rows], () => text)];
    // Fails unless all of them are there: the guard that no value is given twice.
    const counted = () => `WITH gone AS (${text} RETURNING 1) SELECT 1 / (count(*) = $2::bigint)::integer FROM gone`;
    return [this.#named(`delete ${name}`, [rows, deleted.length], counted)];
  }

  put({ table, put }: Write): Named[] {
    if (put.length === 0) return [];
    const columns = columnNames(table);
    const insert = () =>
      `INSERT INTO {${table.name}} (${columns}) SELECT ${columns} FROM ${given(table, 1)} ${onConflict(table)}`;
    return [this.#named(`put ${table.name}`, [recordset(table, put)], insert)];
  }

  clear = ({ cleared }: Changes["free"]): Named[] =>
    cleared.map(({ pool, zone }) =>
      this.#named("clear", [pool, zone], () => "DELETE FROM {free_range} WHERE pool = $1 AND zone = $2"),
    );

  /** Changes the row of the store, and adds the events with their ids and the epoch that begins. */
  advance({ isVersion, nextEpoch, events: made }: Changes, now: number): Named {
    const rows = recordset(
      events,
      made.map((event, i) => ({ ...event, id: i + 1 })),
    );
    return this.#named("advance", [isVersion, nextEpoch, now, made.length, rows], advanceText);
  }

  setTime = (now: number): Named => this.#named("set time", [now], () => "UPDATE {store} SET at = $1");

  /** Replaces fields of the row of the store. */
  replaceHead = (head: NonNullable<Changes["head"]>): Named =>
    this.#named(
      "replace head",
      [
        ...[head.id, head.layout, head.version, head.epoch, head.epochSince, "move" in head, head.move],
        ...[head.lastEvent, head.at],
      ],
      () => `UPDATE {store} SET id = coalesce($1, id), layout = coalesce($2, layout), version = coalesce($3, version),
        epoch = coalesce($4, epoch), epoch_since = coalesce($5, epoch_since), move = CASE WHEN $6::boolean THEN $7 ELSE move END,
        last_event = coalesce($8, last_event), at = greatest(at, $9)
        RETURNING version, epoch, last_event`,
    );

  resetEpochs = ({ first, tag }: NonNullable<Changes["resetEpochs"]>): Named[] => [
    this.#named("delete epochs", [], () => "DELETE FROM {epoch}"),
    this.#named("first epoch", [first, tag], () => "INSERT INTO {epoch} (first, tag) VALUES ($1, $2)"),
  ];

  trim = (now: number): Named[] =>
    TRIM.map((text, i) =>
      this.#named(`trim ${i}`, text.includes("?") ? [now - KEPT_MS] : [], () => text.replace("?", "$1::bigint")),
    );
}

/** The given time, or that at which the statement runs. */
const ASKED_NOW = "coalesce(asked.now, (extract(epoch FROM statement_timestamp()) * 1000)::bigint)";

/**
 * Keeps a subquery from being merged into its query: it runs for each row that is given, with a seek. Else a plan that was made while a table was
 * empty would read all of it later.
 */
const FENCE = "OFFSET 0";

function findText({ text, parameters, order }: Statement): string {
  const arrays = Object.values(parameters).map((type, i) => `$${i + 1}::${type}[]`);
  const names = Object.keys(parameters).map((name) => `"${name}"`);
  const inner = text.replace(/:(\w+)/g, (_, name: string) => (name === "now" ? ASKED_NOW : `asked."${name}"`));
  return `SELECT asked.n, found.* FROM unnest(${arrays.join(", ")}) WITH ORDINALITY AS asked (${names.join(", ")}, n)
    CROSS JOIN LATERAL (${inner} ${FENCE}) AS found ${order ? `ORDER BY asked.n, found.${order}` : ""}`;
}

/** The rows of a parameter, as those of a table. */
const given = ({ name }: Table, parameter: number): string =>
  `json_populate_recordset(NULL::{${name}}, $${parameter}::json) AS given`;

/** In the order of their keys: transactions that write the same rows do not wait for each other. */
function recordset<R extends object>(table: Table<R>, rows: R[]): string {
  const { columns } = table;
  const keyed = rows.map((row) => [table.keyOf(row).join("\n"), table.encode(row)] as const);
  keyed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  return JSON.stringify(
    keyed.map(([, values]) => Object.fromEntries(values.map((value, i) => [columns[i]!.name, value]))),
  );
}

function advanceText(): string {
  const begins = `$1::boolean AND abs($3::bigint - epoch_since) >= ${EPOCH_MS}`;
  const others = events.columns.map(({ name }) => name).filter((name) => name !== "id");
  return `
    WITH head AS (
      UPDATE {store} SET version = version + $1::boolean::integer,
        epoch = CASE WHEN ${begins} THEN $2 ELSE epoch END,
        epoch_since = CASE WHEN ${begins} THEN $3 ELSE epoch_since END,
        last_event = last_event + $4::bigint, at = greatest(at, $3)
      RETURNING version, epoch, last_event
    ), begun AS (
      INSERT INTO {epoch} (first, tag) SELECT version, epoch FROM head WHERE epoch = $2
    ), logged AS (
      INSERT INTO {event} (id, ${others.join(", ")})
      SELECT head.last_event - $4 + given.id, ${others.map((name) => `given.${name}`).join(", ")} FROM head CROSS JOIN ${given(events, 5)}
    )
    SELECT version, epoch, last_event FROM head`;
}
