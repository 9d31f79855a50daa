import { escapeIdentifier, type QueryConfig, type QueryResult } from "pg";
import { OverlayError } from "../../errors";
import { hasSecret, meetsSecrets } from "../secrets";
import type { Row, Write } from "../store";
import { CAUGHT_UP, type Commit, type Journal, LostRace, type News, type Version } from "./journal";
import { IS_SECRET } from "./postgres-schema";
import { type Span, toBytes, toText } from "./view";

/** Runs one statement, on whatever connection, and says what went wrong in our words. */
export type Ask = (query: QueryConfig) => Promise<QueryResult>;

/** So many commits can be looked up by those who missed them. */
const KEPT = 1000;
/** Commits that write more rows are logged without them, and so are those that write secrets: others read the rows again. */
const LOGGED = 2000;

type Statement = { name: string; text: string };
const NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now";

/** An answer means that it is on disk, also where the server is set to promise before. */
const DURABLE = `CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END`;

type Statements = Record<"rows" | "commit", Statement>;

/**
 * Each is planned once for a connection, by its name. Secrets have a table of their own, which a user may have no rights on: only statements
 * that touch keys of secrets name it.
 */
export function statementsFor(name: string): {
  news: Statement;
  commitId: Statement;
  plain: Statements;
  withSecrets: Statements;
} {
  const schema = escapeIdentifier(name);
  return {
    news: {
      name: "overlay news",
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

/** One statement sees one state: the rows are those of the version that comes with them. */
function rowsText(schema: string, source: string): string {
  const head = `SELECT number, id, at FROM ${schema}.log ORDER BY number DESC LIMIT 1`;
  const found = `
    unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS span (low, high, most, n)
    CROSS JOIN LATERAL (SELECT key, value FROM ${source} WHERE key >= low AND key < high ORDER BY key LIMIT most) AS found`;
  return `SELECT id, n, key, value FROM (${head}) AS head LEFT JOIN (${found}) ON true ORDER BY n, key`;
}

/** The newest version is where the next number is still free. Nothing is committed while another process holds the lock. */
function commitText(schema: string, source: string, targets: { table: string; filter: string }[]): string {
  const changes = targets.map(
    ({ table, filter }) => `put_${table} AS (
          INSERT INTO ${schema}.${table}
          SELECT key, value FROM won, unnest($6::text[], $7::text[]) AS new (key, value) WHERE ${filter}
          ON CONFLICT (key) DO UPDATE SET value = excluded.value
        ), gone_${table} AS (
          DELETE FROM ${schema}.${table} USING won WHERE key = ANY ($8::text[])
        )`,
  );
  return `
        WITH won AS (
          INSERT INTO ${schema}.log
          SELECT number + 1, $3, $4, $5 FROM ${schema}.log
          WHERE number = $1 AND id = $2 AND pg_try_advisory_xact_lock_shared($9) IS NOT FALSE
            AND NOT EXISTS (SELECT FROM unnest($10::text[], $11::text[]) AS hoped (low, high)
              WHERE EXISTS (SELECT FROM ${source} WHERE key >= low AND key < high))
          ON CONFLICT DO NOTHING RETURNING number
        ), ${changes.join(", ")}, forgotten AS (
          DELETE FROM ${schema}.log USING won WHERE log.number = won.number - ${KEPT}
        )
        SELECT (SELECT number FROM won) AS number, ${NOW}, ${DURABLE}`;
}

/** `lock`: what others wait in line by; null when it is ours. */
export function journalOn(ask: Ask, schema: string, lock: string | null, hear: (time: number) => void): Journal {
  const statements = statementsFor(schema);
  const news = async (since?: Version): Promise<News> => {
    const { rows } = await ask({ ...statements.news, values: since ? [since.number, CAUGHT_UP] : [0, 1] });
    if (!rows[0]) throw emptied();
    hear(rows[0].now);
    const commits = rows.map(commitOf).reverse();
    const reaches = since !== undefined && commits[0]!.id === since.id;
    return { head: commits.at(-1)!, ...(reaches && { since: commits.slice(1) }) };
  };
  return {
    news,
    findId: async (number) => (await ask({ ...statements.commitId, values: [number] })).rows[0]?.id,
    rows: async (at, spans) => {
      const { rows } = await ask(rowsQuery(schema, spans));
      if (rows[0].id !== at.id) throw new LostRace();
      return rowsBySpan(spans, rows);
    },
    commit: async (from, commit, hoped) => {
      const values = [from.number, from.id, ...valuesOf(commit), lock, ...boundsOf(hoped)];
      const isPlain = !hasSecret(commit.writes) && !hoped.some(meetsSecrets);
      const { rows } = await ask({ ...(isPlain ? statements.plain : statements.withSecrets).commit, values });
      hear(rows[0].now);
      return rows[0].number === null ? news(from) : undefined;
    },
  };
}

export function rowsQuery(schema: string, spans: Span[]): QueryConfig {
  const { plain, withSecrets } = statementsFor(schema);
  const { rows } = spans.some(meetsSecrets) ? withSecrets : plain;
  return { ...rows, values: [...boundsOf(spans), spans.map(({ limit }) => limit)] };
}

const boundsOf = (spans: Span[]): [low: string[], high: string[]] => [
  spans.map(({ from }) => toText(from)),
  spans.map(({ to }) => toText(to)),
];

/** Spans are numbered from one; where none has rows there is still one line, for the version. */
export function rowsBySpan(spans: Span[], lines: { n: string | null; key: string; value: string }[]): Row[][] {
  const answers: Row[][] = spans.map(() => []);
  for (const { n, key, value } of lines) if (n !== null) answers[Number(n) - 1]!.push([toBytes(key), value]);
  return answers;
}

const emptied = (): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    "The log of the PostgreSQL store is empty, which it never is by itself.",
    "Restore it from a backup, or run `overlayctl recover`.",
  );

function commitOf({ number, id, at, writes }: Record<"number" | "id" | "at" | "writes", string>): Commit {
  return { number: Number(number), id, at: Number(at), ...(writes && { writes: JSON.parse(writes) }) };
}

function valuesOf({ id, at, writes }: Required<Commit>): unknown[] {
  const puts = writes.filter((write): write is Row => write[1] !== null);
  const gone = writes.filter(([, value]) => value === null);
  const log = writes.length > LOGGED || hasSecret(writes) ? null : JSON.stringify(writes);
  const keys = (rows: Write[]) => rows.map(([key]) => toText(key));
  return [id, at, log, keys(puts), puts.map(([, value]) => value), keys(gone)];
}
