import { setTimeout as sleep } from "node:timers/promises";
import { Pool, type QueryResult } from "pg";
import { isOverlayError, OverlayError } from "../../errors";
import type { LoggedEvent } from "../types";
import { headAhead, judgeClock, machineTime, serverLeapt } from "./clock";
import { CONNECTIONS, Connection, PLANS, translateError } from "./postgres-connection";
import { type Named, Statements } from "./postgres-queries";
import { ensureTables, prefixOf } from "./postgres-schema";
import { type Address, parsePostgresUrl } from "./postgres-url";
import { Found } from "./queries";
import { events, pools, store } from "./schema";
import { type Ask, askFor } from "./sql";
import {
  type Changes,
  type ClockFinding,
  type Commit,
  Conflict,
  changesHead,
  type Engine,
  type Head,
  isTimeToTrim,
  type Query,
  type Rows,
  StoreUnavailable,
  type Transaction,
} from "./store";
import type { Stored } from "./table";
import { writesOf } from "./writes";

/**
 * A transaction has two round trips. The first locks the rows of its pools, and then reads in statements of their own: what the locking
 * statement itself reads is as old as its start. The second writes, the row of the store last, and commits.
 */
export interface PostgresOptions {
  /** For tests: replaces the server's time. */
  clock?: () => number;
  /** The clock that the server's is compared with. Default: this machine's, or `clock` if it is given. */
  machineTime?: () => number;
  /** For how long the outcome of a commit is asked for if the server does not answer, in seconds. */
  serverTimeout?: number;
  warn?: (text: string) => void;
}

export async function openPostgres(url: string, options: PostgresOptions = {}): Promise<Engine> {
  const address = parsePostgresUrl(url);
  if (address.isExposed)
    options.warn?.(`PostgreSQL at ${address.place} is used without TLS, because of sslmode=disable.`);
  const pool = new Pool({ ...address.connection, ...CONNECTIONS });
  // Idle connections that the server closes are replaced when they are needed.
  pool.on("error", () => {});
  pool.on("connect", (client) => void client.query(PLANS).catch(() => {}));
  try {
    const { readOnly } = await ensureTables(pool, address);
    return new PostgresEngine(pool, address, readOnly, options);
  } catch (thrown) {
    await pool.end();
    const error = translateError(thrown, address);
    throw error instanceof StoreUnavailable ? error.cause : error;
  }
}

const LOCK_TIMEOUT_MS = 5000;
/** The server ends the transaction of a process that sleeps in it. */
const IDLE_TIMEOUT_MS = 10_000;

const BEGIN = `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = ${LOCK_TIMEOUT_MS};
  SET LOCAL idle_in_transaction_session_timeout = ${IDLE_TIMEOUT_MS}`;
const BEGIN_TO_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

class PostgresEngine implements Engine {
  readonly place: string;
  readonly statements: Statements;

  constructor(
    private readonly pool: Pool,
    private readonly address: Address,
    readonly readOnly: boolean,
    readonly options: PostgresOptions,
  ) {
    this.place = `PostgreSQL at ${address.place}`;
    this.statements = new Statements(prefixOf(address));
  }

  async begin(queries: Query[], locks?: string[] | "all"): Promise<Transaction> {
    if (locks && this.readOnly) throw readOnlyError(this.place);
    const connection = await this.connect();
    try {
      return await this.#begin(connection, queries, locks);
    } catch (error) {
      connection.release();
      throw error;
    }
  }

  async #begin(connection: Connection, queries: Query[], given: string[] | "all" | undefined): Promise<Transaction> {
    const { statements } = this;
    const isWrite = given !== undefined;
    const locks = given === "all" ? [] : (given ?? []);
    const toLockAll = given === "all" ? [statements.lockAll()] : [];
    const toLock = locks.length > 0 ? [statements.addPools(locks), statements.lockPools(locks)] : toLockAll;
    const found = new Lookup(statements, queries, this.options.clock?.());
    const answers = await connection.send([
      { text: isWrite ? BEGIN : BEGIN_TO_READ },
      ...toLock,
      ...found.statements,
      // The time comes last: what has expired by then was found.
      statements.head(isWrite),
    ]);
    const rest = answers.slice(1 + toLock.length);
    const locked = locks.length > 0 ? answers[2]!.rows : [];
    if (locked.length < locks.length) throw new Conflict("A pool was deleted while its row was locked.");
    const [row] = rest.at(-1)!.rows as Stored[];
    if (!row) throw noHead(this.place);
    const head = toHead(row);
    const rows = found.rows(rest.slice(0, -1), locked);
    return new PostgresTransaction(this, connection, this.#timeAfter(row, head), head, rows, String(row.transaction));
  }

  /** The time of a transaction: not before that of the last commit. Throws `STORE_CLOCK` if the clock leapt. */
  #timeAfter(row: Stored, head: Head): number {
    const [now, machine] = [this.#timeOf(row), this.#machineTime()];
    if (judgeClock(now, [machine, head.at]) === "leap") throw serverLeapt(this.place, now, machine, head.at);
    return Math.max(now, head.at);
  }

  #timeOf({ now }: Stored): number {
    return this.options.clock?.() ?? Number(now);
  }

  #machineTime(): number {
    const { clock, machineTime: given } = this.options;
    return (given ?? clock ?? machineTime)();
  }

  async connect(): Promise<Connection> {
    const client = await this.pool.connect().catch((error: unknown) => {
      throw translateError(error, this.address);
    });
    // A failure of the connection shows in the next answer.
    if (client.listenerCount("error") === 0) client.on("error", () => {});
    return new Connection(client, this.address);
  }

  /** `repair`: the time of the last commit becomes that of the clock, although it is later. */
  async checkClock(repair: boolean): Promise<ClockFinding | undefined> {
    const connection = await this.connect();
    try {
      const [answer] = await connection.send([this.statements.head(false)]);
      const row = answer!.rows[0] as Stored;
      const [head, now, machine] = [toHead(row), this.#timeOf(row), this.#machineTime()];
      const verdict = judgeClock(now, [machine, head.at], head.at);
      if (verdict === "sound") return undefined;
      if (verdict === "leap")
        return { problem: serverLeapt(this.place, now, machine, head.at).what, repairable: false };
      if (repair) await connection.send([this.statements.setTime(now)]);
      return { problem: headAhead(this.place, head.at, now), repairable: true };
    } finally {
      connection.release();
    }
  }

  close(): Promise<void> {
    return this.pool.end();
  }
}

const toHead = (row: Stored): Head => {
  const { one: _, ...head } = store.decode(row);
  return head;
};

/** One statement for all queries of a kind. */
class Lookup {
  readonly #groups: Ask[][];
  readonly statements: Named[];

  constructor(statements: Statements, queries: Query[], now: number | undefined) {
    const groups = new Map<string, Ask[]>();
    for (const ask of queries.flatMap((query) => askFor(query, now))) {
      const group = groups.get(ask.name);
      if (group) group.push(ask);
      else groups.set(ask.name, [ask]);
    }
    this.#groups = [...groups.values()];
    this.statements = this.#groups.map((asks) => statements.find(asks));
  }

  rows(answers: QueryResult[], locked: Stored[] = []): Rows {
    const found = new Found();
    for (const row of locked) found.addRow(pools, row);
    this.#groups.forEach((asks, i) => {
      const byAsk = asks.map((): Stored[] => []);
      for (const row of answers[i]!.rows as Stored[]) byAsk[Number(row.n) - 1]!.push(row);
      asks.forEach((ask, j) => {
        found.add(ask.statement.table, ask.query, byAsk[j]!);
      });
    });
    return found.rows;
  }
}

/** What became of a transaction; null: the server does not know any more. */
interface Status {
  status: "committed" | "aborted" | "in progress" | "in recovery" | null;
  version: number;
  epoch: string;
  events: LoggedEvent[];
}

const eventsText = (list: LoggedEvent[]): string => JSON.stringify(list.map((event) => events.encode(event)));

/** The id of the transaction was given by a server that has crashed, and not again since. */
const isInFuture = (error: unknown): boolean =>
  isOverlayError(error) && (error.cause as { code?: string } | undefined)?.code === "22023";

class PostgresTransaction implements Transaction {
  constructor(
    private readonly engine: PostgresEngine,
    private readonly connection: Connection,
    readonly now: number,
    readonly head: Head,
    readonly rows: Rows,
    /** The id that the server gave it. */
    private readonly id: string,
  ) {}

  async load(queries: Query[]): Promise<Rows> {
    const found = new Lookup(this.engine.statements, queries, this.now);
    return found.rows(await this.connection.send(found.statements));
  }

  async commit(changes: Changes): Promise<Commit> {
    const { connection } = this;
    try {
      const answers = await connection.send([...this.#statementsFor(changes), { text: "COMMIT" }]);
      if (answers.at(-1)!.command !== "COMMIT") throw new Conflict("The transaction was rolled back.");
      connection.release();
      return this.#toCommit(changes, answers);
    } catch (error) {
      if (!(error instanceof StoreUnavailable)) throw error;
      connection.drop();
      return await this.#findOutcome(changes, error);
    }
  }

  #statementsFor(changes: Changes): Named[] {
    const { statements } = this.engine;
    const writes = writesOf(changes);
    const { head, resetEpochs } = changes;
    return [
      ...(changes.clear ? [statements.clearAll()] : []),
      ...statements.clear(changes.free),
      ...writes.flatMap((write) => statements.delete(write)),
      ...writes.flatMap((write) => statements.put(write)),
      ...(isTimeToTrim() ? statements.trim(this.now) : []),
      ...(changesHead(changes) ? [statements.advance(changes, this.now)] : []),
      ...(resetEpochs ? statements.resetEpochs(resetEpochs) : []),
      ...(head ? [statements.replaceHead(head)] : []),
    ];
  }

  /** The last answers with a version are those of the row of the store. */
  #toCommit(changes: Changes, answers: QueryResult[]): Commit {
    const row = answers.findLast(({ rows }) => rows[0]?.version !== undefined)?.rows[0];
    const { version, epoch, lastEvent } = row
      ? { ...row, version: Number(row.version), lastEvent: Number(row.last_event) }
      : this.head;
    const first = lastEvent - changes.events.length + 1;
    return { version, epoch, events: changes.events.map((event, i) => ({ ...event, id: first + i })) };
  }

  /**
   * After a commit that was not answered. The version may be that of a later commit. Without events a commit cannot be told from one that got the
   * same id after a crash: it is decided again.
   */
  async #findOutcome(changes: Changes, lost: StoreUnavailable): Promise<Commit> {
    const { engine, head } = this;
    const since = Date.now();
    for (;;) {
      const found = await this.#readStatus();
      // A transaction whose client is gone may go on until the server ends it.
      const waitMs =
        found?.status === "in progress" ? 2 * IDLE_TIMEOUT_MS : 1000 * (engine.options.serverTimeout ?? 10);
      if (found?.status === null || Date.now() > since + waitMs) throw unknownOutcome(engine.place, lost);
      if (found?.status === "aborted") throw new Conflict("The commit did not arrive.", { cause: lost });
      if (found?.status === "committed") {
        const made = changes.events.map((event, i) => ({ ...event, id: found.events[i]?.id ?? 0 }));
        if (made.length === 0 || eventsText(made) !== eventsText(found.events))
          throw new Conflict("The commit was lost in a crash of its server.", { cause: lost });
        return { version: Math.max(found.version, head.version), epoch: found.epoch, events: made };
      }
      await sleep(100);
    }
  }

  /** undefined: the server does not answer. */
  async #readStatus(): Promise<Status | undefined> {
    const { engine, id, head } = this;
    let connection: Connection | undefined;
    try {
      connection = await engine.connect();
      const { status, eventsOf } = engine.statements;
      // The events in a statement of their own: it sees what the first one has found committed.
      const [{ rows: [row] = [] } = {}, written] = await connection.send([status(id), eventsOf(id, head.lastEvent)]);
      return row && { ...row, version: Number(row.version), events: written!.rows.map(events.decode) };
    } catch (error) {
      if (isInFuture(error)) return { status: "aborted", version: 0, epoch: "", events: [] };
      if (!(error instanceof StoreUnavailable)) throw error;
      return undefined;
    } finally {
      connection?.release();
    }
  }

  rollBack(): void {
    this.connection.release();
  }
}

const readOnlyError = (place: string): OverlayError =>
  new OverlayError(
    "STORE_READ_ONLY",
    `${place} takes no writes.`,
    "Use the primary, and a user with the right to write.",
  );

const noHead = (place: string): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    `The table store at ${place} is empty, which it never is by itself.`,
    "Restore it from a backup, or run `overlayctl recover`.",
  );

const unknownOutcome = (place: string, lost: StoreUnavailable): OverlayError =>
  new OverlayError(
    "STORE_UNAVAILABLE",
    `${place} did not answer a commit: it may have been made or not.`,
    "Run it again.",
    lost.cause,
  );
