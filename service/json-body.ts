import { OverlayError } from "../provider/errors";
import type { App, Limits } from "./app";

/**
 * Bodies of requests as JSON. What parsing costs depends on the number of values and their depth rather than on the bytes, so both are counted
 * first: parsing a body with many holds up all other requests.
 */

/** Bytes of the route's body limit for each value that a body may have: with 2 MiB 65,536, more than the longest report has. */
const BYTES_A_VALUE = 32;
const MOST_LEVELS = 32;

export function parseJsonBodies(app: App, { bodyLimit }: Limits): void {
  const parse = app.getDefaultJsonParser("error", "error");
  app.removeContentTypeParser("application/json");
  app.addContentTypeParser("application/json", { parseAs: "string" }, (request, body, done) => {
    const mostValues = Math.floor((request.routeOptions.bodyLimit ?? bodyLimit) / BYTES_A_VALUE);
    const how = describeExcess(body as string, mostValues);
    if (how === undefined) parse(request, body as string, done);
    else done(new OverlayError("BODY_TOO_LARGE", `The body of the request ${how}.`, "Send less at once."));
  });
}

/** In what the text exceeds the limits. Each value but the first follows a comma or begins a list or an object. */
export function describeExcess(text: string, mostValues: number): string | undefined {
  let [values, levels] = [1, 0];
  for (let at = 0; at < text.length; at++) {
    const sign = text[at];
    if (sign === '"') at = endOfString(text, at);
    else if (sign === ",") values++;
    else if (sign === "[" || sign === "{") {
      values++;
      levels++;
    } else if (sign === "]" || sign === "}") levels--;
    if (levels > MOST_LEVELS) return `has more than ${MOST_LEVELS} levels`;
    if (values > mostValues) return `has more than ${mostValues} values`;
  }
  return undefined;
}

/** The index of the quote that ends the string; of the text's end, if there is none. */
function endOfString(text: string, start: number): number {
  for (let at = text.indexOf('"', start + 1); at >= 0; at = text.indexOf('"', at + 1)) {
    let backslashes = 0;
    while (text[at - 1 - backslashes] === "\\") backslashes++;
    if (backslashes % 2 === 0) return at;
  }
  return text.length;
}
