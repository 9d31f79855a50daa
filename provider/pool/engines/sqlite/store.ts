import { closeSync, fdatasyncSync, openSync } from "node:fs";
import { access, constants, mkdir, open, statfs } from "node:fs/promises";
import { dirname } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError, OverlayError } from "../../../errors";
import { type ClockFinding, createMutex, EngineFault, type Row, type Store, type Tx } from "../../storage/store";
import { type BootTime, bootTime } from "../clock-check";

import { describeMissingViews, namesTaken, VIEWS } from "../view-names";
import { SqliteClock } from "./clock";
import { sqliteViews } from "./views";

/**
 * One file on one machine. Transactions of this process run one at a time on one connection. SQLite answers synchronously, so all
 * of a transaction runs as microtasks of one turn of the event loop and holds the file's lock no longer than its work takes. Processes
 * wait for each other with backoff here, not inside SQLite, which would block the event loop.
 */
export interface SqliteOptions {
  readOnly?: boolean;
  clock?: () => number;
  /** The clock that `clock` is compared with. Default: the time since boot, or none if `clock` is given. */
  bootTime?: () => BootTime | undefined;
  /** How long to wait for other processes, in seconds. */
  lockTimeout?: number;
  warn?: (text: string) => void;
  /** Called before a transaction is tried again because another process has the file locked. */
  onConflict?: (() => void) | undefined;
}

/** What we use of `node:sqlite`, and of the package with the same interface. */
interface Database {
  exec(sql: string): void;
  prepare(sql: string): Statement;
  close(): void;
}
interface Statement {
  get(...values: unknown[]): unknown;
  all(...values: unknown[]): unknown[];
  run(...values: unknown[]): unknown;
}
type Engine = { DatabaseSync: new (path: string, options: { readOnly: boolean }) => Database };

export async function openSqliteStore(path: string, options: SqliteOptions = {}): Promise<Store> {
  const { clock = Date.now, warn = () => {} } = options;
  const retry = <T>(attempt: () => T | Promise<T>): Promise<T> => retryWhileLocked(path, options, attempt);
  const getBootTime = options.bootTime ?? (options.clock ? () => undefined : bootTime);
  const engine = await loadEngine();
  const readOnly = options.readOnly || !(await canWrite(path));
  await rejectNetworkFileSystem(path);
  const clockOn = (db: Database) => new SqliteClock(db, path, clock, getBootTime, readOnly);
  const connection = await retry(() => connect(engine, path, readOnly, clockOn, warn));
  const { db, tx, inTransaction, log, time } = connection;
  const mutex = createMutex();
  const checked = <T>(work: (tx: Tx) => Promise<T>): Promise<T> => {
    time.check();
    return work(tx);
  };
  return {
    readOnly,
    transact: (work, promised) =>
      retry(() =>
        mutex(async () => {
          const result = await inTransaction("toWrite", () => checked(work));
          if (!promised) log?.sync();
          return result;
        }),
      ),
    read: (work) => retry(() => mutex(() => inTransaction("toRead", () => checked(work)))),
    checkClock: (repair) => retry(() => mutex(() => checkClock(inTransaction, time, repair))),
    close: () =>
      mutex(async () => {
        log?.close();
        db.close();
      }),
  };
}

/** The package first: the same SQLite whatever Node runs it. Node's own, from 22 on, where the package has no binary. */
async function loadEngine(): Promise<Engine> {
  try {
    return (await import("@photostructure/sqlite")) as unknown as Engine;
  } catch (cause) {
    const builtIn = process.getBuiltinModule?.("node:sqlite" as "node:fs") as unknown as Engine | undefined;
    if (builtIn) return builtIn;
    const what = `Node ${process.version} has no SQLite of its own, and the package @photostructure/sqlite is not there.`;
    const fix = "Use Node 22 or later, or `npm install @photostructure/sqlite`.";
    throw new OverlayError("STORE_UNAVAILABLE", what, fix, cause);
  }
}

/**
 * Makes the file if it has to. A file that is there but cannot be written still serves previews. It is not opened here: closing
 * it would drop the locks that this process may already have on it.
 */
async function canWrite(path: string): Promise<boolean> {
  const can = (mode: number) =>
    access(path, mode).then(
      () => true,
      () => false,
    );
  if (await can(constants.F_OK)) return can(constants.W_OK);
  try {
    await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    await (await open(path, "wx", 0o600)).close();
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return can(constants.W_OK);
    throw unavailable(path, error);
  }
}

/** File systems whose locks do not hold between machines, by the number that `statfs` gives. */
const NETWORKS = new Map([
  [0x6969, "NFS"],
  [0xff534d42, "CIFS"],
  [0xfe534d42, "SMB"],
  [0x517b, "SMB"],
  [0x564c, "NCP"],
  [0x5346414f, "AFS"],
  [0x73757245, "Coda"],
  [0xc36400, "Ceph"],
  [0xbd00bd0, "Lustre"],
  [0x47504653, "GPFS"],
]);

/** The kernel's number may come as a signed one. */
export const networkName = (type: number): string | undefined => NETWORKS.get(type >>> 0);

async function rejectNetworkFileSystem(path: string): Promise<void> {
  const { type } = await statfs(path).catch((error: unknown) => {
    throw unavailable(path, error);
  });
  const network = networkName(type);
  if (!network) return;
  const what = `The pool file ${path} is on ${network}, where locks between machines cannot be trusted.`;
  throw new OverlayError("STORE_UNAVAILABLE", what, "Keep it on a local disk, or use a postgres:// or etcd:// store.");
}

function connect(
  { DatabaseSync }: Engine,
  path: string,
  readOnly: boolean,
  clockOn: (db: Database) => SqliteClock,
  warn: (text: string) => void,
) {
  const db = new DatabaseSync(path, { readOnly });
  try {
    db.exec("PRAGMA busy_timeout = 5");
    const log = readOnly || !prepareFile(db, path, warn) ? undefined : new WriteAheadLog(path);
    const time = clockOn(db);
    const wrote = () => {
      log?.wasWritten();
      time.note();
    };
    return { db, tx: createTx(db, time.now, wrote), inTransaction: createTransactions(db), log, time };
  } catch (error) {
    db.close();
    throw error;
  }
}

/** Whether it has a write-ahead log, which we sync ourselves. */
function prepareFile(db: Database, path: string, warn: (text: string) => void): boolean {
  const { v } = db.prepare("SELECT sqlite_version() AS v").get() as { v: string };
  const mode = walIsSafe(v) ? "WAL" : "DELETE";
  db.exec(`PRAGMA journal_mode = ${mode}`);
  db.exec(`PRAGMA synchronous = ${mode === "WAL" ? "NORMAL" : "FULL"}`);
  db.exec("CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID");
  const taken = ensureViews(db);
  if (taken.length > 0) warn(describeMissingViews(path, namesTaken(taken)));
  return mode === "WAL";
}

/** Of the views. A change of them adds one. */
const VIEWS_VERSION = 2;

/**
 * Makes the views, in the place of those of an older version. A file of version 0 has none of ours: it stays as it is where their names
 * are in use, which are returned.
 */
function ensureViews(db: Database): string[] {
  const version = () => (db.prepare("PRAGMA user_version").get() as { user_version: number }).user_version;
  if (version() >= VIEWS_VERSION) return [];
  db.exec("BEGIN IMMEDIATE");
  try {
    const found = version();
    const taken = found === 0 ? namesInUse(db) : namesInUse(db, "type <> 'view' AND ");
    const drop = found === 0 ? "" : VIEWS.map((view) => `DROP VIEW IF EXISTS ${view};`).join(" ");
    if (found < VIEWS_VERSION && taken.length === 0)
      db.exec(`${drop} ${sqliteViews()} PRAGMA user_version = ${VIEWS_VERSION}`);
    db.exec("COMMIT");
    return taken;
  } catch (error) {
    rollBack(db);
    throw error;
  }
}

/** Relations that have the names of our views. */
function namesInUse(db: Database, condition = ""): string[] {
  const found = db.prepare(
    `SELECT name FROM sqlite_master WHERE ${condition}lower(name) IN (?, ?, ?, ?) ORDER BY name`,
  );
  return (found.all(...VIEWS) as { name: string }[]).map(({ name }) => name);
}

/**
 * The write-ahead log, synced before anything is answered but offers. SQLite can do that itself, but inside the
 * transaction: then each process waits for the disk writes of all others. Here the lock on the file is released as soon as a
 * commit is written, and one sync covers all commits written before it. A commit that read an unsynced one is after it in
 * the same file, so a power cut cannot lose what an answer depends on.
 */
class WriteAheadLog {
  #file: number | undefined;
  #written = false;
  /** The kernel tells of a failed write once; after that nothing in this log can be trusted to be on disk. */
  #failed: OverlayError | undefined;

  constructor(private readonly path: string) {}

  wasWritten(): void {
    this.#written = true;
  }

  sync(): void {
    if (this.#failed) throw this.#failed;
    if (!this.#written) return;
    try {
      this.#file ??= openSync(`${this.path}-wal`, "r+");
      fdatasyncSync(this.#file);
    } catch (error) {
      this.#failed = unavailable(this.path, error);
      throw this.#failed;
    }
    this.#written = false;
  }

  close(): void {
    if (this.#file !== undefined) closeSync(this.#file);
  }
}

/** Before 3.51.3 a write-ahead log can be reset while another process still reads it, and lose what was committed. */
export function walIsSafe(version: string): boolean {
  const [major = 0, minor = 0, patch = 0] = version.split(".").map(Number);
  return major * 1e6 + minor * 1e3 + patch >= 3_051_003;
}

type Found = { key: string; value: string };

function createTx(db: Database, clock: () => number, wrote: () => void): Tx {
  const get = db.prepare("SELECT value FROM kv WHERE key = ?");
  const range = db.prepare("SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key LIMIT ?");
  const next = db.prepare("SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key LIMIT 1");
  const put = db.prepare("INSERT INTO kv VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value");
  const remove = db.prepare("DELETE FROM kv WHERE key = ?");
  // Most ranges are seeks for one row, or for none, which cost a third this way.
  const found = (from: string, to: string, limit: number, expectEmpty?: boolean): Found[] => {
    const first = limit === 1 || expectEmpty ? [next.get(from, to)].filter(Boolean) : undefined;
    return (first && (limit === 1 || first.length === 0) ? first : range.all(from, to, limit)) as Found[];
  };
  return {
    now: clock,
    get: wrapErrors((key) => (get.get(key) as Found | undefined)?.value),
    range: wrapErrors((from, to, limit, expectEmpty) =>
      found(from, to, limit, expectEmpty).map(({ key, value }): Row => [key, value]),
    ),
    write: wrapErrors((writes) => {
      wrote();
      for (const [key, value] of writes) value === null ? remove.run(key) : put.run(key, value);
    }),
  };
}

const wrapErrors =
  <A extends unknown[], R>(call: (...args: A) => R) =>
  (...args: A): R => {
    try {
      return call(...args);
    } catch (error) {
      throw new EngineFault(error);
    }
  };

/** BEGIN IMMEDIATE takes the lock for writing at once: two that read first and write later could never both go on. */
function createTransactions(db: Database) {
  const begin = { toRead: db.prepare("BEGIN"), toWrite: db.prepare("BEGIN IMMEDIATE") };
  const commit = db.prepare("COMMIT");
  return async <T>(kind: keyof typeof begin, work: () => Promise<T>): Promise<T> => {
    begin[kind].run();
    try {
      const result = await work();
      commit.run();
      return result;
    } catch (error) {
      rollBack(db);
      throw error;
    }
  };
}

/** A finding instead of the refusal that transactions end with. */
async function checkClock(
  inTransaction: ReturnType<typeof createTransactions>,
  time: SqliteClock,
  repair: boolean,
): Promise<ClockFinding | undefined> {
  try {
    await inTransaction("toRead", async () => time.check());
    return undefined;
  } catch (error) {
    if (!isOverlayError(error, "STORE_CLOCK")) throw error;
    if (repair) await inTransaction("toWrite", async () => time.note(true));
    return { problem: error.what, repairable: true };
  }
}

function rollBack(db: Database): void {
  try {
    db.exec("ROLLBACK");
  } catch (error) {
    // After a full disk or an I/O error SQLite has done it already.
    if (codeOf(error) !== GENERIC) throw error;
  }
}

/** Retries until the file is not locked, with random backoff. */
async function retryWhileLocked<T>(
  path: string,
  { lockTimeout = 30, onConflict }: SqliteOptions,
  attempt: () => T | Promise<T>,
): Promise<T> {
  const deadline = Date.now() + lockTimeout * 1000;
  for (let backoff = 2; ; backoff = Math.min(backoff * 2, 50)) {
    try {
      return await attempt();
    } catch (error) {
      if (![BUSY, LOCKED].includes(codeOf(error))) throw translateError(path, error);
      if (Date.now() > deadline) throw lockTimedOut(path, lockTimeout, error);
      onConflict?.();
    }
    await sleep(1 + Math.random() * backoff);
  }
}

const [NONE = 0, GENERIC, BUSY, LOCKED, READONLY, CORRUPT, NOTADB] = [0, 1, 5, 6, 8, 11, 26];

/** SQLite's primary result code; NONE when the error is not SQLite's. */
function codeOf(error: unknown): number {
  const { errcode } = (error instanceof EngineFault ? error.cause : error) as { errcode?: number };
  return typeof errcode === "number" ? errcode & 0xff : NONE;
}

function translateError(path: string, error: unknown): unknown {
  switch (codeOf(error)) {
    case NONE:
      return error;
    case READONLY:
      return new OverlayError("STORE_READ_ONLY", `The pool file ${path} is read-only.`, "Open it for writing.", error);
    case CORRUPT:
    case NOTADB: {
      const fix = "Restore it from a backup, or run `overlayctl recover`.";
      return new OverlayError("STORE_CORRUPT", `The pool file ${path} is not a sound database.`, fix, error);
    }
    default:
      return unavailable(path, error instanceof EngineFault ? error.cause : error);
  }
}

const unavailable = (path: string, cause: unknown): OverlayError => {
  const what = `The pool file ${path} cannot be used: ${(cause as Error).message}.`;
  return new OverlayError("STORE_UNAVAILABLE", what, "Check the path, its permissions and the disk.", cause);
};

const lockTimedOut = (path: string, seconds: number, cause: unknown): OverlayError => {
  const what = `Other processes kept the pool file ${path} locked for ${seconds} s.`;
  return new OverlayError("STORE_CONFLICT", what, "Run it again; if that does not help, see who has it open.", cause);
};
