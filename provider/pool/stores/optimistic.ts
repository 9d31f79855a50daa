import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { OverlayError } from "../../errors";
import { createMutex } from "../mutex";
import { type ClockFinding, EngineFault, type Store, type Tx } from "../store";
import { Away, type Commit, type Engine, type Journal, LostRace, type News, type Version } from "./journal";
import { Known } from "./known";
import { headAhead, judgeClock, serverLeapt } from "./store-clock";
import { type Outcome, type Run, runOn, type Span, settled } from "./view";

export type * from "./journal";

/**
 * Transactions on a server far away, in one round trip where nobody interferes.
 *
 * The store has one version, which every commit replaces, and a short log of what the last commits wrote. A process keeps
 * the rows that it has seen; the log keeps them true. A transaction runs on them without asking anybody, and its commit
 * says "if the version is still this one": so everything that it has read is checked at once, rows that were not there
 * too. Who loses takes what the winners wrote from the log and runs again, with hardly anything left to fetch.
 *
 * A commit whose answer is lost (server restarted, leader killed) is neither repeated nor given up blindly. Its version is
 * random: if the log has it, the commit took place, and its result stands. If another commit has its number, it did not
 * and cannot any more. If its number is still free, the next commit takes it, since only one of the two can succeed. Where
 * the log no longer has that number the transaction fails: run again, a release would answer that there was nothing to do.
 */
export interface Patience {
  /** How long a transaction waits for others, in seconds. */
  others: number;
  /** How long a server may be away in the middle of something, in seconds. */
  server: number;
}

export const PATIENCE: Patience = { others: 30, server: 10 };

/** After so many conflicts a transaction takes the lock. */
const CONFLICTS_BEFORE_LOCK = 2;
/** A process forgets everything rather than to keep more than this. */
const MEMORY = 10_000;

export function optimisticStore(engine: Engine, patience: Patience = PATIENCE): Store {
  const writer = new Writer(engine, patience);
  return {
    readOnly: engine.readOnly,
    transact: (work) => writer.transact(work),
    read: (work) => patiently(engine, patience, () => engine.read(work)),
    checkClock: (repair) => writer.checkClock(repair),
    close: () => writer.close(),
  };
}

type Work<T> = (tx: Tx) => Promise<T>;

/** A commit that was sent; until the log has been seen, its outcome may be unknown. */
interface Sent<T> {
  number: number;
  id: string;
  outcome: Outcome<T>;
}

class Writer {
  readonly #known = new Known();
  #head: Version | undefined;
  /** Set while it is not sure that the head is still the newest. */
  #stale = true;
  /** Others have been writing since our last turn: then it is better to wait in line than to lose first. */
  #crowded = false;
  /** Transactions of one process do not race each other. */
  readonly #mutex = createMutex();

  constructor(
    private readonly engine: Engine,
    private readonly patience: Patience,
  ) {}

  transact<T>(work: Work<T>): Promise<T> {
    const sent: Sent<T>[] = [];
    const attempt = (losses: number, left: number) => this.#try(work, sent, losses, left);
    return this.#mutex(() => patiently(this.engine, this.patience, attempt));
  }

  /** Repair makes a commit with the clock's time, although the one before it is of a later time. */
  checkClock(repair: boolean): Promise<ClockFinding | undefined> {
    const { engine } = this;
    return patiently(engine, this.patience, async () => {
      const { head } = await engine.news();
      const now = engine.clock();
      if (now === undefined) throw new LostRace();
      const verdict = judgeClock(now, [engine.machineTime(), head.at], head.at);
      if (verdict === "sound") return undefined;
      if (verdict === "leap")
        return { problem: serverLeapt(engine.place, now, engine.machineTime(), head.at).what, repairable: false };
      if (repair) {
        const commit = { number: head.number + 1, id: newVersionId(), at: now, writes: [] };
        if (await engine.commit(head, commit, [])) throw new LostRace();
      }
      return { problem: headAhead(engine.place, head.at, now), repairable: true };
    });
  }

  /** Waits for the transactions that were begun. */
  close(): Promise<void> {
    return this.#mutex(() => this.engine.close());
  }

  async #try<T>(work: Work<T>, sent: Sent<T>[], losses: number, left: number): Promise<T> {
    const isFirst = losses === 0;
    if (losses < CONFLICTS_BEFORE_LOCK && !this.#crowded) return this.#attempt(this.engine, work, sent, isFirst);
    const turn = await this.engine.turn(left, this.#head);
    this.#crowded = turn.latest.head.id !== this.#head?.id;
    try {
      return await this.#attempt(turn, work, sent, isFirst, turn.latest);
    } finally {
      await turn.end();
    }
  }

  /** `hopeful`: what is mostly empty is left to the commit to find out; once that failed, it is fetched. */
  async #attempt<T>(journal: Journal, work: Work<T>, sent: Sent<T>[], hopeful: boolean, news?: News): Promise<T> {
    const landed = news && (await this.#take(journal, news, sent));
    if (landed) return settled(landed);
    const [head, time] = [this.#head, this.engine.clock()];
    if (this.#stale || !head || time === undefined) {
      if (news) throw new LostRace();
      return this.#attempt(journal, work, sent, hopeful, await journal.news(head));
    }
    this.#stale = true;
    const now = timeAfter(this.engine, time, head);
    const fetch = (spans: Span[]) => journal.rows(head, spans);
    const run = await runOn({ known: this.#known, time: now, fetch, hopeful }, work);
    const landedInstead = await this.#settle(journal, head, now, run, sent);
    return settled(landedInstead ?? run.outcome);
  }

  /** Makes an outcome true. Another one is returned if it turns out that an earlier commit has landed after all. */
  async #settle<T>(
    journal: Journal,
    head: Version,
    at: number,
    { outcome, writes, hoped }: Run<T>,
    sent: Sent<T>[],
  ): Promise<Outcome<T> | undefined> {
    // What was decided without writing must hold as well: nothing may have happened since. But an earlier commit whose
    // fate is unknown has to be shut out, and only a commit does that.
    if (writes.length === 0 && sent.length === 0) {
      await this.#take(journal, await journal.news(head), sent);
      if (this.#head!.id !== head.id) throw new LostRace();
      return undefined;
    }
    const commit = { number: head.number + 1, id: newVersionId(), at, writes };
    sent.push({ number: commit.number, id: commit.id, outcome });
    const news = await journal.commit(head, commit, hoped);
    if (!news) {
      for (const { from, to } of hoped) this.#known.learn(from, to, []);
      this.#follow([commit]);
      return undefined;
    }
    const landed = await this.#take(journal, news, sent);
    if (landed) return landed;
    throw new LostRace();
  }

  /** Learns what others wrote, and returns the outcome of a commit that was sent, if it has landed. */
  async #take<T>(journal: Journal, news: News, sent: Sent<T>[]): Promise<Outcome<T> | undefined> {
    const { head, since } = news;
    if (this.#head && head.number < this.#head.number) throw wentBack(this.engine.place, this.#head, head);
    const landed = await this.#findLanded(journal, news, sent);
    if (since) this.#follow(since);
    else this.#known.forget();
    this.#head = head;
    this.#stale = false;
    return landed;
  }

  /** Leaves in `sent` only commits that can still land: those whose numbers are free. */
  async #findLanded<T>(journal: Journal, { head, since }: News, sent: Sent<T>[]): Promise<Outcome<T> | undefined> {
    for (const { number, id, outcome } of sent) {
      if (number > head.number) continue;
      const found = since?.find((commit) => commit.number === number)?.id ?? (await journal.findId(number));
      if (found === undefined) throw unknownOutcome(this.engine.place, number, head);
      if (found === id) return outcome;
    }
    sent.splice(0, sent.length, ...sent.filter(({ number }) => number > head.number));
    return undefined;
  }

  #follow(commits: Commit[]): void {
    for (const { writes, number, id, at } of commits) {
      if (writes) this.#known.apply(writes);
      else this.#known.forget();
      this.#head = { number, id, at };
    }
    if (this.#known.size > MEMORY) this.#known.forget();
    this.#stale = false;
  }
}

const newVersionId = (): string => randomBytes(8).toString("hex");

/** The time of a transaction on a version: not before that. Refuses a clock that leapt. */
export function timeAfter(
  { place, machineTime }: Pick<Engine, "place" | "machineTime">,
  now: number,
  { at }: Version,
): number {
  const machine = machineTime();
  if (judgeClock(now, [machine, at]) === "leap") throw serverLeapt(place, now, machine, at);
  return Math.max(now, at);
}

/** Tries again after lost races, and for a while when the server is away; naps of random length between. */
async function patiently<T>(
  engine: Engine,
  patience: Patience,
  attempt: (losses: number, left: number) => Promise<T>,
): Promise<T> {
  const deadline = Date.now() + patience.others * 1000;
  let awaySince: number | undefined;
  for (let losses = 0; ; ) {
    try {
      return await attempt(losses, deadline - Date.now());
    } catch (thrown) {
      const error = thrown instanceof EngineFault ? thrown.cause : thrown;
      if (error instanceof LostRace) {
        losses++;
        awaySince = undefined;
        if (Date.now() > deadline) throw overtaken(engine.place, patience.others);
      } else if (error instanceof Away) {
        awaySince ??= Date.now();
        if (Date.now() - awaySince > patience.server * 1000) throw error.cause;
      } else throw error;
    }
    // Whose turn is next has nothing to wait for.
    if (awaySince || losses < CONFLICTS_BEFORE_LOCK)
      await sleep(Math.random() * (awaySince ? 200 : Math.min(losses, 10)));
  }
}

const overtaken = (place: string, seconds: number): OverlayError =>
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

/** What was acknowledged is gone, so giving out anything more would give it out twice. */
const wentBack = (place: string, from: Version, to: Version): OverlayError =>
  new OverlayError(
    "STORE_LOST",
    `${place} went back from version ${from.number} to ${to.number}: it was replaced, or restored from a backup.`,
    "Run `overlayctl recover` before anything else.",
  );
