import { createHash } from "node:crypto";

/** How the SDK describes the resources of a program to the provider. */

export const shortHash = (text: string): string => createHash("sha256").update(text).digest("hex").slice(0, 8);

/** The values that a resource requests; `?` for one that is an output. */
export const requestedValues = (args: Record<string, unknown>): string =>
  ["ip", "ip6", "port", "runnerId"]
    .filter((key) => args[key] !== undefined)
    .map((key) => `=${["string", "number"].includes(typeof args[key]) ? args[key] : "?"}`)
    .join("");
