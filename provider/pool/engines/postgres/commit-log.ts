import { escapeIdentifier, type QueryConfig, type QueryResult } from "pg";
import { OverlayError } from "../../../errors";
import { hasSecret, meetsSecrets } from "../../storage/secrets";
import type { Row, Write } from "../../storage/store";
import { toBytes, toText } from "../execute";
import {
  type Commit,
  type CommitLog,
  Conflict,
  type KeyRange,
  type LogUpdate,
  MAX_UPDATE,
  type Version,
} from "../server-engine";
import { IS_SECRET } from "./schema";

/** Runs one statement. Errors are `OverlayError`s. */
export type Query = (config: QueryConfig) => Promise<QueryResult>;

/** Commits in the log. */
const MAX_LOG = 1000;
/** Commits with more writes, or with secrets, are logged without them: other processes read the rows again. */
const MAX_LOGGED_WRITES = 2000;

type Statement = { name: string; text: string };
const NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now";

/** Waits for the disk also if the server is configured not to. */
const DURABLE = `CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END`;

type Statements = Record<"rows" | "commit", Statement>;

/**
 * Each is planned once for a connection, by its name. Secrets have a table of their own, which a user may have no rights on: only statements
 * that touch keys of secrets name it.
 */
function statementsFor(name: string): {
  update: Statement;
  commitId: Statement;
  plain: Statements;
  withSecrets: Statements;
} {
  const schema = escapeIdentifier(name);
  return {
    update: {
      name: "overlay update",
      text: `
        SELECT number, id, at, writes, ${NOW} FROM ${schema}.log
        WHERE number >= least($1, (SELECT max(number) FROM ${schema}.log)) ORDER BY number DESC LIMIT $2`,
    },
    commitId: { name: "overlay commit id", text: `SELECT id FROM ${schema}.log WHERE number = $1` },
    plain: {
      rows: { name: "overlay rows", text: rowsText(schema, `${schema}.kv`) },
      commit: { name: "overlay commit", text: commitText(schema, `${schema}.kv`, [{ table: "kv", filter: "true" }]) },
    },
    withSecrets: {
      rows: { name: "overlay rows and secrets", text: rowsText(schema, bothTables(schema)) },
      commit: {
        name: "overlay commit with secrets",
        text: commitText(schema, bothTables(schema), [
          { table: "kv", filter: `NOT ${IS_SECRET}` },
          { table: "secrets", filter: IS_SECRET },
        ]),
      },
    },
  };
}

const bothTables = (schema: string): string =>
  `(SELECT key, value FROM ${schema}.kv UNION ALL SELECT key, value FROM ${schema}.secrets) AS stored`;

/** One statement sees one state: the rows are of the version that is returned with them. */
function rowsText(schema: string, source: string): string {
  const head = `SELECT number, id, at FROM ${schema}.log ORDER BY number DESC LIMIT 1`;
  const found = `
    unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS bounds (low, high, most, n)
    CROSS JOIN LATERAL (SELECT key, value FROM ${source} WHERE key >= low AND key < high ORDER BY key LIMIT most) AS found`;
  return `SELECT id, n, key, value FROM (${head}) AS head LEFT JOIN (${found}) ON true ORDER BY n, key`;
}

/** Commits if the next number is free and no other process holds the lock. */
function commitText(schema: string, source: string, targets: { table: string; filter: string }[]): string {
  const changes = targets.map(
    ({ table, filter }) => `put_${table} AS (
          INSERT INTO ${schema}.${table}
          SELECT key, value FROM made, unnest($6::text[], $7::text[]) AS new (key, value) WHERE ${filter}
          ON CONFLICT (key) DO UPDATE SET value = excluded.value
        ), deleted_${table} AS (
          DELETE FROM ${schema}.${table} USING made WHERE key = ANY ($8::text[])
        )`,
  );
  return `
        WITH made AS (
          INSERT INTO ${schema}.log
          SELECT number + 1, $3, $4, $5 FROM ${schema}.log
          WHERE number = $1 AND id = $2 AND pg_try_advisory_xact_lock_shared($9) IS NOT FALSE
            AND NOT EXISTS (SELECT FROM unnest($10::text[], $11::text[]) AS expected_empty (low, high)
              WHERE EXISTS (SELECT FROM ${source} WHERE key >= low AND key < high))
          ON CONFLICT DO NOTHING RETURNING number
        ), ${changes.join(", ")}, trimmed AS (
          DELETE FROM ${schema}.log USING made WHERE log.number = made.number - ${MAX_LOG}
        )
        SELECT (SELECT number FROM made) AS number, ${NOW}, ${DURABLE}`;
}

/** `lock`: the key of the lock that other processes may hold; null if this one holds it. */
export function createCommitLog(
  query: Query,
  schema: string,
  lock: string | null,
  setTime: (time: number) => void,
): CommitLog {
  const statements = statementsFor(schema);
  const readUpdate = async (since?: Version): Promise<LogUpdate> => {
    const { rows } = await query({ ...statements.update, values: since ? [since.number, MAX_UPDATE] : [0, 1] });
    if (!rows[0]) throw emptyLog();
    setTime(rows[0].now);
    const commits = rows.map(parseCommit).reverse();
    const reaches = since !== undefined && commits[0]!.id === since.id;
    return { head: commits.at(-1)!, ...(reaches && { commits: commits.slice(1) }) };
  };
  return {
    readUpdate,
    findId: async (number) => (await query({ ...statements.commitId, values: [number] })).rows[0]?.id,
    readRows: async (at, ranges) => {
      const { rows } = await query(rowsQuery(schema, ranges));
      if (rows[0].id !== at.id) throw new Conflict();
      return rowsByRange(ranges, rows);
    },
    commit: async (from, commit, assertEmpty) => {
      const values = [from.number, from.id, ...valuesOf(commit), lock, ...boundsOf(assertEmpty)];
      const isPlain = !hasSecret(commit.writes) && !assertEmpty.some(meetsSecrets);
      const { rows } = await query({ ...(isPlain ? statements.plain : statements.withSecrets).commit, values });
      setTime(rows[0].now);
      return rows[0].number === null ? readUpdate(from) : undefined;
    },
  };
}

function rowsQuery(schema: string, ranges: KeyRange[]): QueryConfig {
  const { plain, withSecrets } = statementsFor(schema);
  const { rows } = ranges.some(meetsSecrets) ? withSecrets : plain;
  return { ...rows, values: [...boundsOf(ranges), ranges.map(({ limit }) => limit)] };
}

const boundsOf = (ranges: KeyRange[]): [low: string[], high: string[]] => [
  ranges.map(({ from }) => toText(from)),
  ranges.map(({ to }) => toText(to)),
];

/** Ranges are numbered from one. If none has rows there is still one line, for the version. */
function rowsByRange(ranges: KeyRange[], lines: { n: string | null; key: string; value: string }[]): Row[][] {
  const answers: Row[][] = ranges.map(() => []);
  for (const { n, key, value } of lines) if (n !== null) answers[Number(n) - 1]!.push([toBytes(key), value]);
  return answers;
}

const emptyLog = (): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    "The log of the PostgreSQL store is empty, which it never is by itself.",
    "Restore it from a backup, or run `overlayctl recover`.",
  );

function parseCommit({ number, id, at, writes }: Record<"number" | "id" | "at" | "writes", string>): Commit {
  return { number: Number(number), id, at: Number(at), ...(writes && { writes: JSON.parse(writes) }) };
}

function valuesOf({ id, at, writes }: Required<Commit>): unknown[] {
  const puts = writes.filter((write): write is Row => write[1] !== null);
  const deleted = writes.filter(([, value]) => value === null);
  const log = writes.length > MAX_LOGGED_WRITES || hasSecret(writes) ? null : JSON.stringify(writes);
  const keys = (rows: Write[]) => rows.map(([key]) => toText(key));
  return [id, at, log, keys(puts), puts.map(([, value]) => value), keys(deleted)];
}
