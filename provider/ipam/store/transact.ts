import { setTimeout as sleep } from "node:timers/promises";
import { OverlayError } from "../../errors";
import { idOf, isMissing, State, type Terms } from "../decide/state";
import {
  type Awaitable,
  type Commit,
  Conflict,
  type Engine,
  type Head,
  type Query,
  type Rows,
  StoreUnavailable,
  type Transaction,
} from "./store";

/** One request of a batch: what it concerns, and the decision about it. */
export interface Work<T = unknown> {
  /** Pools to lock. */
  locks: string[];
  /** Rows to load at once. A decision that needs others gets them, too, with another round trip. */
  queries: Query[];
  terms: Terms;
  /** `rows`: the answer to the queries of the whole batch. */
  decide(state: State, head: Head, rows: Rows): T;
}

export type Outcome = { value: unknown } | { error: unknown };

export interface Decided {
  outcomes: Outcome[];
  /** undefined: nothing was written. */
  commit?: Commit;
}

/** What a transaction is checked for before anything is decided. */
export interface Check {
  run(transaction: Transaction, isWrite: boolean): Awaitable<void>;
  onCommit(head: Head, commit: Commit): void;
}

export interface Guard {
  /** Called before each transaction begins: it does not see commits that are made while it runs. */
  newCheck(): Check;
  /** Before an attempt is made again. */
  onConflict?(): void;
}

/** How long a transaction is tried. */
const PATIENCE_MS = 30_000;
/** After so many, a transaction takes the lock of the engine, if that has one. */
const MOST_CONFLICTS = 3;

/**
 * Runs decisions in one transaction: locks and loads, decides, applies. A decision that throws is taken back alone. One that needs more locks or
 * rows is made again with them, and so are all others of the batch.
 */
export function transact(engine: Engine, batch: Work[], guard: Guard): Promise<Decided> {
  const locks = new Set(batch.flatMap((work) => work.locks));
  return retry(engine, guard, async (conflicts) => {
    const unlock = conflicts > MOST_CONFLICTS ? await engine.lock?.() : undefined;
    try {
      for (;;) {
        const decided = await attempt(engine, batch, guard, locks);
        if (decided !== "more locks") return decided;
      }
    } finally {
      await unlock?.();
    }
  });
}

/** Tries it again after conflicts, and while the server does not answer. */
async function retry<T>(engine: Engine, guard: Guard, attempt: (conflicts: number) => Awaitable<T>): Promise<T> {
  const deadline = Date.now() + PATIENCE_MS;
  for (let conflicts = 0; ; ) {
    try {
      return await attempt(conflicts);
    } catch (error) {
      if (!(error instanceof Conflict || error instanceof StoreUnavailable) || Date.now() > deadline)
        throw explain(engine, error);
      guard.onConflict?.();
      conflicts++;
      await sleep(Math.random() * Math.min(2 ** conflicts, error instanceof Conflict ? 50 : 500));
    }
  }
}

const explain = ({ place }: Engine, error: unknown): unknown => {
  if (error instanceof StoreUnavailable) return error.cause;
  if (!(error instanceof Conflict)) return error;
  const what = `Other processes kept ${place} busy for ${PATIENCE_MS / 1000} s.`;
  return new OverlayError("STORE_CONFLICT", what, "Run it again; if that does not help, see what has it open.", error);
};

/** One attempt. A local engine answers at once: then nothing else of this process runs between `begin` and `commit`. */
function attempt(engine: Engine, batch: Work[], guard: Guard, locks: Set<string>): Awaitable<Decided | "more locks"> {
  const check = guard.newCheck();
  const queries = distinct(batch.flatMap((work) => work.queries));
  const begun = engine.begin(queries, [...locks].sort());
  return begun instanceof Promise
    ? begun.then((tx) => decideOnServer(tx, queries, batch, check, locks))
    : decideHere(begun, queries, batch, check);
}

function decideHere(tx: Transaction, queries: Query[], batch: Work[], check: Check): Decided {
  try {
    now(check.run(tx, true));
    const state = new State(tx.now, "all", (query) => now(tx.load([query])));
    state.absorb(queries, tx.rows);
    const outcomes = decideAll(state, tx, batch);
    const changes = changesOf(state);
    if (!changes) {
      now(tx.rollBack());
      return { outcomes };
    }
    const commit = now(tx.commit(changes));
    check.onCommit(tx.head, commit);
    return { outcomes, commit };
  } catch (error) {
    now(tx.rollBack());
    throw error;
  }
}

const now = <T>(value: Awaitable<T>): T => value as T;

async function decideOnServer(
  tx: Transaction,
  queries: Query[],
  batch: Work[],
  check: Check,
  locks: Set<string>,
): Promise<Decided | "more locks"> {
  try {
    await check.run(tx, true);
    const state = new State(tx.now, locks);
    state.absorb([...queries, ...[...locks].map((name): Query => ({ of: "pool", name }))], tx.rows);
    for (;;) {
      const outcomes = decideAll(state, tx, batch);
      if (state.missingLocks.length > 0) {
        for (const name of state.missingLocks) locks.add(name);
        await tx.rollBack();
        return "more locks";
      }
      const missing = distinct(state.missing.splice(0));
      if (missing.length === 0) {
        const changes = changesOf(state);
        if (!changes) {
          await tx.rollBack();
          return { outcomes };
        }
        const commit = await tx.commit(changes);
        check.onCommit(tx.head, commit);
        return { outcomes, commit };
      }
      state.rollBack(0);
      state.absorb(missing, await tx.load(missing));
    }
  } catch (error) {
    await tx.rollBack();
    throw error;
  }
}

function decideAll(state: State, { head, rows }: Transaction, batch: Work[]): Outcome[] {
  return batch.map((work): Outcome => {
    state.terms = work.terms;
    const mark = state.mark;
    try {
      return { value: work.decide(state, head, rows) };
    } catch (error) {
      state.rollBack(mark);
      return { error };
    }
  });
}

function changesOf(state: State) {
  const changes = state.changes();
  const { pools, leases, offers, documents, free, events } = changes;
  const rows = [pools, leases, offers, documents, free].some(({ put, deleted }) => put.length + deleted.length > 0);
  return rows || free.cleared.length > 0 || events.length > 0 || changes.head ? changes : undefined;
}

/** Reads rows of one moment and answers from them; nothing is locked or written. No answer sees what another has changed in its state. */
export const view = async (engine: Engine, batch: Work[], guard: Guard): Promise<Decided> => ({
  outcomes: await retry(engine, guard, () => viewOnce(engine, batch, guard)),
});

function viewOnce(engine: Engine, batch: Work[], guard: Guard): Awaitable<Outcome[]> {
  const check = guard.newCheck();
  const queries = distinct(batch.flatMap((work) => work.queries));
  const begun = engine.begin(queries);
  if (begun instanceof Promise) return begun.then((tx) => viewOnServer(tx, queries, batch, check));
  try {
    now(check.run(begun, false));
    const state = new State(begun.now, "all", (query) => now(begun.load([query])));
    state.absorb(queries, begun.rows);
    return batch.map((work) => answer(state, begun, work)!);
  } finally {
    now(begun.rollBack());
  }
}

async function viewOnServer(tx: Transaction, queries: Query[], batch: Work[], check: Check): Promise<Outcome[]> {
  try {
    await check.run(tx, false);
    const state = new State(tx.now, "all");
    state.absorb(queries, tx.rows);
    const outcomes: (Outcome | undefined)[] = [];
    for (;;) {
      for (const [i, work] of batch.entries()) outcomes[i] ??= answer(state, tx, work);
      const missing = distinct(state.missing.splice(0));
      if (missing.length === 0) return outcomes as Outcome[];
      state.absorb(missing, await tx.load(missing));
    }
  } finally {
    await tx.rollBack();
  }
}

/** undefined: rows are missing. */
function answer(state: State, { head, rows }: Transaction, work: Work): Outcome | undefined {
  state.terms = work.terms;
  try {
    return { value: work.decide(state, head, rows) };
  } catch (error) {
    return isMissing(error) ? undefined : { error };
  } finally {
    state.rollBack(0);
  }
}

const distinct = (queries: Query[]): Query[] => [...new Map(queries.map((query) => [idOf(query), query])).values()];
