import {
  EtcdAuthenticationFailedError,
  EtcdInvalidAuthTokenError,
  EtcdPermissionDeniedError,
  GRPCDataLossError,
  GRPCFailedPreconditionError,
  GRPCInvalidArgumentError,
  GRPCOutOfRangeError,
  GRPCUnauthenticatedError,
} from "etcd3";
import { OverlayError } from "../../errors";
import type { Cluster } from "./etcd-url";
import { Away, LostRace } from "./journal";

const isOne = (error: unknown, ...types: (new (...args: never[]) => Error)[]): boolean =>
  types.some((type) => error instanceof type);

/** A revision that is gone, or that this member does not have yet. */
export const isOutOfRange = (error: unknown): boolean => isOne(error, GRPCOutOfRangeError);

/** What etcd and the way to it may answer, in our words. */
export function translated(error: unknown, { place, login }: Cluster, doing: "reading" | "writing"): unknown {
  if (isOne(error, OverlayError, LostRace, Away)) return error;
  if (isOutOfRange(error)) return new LostRace();
  const at = `etcd at ${place}`;
  const message = (error as Error).message.replace(/^(\w+: )?(\d+ [A-Z_]+: )?(etcdserver: )?/, "").replace(/\.$/, "");
  const say = (code: "STORE_UNAVAILABLE" | "STORE_READ_ONLY" | "STORE_CORRUPT", what: string, fix: string) =>
    new OverlayError(code, `${at} ${what}: ${message}.`, fix, error);
  const who = login?.username ?? "users without a name";
  if (isOne(error, EtcdPermissionDeniedError)) {
    if (doing === "reading") return say("STORE_UNAVAILABLE", `does not let ${who} read`, "Grant a role on the prefix.");
    return say("STORE_READ_ONLY", `does not let ${who} write`, "Grant a role that may write under the prefix.");
  }
  if (isOne(error, EtcdAuthenticationFailedError, EtcdInvalidAuthTokenError, GRPCUnauthenticatedError))
    return say("STORE_UNAVAILABLE", `refuses ${who}`, "Check user and password.");
  if (message.includes("database space exceeded"))
    return say("STORE_READ_ONLY", "is full", "Compact and defragment it, then `etcdctl alarm disarm`.");
  if (isOne(error, GRPCDataLossError))
    return say("STORE_CORRUPT", "is damaged", "Replace the damaged member, or restore from a snapshot.");
  if (isOne(error, GRPCInvalidArgumentError, GRPCFailedPreconditionError))
    return say(
      "STORE_UNAVAILABLE",
      `does not take this from ${who}`,
      "Check user, password and the limits of the servers.",
    );
  return new Away(say("STORE_UNAVAILABLE", "cannot be used", "Check that most members run, and the network between."));
}
