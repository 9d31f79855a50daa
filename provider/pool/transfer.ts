import { createHash, randomUUID } from "node:crypto";
import { OverlayError } from "../errors";
import type { Rule } from "./rule";
import type { Row, Store, Tx, Write } from "./store";
import { closed, isState, opened, type State, stateOf, unfinished } from "./version";

/** A whole store as rows: how it is looked at, and how it moves from one engine to another. */

/** Behind every key: keys are ASCII letters and what people write. */
const END = "\u{10ffff}";
const PAGE = 1000;

/** Every row, as of one moment. */
export const snapshot = (store: Store): Promise<Row[]> => store.read(everything);

function* everything(tx: Tx): Rule<Row[]> {
  const rows: Row[] = [];
  for (let from = ""; ; from = `${rows.at(-1)![0]}\u0001`) {
    const page = (yield tx.range(from, END, PAGE)) as Row[];
    rows.push(...page);
    if (page.length < PAGE) return rows;
  }
}

/** A store, and its name for those who look for it. */
export interface Site {
  store: Store;
  place: string;
}

/**
 * Copies everything, proves it, and closes the source for good; the number of rows. Nothing may change there meanwhile.
 * While rows are on their way the target is closed to all: nobody gives anything out of half a pool, and a move that was
 * cut short is simply made again.
 */
export async function move(from: Site, to: Site): Promise<number> {
  if (from.store.readOnly) throw unwritable();
  const [rows, state] = await from.store.read(function* (tx): Rule<[Row[], State]> {
    return [(yield* everything(tx)).filter(isData), yield* stateOf(tx)];
  });
  mayLeave(state, to.place);
  const copy: State = { from: from.place, version: state.version, move: randomUUID() };
  const old = await to.store.transact("", (tx) => prepare(tx, copy, state.to));
  const copied = new Set(rows.map(([key]) => key));
  const outdated = old.filter(([key]) => !copied.has(key)).map(([key]): Write => [key, null]);
  for (const page of pagesOf([...outdated, ...rows])) await to.store.transact("", (tx) => write(tx, copy, page));
  const sum = digest(rows);
  if (digest((await snapshot(to.store)).filter(isData)) !== sum) {
    throw new OverlayError("STORE_CORRUPT", "The target does not hold what was written to it.", "Use another target.");
  }
  // Never are both open: cut short between these two, the move is simply made again.
  await from.store.transact("", (tx) => leave(tx, sum, to.place));
  await to.store.transact("", (tx) => write(tx, copy, opened(copy)));
  return rows.length;
}

const isData = (row: Row): boolean => !isState(row);

/** Closes the target, if nobody has anything there but what is out of date; what has to go. */
function* prepare(tx: Tx, copy: State, gone?: string): Rule<Row[]> {
  const there = yield* stateOf(tx);
  const isGoingOn = there.from === copy.from;
  // The source is closed since an earlier move: that one, or what was done there since, must not be lost.
  if (gone !== undefined && !isGoingOn) throw movedOn(gone);
  if (there.from !== undefined && !isGoingOn) throw unfinished(there.from);
  const rows = (yield* everything(tx)).filter(isData);
  if (rows.length > 0 && !isGoingOn && there.to !== copy.from) {
    const what = `The target is not empty: it has ${rows.length} rows.`;
    throw new OverlayError("STORE_CONFLICT", what, "Name a new place, such as a file that does not exist.");
  }
  yield tx.write(closed(copy));
  return rows;
}

/** Only by the move that was begun last: another one may have opened the target meanwhile, and it is in use. */
function* write(tx: Tx, copy: State, writes: Write[]): Rule<void> {
  if ((yield* stateOf(tx)).move !== copy.move) {
    const what = "Another move into the target was begun meanwhile.";
    throw new OverlayError("STORE_CONFLICT", what, "Let that one end.");
  }
  yield tx.write(writes);
}

/** From here on whoever has it open is told at its next write. */
function* leave(tx: Tx, copied: string, place: string): Rule<void> {
  const state = yield* stateOf(tx);
  mayLeave(state, place);
  if (digest((yield* everything(tx)).filter(isData)) !== copied) {
    throw new OverlayError(
      "STORE_CONFLICT",
      "The source changed while it was copied.",
      "Stop its users, and run again.",
    );
  }
  yield tx.write(closed({ to: place, version: state.version }));
}

function mayLeave({ to, from }: State, place: string): void {
  if (from !== undefined) throw unfinished(from);
  if (to !== undefined && to !== place) throw movedOn(to);
}

const movedOn = (place: string): OverlayError =>
  new OverlayError("STORE_MOVED", `The source was moved to ${place} already.`, "Move it on from there.");

const unwritable = (): OverlayError =>
  new OverlayError(
    "STORE_READ_ONLY",
    "The source cannot be written, so that its users would go on without knowing.",
    "Run this where it can be written.",
  );

function* pagesOf(writes: Write[]): Iterable<Write[]> {
  for (let i = 0; i < writes.length; i += PAGE) yield writes.slice(i, i + PAGE);
}

function digest(rows: Row[]): string {
  const hash = createHash("sha256");
  for (const row of rows) hash.update(`${JSON.stringify(row)}\n`);
  return hash.digest("hex");
}
