import { createHash, randomUUID } from "node:crypto";
import { isOverlayError, OverlayError } from "../errors";
import { type MoveState, movedError, readMoveState, unfinishedError } from "./identity";
import {
  type Changes,
  COPIED,
  type CopiedTable,
  type Engine,
  type Head,
  type Query,
  type Rows,
  type Transaction,
} from "./store/store";
import { retry } from "./store/transact";

/** A whole store: how its rows are read, and how they move to another engine. */

export type Page = { table: CopiedTable; rows: object[] };

/** Rows of a page, and so of a transaction of a copy. */
const PAGE = 500;

/** All rows, without those that follow from others. */
async function* pagesOf(read: (query: Query) => Promise<Rows>): AsyncGenerator<Page> {
  for (const table of COPIED) {
    let after: string | undefined;
    do {
      const { tables } = await read({ of: "table", table, limit: PAGE, ...(after !== undefined && { after }) });
      const { rows, next } = tables![0]!;
      yield { table, rows };
      after = next;
    } while (after !== undefined);
  }
}

/** All rows of one moment, and the head of the store. */
export async function* snapshot(engine: Engine): AsyncGenerator<{ head: Head } | Page> {
  const tx = await engine.begin([]);
  try {
    yield { head: tx.head };
    yield* pagesOf(async (query) => tx.load([query]));
  } finally {
    await tx.rollBack();
  }
}

/** A store, and its URL for messages. */
export interface Site {
  engine: Engine;
  place: string;
}

export interface Moved {
  rows: number;
  /** How long neither store could be written. */
  closedMs: number;
}

/**
 * Moves everything to another store. The source is closed first: writers get STORE_MOVED from then on. Then its rows are copied and compared.
 * At no time are both stores open: the target is closed until the source is closed for good. A move that fails opens its source again; one that
 * was killed is finished by the same move, or cancelled by `reopen`.
 */
export async function move(from: Site, to: Site, { signal }: { signal?: AbortSignal } = {}): Promise<Moved> {
  if (from.engine.readOnly) throw unwritableError();
  const id = randomUUID();
  const state = readMoveState(await readHead(from.engine));
  mayLeave(state, to.place);
  const isOver = state.to !== undefined && state.move === undefined;
  await prepare(to.engine, { from: from.place, move: id }, isOver ? state.to : undefined);
  const closedAt = performance.now();
  const [rows, head] = await withSourceClosed(from.engine, to.place, id, async () => {
    const copied = await copy(from.engine, to.engine, id, signal);
    if ((await sumOf(to.engine)) !== copied.sum) throw differentError();
    const head = await readHead(from.engine);
    await change(from.engine, (_, state) => leave(state, id, to.place));
    return [copied.rows, head] as const;
  });
  await change(to.engine, (_, state) => onlyIn(state, id, { head: { ...head, move: undefined } }));
  return { rows, closedMs: performance.now() - closedAt };
}

/** Opens the source of a move that was killed. Its target stays closed, and a move that still runs fails. */
export const reopen = (engine: Engine): Promise<void> =>
  change(engine, (_, { from, to, move }) => {
    if (from !== undefined) throw unfinishedError(from);
    if (to === undefined) throw new OverlayError("STORE_CONFLICT", "This store is open.", "There is nothing to do.");
    if (move === undefined) throw movedError(to);
    return OPEN;
  });

const OPEN: Partial<Changes> = { head: { move: undefined } };
const closed = (state: MoveState): Partial<Changes> => ({ head: { move: JSON.stringify(state) } });

/** Closes the source around `work`. Transactions under way end first. */
async function withSourceClosed<T>(source: Engine, place: string, move: string, work: () => Promise<T>): Promise<T> {
  try {
    await change(source, (_, state) => {
      mayLeave(state, place);
      return closed({ to: place, move, since: new Date().toISOString() });
    });
    return await work();
  } catch (error) {
    const isOpen = await openAgain(source, move).catch(() => false);
    if (isOverlayError(error) && isOpen)
      throw new OverlayError(error.code, `${error.what} The source is open again.`, error.fix, error);
    throw error;
  }
}

/** true: the source is open. Not after another move has taken over, or this one has closed it for good. */
async function openAgain(source: Engine, move: string): Promise<boolean> {
  let isOpen = false;
  await change(source, (_, state) => {
    isOpen = state.to === undefined || state.move === move;
    return state.to !== undefined && isOpen ? OPEN : undefined;
  });
  return isOpen;
}

/** Closes and clears the target, which has no data, or only that of a move. */
async function prepare(engine: Engine, copy: MoveState, gone: string | undefined): Promise<void> {
  const queries = (["lease", "offer", "event", "document", "secret"] as const).map(
    (table): Query => ({ of: "table", table, limit: 1 }),
  );
  await change(
    engine,
    ({ rows }, there) => {
      const isGoingOn = there.from === copy.from;
      // The source is closed since an earlier move: that one, or what was done there since, must not be lost.
      if (gone !== undefined && !isGoingOn) throw movedOnError(gone);
      if (there.from !== undefined && !isGoingOn) throw unfinishedError(there.from);
      const isEmpty = rows.tables!.every((page) => page.rows.length === 0);
      if (!isEmpty && !isGoingOn && there.to !== copy.from) throw notEmptyError();
      return { ...closed(copy), clear: true };
    },
    queries,
  );
}

async function copy(from: Engine, to: Engine, move: string, signal: AbortSignal | undefined) {
  const sum = new Sum();
  for await (const page of pagesOf(readerOf(from))) {
    if (signal?.aborted) throw interruptedError();
    sum.add(page);
    if (page.rows.length > 0) await change(to, (_, state) => onlyIn(state, move, changesOf(page)));
  }
  if (signal?.aborted) throw interruptedError();
  return sum;
}

/** Only by the move that was begun last: another one may have opened the target meanwhile, and it is in use. */
function onlyIn(state: MoveState, move: string, changes: Partial<Changes>): Partial<Changes> {
  if (state.move === move) return changes;
  const what = "Another move into the target was started meanwhile.";
  throw new OverlayError("STORE_CONFLICT", what, "Wait for it to finish.");
}

/** What puts the rows of a page into a store. */
export function changesOf({ table, rows }: Page): Partial<Changes> {
  const put = rows as never[];
  const changed = { put, deleted: [] };
  switch (table) {
    case "pool":
      return { pools: changed };
    case "lease":
      return { leases: { ...changed, before: () => undefined } };
    case "offer":
      return { offers: { ...changed, before: () => undefined } };
    case "free_range":
      return { free: { ...changed, cleared: [] } };
    case "document":
    case "secret":
      return { documents: changed };
    case "epoch":
      return { log: { epochs: put, events: [] } };
    case "event":
      return { log: { epochs: [], events: put } };
  }
}

/** Closes the source for good. */
function leave(state: MoveState, move: string, place: string): Partial<Changes> {
  if (state.move === move) return closed({ to: place });
  const what = "The move was cancelled, or another one was started meanwhile.";
  throw new OverlayError("STORE_CONFLICT", what, "Run it again if it should still be made.");
}

/** A sum of all rows, whatever their order. */
class Sum {
  rows = 0;
  #sum = 0n;

  add({ table, rows }: Page): void {
    this.rows += rows.length;
    for (const row of rows) {
      const text = JSON.stringify([table, row], (_, value) => (typeof value === "bigint" ? String(value) : value));
      this.#sum += BigInt(`0x${createHash("sha256").update(text).digest("hex")}`);
    }
  }

  get sum(): bigint {
    return this.#sum;
  }
}

async function sumOf(engine: Engine): Promise<bigint> {
  const sum = new Sum();
  for await (const page of pagesOf(readerOf(engine))) sum.add(page);
  return sum.sum;
}

// Transactions

const readerOf =
  (engine: Engine) =>
  (query: Query): Promise<Rows> =>
    inTransaction(engine, async ({ rows }) => rows, [query]);

const readHead = (engine: Engine): Promise<Head> => inTransaction(engine, async ({ head }) => head);

/** A transaction that has the whole store for itself. undefined: it changes nothing. */
const change = (
  engine: Engine,
  decide: (tx: Transaction, state: MoveState) => Partial<Changes> | undefined,
  queries: Query[] = [],
): Promise<void> => {
  const work = async (tx: Transaction) => {
    const changes = decide(tx, readMoveState(tx.head));
    if (changes) await tx.commit({ ...noChanges(), ...changes });
  };
  return inTransaction(engine, work, queries, "all");
};

/** Of a transaction that writes nothing yet. */
export const noChanges = (): Changes => {
  const none = { put: [], deleted: [] };
  return {
    pools: none,
    leases: { ...none, before: () => undefined },
    offers: { ...none, before: () => undefined },
    documents: none,
    free: { ...none, cleared: [] },
    events: [],
    isVersion: false,
    nextEpoch: randomUUID(),
  };
};

const inTransaction = <T>(
  engine: Engine,
  work: (tx: Transaction) => Promise<T>,
  queries: Query[] = [],
  locks?: "all",
): Promise<T> =>
  retry(engine.place, async () => {
    const tx = await engine.begin(queries, locks);
    try {
      return await work(tx);
    } finally {
      await tx.rollBack();
    }
  });

// Refusals

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

const notEmptyError = (): OverlayError =>
  new OverlayError(
    "STORE_CONFLICT",
    "The target is not empty.",
    "Name a new place, such as a file that does not exist.",
  );

const differentError = (): OverlayError =>
  new OverlayError("STORE_CORRUPT", "The target does not hold what was written to it.", "Use another target.");

const interruptedError = (): OverlayError =>
  new OverlayError("STORE_CONFLICT", "The move was interrupted.", "Run the same command again to make it.");

const unwritableError = (): OverlayError =>
  new OverlayError(
    "STORE_READ_ONLY",
    "The source is read-only, so it cannot be closed: its users would not notice the move.",
    "Run this with write access to the source.",
  );
