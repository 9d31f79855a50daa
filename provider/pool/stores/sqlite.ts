import { mkdir, open, statfs } from "node:fs/promises";
import { dirname } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { OverlayError } from "../../errors";
import { driven, type Rule } from "../rule";
import type { Row, Store, Tx } from "../store";

/**
 * One file on one machine. A transaction runs from BEGIN to COMMIT without ever going back to the event loop, so it
 * needs no queue of its own; processes wait for each other in short naps here, never inside SQLite, which would stop
 * everything else that this process does.
 */
export interface SqliteOptions {
  readOnly?: boolean;
  clock?: () => number;
  /** How long to wait for other processes, in seconds. */
  patience?: number;
}

/** What we use of `node:sqlite`, and of the package with the same interface. */
interface Database {
  exec(sql: string): void;
  prepare(sql: string): {
    get(...values: unknown[]): unknown;
    all(...values: unknown[]): unknown[];
    run(...values: unknown[]): unknown;
  };
  close(): void;
}
type Sqlite = { DatabaseSync: new (path: string, options?: { readOnly?: boolean }) => Database };

export async function sqliteStore(path: string, options: SqliteOptions = {}): Promise<Store> {
  const { readOnly = false, clock = Date.now, patience = 30 } = options;
  const { DatabaseSync } = await engine();
  await mustBeLocal(path, readOnly);
  const db = await patiently(path, patience, () => prepared(new DatabaseSync(path, { readOnly }), readOnly));
  const tx = txOf(db, clock);
  return {
    readOnly,
    transact: (_pool, work) => patiently(path, patience, () => once(db, "BEGIN IMMEDIATE", () => work(tx))),
    read: (work) => patiently(path, patience, () => once(db, "BEGIN", () => work(tx))),
    close: async () => db.close(),
  };
}

/** Node's own from 22 on; before that the package, whose binaries need no install script. */
async function engine(): Promise<Sqlite> {
  const builtIn = process.getBuiltinModule?.("node:sqlite" as "node:fs") as unknown as Sqlite | undefined;
  if (builtIn) return builtIn;
  try {
    return (await import("@photostructure/sqlite")) as unknown as Sqlite;
  } catch (cause) {
    const what = `Node ${process.version} has no SQLite of its own, and the package @photostructure/sqlite is not there.`;
    throw new OverlayError(
      "STORE_UNAVAILABLE",
      what,
      "Use Node 22 or later, or `npm install @photostructure/sqlite`.",
      cause,
    );
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

async function mustBeLocal(path: string, readOnly: boolean): Promise<void> {
  try {
    if (!readOnly) {
      await mkdir(dirname(path), { recursive: true, mode: 0o700 });
      await (await open(path, "a", 0o600)).close();
    }
    const network = networkName((await statfs(path)).type);
    if (!network) return;
    const what = `The pool file ${path} is on ${network}, where locks between machines cannot be trusted.`;
    throw new OverlayError(
      "STORE_UNAVAILABLE",
      what,
      "Keep it on a local disk, or use a postgres:// or etcd:// store.",
    );
  } catch (error) {
    throw error instanceof OverlayError ? error : unavailable(path, error);
  }
}

function prepared(db: Database, readOnly: boolean): Database {
  db.exec("PRAGMA busy_timeout = 5");
  if (!readOnly) {
    const { v } = db.prepare("SELECT sqlite_version() AS v").get() as { v: string };
    db.exec(`PRAGMA journal_mode = ${walIsSafe(v) ? "WAL" : "DELETE"}`);
    db.exec("PRAGMA synchronous = FULL");
    db.exec("CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID");
  }
  return db;
}

/** Before 3.51.3 a WAL file can be reset while another process still reads it, and lose what was committed. */
export function walIsSafe(version: string): boolean {
  const [major = 0, minor = 0, patch = 0] = version.split(".").map(Number);
  return major * 1e6 + minor * 1e3 + patch >= 3_051_003;
}

type Found = { key: string; value: string };

function txOf(db: Database, clock: () => number): Tx {
  const get = db.prepare("SELECT value FROM kv WHERE key = ?");
  const range = db.prepare("SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key LIMIT ?");
  const put = db.prepare("INSERT INTO kv VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value");
  const remove = db.prepare("DELETE FROM kv WHERE key = ?");
  // Most ranges are seeks for one row, and `get` costs a third of `all`.
  const found = (from: string, to: string, limit: number) =>
    (limit === 1 ? [range.get(from, to, 1)].filter(Boolean) : range.all(from, to, limit)) as Found[];
  return {
    now: clock,
    get: (key) => (get.get(key) as Found | undefined)?.value,
    range: (from, to, limit) => found(from, to, limit).map(({ key, value }): Row => [key, value]),
    write: (writes) => {
      for (const [key, value] of writes) value === null ? remove.run(key) : put.run(key, value);
    },
  };
}

function once<T>(db: Database, begin: string, work: () => Rule<T>): T {
  db.exec(begin);
  try {
    const result = driven(work());
    db.exec("COMMIT");
    return result;
  } catch (error) {
    db.exec("ROLLBACK");
    throw error;
  }
}

/** Tries until the file is free, with naps of random length so that no two processes keep meeting. */
async function patiently<T>(path: string, patience: number, attempt: () => T): Promise<T> {
  const deadline = Date.now() + patience * 1000;
  for (let nap = 2; ; nap = Math.min(nap * 2, 50)) {
    try {
      return attempt();
    } catch (error) {
      if (!isBusy(error)) throw translated(path, error);
      if (Date.now() > deadline) {
        const what = `Other processes kept the pool file ${path} locked for ${patience} s.`;
        throw new OverlayError(
          "STORE_CONFLICT",
          what,
          "Run it again; if that does not help, see who has the file open.",
          error,
        );
      }
    }
    await sleep(1 + Math.random() * nap);
  }
}

/** SQLite's primary result code; undefined when the error is not SQLite's. */
const codeOf = (error: unknown): number | undefined => {
  const { errcode } = error as { errcode?: number };
  return typeof errcode === "number" ? errcode & 0xff : undefined;
};
const [BUSY, LOCKED, READONLY, CORRUPT, NOTADB] = [5, 6, 8, 11, 26];
const isBusy = (error: unknown): boolean => [BUSY, LOCKED].includes(codeOf(error) ?? 0);

function translated(path: string, error: unknown): unknown {
  switch (codeOf(error)) {
    case undefined:
      return error;
    case READONLY:
      return new OverlayError(
        "STORE_READ_ONLY",
        `The pool file ${path} cannot be written.`,
        "Check its permissions.",
        error,
      );
    case CORRUPT:
    case NOTADB:
      return new OverlayError(
        "STORE_CORRUPT",
        `The pool file ${path} is not a sound database.`,
        "Restore it from a backup, or run `overlayctl recover`.",
        error,
      );
    default:
      return unavailable(path, error);
  }
}

const unavailable = (path: string, cause: unknown): OverlayError =>
  new OverlayError(
    "STORE_UNAVAILABLE",
    `The pool file ${path} cannot be used: ${(cause as Error).message}.`,
    "Check the path, its permissions and the disk.",
    cause,
  );
