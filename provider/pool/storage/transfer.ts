import { createHash, randomUUID } from "node:crypto";
import { isOverlayError, OverlayError } from "../../errors";
import {
  closingWrites,
  isMoveState,
  type MoveState,
  movedError,
  openingWrites,
  readMoveState,
  unfinishedError,
} from "./layout";
import type { Row, Store, Tx, Write } from "./store";

/** A whole store as rows: how it is looked at, and how it moves from one engine to another. */

/** Sorts behind every key. */
const END = "\u{10ffff}";
const PAGE = 1000;

/** All rows, in one consistent read. */
export const snapshot = (store: Store): Promise<Row[]> => store.read(everything);

async function everything(tx: Tx): Promise<Row[]> {
  const rows: Row[] = [];
  for (let from = ""; ; from = `${rows.at(-1)![0]}\u0001`) {
    const page = await tx.range(from, END, PAGE);
    rows.push(...page);
    if (page.length < PAGE) return rows;
  }
}

/** A store, and its URL for messages. */
export interface Site {
  store: Store;
  place: string;
}

export interface Moved {
  rows: number;
  /** How long neither store could be written. */
  closedMs: number;
}

/**
 * Moves everything to another store. Most of it is copied while the source is in use; then the source is closed, what changed
 * meanwhile follows, and all of it is compared. Writers of the source get STORE_MOVED from then on.
 *
 * At no time are both stores open: the target is closed until the source is closed for good. A move that fails opens its source
 * again; one that was killed is finished by the same move, or called off by `reopen`.
 */
export async function move(from: Site, to: Site, { signal }: { signal?: AbortSignal } = {}): Promise<Moved> {
  if (from.store.readOnly) throw unwritableError();
  const [early, state] = await from.store.read(
    async (tx): Promise<[Row[], MoveState]> => [(await everything(tx)).filter(isData), await readMoveState(tx)],
  );
  mayLeave(state, to.place);
  const copy: MoveState = { from: from.place, version: state.version, move: randomUUID() };
  const isOver = state.to !== undefined && state.move === undefined;
  const stale = await to.store.transact((tx) => prepare(tx, copy, isOver ? state.to : undefined));
  const write = async (writes: Write[]): Promise<void> => {
    for (let i = 0; i < writes.length; i += PAGE) {
      if (signal?.aborted) throw interruptedError();
      await to.store.transact((tx) => writeCopy(tx, copy, writes.slice(i, i + PAGE)));
    }
  };
  await write(difference(stale, early));
  const closedAt = performance.now();
  const rows = await withSourceClosed(from.store, to.place, copy.move!, async () => {
    const late = (await snapshot(from.store)).filter(isData);
    await write(difference(early, late));
    if (signal?.aborted) throw interruptedError();
    const sum = digest(late);
    if (digest((await snapshot(to.store)).filter(isData)) !== sum) {
      throw new OverlayError(
        "STORE_CORRUPT",
        "The target does not hold what was written to it.",
        "Use another target.",
      );
    }
    await from.store.transact((tx) => leave(tx, copy.move!, sum, to.place));
    return late.length;
  });
  await to.store.transact((tx) => writeCopy(tx, copy, openingWrites(copy)));
  return { rows, closedMs: performance.now() - closedAt };
}

/** Closes the source around `work`. Transactions under way end first: each of them reads the state that is written here. */
async function withSourceClosed<T>(source: Store, place: string, move: string, work: () => Promise<T>): Promise<T> {
  try {
    await source.transact(async (tx): Promise<void> => {
      const { version, ...state } = await readMoveState(tx);
      mayLeave(state, place);
      await tx.write(closingWrites({ to: place, version, move, since: new Date().toISOString() }));
    });
    return await work();
  } catch (error) {
    const isOpen = await source.transact((tx) => openAgain(tx, move)).catch(() => false);
    if (isOverlayError(error) && isOpen)
      throw new OverlayError(error.code, `${error.what} The source is open again.`, error.fix, error);
    throw error;
  }
}

/** true: the source is open. Not after another move has taken over, or this one has closed it for good. */
async function openAgain(tx: Tx, move: string): Promise<boolean> {
  const state = await readMoveState(tx);
  if (state.to !== undefined && state.move === move) await tx.write(openingWrites(state));
  return state.to === undefined || state.move === move;
}

/** Opens the source of a move that was killed. Its target stays closed, and a move that still runs fails. */
export const reopen = (store: Store): Promise<void> =>
  store.transact(async (tx): Promise<void> => {
    const state = await readMoveState(tx);
    if (state.from !== undefined) throw unfinishedError(state.from);
    if (state.to === undefined)
      throw new OverlayError("STORE_CONFLICT", "This store is open.", "There is nothing to do.");
    if (state.move === undefined) throw movedError(state.to);
    await tx.write(openingWrites(state));
  });

/** The writes that turn one list of rows into another; both are in the order of their keys. */
function difference(before: Row[], after: Row[]): Write[] {
  const [old, kept] = [new Map(before), new Set(after.map(([key]) => key))];
  const gone = before.filter(([key]) => !kept.has(key)).map(([key]): Write => [key, null]);
  return [...gone, ...after.filter(([key, value]) => old.get(key) !== value)];
}

const isData = (row: Row): boolean => !isMoveState(row);

/** Closes the target if it has no data, or only data of an earlier move; returns the rows that must be deleted. */
async function prepare(tx: Tx, copy: MoveState, gone?: string): Promise<Row[]> {
  const there = await readMoveState(tx);
  const isGoingOn = there.from === copy.from;
  // The source is closed since an earlier move: that one, or what was done there since, must not be lost.
  if (gone !== undefined && !isGoingOn) throw movedOnError(gone);
  if (there.from !== undefined && !isGoingOn) throw unfinishedError(there.from);
  const rows = (await everything(tx)).filter(isData);
  if (rows.length > 0 && !isGoingOn && there.to !== copy.from) {
    const what = `The target is not empty: it has ${rows.length} rows.`;
    throw new OverlayError("STORE_CONFLICT", what, "Name a new place, such as a file that does not exist.");
  }
  await tx.write(closingWrites(copy));
  return rows;
}

/** Only by the move that was begun last: another one may have opened the target meanwhile, and it is in use. */
async function writeCopy(tx: Tx, copy: MoveState, writes: Write[]): Promise<void> {
  if ((await readMoveState(tx)).move !== copy.move) {
    const what = "Another move into the target was started meanwhile.";
    throw new OverlayError("STORE_CONFLICT", what, "Wait for it to finish.");
  }
  await tx.write(writes);
}

/** Closes the source for good. */
async function leave(tx: Tx, move: string, copied: string, place: string): Promise<void> {
  const state = await readMoveState(tx);
  if (state.move !== move) {
    const what = "The move was cancelled, or another one was started meanwhile.";
    throw new OverlayError("STORE_CONFLICT", what, "Run it again if it should still be made.");
  }
  if (digest((await everything(tx)).filter(isData)) !== copied) {
    const what = "The source changed although it was closed: another program writes to it.";
    throw new OverlayError("STORE_CONFLICT", what, "Stop it, and run again.");
  }
  await tx.write(closingWrites({ to: place, version: state.version }));
}

function mayLeave({ to, from, move }: MoveState, place: string): void {
  if (from !== undefined) throw unfinishedError(from);
  if (to !== undefined && to !== place) throw movedOnError(to, move !== undefined);
}

const movedOnError = (place: string, isGoingOn = false): OverlayError =>
  isGoingOn
    ? new OverlayError(
        "STORE_MOVED",
        `The source is being moved to ${place} already.`,
        "Wait for that move, or cancel it with `overlayctl store reopen`.",
      )
    : new OverlayError("STORE_MOVED", `The source was moved to ${place} already.`, "Move it on from there.");

const interruptedError = (): OverlayError =>
  new OverlayError("STORE_CONFLICT", "The move was interrupted.", "Run the same command again to make it.");

const unwritableError = (): OverlayError =>
  new OverlayError(
    "STORE_READ_ONLY",
    "The source is read-only, so it cannot be closed: its users would not notice the move.",
    "Run this with write access to the source.",
  );

function digest(rows: Row[]): string {
  const hash = createHash("sha256");
  for (const row of rows) hash.update(`${JSON.stringify(row)}\n`);
  return hash.digest("hex");
}
