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
  /** How many requests it has: a batch has a bounded number of them. */
  size: number;
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

/**
 * Runs decisions in one transaction: locks and loads, decides, applies. A decision that throws is taken back alone. One that needs more locks or
 * rows is made again with them, and so are all others of the batch.
 */
export function transact(engine: Engine, batch: Work[], guard: Guard): Promise<Decided> {
  const locks = new Set(batch.flatMap((work) => work.locks));
  const decideAll = async (): Promise<Decided> => {
    for (;;) {
      const decided = await run(attempt(engine, batch, guard, locks));
      if (decided) return decided;
    }
  };
  return retry(engine.place, decideAll, guard);
}

/** Reads rows of one moment and answers from them; nothing is locked or written. No answer sees what another has changed in its state. */
export const view = async (engine: Engine, batch: Work[], guard: Guard): Promise<Decided> => ({
  outcomes: await retry(engine.place, () => run(answerAll(engine, batch, guard)), guard),
});

/** Tries it again after conflicts, and while the server does not answer. */
export async function retry<T>(
  place: string,
  attempt: () => Awaitable<T>,
  patience: Partial<Pick<Guard, "onConflict">> & { milliseconds?: number } = {},
): Promise<T> {
  const { milliseconds = PATIENCE_MS } = patience;
  const deadline = Date.now() + milliseconds;
  for (let conflicts = 0; ; ) {
    try {
      return await attempt();
    } catch (error) {
      if (!(error instanceof Conflict || error instanceof StoreUnavailable) || Date.now() > deadline)
        throw explain(place, milliseconds, error);
      patience.onConflict?.();
      conflicts++;
      await sleep(Math.random() * Math.min(2 ** conflicts, error instanceof Conflict ? 50 : 500));
    }
  }
}

const explain = (place: string, milliseconds: number, error: unknown): unknown => {
  if (error instanceof StoreUnavailable) return error.cause;
  if (!(error instanceof Conflict)) return error;
  const what = `Other processes kept ${place} busy for ${milliseconds / 1000} s.`;
  return new OverlayError("STORE_CONFLICT", what, "Run it again; if that does not help, see what has it open.", error);
};

/** Steps that wait for the engine. With a local engine, which answers at once, nothing else of this process runs between them. */
type Steps<T> = Generator<Awaitable<unknown>, T, unknown>;

function* wait<T>(answer: Awaitable<T>): Steps<T> {
  return (yield answer) as T;
}

function run<T>(steps: Steps<T>): Awaitable<T> {
  const go = (first: IteratorResult<Awaitable<unknown>, T>): Awaitable<T> => {
    for (let step = first; ; ) {
      if (step.done) return step.value;
      const { value } = step;
      if (value instanceof Promise)
        return value.then(
          (answer) => go(steps.next(answer)),
          (error) => go(steps.throw(error)),
        );
      step = steps.next(value);
    }
  };
  return go(steps.next());
}

/** A transaction, and the state in which decisions are made. A local engine loads what they need at once, and has locked everything. */
function* begin(engine: Engine, batch: Work[], check: Check, locks?: Set<string>): Steps<[Transaction, State]> {
  const names = locks && [...locks].sort();
  const queries = distinct(batch.flatMap((work) => work.queries));
  const begun = engine.begin(queries, names);
  const tx = yield* wait(begun);
  try {
    yield* wait(check.run(tx, locks !== undefined));
    const load = begun instanceof Promise ? undefined : (query: Query) => tx.load([query]) as Rows;
    const state = new State(tx.now, load || !locks ? "all" : locks, load);
    state.absorb([...queries, ...(names ?? []).map((name): Query => ({ of: "pool", name }))], tx.rows);
    return [tx, state];
  } catch (error) {
    yield* wait(tx.rollBack());
    throw error;
  }
}

/** Loads the rows that decisions lacked. false: there were none. */
function* loadMissing(tx: Transaction, state: State): Steps<boolean> {
  const missing = distinct(state.missing.splice(0));
  if (missing.length === 0) return false;
  state.rollBack(0);
  state.absorb(missing, yield* wait(tx.load(missing)));
  return true;
}

/** undefined: it needs more locks, which it has added. */
function* attempt(engine: Engine, batch: Work[], guard: Guard, locks: Set<string>): Steps<Decided | undefined> {
  const check = guard.newCheck();
  const [tx, state] = yield* begin(engine, batch, check, locks);
  try {
    for (;;) {
      const outcomes = batch.map((work) => decide(state, tx, work, state.mark));
      if (state.missingLocks.length > 0) {
        for (const name of state.missingLocks) locks.add(name);
        return undefined;
      }
      if (yield* loadMissing(tx, state)) continue;
      const changes = changesOf(state);
      if (!changes) return { outcomes };
      const commit = yield* wait(tx.commit(changes));
      check.onCommit(tx.head, commit);
      return { outcomes, commit };
    }
  } finally {
    yield* wait(tx.rollBack());
  }
}

function decide(state: State, { head, rows }: Transaction, work: Work, mark: number): Outcome {
  state.terms = work.terms;
  try {
    return { value: work.decide(state, head, rows) };
  } catch (error) {
    state.rollBack(mark);
    return { error };
  }
}

function changesOf(state: State) {
  const changes = state.changes();
  const { pools, leases, offers, documents, free, events } = changes;
  const rows = [pools, leases, offers, documents, free].some(({ put, deleted }) => put.length + deleted.length > 0);
  return rows || free.cleared.length > 0 || events.length > 0 || changes.head ? changes : undefined;
}

function* answerAll(engine: Engine, batch: Work[], guard: Guard): Steps<Outcome[]> {
  const [tx, state] = yield* begin(engine, batch, guard.newCheck());
  const outcomes: (Outcome | undefined)[] = [];
  try {
    do {
      for (const [i, work] of batch.entries()) {
        const outcome = outcomes[i] ?? decide(state, tx, work, 0);
        state.rollBack(0);
        outcomes[i] = "error" in outcome && isMissing(outcome.error) ? undefined : outcome;
      }
    } while (yield* loadMissing(tx, state));
    return outcomes as Outcome[];
  } finally {
    yield* wait(tx.rollBack());
  }
}

const distinct = (queries: Query[]): Query[] => [...new Map(queries.map((query) => [idOf(query), query])).values()];
