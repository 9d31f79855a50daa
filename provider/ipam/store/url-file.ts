import { readFileSync } from "node:fs";
import type { OverlayError } from "../../errors";

/** A file that a store's address names in one of its parameters. */
export function fileNamed(parameter: string, path: string, invalid: (reason: string) => OverlayError): Buffer {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw invalid(`${parameter} cannot be read: ${(cause as Error).message}.`);
  }
}
