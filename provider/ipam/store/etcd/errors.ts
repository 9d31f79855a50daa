import { status } from "@grpc/grpc-js";
import { OverlayError } from "../../../errors";
import { Conflict, StoreUnavailable } from "../store";
import { codeOf, detailsOf, isOutOfSpace } from "./client";
import type { Cluster } from "./url";

/** A revision that is gone, or that this member does not have yet. */
export const isOutOfRange = (error: unknown): boolean => codeOf(error) === status.OUT_OF_RANGE;

/** What etcd and the way to it may answer, in our words. */
export function translateError(error: unknown, { place, login }: Cluster, doing: "reading" | "writing"): unknown {
  if (error instanceof OverlayError || error instanceof Conflict || error instanceof StoreUnavailable) return error;
  if (isOutOfRange(error)) return new Conflict();
  const [at, message] = [`etcd at ${place}`, detailsOf(error)];
  const say = (code: "STORE_UNAVAILABLE" | "STORE_READ_ONLY" | "STORE_CORRUPT", what: string, fix: string) =>
    new OverlayError(code, `${at} ${what}: ${message}.`, fix, error);
  const who = login?.username ?? "users without a name";
  if (isOutOfSpace(error))
    return say("STORE_READ_ONLY", "is full", "Compact and defragment it, then `etcdctl alarm disarm`.");
  switch (codeOf(error)) {
    case status.PERMISSION_DENIED:
      return doing === "reading"
        ? say("STORE_UNAVAILABLE", `does not let ${who} read`, "Grant a role on the prefix.")
        : say("STORE_READ_ONLY", `does not let ${who} write`, "Grant a role that may write under the prefix.");
    case status.UNAUTHENTICATED:
      return say("STORE_UNAVAILABLE", `refuses ${who}`, "Check user and password.");
    case status.DATA_LOSS:
      return say("STORE_CORRUPT", "is damaged", "Replace the damaged member, or restore from a snapshot.");
    case status.INVALID_ARGUMENT:
    case status.FAILED_PRECONDITION:
      return message.includes("authentication failed")
        ? say("STORE_UNAVAILABLE", `refuses ${who}`, "Check user and password.")
        : say(
            "STORE_UNAVAILABLE",
            `does not take this from ${who}`,
            "Check user, password and the limits of the servers.",
          );
    default:
      return unavailable(
        say("STORE_UNAVAILABLE", "cannot be used", "Check that most members run, and the network between."),
      );
  }
}

export const unavailable = (cause: OverlayError): StoreUnavailable => new StoreUnavailable(cause.message, { cause });
