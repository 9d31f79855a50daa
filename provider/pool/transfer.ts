import { createHash } from "node:crypto";
import { OverlayError } from "../errors";
import { version } from "./keys";
import type { Rule } from "./rule";
import type { Row, Store, Tx, Write } from "./store";

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

/** Copies everything and proves it; the number of rows. Nothing may change at the source meanwhile. */
export async function move(from: Store, to: Store): Promise<number> {
  const rows = await snapshot(from);
  await prepare(to);
  await writeAll(to, rows.filter(isData));
  if (digest(await snapshot(to)) !== digest(rows)) {
    throw new OverlayError("STORE_CORRUPT", "The target does not hold what was written to it.", "Use another target.");
  }
  if (digest(await snapshot(from)) !== digest(rows)) {
    throw new OverlayError(
      "STORE_CONFLICT",
      "The source changed while it was copied.",
      "Stop its users, and run again.",
    );
  }
  await writeAll(to, rows.filter(isVersion));
  return rows.length;
}

const isVersion = ([key]: Row): boolean => key === version.at;
const isData = (row: Row): boolean => !isVersion(row);

async function prepare(to: Store): Promise<void> {
  const there = await snapshot(to);
  const unfinished = there.find(isVersion)?.[1] === UNDER_WAY;
  const rows = there.filter(isData);
  if (rows.length > 0 && !unfinished) {
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
