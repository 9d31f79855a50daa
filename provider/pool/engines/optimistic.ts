import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { OverlayError } from "../../errors";
import { type ClockFinding, createMutex, EngineFault, type Store, type Tx } from "../storage/store";
import { headAhead, judgeClock, serverLeapt } from "./clock-check";
import { type Execution, execute, type Outcome, unwrap } from "./execute";
import { BurstDetector, LockBatch } from "./lock-batch";
import { RowCache } from "./row-cache";
import {
  type Commit,
  type CommitLog,
  Conflict,
  type KeyRange,
  type LogUpdate,
  type ServerEngine,
  StoreUnavailable,
  type Version,
} from "./server-engine";

/**
 * Optimistic transactions: read at a version, commit if it is unchanged, retry, lock after the second conflict. See
 * docs/concurrency.md.
 */

/** Seconds. */
export interface Timeouts {
  /** For a transaction that conflicts with others, waiting for the lock included. */
  conflict: number;
  /** For a server that does not answer. */
  server: number;
}

export const TIMEOUTS: Timeouts = { conflict: 30, server: 10 };

export interface ServerStoreOptions {
  /** For tests: replaces the server's time. */
  clock?: () => number;
  /** The clock that the server's is compared with. Default: this machine's, or `clock` if it is given. */
  machineTime?: () => number;
  timeouts?: Timeouts;
  warn?: (text: string) => void;
  /** Called before a transaction is tried again because another process has committed first. */
  onConflict?: (() => void) | undefined;
}

const CONFLICTS_BEFORE_LOCK = 2;
/** After a wrong assumption, so many transactions read rows that they would have assumed absent: an up after its preview finds many. */
const ASSUMPTION_COOLDOWN = 16;
/** When the cache has more rows and ranges, it is cleared. */
const MAX_CACHED = 10_000;

export function createOptimisticStore(
  engine: ServerEngine,
  timeouts: Timeouts = TIMEOUTS,
  onConflict: () => void = () => {},
): Store {
  const retrying = { engine, timeouts, onConflict };
  const writer = new Writer(retrying);
  return {
    readOnly: engine.readOnly,
    transact: (work) => writer.transact(work),
    read: (work) => retry(retrying, () => readSnapshot(engine, work)),
    checkClock: (repair) => writer.checkClock(repair),
    close: () => writer.close(),
  };
}

interface RetryOptions {
  engine: ServerEngine;
  timeouts: Timeouts;
  onConflict(): void;
}

type Work<T> = (tx: Tx) => Promise<T>;

/** A commit that was sent. Its outcome is unknown until an answer or the log tells it. */
interface SentCommit<T> {
  number: number;
  id: string;
  outcome: Outcome<T>;
}

class Writer {
  readonly #cache = new RowCache();
  #head: Version | undefined;
  /** The head may not be the newest version. */
  #isStale = true;
  /** The last lock showed commits of other processes: the next transaction starts with the lock. */
  #isContended = false;
  #assumptionCooldown = 0;
  readonly #bursts = new BurstDetector();
  /** The last lock, which may still be held. */
  #lock: LockBatch | undefined;
  /** Transactions of one process do not conflict with each other. */
  readonly #mutex = createMutex();

  private readonly engine: ServerEngine;

  constructor(private readonly retrying: RetryOptions) {
    this.engine = retrying.engine;
  }

  transact<T>(work: Work<T>): Promise<T> {
    const sent: SentCommit<T>[] = [];
    const attempt = (conflicts: number, timeLeftMs: number): Promise<T> => {
      if (this.#lock?.resume()) return this.#attemptWith(this.#lock, work, sent);
      return conflicts < CONFLICTS_BEFORE_LOCK && !this.#isContended
        ? this.#attempt(this.engine, work, sent)
        : this.#lockAndAttempt(work, sent, timeLeftMs);
    };
    return this.#mutex(() => this.#bursts.track(() => retry(this.retrying, attempt)));
  }

  /** `repair`: commits with the time of the clock, although the commit before it has a later time. */
  checkClock(repair: boolean): Promise<ClockFinding | undefined> {
    const { engine } = this;
    return retry(this.retrying, async () => {
      const { head } = await engine.readUpdate();
      const now = engine.clock();
      if (now === undefined) throw new Conflict();
      const verdict = judgeClock(now, [engine.machineTime(), head.at], head.at);
      if (verdict === "sound") return undefined;
      if (verdict === "leap")
        return { problem: serverLeapt(engine.place, now, engine.machineTime(), head.at).what, repairable: false };
      if (repair) {
        const commit = { number: head.number + 1, id: newVersionId(), at: now, writes: [] };
        if (await engine.commit(head, commit, [])) throw new Conflict();
      }
      return { problem: headAhead(engine.place, head.at, now), repairable: true };
    });
  }

  /** Waits for transactions that have begun. */
  close(): Promise<void> {
    return this.#mutex(async () => {
      await this.#lock?.unlock();
      await this.engine.close();
    });
  }

  async #lockAndAttempt<T>(work: Work<T>, sent: SentCommit<T>[], timeoutMs: number): Promise<T> {
    await this.#lock?.unlock();
    const locked = await this.engine.lock(timeoutMs, this.#head);
    this.#isContended = locked.update.head.id !== this.#head?.id;
    this.#lock = new LockBatch(locked, this.#bursts);
    return this.#attemptWith(this.#lock, work, sent, locked.update);
  }

  async #attemptWith<T>(lock: LockBatch, work: Work<T>, sent: SentCommit<T>[], update?: LogUpdate): Promise<T> {
    try {
      return await this.#attempt(lock, work, sent, update);
    } finally {
      lock.pause();
    }
  }

  async #attempt<T>(log: CommitLog, work: Work<T>, sent: SentCommit<T>[], update?: LogUpdate): Promise<T> {
    const earlier = update && (await this.#apply(log, update, sent));
    if (earlier) return unwrap(earlier);
    const [head, time] = [this.#head, this.engine.clock()];
    if (this.#isStale || !head || time === undefined) {
      if (update) throw new Conflict();
      return this.#attempt(log, work, sent, await log.readUpdate(head));
    }
    this.#isStale = true;
    const now = timeAfter(this.engine, time, head);
    const fetch = (ranges: KeyRange[]) => log.readRows(head, ranges);
    const assumeEmpty = this.#assumptionCooldown === 0;
    const execution = await execute({ cache: this.#cache, now, fetch, assumeEmpty }, work);
    if (!assumeEmpty) this.#assumptionCooldown--;
    return unwrap((await this.#commit(log, head, now, execution, sent)) ?? execution.outcome);
  }

  /** Returns the outcome of an earlier attempt if the log shows that its commit was made. */
  async #commit<T>(
    log: CommitLog,
    head: Version,
    at: number,
    { outcome, writes, assumedEmpty }: Execution<T>,
    sent: SentCommit<T>[],
  ): Promise<Outcome<T> | undefined> {
    // Without writes it is enough that the version is unchanged. But the number of an earlier commit whose outcome is unknown has
    // to be taken, which only a commit does.
    if (writes.length === 0 && sent.length === 0) {
      await this.#apply(log, await log.readUpdate(head), sent);
      if (this.#head!.id !== head.id) throw new Conflict();
      return undefined;
    }
    const commit = { number: head.number + 1, id: newVersionId(), at, writes };
    sent.push({ number: commit.number, id: commit.id, outcome });
    const update = await log.commit(head, commit, assumedEmpty);
    if (!update) {
      for (const { from, to } of assumedEmpty) this.#cache.addRange(from, to, []);
      this.#follow([commit]);
      return undefined;
    }
    if (this.engine.sendsOnce) sent.pop(); // refused, so it was not made
    const earlier = await this.#apply(log, update, sent);
    if (earlier) return earlier;
    if (assumedEmpty.length > 0 && update.head.id === head.id) this.#assumptionCooldown = ASSUMPTION_COOLDOWN;
    throw new Conflict();
  }

  /** Brings the cache up to date. Returns the outcome of a sent commit if the log shows that it was made. */
  async #apply<T>(log: CommitLog, update: LogUpdate, sent: SentCommit<T>[]): Promise<Outcome<T> | undefined> {
    const { head, commits } = update;
    if (this.#head && head.number < this.#head.number) throw lostCommits(this.engine.place, this.#head, head);
    const made = await this.#findMade(log, update, sent);
    if (commits) this.#follow(commits);
    else this.#cache.clear();
    this.#head = head;
    this.#isStale = false;
    return made;
  }

  /** Keeps in `sent` only commits that can still be made: those whose number no commit has. */
  async #findMade<T>(
    log: CommitLog,
    { head, commits }: LogUpdate,
    sent: SentCommit<T>[],
  ): Promise<Outcome<T> | undefined> {
    for (const { number, id, outcome } of sent) {
      if (number > head.number) continue;
      const found = commits?.find((commit) => commit.number === number)?.id ?? (await log.findId(number));
      if (found === undefined) throw unknownOutcome(this.engine.place, number, head);
      if (found === id) return outcome;
    }
    sent.splice(0, sent.length, ...sent.filter(({ number }) => number > head.number));
    return undefined;
  }

  #follow(commits: Commit[]): void {
    for (const { writes, number, id, at } of commits) {
      if (writes) this.#cache.apply(writes);
      else this.#cache.clear();
      this.#head = { number, id, at };
    }
    if (this.#cache.size > MAX_CACHED) this.#cache.clear();
    this.#isStale = false;
  }
}

const newVersionId = (): string => randomBytes(8).toString("hex");

async function readSnapshot<T>(engine: ServerEngine, work: Work<T>): Promise<T> {
  const snapshot = await engine.openSnapshot();
  try {
    const { version, pendingWrites = [] } = snapshot;
    const time = engine.clock();
    if (time === undefined) throw new Conflict();
    const now = timeAfter(engine, time, version);
    const fetch = (ranges: KeyRange[]) => snapshot.readRows(ranges);
    return unwrap((await execute({ cache: new RowCache(), now, fetch, pendingWrites }, work)).outcome);
  } finally {
    void snapshot.close();
  }
}

/** The time of a transaction on a version: not before that. Throws STORE_CLOCK if the clock leapt. */
function timeAfter({ place, machineTime }: ServerEngine, now: number, { at }: Version): number {
  const machine = machineTime();
  if (judgeClock(now, [machine, at]) === "leap") throw serverLeapt(place, now, machine, at);
  return Math.max(now, at);
}

/** Retries after conflicts and, for a while, when the server does not answer. Backoff is random. */
async function retry<T>(
  { engine, timeouts, onConflict }: RetryOptions,
  attempt: (conflicts: number, timeLeftMs: number) => Promise<T>,
): Promise<T> {
  const deadline = Date.now() + timeouts.conflict * 1000;
  let unavailableSince: number | undefined;
  for (let conflicts = 0; ; ) {
    try {
      return await attempt(conflicts, deadline - Date.now());
    } catch (thrown) {
      const error = thrown instanceof EngineFault ? thrown.cause : thrown;
      if (error instanceof Conflict) {
        conflicts++;
        onConflict();
        unavailableSince = undefined;
        if (Date.now() > deadline) throw tooManyConflicts(engine.place, timeouts.conflict);
      } else if (error instanceof StoreUnavailable) {
        unavailableSince ??= Date.now();
        if (Date.now() - unavailableSince > timeouts.server * 1000) throw error.cause;
      } else throw error;
    }
    // The next attempt with the lock waits for it anyway.
    if (unavailableSince || conflicts < CONFLICTS_BEFORE_LOCK)
      await sleep(Math.random() * (unavailableSince ? 200 : Math.min(conflicts, 10)));
  }
}

const tooManyConflicts = (place: string, seconds: number): OverlayError =>
  new OverlayError(
    "STORE_CONFLICT",
    `Other processes were ahead at ${place} for ${seconds} s.`,
    "Run it again; if that does not help, see who writes to it all the time.",
  );

const unknownOutcome = (place: string, number: number, head: Version): OverlayError =>
  new OverlayError(
    "STORE_UNAVAILABLE",
    `${place} did not answer commit ${number}, and at version ${head.number} its log no longer has that one: it may have been made or not.`,
    "Run it again.",
  );

/** Commits that were acknowledged are lost: to give out anything more could give it out twice. */
const lostCommits = (place: string, from: Version, to: Version): OverlayError =>
  new OverlayError(
    "STORE_LOST",
    `${place} went back from version ${from.number} to ${to.number}: it was replaced, or restored from a backup.`,
    "Run `overlayctl recover` before anything else.",
  );
