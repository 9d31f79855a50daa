import { text as streamText } from "node:stream/consumers";
import { OverlayError } from "../errors";
import { readSecretFile, trimSecret } from "../secret-file";

/** The secret in a file. `-` is standard input: what stands on a command line, every local user can read. */
export async function readSecret(file: string): Promise<string> {
  if (file !== "-") return readSecretFile(file);
  return trimSecret(await streamText(process.stdin), "Standard input is empty, or was read already");
}

/** A secret that an option gives, or a file that another option names; `-` in the place of either is standard input. */
export async function secretOf(
  name: string,
  given: string | undefined,
  file: string | undefined,
): Promise<string | undefined> {
  if (given !== undefined && file !== undefined)
    throw new OverlayError("INPUT_INVALID", `Both a ${name} and a file with it were given.`, "Leave one of them out.");
  if (file !== undefined || given === "-") return readSecret(file ?? "-");
  return given;
}
