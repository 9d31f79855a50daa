import { OverlayError } from "../../errors";
import { unavailable } from "./sqlite-file";
import { Conflict } from "./store";

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
  const fix = "Restore it from a backup, or run `overlayctl recover`.";
  switch (codeOf(error)) {
    case NONE:
      return /too large/.test((error as Error).message) ? hugeNumber(path, error) : error;
    case BUSY:
    case LOCKED:
      return new Conflict(`The pool file ${path} is locked.`, { cause: error });
    case READONLY:
      return readOnlyError(path, error);
    case CORRUPT:
    case NOTADB:
      return new OverlayError("STORE_CORRUPT", `The pool file ${path} is not a sound database.`, fix, error);
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

/** It is refused before a row is there to be checked. */
const hugeNumber = (path: string, error: unknown): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    `A row in the pool file ${path} has a number that is out of range.`,
    "Restore it from a backup, or run `overlayctl recover`.",
    error,
  );

export const readOnlyError = (path: string, cause?: unknown): OverlayError =>
  new OverlayError("STORE_READ_ONLY", `The pool file ${path} is read-only.`, "Open it for writing.", cause);

export const noTables = (path: string): OverlayError =>
  new OverlayError(
    "STORE_READ_ONLY",
    `The pool file ${path} is read-only, and has no pool yet.`,
    "Open it once for writing.",
  );

export const lockTimedOut = (path: string, seconds: number, cause: unknown): OverlayError => {
  const what = `Other processes kept the pool file ${path} locked for ${seconds} s.`;
  return new OverlayError("STORE_CONFLICT", what, "Run it again; if that does not help, see who has it open.", cause);
};
