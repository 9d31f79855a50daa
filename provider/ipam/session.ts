import { randomUUID } from "node:crypto";
import type { State, Terms } from "./decide/state";
import { epochOf, findSeen } from "./identity";
import { mustBeOpen } from "./move";
import { Queue } from "./queue";
import type { Commit, Engine, Head, Query, Rows } from "./store/store";
import { type Check, type Guard, view, type Work } from "./store/transact";
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
  /** A store that was moved away can be read. */
  allowMoved?: boolean | undefined;
}

/** What all sessions on one engine share. */
class Core implements Guard {
  readonly queue: Queue;
  /** The version of the newest commit of this process: a store without it has lost commits. */
  #seen: StoreIdentity | undefined;
  /** The newest epoch in which the store was found to have it; in the same epoch it still has. */
  #epoch: string | undefined;

  constructor(
    readonly engine: Engine,
    private readonly settings: IpamSettings,
  ) {
    this.queue = new Queue(engine, this, ({ commit }, milliseconds) => {
      settings.observer?.transaction?.("write", milliseconds / 1000);
      if (commit && commit.events.length > 0) settings.observer?.committed?.(commit.events);
    });
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
    offerTtl?: number,
  ): Promise<[value: T, commit: Commit | undefined]> {
    const work: Work<T> = { locks: [...new Set(locks)], queries: found, terms: this.#terms(offerTtl), decide };
    return this.#observed(this.#core.queue.add(work));
  }

  read<T>(found: Query[], answer: (state: State, head: Head, rows: Rows) => T): Promise<T> {
    const started = performance.now();
    const read = view(this.engine, found, this.#terms(), this.#core, answer).finally(() =>
      this.settings.observer?.transaction?.("read", (performance.now() - started) / 1000),
    );
    return this.#observed(read);
  }

  /** Only the first session closes the engine. */
  async end(): Promise<void> {
    if (this.isSecond) return;
    await this.#core.queue.idle();
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
