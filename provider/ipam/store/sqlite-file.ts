import { closeSync, fdatasyncSync, openSync, statSync } from "node:fs";
import { access, constants, mkdir, open, statfs } from "node:fs/promises";
import { dirname } from "node:path";
import { OverlayError } from "../../errors";
import { Conflict } from "./store";

/** What we use of `node:sqlite`, and of the package with the same interface. */
export interface Database {
  exec(sql: string): void;
  prepare(sql: string): Statement;
  close(): void;
}
export interface Statement {
  get(...values: unknown[]): unknown;
  all(...values: unknown[]): unknown[];
  run(...values: unknown[]): { changes: number | bigint };
}
export type SqliteModule = { DatabaseSync: new (path: string, options: { readOnly: boolean }) => Database };

/** The package first: the same SQLite whatever Node runs it. Node's own, from 22 on, where the package has no binary. */
export async function loadSqlite(): Promise<SqliteModule> {
  try {
    return (await import("@photostructure/sqlite")) as unknown as SqliteModule;
  } catch (cause) {
    const builtIn = process.getBuiltinModule?.("node:sqlite" as "node:fs") as unknown as SqliteModule | undefined;
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
export async function canWrite(path: string): Promise<boolean> {
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

/** File systems whose locks do not hold between machines, or may not, by the number that `statfs` gives. */
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
  [0x01021997, "9P"],
  [0x65735546, "FUSE"],
]);

/** The kernel's number may come as a signed one. */
export const networkName = (type: number): string | undefined => NETWORKS.get(type >>> 0);

export async function rejectNetworkFileSystem(path: string): Promise<void> {
  const { type } = await statfs(path).catch((error: unknown) => {
    throw unavailable(path, error);
  });
  const network = networkName(type);
  if (!network) return;
  const what = `The pool file ${path} is on ${network}, where locks between machines cannot be trusted.`;
  throw new OverlayError("STORE_UNAVAILABLE", what, "Keep it on a local disk, or use a postgres:// or etcd:// store.");
}

/** The file has the keys that sign tokens. In a folder that is closed to others, its own mode does not matter. */
export function refuseOpenMode(path: string): void {
  if (process.platform === "win32") return;
  const { mode } = statSync(path);
  const isOpen = (mode & 0o006) !== 0 && (statSync(dirname(path)).mode & 0o001) !== 0;
  if (!isOpen) return;
  const what = `Every user of this machine can read or write the pool file ${path} (mode ${(mode & 0o777).toString(8)}), which has the keys that sign tokens.`;
  throw new OverlayError(
    "STORE_UNAVAILABLE",
    what,
    `Run \`chmod o-rw ${path}\`. A new key: \`overlayctl store keys rotate\`.`,
  );
}

/** Before 3.51.3 a write-ahead log can be reset while another process still reads it, and lose what was committed. */
export function walIsSafe(version: string): boolean {
  const [major = 0, minor = 0, patch = 0] = version.split(".").map(Number);
  return major * 1e6 + minor * 1e3 + patch >= 3_051_003;
}

/**
 * The write-ahead log, synced before anything is answered. SQLite can do that itself, but inside the transaction: then each process
 * waits for the disk writes of all others. Here the lock on the file is released as soon as a commit is written, and one sync covers all
 * commits written before it. A commit that read an unsynced one is after it in the same file, so a power cut cannot lose what an answer
 * depends on.
 */
export class WriteAheadLog {
  #file: number | undefined;
  /** The kernel tells of a failed write once; after that nothing in this log can be trusted to be on disk. */
  #failed: OverlayError | undefined;

  constructor(private readonly path: string) {}

  sync(): void {
    if (this.#failed) throw this.#failed;
    try {
      this.#file ??= openSync(`${this.path}-wal`, "r+");
      fdatasyncSync(this.#file);
    } catch (error) {
      this.#failed = unavailable(this.path, error);
      throw this.#failed;
    }
  }

  close(): void {
    if (this.#file !== undefined) closeSync(this.#file);
  }
}

/** Throws once the path no longer has the file of now: what this process wrote to that one, no other process would see. */
export function guardReplacement(path: string): () => void {
  const { dev, ino } = statSync(path);
  return () => {
    const found = statSync(path, { throwIfNoEntry: false });
    if (found?.ino !== ino || found.dev !== dev) throw replacedError(path);
  };
}

const replacedError = (path: string): OverlayError =>
  new OverlayError(
    "STORE_LOST",
    `The pool file ${path} was removed or replaced while this process had it open. Nothing is given out.`,
    "Restart this process once the right file is there.",
  );

export const unavailable = (path: string, cause: unknown): OverlayError => {
  const what = `The pool file ${path} cannot be used: ${(cause as Error).message}.`;
  return new OverlayError("STORE_UNAVAILABLE", what, "Check the path, its permissions and the disk.", cause);
};

// What SQLite answers, in our words

const [NONE, GENERIC, BUSY, LOCKED, READONLY, CORRUPT, CONSTRAINT, NOTADB] = [0, 1, 5, 6, 8, 11, 19, 26] as const;

/** SQLite's primary result code; 0 when the error is not SQLite's. */
function codeOf(error: unknown): number {
  const { errcode } = error as { errcode?: number };
  return typeof errcode === "number" ? errcode & 0xff : NONE;
}

/** After a full disk or an I/O error SQLite has rolled back already. */
export const isGeneric = (error: unknown): boolean => codeOf(error) === GENERIC;

/** What SQLite answers, in our words. */
export function translateError(path: string, error: unknown): unknown {
  const corrupt = (what: string) =>
    new OverlayError("STORE_CORRUPT", what, "Restore it from a backup, or run `overlayctl recover`.", error);
  switch (codeOf(error)) {
    case NONE:
      // It is refused before a row is there to be checked.
      if (!/too large/.test((error as Error).message)) return error;
      return corrupt(`A row in the pool file ${path} has a number that is out of range.`);
    case BUSY:
    case LOCKED:
      return new Conflict(`The pool file ${path} is locked.`, { cause: error });
    case READONLY:
      return readOnlyError(path, error);
    case CORRUPT:
    case NOTADB:
      return corrupt(`The pool file ${path} is not a sound database.`);
    case CONSTRAINT:
      return brokenGuard(path, (error as Error).message, error);
    default:
      return unavailable(path, error);
  }
}

export const noFreeRange = (path: string): OverlayError => brokenGuard(path, "a range is not free");

/** Nothing comes between the read and the commit of a transaction: its tables do not agree. */
const brokenGuard = (path: string, reason: string, cause?: unknown): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    `The tables in the pool file ${path} contradict each other: ${reason}.`,
    "Run `overlayctl store check --repair`.",
    cause,
  );

export const readOnlyError = (path: string, cause?: unknown): OverlayError =>
  new OverlayError("STORE_READ_ONLY", `The pool file ${path} is read-only.`, "Open it for writing.", cause);

export const noTables = (path: string): OverlayError =>
  new OverlayError(
    "STORE_READ_ONLY",
    `The pool file ${path} is read-only, and has no pool yet.`,
    "Open it once for writing.",
  );
