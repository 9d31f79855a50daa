import { randomUUID } from "node:crypto";
import { setImmediate as nextTurn } from "node:timers/promises";
import { forgetPast } from "./decide/lease";
import type { State, Terms } from "./decide/state";
import { epochOf, findSeen, mustBeOpen } from "./identity";
import { Queue } from "./queue";
import type { Commit, Engine, Head, Query, Rows } from "./store/store";
import { type Check, type Decided, type Guard, type Outcome, transact, view, type Work } from "./store/transact";
import type { LoggedEvent, StoreIdentity } from "./types";

/** What metrics count in a process that serves a pool. */
export interface Observer {
  /** After each commit: the changes that it has made. */
  committed?(events: LoggedEvent[]): void;
  /** A claim in this pool has failed. */
  claimFailed?(pool: string, error: unknown): void;
  /** An operation has failed: the rules have refused it, or the store has failed. */
  operationFailed?(error: unknown): void;
  /** After each transaction of the store, which may serve many operations. */
  transaction?(kind: "read" | "write", seconds: number): void;
  /** A transaction is tried again, because another process was first or has a lock. */
  conflict?(): void;
}

export interface IpamSettings {
  /** Lifetime of an offer, in seconds. */
  offerTtl: number;
  /** Seconds. */
  quarantine: number;
  /** The user, as `USER@HOST`. */
  actor?: string | undefined;
  access?: Terms["access"];
  /** Decides random choices: an operation that is repeated with it chooses the same. */
  seed?: string | undefined;
  /** Where the store is, for messages. */
  place?: string | undefined;
  /** The keys of tokens; default: the store has one. */
  tokenKeys?: string | undefined;
  observer?: Observer | undefined;
  /** After each read: how many rows of the store it took. */
  rowsRead?: ((rows: number) => void) | undefined;
  /** A store that was moved away can be read. */
  allowMoved?: boolean | undefined;
}

/** Transactions at once that read. */
const READS = 3;

/** After one request in so many, rows that are no longer kept are deleted: more of them than requests make. */
const FORGET_EVERY = 50;

/** What all sessions on one engine share. */
class Core implements Guard {
  readonly writes: Queue;
  readonly reads: Queue;
  /** The version of the newest commit of this process: a store without it has lost commits. */
  #seen: StoreIdentity | undefined;
  /** The newest epoch in which the store was found to have it; in the same epoch it still has. */
  #epoch: string | undefined;
  #forgetting: Promise<void> | undefined;

  constructor(
    readonly engine: Engine,
    private readonly settings: IpamSettings,
  ) {
    const execute = (works: Work[]) => this.#commit(works);
    this.writes = new Queue({ execute, transactions: 1 });
    this.reads = new Queue({ execute: (works) => view(engine, works, this), transactions: READS });
  }

  async #commit(works: Work[]): Promise<Decided> {
    const { observer } = this.settings;
    const started = performance.now();
    const decided = await transact(this.engine, works, this).finally(() =>
      observer?.transaction?.("write", (performance.now() - started) / 1000),
    );
    const { events = [] } = decided.commit ?? {};
    if (events.length > 0) observer?.committed?.(events);
    if (Math.random() < works.length / FORGET_EVERY) this.#forgetPast();
    return decided;
  }

  /** In a transaction of its own: no request waits for it, or fails with it. */
  #forgetPast(): void {
    const terms = { offerTtl: 0, quarantine: 0, seed: "" };
    const work: Work = { locks: [], queries: [], terms, size: 1, decide: forgetPast };
    const guard = { newCheck: () => ({ ...this.newCheck(), onCommit: () => {} }) };
    this.#forgetting ??= transact(this.engine, [work], guard)
      .catch(() => {})
      .then(() => {
        this.#forgetting = undefined;
      });
  }

  async idle(): Promise<void> {
    await Promise.all([this.reads.idle(), this.writes.idle()]);
    await this.#forgetting;
  }

  newCheck(): Check {
    const { settings, engine } = this;
    const seen = this.#seen;
    return {
      run: (tx, isWrite) => {
        const { head } = tx;
        mustBeOpen(head, { isWrite, allowMoved: settings.allowMoved === true });
        if (!seen || (head.id === seen.id && head.epoch === this.#epoch && head.version >= seen.version)) return;
        const compare = (rows: Rows) => {
          findSeen(head, [seen.id], rows, seen, engine.place);
          this.#epoch = head.epoch;
        };
        const rows = tx.load([epochOf(seen)]);
        return rows instanceof Promise ? rows.then(compare) : compare(rows);
      },
      onCommit: ({ id }, { version, epoch }) => {
        this.#seen = { id, version, epoch };
        this.#epoch = epoch;
      },
    };
  }

  onConflict(): void {
    this.settings.observer?.conflict?.();
  }

  forget(): void {
    this.#seen = undefined;
    this.#epoch = undefined;
  }
}

/** Reads and writes an engine for one user. */
export class Session {
  readonly #core: Core;
  private readonly isSecond: boolean;

  constructor(
    from: Engine | Session,
    readonly settings: IpamSettings,
  ) {
    this.isSecond = from instanceof Session;
    this.#core = from instanceof Session ? from.#core : new Core(from, settings);
  }

  /** The same engine for another user. */
  another(options: Partial<IpamSettings>): Session {
    const { offerTtl, quarantine } = this.settings;
    const limits = {
      offerTtl: Math.min(options.offerTtl ?? offerTtl, offerTtl),
      quarantine: Math.max(options.quarantine ?? quarantine, quarantine),
    };
    return new Session(this, { ...this.settings, ...options, ...limits });
  }

  get engine(): Engine {
    return this.#core.engine;
  }

  /** The identity of the store changes on purpose. */
  forgetIdentity(): void {
    this.#core.forget();
  }

  /** Decides and commits. `commit` is undefined if nothing was written. */
  write<T>(
    locks: string[],
    found: Query[],
    decide: (state: State, head: Head) => T,
    { offerTtl, size = 1 }: { offerTtl?: number; size?: number } = {},
  ): Promise<[value: T, commit: Commit | undefined]> {
    const work: Work<T> = { locks: [...new Set(locks)], queries: found, terms: this.#terms(offerTtl), size, decide };
    return this.#observed(this.#core.writes.add(work));
  }

  /**
   * Answers from any number of rows; `rows` are those of the queries. Each read begins in the next turn of the event loop: a caller that reads
   * page after page does not hold up others.
   */
  async read<T>(queries: Query[], decide: (state: State, head: Head, rows: Rows) => T): Promise<T> {
    const counted: typeof decide = (state, head, rows) => {
      const result = decide(state, head, rows);
      this.settings.rowsRead?.(state.leases.size + state.pools.size + (rows.events?.length ?? 0));
      return result;
    };
    const work: Work<T> = { locks: [], queries, terms: this.#terms(), size: 1, decide: counted };
    await nextTurn();
    return this.#timed(view(this.engine, [work], this.#core).then(({ outcomes }) => toValue<T>(outcomes[0]!)));
  }

  /** Answers from a few rows, in a transaction with others that wait. */
  find<T>(queries: Query[], decide: (state: State) => T): Promise<T> {
    const work: Work<T> = { locks: [], queries, terms: this.#terms(), size: 1, decide };
    return this.#timed(this.#core.reads.add(work).then(([value]) => value));
  }

  #timed<T>(read: Promise<T>): Promise<T> {
    const started = performance.now();
    const { observer } = this.settings;
    return this.#observed(read.finally(() => observer?.transaction?.("read", (performance.now() - started) / 1000)));
  }

  /** Only the first session closes the engine. */
  async end(): Promise<void> {
    if (this.isSecond) return;
    await this.#core.idle();
    await this.engine.close();
  }

  #terms(offerTtl = this.settings.offerTtl): Terms {
    const { quarantine, actor, access, seed = randomUUID() } = this.settings;
    return { offerTtl, quarantine, seed, ...(actor !== undefined && { actor }), ...(access && { access }) };
  }

  #observed<T>(operation: Promise<T>): Promise<T> {
    return operation.catch((error: unknown) => {
      this.settings.observer?.operationFailed?.(error);
      throw error;
    });
  }
}

function toValue<T>(outcome: Outcome): T {
  if ("error" in outcome) throw outcome.error;
  return outcome.value as T;
}
