import { isOverlayError, OverlayError } from "../errors";
import type { Host } from "./types";

/** Reads what a host answered. Whatever makes it unreadable is that host's fault, and no other host's work ends with it. */
export function readAnswer<T>({ name }: Pick<Host, "name">, parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    if (isOverlayError(error)) throw error;
    throw new OverlayError(
      "HOST_COMMAND_FAILED",
      `${name} gave an answer that is not in the form that its tools print.`,
      "Look at `ip -j -d addr show`, `iptables-save` and `docker network inspect` on that host; if it was broken into, do not trust it.",
      error,
    );
  }
}
