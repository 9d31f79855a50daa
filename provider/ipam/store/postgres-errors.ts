import { OverlayError } from "../../errors";
import type { Address } from "./postgres-url";
import { Conflict, StoreUnavailable } from "./store";

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
