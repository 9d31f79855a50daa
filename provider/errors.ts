import { type Category, type Code, ERROR_CODES } from "./error-codes";
import type { Lease } from "./ipam/types";

export { type Category, CODES, type Code } from "./error-codes";

export const categoryOf = (code: Code): Category => ERROR_CODES[code].category;

/** Terminal control characters and characters that change the direction of text, except line ends and tabs. */
const CONTROLS = /(?![\n\t])[\p{Cc}\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;

/** Text of hosts, stores and users for a terminal: control characters are shown as `\u001b`. */
export const escapeControls = (text: string): string =>
  text.replace(CONTROLS, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** The same for text that must stay on one line, so that it cannot imitate other lines of output. */
export const escapeLine = (text: string): string =>
  escapeControls(text).replaceAll("\n", "\\n").replaceAll("\t", "\\t");

/** The only error class: `CODE: what is wrong, with names and numbers. What to do.` It never contains a secret. */
export class OverlayError extends Error {
  override readonly name = "OverlayError";
  readonly what: string;
  /** The input that causes it, if one does. */
  property?: string;
  /** The lease that keeps a request from its values. */
  holder?: Pick<Lease, "pool" | "owner" | "uid" | "ranges">;

  constructor(
    readonly code: Code,
    what: string,
    readonly fix: string,
    cause?: unknown,
  ) {
    super(`${code}: ${escapeControls(what)} ${escapeControls(fix)}`, cause === undefined ? {} : { cause });
    this.what = escapeControls(what);
  }

  about(property: string): this {
    this.property = property;
    return this;
  }

  heldBy({ pool, owner, uid, ranges }: Lease): this {
    this.holder = { pool, owner, uid, ranges };
    return this;
  }
}

export const isOverlayError = (error: unknown, ...codes: Code[]): error is OverlayError =>
  error instanceof OverlayError && (codes.length === 0 || codes.includes(error.code));
