import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError } from "../../errors";
import type { PoolRow } from "../decide/rows";
import { type BootTime, bootTime } from "./clock-check";
import { changesHead, isTimeToTrim, nextHead, TRIM_EPOCHS, TRIM_EVENTS } from "./head";
import { type Ask, askFor, expand, Found, type Statement as QueryStatement } from "./queries";
import { epochs, events, freeRanges, pools, store, TABLES } from "./schema";
import { SqliteClock } from "./sqlite-clock";
import {
  isGeneric,
  isOlder,
  lockTimedOut,
  noTables,
  readOnlyError,
  translateError,
  unknownLayout,
} from "./sqlite-errors";
import {
  canWrite,
  type Database,
  loadSqlite,
  rejectNetworkFileSystem,
  type SqliteModule,
  type Statement,
  WriteAheadLog,
  walIsSafe,
} from "./sqlite-file";
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
import { columnNames, createText, type Dialect, onConflict, type Stored, type Table } from "./table";
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
  if (/^:?memory:/.test(path)) {
    const db = memoryNamed(sqlite, path);
    if (needsTables(db, path)) createTables(db, path);
    return new SqliteEngine(db, path, false, new SqliteClock(db, path, clock, getBootTime, false), undefined);
  }
  const readOnly = options.readOnly || !(await canWrite(path));
  await rejectNetworkFileSystem(path);
  return retryWhileLocked(path, options.lockTimeout, () => {
    const db = new sqlite.DatabaseSync(path, { readOnly });
    try {
      const log = prepareFile(db, path, readOnly);
      return new SqliteEngine(db, path, readOnly, new SqliteClock(db, path, clock, getBootTime, readOnly), log);
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
  if (names.some(({ name }) => name === "kv")) throw isOlder(`The pool file ${path}`);
  if (names.length === 0) return true;
  const { layout } = db.prepare("SELECT layout FROM store").get() as { layout: number };
  if (layout > LAYOUT) throw unknownLayout(`the pool file ${path}`, layout, LAYOUT);
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

const emptyHead = (): Head => ({
  id: randomBytes(16).toString("hex"),
  layout: LAYOUT,
  version: 0,
  epoch: "",
  epochSince: 0,
  lastEvent: 0,
  at: 0,
});

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

/** Prepared once, and kept. */
class Statements {
  readonly #byText = new Map<string, Statement>();
  readonly #byQuery = new Map<QueryStatement, Prepared>();
  readonly #puts = new Map<Table, Statement>();
  readonly #deletes = new Map<Table, Statement>();

  constructor(private readonly db: Database) {}

  of(text: string): Statement {
    const found = this.#byText.get(text) ?? this.db.prepare(expand(text, ""));
    this.#byText.set(text, found);
    return found;
  }

  find({ statement, values }: Ask): Stored[] {
    const found = this.#byQuery.get(statement) ?? prepareQuery(this.db, statement);
    this.#byQuery.set(statement, found);
    return found.statement.all(...found.order.map((i) => values[i])) as Stored[];
  }

  put<R extends object>(table: Table<R>, row: R, isGuard = false): void {
    const found = this.#puts.get(table) ?? this.db.prepare(putText(table, isGuard));
    this.#puts.set(table, found);
    found.run(...storable(table, row));
  }

  /** Returns how many rows were deleted. */
  delete<R extends object>(table: Table<R>, row: R): number {
    const { name, key, columns } = table;
    const text = () => `DELETE FROM ${name} WHERE ${key.map((column) => `${column} = ?`).join(" AND ")}`;
    const found = this.#deletes.get(table) ?? this.db.prepare(text());
    this.#deletes.set(table, found);
    const fields = key.map((name) => columns.find((field) => field.name === name)!);
    return Number(found.run(...fields.map(({ field, column }) => column.encode(row[field as keyof R]))).changes);
  }
}

/** A statement whose parameters have no names, and which value each of them is. */
interface Prepared {
  statement: Statement;
  order: number[];
}

function prepareQuery(db: Database, { text, parameters }: QueryStatement): Prepared {
  const names = Object.keys(parameters);
  const order: number[] = [];
  const unnamed = expand(text, "").replace(/:(\w+)/g, (_, name: string) => {
    order.push(names.indexOf(name));
    return "?";
  });
  return { statement: db.prepare(unnamed), order };
}

function putText(table: Table, isGuard: boolean): string {
  const insert = `INSERT INTO ${table.name} (${columnNames(table)}) VALUES (${table.columns.map(() => "?").join(", ")})`;
  return isGuard ? insert : `${insert} ${onConflict(table)}`;
}

const storable = (table: Table, row: object): unknown[] =>
  table.encode(row).map((value, i) => {
    if (typeof value === "boolean") return value ? 1 : 0;
    return value !== null && table.columns[i]!.column.isJson ? JSON.stringify(value) : value;
  });

class SqliteEngine implements Engine {
  readonly #statements: Statements;

  constructor(
    private readonly db: Database,
    readonly place: string,
    readonly readOnly: boolean,
    private readonly clock: SqliteClock,
    private readonly log: WriteAheadLog | undefined,
  ) {
    this.#statements = new Statements(db);
  }

  begin(queries: Query[], locks?: string[]): Transaction {
    if (locks && this.readOnly) throw readOnlyError(this.place);
    return this.#translate(() => {
      this.#statements.of(locks ? "BEGIN IMMEDIATE" : "BEGIN").run();
      try {
        this.clock.check();
        const transaction = new SqliteTransaction(
          this.db,
          this.#statements,
          this.clock,
          this.log,
          locks,
          this.#translate,
        );
        transaction.rows = transaction.find(queries);
        return transaction;
      } catch (error) {
        rollBack(this.db);
        throw error;
      }
    });
  }

  readonly #translate = <T>(work: () => T): T => {
    try {
      return work();
    } catch (error) {
      throw translateError(this.place, error);
    }
  };

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
    this.db.exec("BEGIN IMMEDIATE");
    try {
      this.clock.note(true);
      this.db.exec("COMMIT");
    } catch (error) {
      rollBack(this.db);
      throw error;
    }
  }

  async close(): Promise<void> {
    this.log?.close();
    if (!memories.has(this.place)) this.db.close();
  }
}

class SqliteTransaction implements Transaction {
  readonly now: number;
  readonly head: Head;
  rows: Rows = {};
  #isOpen = true;
  /** Rows that locked pools get, because they have none. */
  readonly #newPools: PoolRow[] = [];

  constructor(
    private readonly db: Database,
    private readonly statements: Statements,
    private readonly clock: SqliteClock,
    private readonly log: WriteAheadLog | undefined,
    private readonly locks: string[] | undefined,
    private readonly translate: <T>(work: () => T) => T,
  ) {
    this.now = clock.now();
    const { one: _, ...head } = store.decode(
      statements.of("SELECT {store.*} FROM {store} WHERE one = 1").get() as Stored,
    );
    this.head = head;
  }

  /** The answers to the queries of `begin`, and the rows of locked pools. */
  find(queries: Query[]): Rows {
    const { locks = [] } = this;
    const rows = this.#load([...queries, ...locks.map((name): Query => ({ of: "pool", name }))]);
    const found = new Set(rows.pools?.map(({ name }) => name));
    for (const name of locks)
      if (!found.has(name)) this.#newPools.push({ name, reserved: 0, used: 0, resting: 0, held: 0n });
    return this.#newPools.length > 0 ? { ...rows, pools: [...(rows.pools ?? []), ...this.#newPools] } : rows;
  }

  load(queries: Query[]): Rows {
    return this.translate(() => this.#load(queries));
  }

  #load(queries: Query[]): Rows {
    const found = new Found();
    for (const query of queries) {
      for (const ask of askFor(query, this.now)) found.add(ask, this.statements.find(ask));
    }
    return found.rows;
  }

  commit(changes: Changes): Commit {
    return this.translate(() => {
      try {
        for (const row of this.#newPools) this.statements.put(pools, row);
        this.#write(changes);
        const commit = this.#writeHead(changes);
        this.clock.note();
        this.statements.of("COMMIT").run();
        this.#isOpen = false;
        this.log?.sync();
        return commit;
      } catch (error) {
        this.rollBack();
        throw error;
      }
    });
  }

  #write(changes: Changes): void {
    const { statements } = this;
    for (const { pool, zone } of changes.free.cleared)
      statements.of("DELETE FROM {free_range} WHERE pool = ? AND zone = ?").run(pool, zone);
    const writes = writesOf(changes);
    for (const { table, deleted } of writes)
      for (const row of deleted) mustBeThere(table, statements.delete(table, row));
    for (const { table, put, isGuard } of writes) for (const row of put) statements.put(table, row, isGuard);
  }

  /** Last, as on servers, where all commits change that row. */
  #writeHead(changes: Changes): Commit {
    const { statements, head: before, now } = this;
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
      this.statements.of(text).run(...(text.includes("?") ? [this.now - KEPT_MS] : []));
  }

  rollBack(): void {
    if (this.#isOpen) rollBack(this.db);
    this.#isOpen = false;
  }
}

/** A range that is cut must be there: the guard that no value is given twice. */
function mustBeThere(table: Table<object>, deleted: number): void {
  if (table === freeRanges && deleted !== 1) throw new Conflict("A free range is not there any more.");
}
