import { readFileSync } from "node:fs";
import { type Code, OverlayError } from "./errors";

/** Reads a secret from a file, without the line end. Errors do not contain the name of the file: it may be the secret itself. */
export function readSecretFile(
  file: string,
  subject = "The file that should have the secret",
  code: Code = "INPUT_INVALID",
): string {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    const what = `${subject} cannot be read (${(error as NodeJS.ErrnoException).code}).`;
    throw new OverlayError(code, what, "Give a file that this user can read.");
  }
  return trimSecret(text, `${subject} is empty`, code);
}

/** Rejects an empty secret. */
export function trimSecret(text: string, ifEmpty: string, code: Code = "INPUT_INVALID"): string {
  const secret = text.trim();
  if (secret === "") throw new OverlayError(code, `${ifEmpty}.`, "It must contain the secret on one line.");
  return secret;
}
