import { isOverlayError } from "../../errors";
import { newPoolRow, type PoolRow } from "../decide/rows";
import { type BootTime, bootTime, type NotedTime, timeByNote } from "./clock";
import { Found } from "./queries";
import { epochs, events, freeRanges, pools, store, TABLES } from "./schema";
import {
  type Ask,
  askFor,
  columnNames,
  createText,
  type Dialect,
  expand,
  onConflict,
  type Statement as Search,
} from "./sql";
import {
  canWrite,
  type Database,
  guardReplacement,
  isGeneric,
  loadSqlite,
  noFreeRange,
  noTables,
  readOnlyError,
  refuseOpenMode,
  rejectNetworkFileSystem,
  type SqliteModule,
  type Statement,
  translateError,
  WriteAheadLog,
  walIsSafe,
} from "./sqlite-file";
import {
  type Changes,
  type ClockFinding,
  type Commit,
  changesHead,
  type Engine,
  emptyHead,
  type Head,
  isTimeToTrim,
  KEPT_MS,
  LAYOUT,
  logOf,
  olderTables,
  type Query,
  type Rows,
  TRIM,
  type Transaction,
  unknownLayout,
} from "./store";
import type { Stored, Table } from "./table";
import { retry } from "./transact";
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
  /** How long to wait for other processes when the file is opened, in milliseconds. */
  lockTimeoutMs?: number;
}

/** Shared by all that open the same name, as long as the process runs. */
const memories = new Map<string, Database>();

/** A file, `:memory:`, or `memory:NAME`, which is one database for all of this process. */
export async function openSqlite(path: string, options: SqliteOptions = {}): Promise<Engine> {
  const { clock = Date.now, lockTimeoutMs } = options;
  const getBootTime = options.bootTime ?? (options.clock ? () => undefined : bootTime);
  const sqlite = await loadSqlite();
  const connect = (db: Database, readOnly: boolean, file: Pick<Connection, "log" | "checkFile"> = {}) =>
    new SqliteEngine({ db, path, statements: new Statements(db), clock, bootTime: getBootTime, ...file }, readOnly);
  if (/^:?memory:/.test(path)) {
    const db = memoryNamed(sqlite, path);
    createTables(db, path, false);
    return connect(db, false);
  }
  const readOnly = options.readOnly || !(await canWrite(path));
  await rejectNetworkFileSystem(path);
  refuseOpenMode(path);
  const open = () => {
    const db = new sqlite.DatabaseSync(path, { readOnly });
    try {
      const checkFile = guardReplacement(path);
      return connect(db, readOnly, { checkFile, log: prepareFile(db, path, readOnly) });
    } catch (error) {
      db.close();
      throw error;
    }
  };
  return retry(path, () => translated(path, open), lockTimeoutMs === undefined ? {} : { milliseconds: lockTimeoutMs });
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
  createTables(db, path, readOnly);
  const { journal_mode: mode } = db.prepare("PRAGMA journal_mode").get() as { journal_mode: string };
  return readOnly || mode !== "wal" ? undefined : new WriteAheadLog(path);
}

function setJournal(db: Database): void {
  const { v } = db.prepare("SELECT sqlite_version() AS v").get() as { v: string };
  const mode = walIsSafe(v) ? "WAL" : "DELETE";
  db.exec(`PRAGMA journal_mode = ${mode}`);
  db.exec(`PRAGMA synchronous = ${mode === "WAL" ? "NORMAL" : "FULL"}`);
}

function needsTables(db: Database, path: string): boolean {
  const names = db.prepare("SELECT name FROM sqlite_master WHERE name IN ('store', 'kv')").all() as { name: string }[];
  if (names.some(({ name }) => name === "kv")) throw olderTables(`The pool file ${path}`);
  if (names.length === 0) return true;
  const { layout } = db.prepare("SELECT layout FROM store").get() as { layout: number };
  if (layout > LAYOUT) throw unknownLayout(`the pool file ${path}`, layout);
  return false;
}

const DIALECT: Dialect = { type: ({ sqlite }) => sqlite, prefix: "", lookup: " WITHOUT ROWID" };

/** Another process may do the same. */
function createTables(db: Database, path: string, readOnly: boolean): void {
  if (!needsTables(db, path)) return;
  if (readOnly) throw noTables(path);
  inTransaction(db, () => {
    if (!needsTables(db, path)) return;
    for (const table of TABLES) db.exec(createText(table, DIALECT));
    // The time at a commit of late, by clocks that SQLite does not have.
    db.exec("CREATE TABLE clock (one INTEGER PRIMARY KEY, at REAL NOT NULL, boot TEXT, uptime REAL)");
    new Statements(db).put(store, { ...emptyHead(), one: 1 });
  });
}

function inTransaction(db: Database, work: () => void): void {
  db.exec("BEGIN IMMEDIATE");
  try {
    work();
    db.exec("COMMIT");
  } catch (error) {
    rollBack(db);
    throw error;
  }
}

/** After some errors SQLite has rolled back already. */
function rollBack(db: Database): void {
  try {
    db.exec("ROLLBACK");
  } catch (error) {
    if (!isGeneric(error)) throw error;
  }
}

/** Errors in our words. */
function translated<T>(path: string, work: () => T): T {
  try {
    return work();
  } catch (error) {
    throw translateError(path, error);
  }
}

/** What the transactions of an engine work with. */
interface Connection {
  db: Database;
  path: string;
  statements: Statements;
  clock(): number;
  bootTime(): BootTime | undefined;
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
    const { db, path } = this.connection;
    return retry(path, () => {
      try {
        this.begin([]).rollBack();
        return undefined;
      } catch (error) {
        if (!isOverlayError(error, "STORE_CLOCK")) throw error;
        if (repair) translated(path, () => inTransaction(db, () => noteTime(this.connection)));
        return { problem: error.what, repairable: true };
      }
    });
  }

  async close(): Promise<void> {
    const { db, log } = this.connection;
    log?.close();
    if (!memories.has(this.place)) db.close();
  }
}

function noteTime({ statements, clock, bootTime }: Connection): void {
  const { boot = null, uptime = null } = bootTime() ?? {};
  statements.of("INSERT OR REPLACE INTO clock VALUES (1, ?, ?, ?)").run(clock(), boot, uptime);
}

/** The moment of the last commit is only noted so often: leaps are minutes. */
const NOTED_EVERY_MS = 10_000;

class SqliteTransaction implements Transaction {
  readonly now: number;
  readonly head: Head;
  readonly rows: Rows;
  #isOpen = true;
  /** Rows that locked pools get, because they have none. */
  readonly #newPools: PoolRow[];
  readonly #isNoteDue: boolean;

  constructor(
    private readonly connection: Connection,
    queries: Query[],
    locks: string[],
  ) {
    const { statements, path, clock, bootTime } = connection;
    connection.checkFile?.();
    const row = statements.of(HEAD).get() as Stored & { noted_at: number | null };
    const noted = row.noted_at === null ? undefined : (row as unknown as NotedTime);
    this.now = timeByNote(path, clock(), noted, bootTime);
    this.#isNoteDue = !noted || Math.abs(this.now - noted.noted_at) >= NOTED_EVERY_MS;
    const { one: _, ...head } = store.decode(row);
    this.head = head;
    this.rows = this.#find([...queries, ...locks.map((name): Query => ({ of: "pool", name }))]);
    const found = new Set(this.rows.pools?.map(({ name }) => name));
    this.#newPools = locks.filter((name) => !found.has(name)).map(newPoolRow);
    if (this.#newPools.length > 0) this.rows.pools = [...(this.rows.pools ?? []), ...this.#newPools];
  }

  load(queries: Query[]): Rows {
    return translated(this.connection.path, () => this.#find(queries));
  }

  #find(queries: Query[]): Rows {
    const found = new Found();
    for (const query of queries)
      for (const ask of askFor(query, this.now))
        found.add(ask.statement.table, query, this.connection.statements.find(ask));
    return found.rows;
  }

  commit(changes: Changes): Commit {
    const { path, statements, log } = this.connection;
    try {
      this.#write(changes);
      const commit = this.#writeHead(changes);
      if (this.#isNoteDue) noteTime(this.connection);
      statements.of("COMMIT").run();
      this.#isOpen = false;
      log?.sync();
      return commit;
    } catch (error) {
      this.rollBack();
      throw translateError(path, error);
    }
  }

  #write(changes: Changes): void {
    const { statements, path } = this.connection;
    for (const row of this.#newPools) statements.put(pools, row);
    for (const { name } of changes.clear ? TABLES : [])
      if (name !== store.name) statements.of(`DELETE FROM {${name}}`).run();
    for (const { pool, zone } of changes.free.cleared)
      statements.of("DELETE FROM {free_range} WHERE pool = ? AND zone = ?").run(pool, zone);
    const writes = writesOf(changes);
    // A range that is cut must be there: the guard that no value is given twice.
    for (const { table, deleted } of writes)
      for (const row of deleted) if (!statements.delete(table, row) && table === freeRanges) throw noFreeRange(path);
    for (const { table, put } of writes) for (const row of put) statements.put(table, row);
  }

  /** Last, as on servers, where all commits change that row. */
  #writeHead(changes: Changes): Commit {
    const { statements } = this.connection;
    const { head, epoch, events: logged } = logOf(this.head, changes, this.now);
    const commit = { version: head.version, epoch: head.epoch, events: logged };
    if (!changesHead(changes)) return commit;
    if (changes.resetEpochs) statements.of("DELETE FROM {epoch}").run();
    if (epoch) statements.put(epochs, epoch);
    for (const event of logged) statements.put(events, event);
    statements.put(store, { ...head, one: 1 });
    if (isTimeToTrim())
      for (const text of TRIM) statements.of(text).run(...(text.includes("?") ? [this.now - KEPT_MS] : []));
    return commit;
  }

  rollBack(): void {
    if (this.#isOpen) rollBack(this.connection.db);
    this.#isOpen = false;
  }
}

const HEAD = `SELECT {store.*}, clock.at AS noted_at, clock.boot, clock.uptime
  FROM {store} AS store LEFT JOIN clock ON clock.one = 1 WHERE store.one = 1`;

/** Prepared once, and kept. */
class Statements {
  readonly #prepared = new Map<string | Search | Table, Statement>();

  constructor(private readonly db: Database) {}

  #get(key: string | Search | Table, text: () => string): Statement {
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
    return this.#get(statement, () => findText(statement)).all(...values) as Stored[];
  }

  put<R extends object>(table: Table<R>, row: R): void {
    this.#get(table, () => putText(table)).run(...table.encode(row, JSON.stringify));
  }

  /** Returns whether it was there. */
  delete<R extends object>(table: Table<R>, row: R): boolean {
    const { name, key } = table;
    const text = () => `DELETE FROM ${name} WHERE ${key.map((column) => `${column} = ?`).join(" AND ")}`;
    return Number(this.#get(`delete ${name}`, text).run(...table.keyOf(row)).changes) > 0;
  }
}

const putText = (table: Table): string =>
  `INSERT INTO ${table.name} (${columnNames(table)}) VALUES (${table.columns.map(() => "?").join(", ")}) ${onConflict(table)}`;

/** With numbers for the names of parameters. SQLite plans a statement anew each time a parameter alone is its limit. */
const findText = ({ text, parameters }: Search): string =>
  text
    .replaceAll("LIMIT :", "LIMIT 0 + :")
    .replace(/:(\w+)/g, (_, name: string) => `?${Object.keys(parameters).indexOf(name) + 1}`);
