import { createHash } from "node:crypto";
import { OverlayError } from "../errors";
import { version } from "./keys";
import type { Rule } from "./rule";
import type { Row, Store, Tx, Write } from "./store";
import { movedTo, VERSION, whereTo } from "./version";

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

/**
 * While rows are on their way the target's version is past every program's: nobody gives anything out of half a pool,
 * and a move that was cut short can simply be made again.
 */
const UNDER_WAY = String(Number.MAX_SAFE_INTEGER);

/** A store, and its name for those who look for it. */
export interface Site {
  store: Store;
  place: string;
}

/** Copies everything, proves it, and closes the source for good; the number of rows. Nothing may change there meanwhile. */
export async function move(from: Site, to: Site): Promise<number> {
  const rows = await snapshot(from.store);
  const gone = whereTo(rows.find(isVersion)?.[1]);
  if (from.store.readOnly || (gone !== undefined && gone !== to.place)) throw cannotLeave(gone);
  await prepare(to.store, from.place);
  await writeAll(to.store, rows.filter(isData));
  if (digest(await snapshot(to.store)) !== digest(rows)) {
    throw new OverlayError("STORE_CORRUPT", "The target does not hold what was written to it.", "Use another target.");
  }
  // Never are both open: cut short between these two, the move is simply made again.
  await from.store.transact("", (tx) => leave(tx, digest(rows), to.place));
  await writeAll(to.store, [[version.at, String(VERSION)]]);
  return rows.length;
}

/** From here on whoever has it open is told at its next write. */
function* leave(tx: Tx, copied: string, place: string): Rule<void> {
  if (digest(yield* everything(tx)) !== copied) {
    throw new OverlayError(
      "STORE_CONFLICT",
      "The source changed while it was copied.",
      "Stop its users, and run again.",
    );
  }
  yield tx.write([[version.at, movedTo(place)]]);
}

const cannotLeave = (gone: string | undefined): OverlayError =>
  gone === undefined
    ? new OverlayError(
        "STORE_READ_ONLY",
        "The source cannot be written, so that its users would go on without knowing.",
        "Run this where it can be written.",
      )
    : new OverlayError("STORE_MOVED", `The source was moved to ${gone} already.`, "Move it on from there.");

const isVersion = ([key]: Row): boolean => key === version.at;
const isData = (row: Row): boolean => !isVersion(row);

/** What was left for the place that everything now comes back from is out of date. */
async function prepare(to: Store, cameFrom: string): Promise<void> {
  const there = await snapshot(to);
  const state = there.find(isVersion)?.[1];
  const rows = there.filter(isData);
  if (rows.length > 0 && state !== UNDER_WAY && whereTo(state) !== cameFrom) {
    const what = `The target is not empty: it has ${rows.length} rows.`;
    throw new OverlayError("STORE_CONFLICT", what, "Name a new place, such as a file that does not exist.");
  }
  await writeAll(to, [[version.at, UNDER_WAY]]);
  await writeAll(
    to,
    rows.map(([key]) => [key, null]),
  );
}

async function writeAll(store: Store, writes: Write[]): Promise<void> {
  for (let i = 0; i < writes.length; i += PAGE) {
    const page = writes.slice(i, i + PAGE);
    await store.transact("", function* (tx) {
      yield tx.write(page);
    });
  }
}

function digest(rows: Row[]): string {
  const hash = createHash("sha256");
  for (const row of rows.filter(isData)) hash.update(`${JSON.stringify(row)}\n`);
  return hash.digest("hex");
}
