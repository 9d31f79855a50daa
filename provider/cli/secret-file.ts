import { readFile } from "node:fs/promises";
import { text as streamText } from "node:stream/consumers";
import { OverlayError } from "../errors";

/** A secret without the line end behind it. `-` is standard input: what stands on a command line, every local user can read. */
export async function readSecret(file: string): Promise<string> {
  const text = await (file === "-" ? streamText(process.stdin) : readFile(file, "utf8")).catch(
    ({ code }: NodeJS.ErrnoException) => {
      // Without the name: it may be the secret itself.
      const what = `The file that should have the secret cannot be read (${code}).`;
      throw new OverlayError("INPUT_INVALID", what, "Name a file that this user can read.");
    },
  );
  if (text.trim() !== "") return text.trim();
  const what = file === "-" ? "Standard input is empty, or was read already" : `${file} is empty`;
  throw new OverlayError("INPUT_INVALID", `${what}.`, "It must be one line with the secret.");
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
