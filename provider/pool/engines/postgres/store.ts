import { Pool, type PoolClient, type QueryConfig, type QueryResult } from "pg";
import type { Store } from "../../storage/store";
import { machineTime } from "../clock-check";
import { createOptimisticStore, type ServerStoreOptions } from "../optimistic";
import { ServerClock } from "../server-clock";
import {
  type CommitLog,
  type LockedLog,
  type ServerEngine,
  type Snapshot,
  StoreUnavailable,
  type Version,
} from "../server-engine";
import { createCommitLog, type Query } from "./commit-log";
import { translateError } from "./errors";
import { ensureTables, lockKey } from "./schema";
import { type Address, parsePostgresUrl } from "./url";

/**
 * Two tables: the rows, and a log whose newest entry is the version of the store. A commit is one statement that inserts
 * the next entry and, if no other process has, writes the rows. No lock is held while a transaction runs, so a client that sleeps
 * or dies holds up no other. After conflicts a transaction takes an advisory lock, which PostgreSQL gives in the order of asking.
 */

export async function openPostgresStore(url: string, options: ServerStoreOptions = {}): Promise<Store> {
  const { clock, timeouts, warn = () => {}, onConflict } = options;
  const witness = options.machineTime ?? clock ?? machineTime;
  const address = parsePostgresUrl(url);
  if (address.isExposed) warn(`PostgreSQL at ${address.place} is used without TLS, because of sslmode=disable.`);
  const pool = new Pool({ ...address.connection, ...CONNECTIONS });
  // Idle connections that the server closes are replaced when they are needed.
  pool.on("error", () => {});
  // Our statements have one good plan, whatever their values; without this they would be planned each time.
  pool.on("connect", (client) => void client.query("SET plan_cache_mode = force_generic_plan").catch(() => {}));
  try {
    const { readOnly } = await ensureTables(pool, address, warn);
    return createOptimisticStore(createEngine(pool, address, readOnly, witness, clock), timeouts, onConflict);
  } catch (thrown) {
    await pool.end();
    const error = translateError(thrown, address);
    throw error instanceof StoreUnavailable ? error.cause : error;
  }
}

const CONNECTIONS = {
  // One for writes, since group commit merges them; the others are for reads.
  max: 4,
  application_name: "pulumi-overlay",
  // For servers that disappear without closing the connection.
  query_timeout: 10_000,
  keepAlive: true,
  allowExitOnIdle: true,
  // Statements are sent without waiting for earlier answers.
  pipeline: true,
};

/** `lock`: as in `createCommitLog`. */
type CreateLog = (query: Query, lock: string | null) => CommitLog;

function createEngine(
  pool: Pool,
  address: Address,
  readOnly: boolean,
  machineTime: () => number,
  clock?: () => number,
): ServerEngine {
  const serverClock = new ServerClock(1000);
  const createLog: CreateLog = (query, lock) =>
    createCommitLog(query, address.schema, lock, (time) => serverClock.set(time));
  return {
    ...createLog(createQuery(pool, address), lockKey(address)),
    readOnly,
    sendsOnce: true,
    place: `PostgreSQL at ${address.place}`,
    machineTime,
    clock: clock ?? (() => serverClock.now()),
    lock: async (timeoutMs, since) => acquireLock(await connect(pool, address), address, createLog, timeoutMs, since),
    openSnapshot: async () => openSnapshot(await connect(pool, address), address, createLog),
    close: () => pool.end(),
  };
}

const createQuery =
  (connection: Pool | PoolClient, address: Address): Query =>
  (config) =>
    (connection as Pool).query(config).catch((error: unknown) => {
      throw translateError(error, address);
    });

async function connect(pool: Pool, address: Address): Promise<PoolClient> {
  const client = await pool.connect().catch((error: unknown) => {
    throw translateError(error, address);
  });
  // A failure of the connection shows in the next answer.
  if (client.listenerCount("error") === 0) client.on("error", () => {});
  return client;
}

/** Never rejects: a connection whose transaction cannot be rolled back is closed. */
async function releaseClient(client: PoolClient, cleanUp?: string): Promise<void> {
  try {
    if (client.getTransactionStatus() !== "I") await client.query("ROLLBACK");
    if (cleanUp) await client.query(cleanUp);
    client.release();
  } catch {
    client.release(true);
  }
}

async function acquireLock(
  client: PoolClient,
  address: Address,
  createLog: CreateLog,
  timeoutMs: number,
  since?: Version,
): Promise<LockedLog> {
  const query: Query = (config) =>
    createQuery(client, address)({ ...config, query_timeout: timeoutMs + 10_000 } as QueryConfig);
  const { readUpdate, findId, readRows, commit } = createLog(query, null);
  const lock = lockKey(address);
  let isKept = false;
  try {
    // Sent together. The server closes the connection of a process that sleeps while it has the lock.
    const waiting = query({
      text: `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = ${Math.max(1, Math.ceil(timeoutMs))};
        SET LOCAL idle_in_transaction_session_timeout = ${IDLE_TIMEOUT_MS}; SELECT pg_advisory_xact_lock(${lock});
        SELECT pg_backend_pid() AS pid, current_setting('server_version_num')::int AS version`,
    });
    const [answers, update] = await Promise.all([waiting, readUpdate(since)]);
    return {
      update,
      readUpdate,
      findId,
      readRows,
      canKeep: canKeepLock(client, answers),
      commit: async (from, what, assertEmpty, keepLock) => {
        if (isKept) return commit(from, what, assertEmpty);
        const keeping =
          keepLock &&
          query({ text: `SELECT pg_advisory_lock(${lock}); SET idle_session_timeout = ${IDLE_TIMEOUT_MS}` });
        isKept = keepLock === true;
        return (await Promise.all([commit(from, what, assertEmpty), keeping, query({ text: "COMMIT" })]))[0];
      },
      unlock: () => releaseClient(client, isKept ? RELEASE_SESSION : undefined),
    };
  } catch (error) {
    await releaseClient(client);
    throw error;
  }
}

const IDLE_TIMEOUT_MS = 10_000;
const RELEASE_SESSION = "SELECT pg_advisory_unlock_all(); RESET idle_session_timeout";

/**
 * The lock of a transaction ends with it; the lock of a session can be kept. Behind a pooler the next statement may run in another
 * session, and the lock would be lost: then the server's process is not the one that the connection began with. Before version 14 the
 * server does not close sessions that are idle.
 */
function canKeepLock(client: PoolClient, answers: unknown): boolean {
  const { pid, version } = (answers as QueryResult[]).at(-1)!.rows[0];
  return (client as PoolClient & { processID?: number }).processID === pid && version >= 140_000;
}

async function openSnapshot(client: PoolClient, address: Address, createLog: CreateLog): Promise<Snapshot> {
  const query = createQuery(client, address);
  const log = createLog(query, null);
  try {
    const begun = query({ text: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" });
    const [, { head }] = await Promise.all([begun, log.readUpdate()]);
    return {
      version: head,
      readRows: (ranges) => log.readRows(head, ranges),
      close: () => releaseClient(client),
    };
  } catch (error) {
    await releaseClient(client);
    throw error;
  }
}
