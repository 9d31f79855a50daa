import type { Writable } from "node:stream";
import { type PoolClient, type PoolConfig, type QueryConfig, type QueryResult, types } from "pg";
import { OverlayError } from "../../errors";
import type { Address } from "./postgres-url";
import { Conflict, StoreUnavailable } from "./store";

/** Read as text: decoded with the rows. */
const RAW: ReadonlySet<number> = new Set([types.builtins.INT8, types.builtins.JSON, types.builtins.NUMERIC]);

export const CONNECTIONS: PoolConfig & { pipeline: boolean } = {
  max: 4,
  application_name: "pulumi-overlay",
  // For servers that disappear without closing the connection.
  query_timeout: 10_000,
  keepAlive: true,
  allowExitOnIdle: true,
  // Statements are sent without waiting for earlier answers.
  pipeline: true,
  types: {
    getTypeParser: ((oid: number, format?: "text") =>
      RAW.has(oid) ? (text: string) => text : types.getTypeParser(oid, format)) as typeof types.getTypeParser,
  },
};

/**
 * Our statements have one good plan, whatever their values, and however few rows there are: seeks in indexes. Without this they would be
 * planned each time, or read whole tables.
 */
export const PLANS = `SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off;
  SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off`;

export class Connection {
  #isReleased = false;

  constructor(
    private readonly client: PoolClient,
    private readonly address: Address,
  ) {}

  /** Sends all of them at once. Throws the first error, after the last answer. */
  async send(statements: QueryConfig[]): Promise<QueryResult[]> {
    const { stream } = (this.client as PoolClient & { connection: { stream: Writable } }).connection;
    // As one write: else each statement is a system call, and a packet.
    stream.cork();
    const sent = Promise.allSettled(statements.map((statement) => this.client.query(statement)));
    stream.uncork();
    const answers = await sent;
    const failed = answers.find((answer) => answer.status === "rejected");
    if (failed) throw translateError(failed.reason, this.address);
    return answers.map((answer) => (answer as PromiseFulfilledResult<QueryResult>).value);
  }

  /** Ends its transaction, if there is one. Never fails: a connection that cannot is closed. */
  release(): void {
    if (this.#isReleased) return;
    this.#isReleased = true;
    const { client } = this;
    if (client.getTransactionStatus() === "I") client.release();
    else
      client.query("ROLLBACK").then(
        () => client.release(),
        () => client.release(true),
      );
  }

  /** Without another word: it may be broken. */
  drop(): void {
    if (!this.#isReleased) this.client.release(true);
    this.#isReleased = true;
  }
}

/** What PostgreSQL and the way to it may answer, in our words. */
export function translateError(error: unknown, { place, user }: Address): unknown {
  if (error instanceof OverlayError || error instanceof Conflict || error instanceof StoreUnavailable) return error;
  const { code = "", message } = error as { code?: string; message: string };
  const at = `PostgreSQL at ${place}`;
  const unavailable = (what: string, fix: string) => new OverlayError("STORE_UNAVAILABLE", what, fix, error);
  switch (code) {
    case GUARD:
    case "23505":
    case "40001":
    case "40P01":
    case "55P03":
      return new Conflict(message, { cause: error });
    case "28000":
    case "28P01":
      return unavailable(`${at} refuses ${user}: ${message}.`, "Check user, password and pg_hba.conf.");
    case "3D000":
      return unavailable(`${at}: ${message}.`, "Create the database, or correct its name.");
    case "25006":
      return new OverlayError("STORE_READ_ONLY", `${at} takes no writes: ${message}.`, "Use the primary.", error);
    case "42501":
      return new OverlayError(
        "STORE_READ_ONLY",
        `${at}: ${message}.`,
        `Grant it to ${user}, or use another user.`,
        error,
      );
    case "XX001":
    case "XX002":
      return new OverlayError("STORE_CORRUPT", `${at} is damaged: ${message}.`, "Restore it from a backup.", error);
  }
  // Shut down, crashed, starting; no connection left, lost, or idle for too long. Without an SQLSTATE it is the network's.
  const mayComeBack = /^(57P|08|53300|25P03)/.test(code) || !isSqlState(code);
  const failed = unavailable(
    `${at} cannot be used: ${message || code}.`,
    mayComeBack ? "Check that it runs, and the network between." : "See the server's log.",
  );
  return mayComeBack && !isRefusal(code) ? new StoreUnavailable(failed.message, { cause: failed }) : failed;
}

/** Division by zero: how a statement of ours says that a row was not there. */
const GUARD = "22012";

/** Five characters, and digits among them: EPIPE is none. */
const isSqlState = (code: string): boolean => /^(?=.*\d)[0-9A-Z]{5}$/.test(code);

/** Certificates do not get better by waiting. */
const isRefusal = (code: string): boolean => /CERT|TLS|SSL|ALTNAME/.test(code);
