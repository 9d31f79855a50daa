import { createHash } from "node:crypto";
import { escapeIdentifier, escapeLiteral, type Pool, type PoolClient } from "pg";
import { OverlayError } from "../../../errors";
import { SECRETS } from "../../storage/secrets";
import { describeMissingViews, describeOldViews, namesTaken, VIEWS } from "../view-names";
import type { Address } from "./url";
import { postgresViews } from "./views";

/** From layout i to i + 1 of our tables, each in one transaction. What lies in the rows has a version of its own. */
const MIGRATIONS: ((schema: string) => string)[] = [
  (schema) => `
    CREATE SCHEMA IF NOT EXISTS ${schema};
    CREATE TABLE ${schema}.layout (version integer NOT NULL);
    INSERT INTO ${schema}.layout VALUES (0);
    CREATE TABLE ${schema}.kv (key text COLLATE "C" PRIMARY KEY, value text NOT NULL);
    CREATE TABLE ${schema}.log (number bigint PRIMARY KEY, id text NOT NULL, at bigint NOT NULL, writes text);
    INSERT INTO ${schema}.log VALUES (0, gen_random_uuid(), 0, '[]');`,
  // The constraint stops processes of an older program, which look for secrets in the old place. Users that may write rows need secrets, too.
  (schema) => `
    CREATE TABLE ${schema}.secrets (key text COLLATE "C" PRIMARY KEY, value text NOT NULL);
    REVOKE ALL ON ${schema}.secrets FROM PUBLIC;
    WITH moved AS (DELETE FROM ${schema}.kv WHERE ${IS_SECRET} RETURNING key, value)
    INSERT INTO ${schema}.secrets SELECT key, value FROM moved;
    ALTER TABLE ${schema}.kv ADD CONSTRAINT no_secrets CHECK (NOT ${IS_SECRET});
    UPDATE ${schema}.log SET writes = NULL WHERE strpos(writes, '["${SECRETS.from}') > 0;
    ${grantLike(schema, "INSERT", "SELECT, INSERT, UPDATE, DELETE", ["secrets"])}`,
  (schema) => `${postgresViews(schema)} ${grantLike(schema, "SELECT", "SELECT", VIEWS)}`,
  postgresViews,
];

/** Gives rights on relations to all users and roles that have a right on the rows. */
function grantLike(schema: string, right: string, rights: string, relations: string[]): string {
  const names = relations.map((relation) => `${schema}.${relation}`).join(", ");
  return `
    DO $grants$ DECLARE role text; BEGIN
      FOR role IN
        SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
        FROM pg_class, aclexplode(relacl)
        WHERE pg_class.oid = ${escapeLiteral(`${schema}.kv`)}::regclass AND privilege_type = '${right}' AND grantee <> relowner
      LOOP EXECUTE 'GRANT ${rights} ON ' || ${escapeLiteral(names)} || ' TO ' || role; END LOOP;
    END $grants$;`;
}

/** Layout 2 lacks only views. A store without them can be used all the same. */
const NEEDED = 2;

/** A condition for rows. */
export const IS_SECRET = `(key >= '${SECRETS.from}' AND key < '${SECRETS.to}')`;

/** What transactions wait in line by; one for each schema. */
export const lockKey = ({ schema }: Address): string =>
  createHash("sha256").update(`pulumi-overlay/${schema}`).digest().readBigInt64BE().toString();

/** Makes or updates our tables. Any number of processes may do so at once: one does, the others find it done. */
export async function ensureTables(
  pool: Pool,
  address: Address,
  warn: (text: string) => void,
): Promise<{ readOnly: boolean }> {
  const readOnly = await isReadOnly(pool);
  const found = await layoutOf(pool, address);
  mustBeKnown(found, address);
  if (readOnly && found < NEEDED) throw found === 0 ? noTables(address) : isOld(found, address);
  if (!readOnly && found < NEEDED) await migrate(pool, address, NEEDED);
  if (!readOnly && found < MIGRATIONS.length) await addViews(pool, address, warn);
  return { readOnly: readOnly || !(await mayWrite(pool, address)) };
}

/** Takes no lock where it cannot succeed: commits wait for the same one. */
async function addViews(pool: Pool, address: Address, warn: (text: string) => void): Promise<void> {
  const place = `the schema ${address.schema} of PostgreSQL at ${address.place}`;
  if (!(await mayMakeViews(pool, address))) {
    if ((await layoutOf(pool, address)) > NEEDED) warn(describeOldViews(place));
    return;
  }
  const taken = await relationsNamedLikeViews(pool, address);
  // Read again: the relations are ours if another process has made them meanwhile.
  if (taken.length > 0 && (await layoutOf(pool, address)) === NEEDED)
    return warn(describeMissingViews(place, namesTaken(taken)));
  await migrate(pool, address, MIGRATIONS.length).catch((error: Error) =>
    warn(describeMissingViews(place, `${error.message}. The pool needs none of them.`)),
  );
}

async function mayMakeViews(pool: Pool, { schema }: Address): Promise<boolean> {
  const { rows } = await pool.query(
    `SELECT has_schema_privilege(relnamespace, 'CREATE') AND bool_and(pg_has_role(relowner, 'USAGE')) AS it
     FROM pg_class WHERE relnamespace = $1::regnamespace AND relname IN ('kv', 'layout') GROUP BY relnamespace`,
    [escapeIdentifier(schema)],
  );
  return rows[0].it;
}

async function relationsNamedLikeViews(pool: Pool, { schema }: Address): Promise<string[]> {
  const { rows } = await pool.query(
    "SELECT relname FROM pg_class WHERE relnamespace = $1::regnamespace AND relname = ANY ($2) ORDER BY relname",
    [escapeIdentifier(schema), VIEWS],
  );
  return rows.map(({ relname }) => `${schema}.${relname}`);
}

async function isReadOnly(pool: Pool): Promise<boolean> {
  const { rows } = await pool.query(
    "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool AS it",
  );
  return rows[0].it;
}

async function mayWrite(pool: Pool, { schema }: Address): Promise<boolean> {
  const table = `${escapeIdentifier(schema)}.kv`;
  const { rows } = await pool.query("SELECT has_table_privilege($1, 'INSERT') AS it", [table]);
  return rows[0].it;
}

/** 0 when there is nothing yet. Not by `to_regclass`: what that found before the lock, it finds again behind it. */
async function layoutOf(client: Pool | PoolClient, { schema }: Address): Promise<number> {
  const there = "SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'layout'";
  if ((await client.query(there, [schema])).rowCount === 0) return 0;
  return (await client.query(`SELECT version FROM ${escapeIdentifier(schema)}.layout`)).rows[0].version;
}

async function migrate(pool: Pool, address: Address, to: number): Promise<void> {
  const schema = escapeIdentifier(address.schema);
  const client = await pool.connect();
  let failure: unknown;
  try {
    await client.query(`BEGIN; SELECT pg_advisory_xact_lock(${escapeLiteral(lockKey(address))})`);
    for (let from = await layoutOf(client, address); from < to; from++) {
      await client.query(MIGRATIONS[from]!(schema));
      await client.query(`UPDATE ${schema}.layout SET version = ${from + 1}`);
    }
    await client.query("COMMIT");
  } catch (error) {
    failure = error;
    throw error;
  } finally {
    client.release(failure !== undefined);
  }
}

function mustBeKnown(found: number, { place }: Address): void {
  if (found <= MIGRATIONS.length) return;
  const what = `The tables at ${place} have layout ${found}; this program knows layouts up to ${MIGRATIONS.length}.`;
  throw new OverlayError("STORE_VERSION", what, "Update pulumi-overlay.");
}

const isOld = (found: number, { place }: Address): OverlayError =>
  new OverlayError(
    "STORE_READ_ONLY",
    `The tables at ${place} have layout ${found}, this program needs layout ${NEEDED}, and PostgreSQL takes no writes there.`,
    "Open the store once where it can be written.",
  );

const noTables = ({ place, schema }: Address): OverlayError =>
  new OverlayError(
    "STORE_READ_ONLY",
    `PostgreSQL at ${place} takes no writes, and has no pool in the schema ${schema} yet.`,
    "Open it once where it can be written.",
  );
