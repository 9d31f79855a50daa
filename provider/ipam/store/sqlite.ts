import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError } from "../../errors";
import type { PoolRow } from "../decide/rows";
import { type BootTime, bootTime } from "./clock-check";
import { changesHead, emptyHead, isTimeToTrim, nextHead, TRIM_EPOCHS, TRIM_EVENTS } from "./head";
import { olderTables, unknownLayout } from "./layout";
import { askFor, Found } from "./queries";
import { epochs, events, freeRanges, pools, store, TABLES } from "./schema";
import { SqliteClock } from "./sqlite-clock";
import { isGeneric, lockTimedOut, noFreeRange, noTables, readOnlyError, translateError } from "./sqlite-errors";
import {
  canWrite,
  type Database,
  guardReplacement,
  loadSqlite,
  rejectNetworkFileSystem,
  type SqliteModule,
  WriteAheadLog,
  walIsSafe,
} from "./sqlite-file";
import { Statements } from "./sqlite-statements";
import {
  type Changes,
  type ClockFinding,
  type Commit,
  Conflict,
  type Engine,
  type Head,
  KEPT_MS,
  LAYOUT,
  type Query,
  type Rows,
  type Transaction,
} from "./store";
import { createText, type Dialect, type Stored } from "./table";
import { writesOf } from "./writes";

/**
 * One file on one machine. SQLite answers synchronously, so a transaction runs in one turn of the event loop, and holds the file's lock no
 * longer than its work takes. Where another process has the lock, `begin` throws `Conflict`: waits are outside of SQLite, which would block the
 * event loop.
 */
export interface SqliteOptions {
  readOnly?: boolean;
  clock?: () => number;
  /** The clock that `clock` is compared with. Default: the time since boot, or none if `clock` is given. */
  bootTime?: () => BootTime | undefined;
  /** How long to wait for other processes when the file is opened, in seconds. */
  lockTimeout?: number;
}

/** Shared by all that open the same name, as long as the process runs. */
const memories = new Map<string, Database>();

/** A file, `:memory:`, or `memory:NAME`, which is one database for all of this process. */
export async function openSqlite(path: string, options: SqliteOptions = {}): Promise<Engine> {
  const { clock = Date.now } = options;
  const getBootTime = options.bootTime ?? (options.clock ? () => undefined : bootTime);
  const sqlite = await loadSqlite();
  const connect = (db: Database, readOnly: boolean, file: Partial<Connection> = {}) => {
    const time = new SqliteClock(db, path, clock, getBootTime, readOnly);
    return new SqliteEngine({ db, path, statements: new Statements(db), clock: time, ...file }, readOnly);
  };
  if (/^:?memory:/.test(path)) {
    const db = memoryNamed(sqlite, path);
    if (needsTables(db, path)) createTables(db, path);
    return connect(db, false);
  }
  const readOnly = options.readOnly || !(await canWrite(path));
  await rejectNetworkFileSystem(path);
  return retryWhileLocked(path, options.lockTimeout, () => {
    const db = new sqlite.DatabaseSync(path, { readOnly });
    try {
      const checkFile = guardReplacement(path);
      return connect(db, readOnly, { checkFile, log: prepareFile(db, path, readOnly) });
    } catch (error) {
      db.close();
      throw error;
    }
  });
}

function memoryNamed({ DatabaseSync }: SqliteModule, name: string): Database {
  const db = memories.get(name) ?? new DatabaseSync(":memory:", { readOnly: false });
  if (name !== ":memory:") memories.set(name, db);
  return db;
}

/** Returns its write-ahead log, which we sync ourselves, if it has one. */
function prepareFile(db: Database, path: string, readOnly: boolean): WriteAheadLog | undefined {
  db.exec("PRAGMA busy_timeout = 5");
  if (!readOnly) setJournal(db);
  if (needsTables(db, path)) {
    if (readOnly) throw noTables(path);
    createTables(db, path);
  }
  const { journal_mode: mode } = db.prepare("PRAGMA journal_mode").get() as { journal_mode: string };
  return readOnly || mode !== "wal" ? undefined : new WriteAheadLog(path);
}

function setJournal(db: Database): void {
  const { v } = db.prepare("SELECT sqlite_version() AS v").get() as { v: string };
  const mode = walIsSafe(v) ? "WAL" : "DELETE";
  db.exec(`PRAGMA journal_mode = ${mode}`);
  db.exec(`PRAGMA synchronous = ${mode === "WAL" ? "NORMAL" : "FULL"}`);
}

const DIALECT: Dialect = { type: ({ sqlite }) => sqlite, prefix: "", lookup: " WITHOUT ROWID" };

function needsTables(db: Database, path: string): boolean {
  const names = db.prepare("SELECT name FROM sqlite_master WHERE name IN ('store', 'kv')").all() as { name: string }[];
  if (names.some(({ name }) => name === "kv")) throw olderTables(`The pool file ${path}`);
  if (names.length === 0) return true;
  const { layout } = db.prepare("SELECT layout FROM store").get() as { layout: number };
  if (layout > LAYOUT) throw unknownLayout(`the pool file ${path}`, layout);
  return false;
}

/** Another process may do the same. */
function createTables(db: Database, path: string): void {
  db.exec("BEGIN IMMEDIATE");
  try {
    if (needsTables(db, path)) {
      for (const table of TABLES) db.exec(createText(table, DIALECT));
      new Statements(db).put(store, { ...emptyHead(), one: 1 });
    }
    db.exec("COMMIT");
  } catch (error) {
    rollBack(db);
    throw error;
  }
}

/** Retries until the file is not locked, with random backoff. */
async function retryWhileLocked<T>(path: string, lockTimeout = 30, attempt: () => T): Promise<T> {
  const deadline = Date.now() + lockTimeout * 1000;
  for (let backoff = 2; ; backoff = Math.min(backoff * 2, 50)) {
    try {
      return attempt();
    } catch (thrown) {
      const error = translateError(path, thrown);
      if (!(error instanceof Conflict)) throw error;
      if (Date.now() > deadline) throw lockTimedOut(path, lockTimeout, error.cause);
    }
    await sleep(1 + Math.random() * backoff);
  }
}

function rollBack(db: Database): void {
  try {
    db.exec("ROLLBACK");
  } catch (error) {
    if (!isGeneric(error)) throw error;
  }
}

/** What the transactions of an engine work with. */
interface Connection {
  db: Database;
  path: string;
  statements: Statements;
  clock: SqliteClock;
  /** If SQLite does not sync by itself. */
  log?: WriteAheadLog | undefined;
  /** Throws if the file is not at its path any more. */
  checkFile?(): void;
}

class SqliteEngine implements Engine {
  readonly place: string;

  constructor(
    private readonly connection: Connection,
    readonly readOnly: boolean,
  ) {
    this.place = connection.path;
  }

  begin(queries: Query[], locks?: string[] | "all"): Transaction {
    const { db, path, statements } = this.connection;
    if (locks && this.readOnly) throw readOnlyError(path);
    return translated(path, () => {
      statements.of(locks ? "BEGIN IMMEDIATE" : "BEGIN").run();
      try {
        return new SqliteTransaction(this.connection, queries, locks === "all" ? [] : (locks ?? []));
      } catch (error) {
        rollBack(db);
        throw error;
      }
    });
  }

  /** A finding instead of the refusal that transactions end with. */
  checkClock(repair: boolean): Promise<ClockFinding | undefined> {
    return retryWhileLocked(this.place, undefined, () => {
      try {
        this.begin([]).rollBack();
        return undefined;
      } catch (error) {
        if (!isOverlayError(error, "STORE_CLOCK")) throw error;
        if (repair) this.#acceptClock();
        return { problem: error.what, repairable: true };
      }
    });
  }

  #acceptClock(): void {
    const { db, clock } = this.connection;
    db.exec("BEGIN IMMEDIATE");
    try {
      clock.accept();
      db.exec("COMMIT");
    } catch (error) {
      rollBack(db);
      throw error;
    }
  }

  async close(): Promise<void> {
    const { db, log } = this.connection;
    log?.close();
    if (!memories.has(this.place)) db.close();
  }
}

function translated<T>(path: string, work: () => T): T {
  try {
    return work();
  } catch (error) {
    throw translateError(path, error);
  }
}

class SqliteTransaction implements Transaction {
  readonly now: number;
  readonly head: Head;
  readonly rows: Rows;
  #isOpen = true;
  /** Rows that locked pools get, because they have none. */
  readonly #newPools: PoolRow[];

  constructor(
    private readonly connection: Connection,
    queries: Query[],
    locks: string[],
  ) {
    const { clock, statements } = connection;
    connection.checkFile?.();
    this.now = clock.check();
    const { one: _, ...head } = store.decode(
      statements.of("SELECT {store.*} FROM {store} WHERE one = 1").get() as Stored,
    );
    this.head = head;
    const rows = this.#find([...queries, ...locks.map((name): Query => ({ of: "pool", name }))]);
    const found = new Set(rows.pools?.map(({ name }) => name));
    this.#newPools = locks.filter((name) => !found.has(name)).map(emptyPool);
    this.rows = this.#newPools.length > 0 ? { ...rows, pools: [...(rows.pools ?? []), ...this.#newPools] } : rows;
  }

  load(queries: Query[]): Rows {
    return translated(this.connection.path, () => this.#find(queries));
  }

  #find(queries: Query[]): Rows {
    const found = new Found();
    for (const query of queries)
      for (const ask of askFor(query, this.now)) found.add(ask, this.connection.statements.find(ask));
    return found.rows;
  }

  commit(changes: Changes): Commit {
    const { path, clock, statements, log } = this.connection;
    return translated(path, () => {
      try {
        this.#write(changes);
        const commit = this.#writeHead(changes);
        clock.note(this.now);
        statements.of("COMMIT").run();
        this.#isOpen = false;
        log?.sync();
        return commit;
      } catch (error) {
        this.rollBack();
        throw error;
      }
    });
  }

  #write(changes: Changes): void {
    const { statements, path } = this.connection;
    for (const row of this.#newPools) statements.put(pools, row);
    for (const { name } of changes.clear ? TABLES : [])
      if (name !== store.name) statements.of(`DELETE FROM {${name}}`).run();
    for (const { pool, zone } of changes.free.cleared)
      statements.of("DELETE FROM {free_range} WHERE pool = ? AND zone = ?").run(pool, zone);
    const writes = writesOf(changes);
    for (const { table, deleted } of writes) {
      const count = deleted.reduce((sum, row) => sum + statements.delete(table, row), 0);
      // A range that is cut must be there: the guard that no value is given twice.
      if (table === freeRanges && count !== deleted.length) throw noFreeRange(path);
    }
    for (const { table, put, isGuard } of writes) for (const row of put) statements.put(table, row, isGuard);
  }

  /** Last, as on servers, where all commits change that row. */
  #writeHead(changes: Changes): Commit {
    const { head: before, now } = this;
    const { statements } = this.connection;
    const { events: made, resetEpochs } = changes;
    if (!changesHead(changes)) return { version: before.version, epoch: before.epoch, events: [] };
    const head = nextHead(before, changes, now);
    const { version, epoch } = head;
    if (resetEpochs) statements.of("DELETE FROM {epoch}").run();
    if (resetEpochs) statements.put(epochs, resetEpochs);
    else if (epoch === changes.nextEpoch) statements.put(epochs, { first: version, tag: epoch });
    const logged = made.map((event, i) => ({ ...event, id: before.lastEvent + 1 + i }));
    for (const event of logged) statements.put(events, event);
    statements.put(store, { ...head, one: 1 });
    if (isTimeToTrim()) this.#trim();
    return { version, epoch, events: logged };
  }

  #trim(): void {
    for (const text of [...TRIM_EVENTS, TRIM_EPOCHS])
      this.connection.statements.of(text).run(...(text.includes("?") ? [this.now - KEPT_MS] : []));
  }

  rollBack(): void {
    if (this.#isOpen) rollBack(this.connection.db);
    this.#isOpen = false;
  }
}

const emptyPool = (name: string): PoolRow => ({ name, reserved: 0, used: 0, resting: 0, held: 0n });
