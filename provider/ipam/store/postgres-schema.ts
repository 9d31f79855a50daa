import { createHash } from "node:crypto";
import { escapeIdentifier, escapeLiteral, type Pool, type PoolClient } from "pg";
import { OverlayError } from "../../errors";
import type { Address } from "./postgres-url";
import { secrets, store, TABLES } from "./schema";
import { columnNames, createText, type Dialect, expand } from "./sql";
import { emptyHead, LAYOUT, olderTables, unknownLayout } from "./store";

/** Before the name of a table. */
export const prefixOf = ({ schema }: Address): string => `${escapeIdentifier(schema)}.`;

/** Makes our tables. Any number of processes may do so at once: one does, the others find it done. */
export async function ensureTables(pool: Pool, address: Address): Promise<{ readOnly: boolean }> {
  const readOnly = await isReadOnly(pool);
  const found = await layoutOf(pool, address);
  if (found === undefined) {
    if (readOnly) throw noTables(address);
    await createTables(pool, address);
  } else if (found > LAYOUT) throw unknownLayout(address.place, found);
  return { readOnly: readOnly || !(await mayWrite(pool, address)) };
}

async function isReadOnly(pool: Pool): Promise<boolean> {
  const { rows } = await pool.query(
    "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool AS it",
  );
  return rows[0].it;
}

async function mayWrite(pool: Pool, address: Address): Promise<boolean> {
  const table = `${prefixOf(address)}${store.name}`;
  const { rows } = await pool.query("SELECT has_table_privilege($1, 'UPDATE') AS it", [table]);
  return rows[0].it;
}

/** undefined when there is nothing yet. Not by `to_regclass`: what that found before the lock, it finds again behind it. */
async function layoutOf(client: Pool | PoolClient, address: Address): Promise<number | undefined> {
  const there =
    "SELECT tablename AS name FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename IN ('store', 'kv')";
  const { rows } = await client.query(there, [address.schema]);
  if (rows.some(({ name }) => name === "kv"))
    throw olderTables(`The schema ${address.schema} of PostgreSQL at ${address.place}`);
  if (rows.length === 0) return undefined;
  return Number((await client.query(expand("SELECT layout FROM {store}", prefixOf(address)))).rows[0]?.layout);
}

async function createTables(pool: Pool, address: Address): Promise<void> {
  const client = await pool.connect();
  let failure: unknown;
  try {
    await client.query(`BEGIN; SELECT pg_advisory_xact_lock(${escapeLiteral(lockKey(address))})`);
    if ((await layoutOf(client, address)) === undefined) await client.query(createSchema(address));
    await client.query("COMMIT");
  } catch (error) {
    failure = error;
    throw error;
  } finally {
    client.release(failure !== undefined);
  }
}

/** What processes that make the tables wait for; one for each schema. */
const lockKey = ({ schema }: Address): string =>
  createHash("sha256").update(`pulumi-overlay/${schema}`).digest().readBigInt64BE().toString();

/** Users that may read the pool must not read its secrets. */
function createSchema(address: Address): string {
  const prefix = prefixOf(address);
  const dialect: Dialect = { type: ({ postgres }) => postgres, prefix, lookup: "" };
  const head = store.encode({ ...emptyHead(), one: 1 });
  const values = head.map((value) => (value === null ? "NULL" : escapeLiteral(String(value))));
  return `
    CREATE SCHEMA IF NOT EXISTS ${escapeIdentifier(address.schema)};
    ${TABLES.map((table) => createText(table, dialect)).join("\n")}
    REVOKE ALL ON ${prefix}${secrets.name} FROM PUBLIC;
    INSERT INTO ${prefix}${store.name} (${columnNames(store)}) VALUES (${values.join(", ")});`;
}

const noTables = ({ place, schema }: Address): OverlayError =>
  new OverlayError(
    "STORE_READ_ONLY",
    `PostgreSQL at ${place} takes no writes, and has no pool in the schema ${schema} yet.`,
    "Open it once where it can be written.",
  );
