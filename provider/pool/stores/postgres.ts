import { Pool, type PoolClient, type QueryConfig } from "pg";
import type { Store, Tx } from "../store";
import { HeardClock } from "./clock";
import { Away, type Engine, type Journal, type Turn, type Version } from "./journal";
import { Known } from "./known";
import { optimisticStore, type Patience, timeAfter } from "./optimistic";
import { translated } from "./postgres-errors";
import { type Ask, journalOn, rowsBySpan, rowsQuery, statementsFor } from "./postgres-journal";
import { ensureTables, lockOf } from "./postgres-schema";
import { type Address, addressOf } from "./postgres-url";
import { machineTime } from "./store-clock";
import { runOn, type Span, settled } from "./view";

/**
 * Two tables: the rows, and a log whose newest entry is the version of the store. A commit is one statement that inserts
 * the next entry and, if nobody else has, writes the rows with it. So no lock is held while a client thinks, and one that
 * sleeps or dies in the middle stops nobody. Who loses a race waits in line by an advisory lock, which PostgreSQL gives
 * in the order of asking, and which others' commits respect.
 */
export interface PostgresOptions {
  /** For tests: instead of the server's time. */
  clock?: () => number;
  /** By what the clock is checked; by default this machine's time, and nothing else where a clock is given. */
  machineTime?: () => number;
  patience?: Patience;
  warn?: (text: string) => void;
}

export async function postgresStore(url: string, options: PostgresOptions = {}): Promise<Store> {
  const { clock, patience, warn = () => {} } = options;
  const witness = options.machineTime ?? clock ?? machineTime;
  const address = addressOf(url);
  if (address.isExposed) warn(`PostgreSQL at ${address.place} is used without TLS, because of sslmode=disable.`);
  const pool = new Pool({ ...address.connection, ...CONNECTIONS });
  // Connections that lie idle when the server goes are replaced when they are needed.
  pool.on("error", () => {});
  // Our statements have one good plan, whatever their values; without this they would be planned each time.
  pool.on("connect", (client) => void client.query("SET plan_cache_mode = force_generic_plan").catch(() => {}));
  try {
    const { readOnly } = await ensureTables(pool, address, warn);
    return optimisticStore(engineOn(pool, address, readOnly, witness, clock), patience);
  } catch (thrown) {
    await pool.end();
    const error = translated(thrown, address);
    throw error instanceof Away ? error.cause : error;
  }
}

const CONNECTIONS = {
  // One writes, since group commit merges what waits; the others are for readers.
  max: 4,
  application_name: "pulumi-overlay",
  // For servers that vanish without a word.
  query_timeout: 10_000,
  keepAlive: true,
  allowExitOnIdle: true,
  // Questions are sent without waiting for the answers to those before.
  pipeline: true,
};

function engineOn(
  pool: Pool,
  address: Address,
  readOnly: boolean,
  machineTime: () => number,
  clock?: () => number,
): Engine {
  const heard = new HeardClock(1000);
  const journal = (ask: Ask, lock: string | null) => journalOn(ask, address.schema, lock, (time) => heard.hear(time));
  const connect = () => connected(pool, address);
  const place = `PostgreSQL at ${address.place}`;
  const timeOf = (now: number, head: Version) => timeAfter({ place, machineTime }, clock?.() ?? now, head);
  return {
    ...journal(asking(pool, address), lockOf(address)),
    readOnly,
    place,
    machineTime,
    clock: clock ?? (() => heard.now()),
    turn: async (patience, since) => turnOn(await connect(), address, journal, patience, since),
    read: async (work) => readOn(await connect(), address, work, timeOf),
    close: () => pool.end(),
  };
}

const asking =
  (on: Pool | PoolClient, address: Address): Ask =>
  (query) =>
    (on as Pool).query(query).catch((error: unknown) => {
      throw translated(error, address);
    });

async function connected(pool: Pool, address: Address): Promise<PoolClient> {
  const client = await pool.connect().catch((error: unknown) => {
    throw translated(error, address);
  });
  // What happens to it while it is ours is seen in the next answer.
  if (client.listenerCount("error") === 0) client.on("error", () => {});
  return client;
}

/** Never fails: a connection that cannot be cleaned up is thrown away. */
async function giveBack(client: PoolClient): Promise<void> {
  try {
    if (client.getTransactionStatus() !== "I") await client.query("ROLLBACK");
    client.release();
  } catch {
    client.release(true);
  }
}

async function turnOn(
  client: PoolClient,
  address: Address,
  journal: (ask: Ask, lock: null) => Journal,
  patience: number,
  since?: Version,
): Promise<Turn> {
  const ask: Ask = (query) => asking(client, address)({ ...query, query_timeout: patience + 10_000 } as QueryConfig);
  const { news, findId, rows, commit } = journal(ask, null);
  try {
    // All sent at once. A holder that falls asleep is thrown out by the server.
    const waiting = ask({
      text: `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = ${Math.max(1, Math.ceil(patience))};
        SET LOCAL idle_in_transaction_session_timeout = ${ASLEEP}; SELECT pg_advisory_xact_lock(${lockOf(address)})`,
    });
    const [, latest] = await Promise.all([waiting, news(since)]);
    return {
      latest,
      news,
      findId,
      rows,
      commit: async (...args) => (await Promise.all([commit(...args), ask({ text: "COMMIT" })]))[0],
      end: () => giveBack(client),
    };
  } catch (error) {
    await giveBack(client);
    throw error;
  }
}

/** In milliseconds. */
const ASLEEP = 10_000;

async function readOn<T>(
  client: PoolClient,
  address: Address,
  work: (tx: Tx) => Promise<T>,
  timeOf: (now: number, head: Version) => number,
): Promise<T> {
  const ask = asking(client, address);
  try {
    const { news } = statementsFor(address.schema);
    const [, { rows }] = await Promise.all([
      ask({ text: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" }),
      ask({ ...news, values: [0, 1] }),
    ]);
    const [head] = rows;
    const now = timeOf(Math.round(head.now), { ...head, at: Number(head.at) });
    const fetch = async (spans: Span[]) => rowsBySpan(spans, (await ask(rowsQuery(address.schema, spans))).rows);
    const { outcome } = await runOn({ known: new Known(), time: now, fetch }, work);
    return settled(outcome);
  } finally {
    void giveBack(client);
  }
}
