import { z } from "zod";
import { type Category, type Code, categoryOf, OverlayError } from "../provider/errors";
import { rangeText } from "../provider/ipam/store/columns";

/** Errors as HTTP answers: RFC 9457, `application/problem+json`. */

export const PROBLEM_TYPE = "application/problem+json";

export const problemSchema = z
  .object({
    type: z.string().describe("`urn:pulumi-overlay:error:CODE`."),
    title: z.string().describe("The kind of failure in words; the same for all errors of a status."),
    status: z.number().int().describe("The status of the answer."),
    detail: z.string().describe("`what` and `fix`."),
    code: z.string().describe("The error code, such as `POOL_EXHAUSTED`."),
    what: z.string().describe("What is wrong, with names and numbers."),
    fix: z.string().describe("What to do."),
    property: z.string().optional().describe("The input that causes it, if one does."),
    holder: z
      .object({ pool: z.string(), owner: z.string(), uid: z.string(), ranges: z.array(z.string()) })
      .optional()
      .describe("The lease that keeps the request from its values, if the caller may see it."),
  })
  .meta({ id: "Problem" });

export type Problem = z.output<typeof problemSchema>;

/** Each category has one status. */
const STATUSES: Record<Category, number> = {
  invalid: 400,
  unauthenticated: 401,
  forbidden: 403,
  notFound: 404,
  conflict: 409,
  exhausted: 409,
  gone: 410,
  rateLimited: 429,
  internal: 500,
  hostFailed: 502,
  unavailable: 503,
};

/** Errors about HTTP itself for which HTTP has a status of their own. */
const HTTP_STATUSES: Partial<Record<Code, number>> = {
  METHOD_NOT_ALLOWED: 405,
  REQUEST_TIMEOUT: 408,
  BODY_TOO_LARGE: 413,
  BODY_TYPE: 415,
};

export const TITLES: Record<number, string> = {
  400: "Invalid request",
  401: "Not authenticated",
  403: "Forbidden",
  404: "Not found",
  405: "Method not allowed",
  408: "Request too slow",
  409: "Conflict",
  410: "Gone",
  413: "Body too large",
  415: "Unsupported content type",
  429: "Too many requests",
  500: "Internal error",
  502: "A host failed",
  503: "Unavailable",
};

export const statusOf = (code: Code): number => HTTP_STATUSES[code] ?? STATUSES[categoryOf(code)];

/** What a client gets to read. The text of an internal error, and the place of a store, are in the log only, for the operator. */
export function shownText({ code, what, fix }: OverlayError): Pick<OverlayError, "what" | "fix"> {
  const inLog = "Its log has the reason, under the id in the header X-Request-Id.";
  if (categoryOf(code) === "internal") return { what: "The service failed.", fix: inLog };
  if (code === "STORE_UNAVAILABLE")
    return { what: "The store of the service does not answer.", fix: `Try again later. ${inLog}` };
  return { what: cutText(what, MOST_WHAT), fix: cutText(fix, MOST_FIX) };
}

/** Bytes as JSON. A problem has both texts twice, and stays below 8 KB. */
const MOST_WHAT = 3000;
const MOST_FIX = 700;

/** Inputs may have characters that are long in JSON. */
function cutText(text: string, most: number): string {
  let cut = text.slice(0, most);
  while (Buffer.byteLength(JSON.stringify(cut)) > most) cut = cut.slice(0, Math.floor(cut.length * 0.9));
  return cut.length === text.length ? text : `${cut}…`;
}

export function toProblem(error: OverlayError): Problem {
  const { code, property, holder } = error;
  const status = statusOf(code);
  const shown = shownText(error);
  return {
    type: `urn:pulumi-overlay:error:${code}`,
    title: TITLES[status]!,
    status,
    detail: `${shown.what} ${shown.fix}`,
    code,
    ...shown,
    ...(property !== undefined && { property }),
    ...(holder && holder.uid !== "" && { holder: { ...holder, ranges: holder.ranges.map(rangeText) } }),
  };
}

/** Headers that a status demands. */
export function problemHeaders({ code }: OverlayError): Record<string, string> {
  switch (categoryOf(code)) {
    case "unauthenticated": // RFC 6750: a request without a token gets no error code
      return {
        "www-authenticate": `Bearer realm="overlay"${code === "ACCESS_TOKEN_INVALID" ? ', error="invalid_token"' : ""}`,
      };
    case "rateLimited":
    case "unavailable":
      return { "retry-after": "1" };
    default:
      return {};
  }
}

/** Errors of fastify and of Node's HTTP parser, by their codes. */
const FOREIGN_ERRORS: Record<string, (error: Error) => OverlayError> = {
  FST_ERR_CTP_BODY_TOO_LARGE: () =>
    new OverlayError("BODY_TOO_LARGE", "The body of the request is too large.", "Send less at once."),
  FST_ERR_CTP_INVALID_MEDIA_TYPE: () =>
    new OverlayError(
      "BODY_TYPE",
      "The body of the request is not JSON.",
      "Send it with Content-Type: application/json.",
    ),
  FST_ERR_CTP_INVALID_JSON_BODY: (error) => badBody("is not valid JSON", error),
  FST_ERR_CTP_EMPTY_JSON_BODY: (error) => badBody("is empty", error),
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: (error) => badBody("has another length than Content-Length says", error),
  FST_ERR_BAD_URL: (error) =>
    new OverlayError("INPUT_INVALID", "The path of the request is malformed.", "Encode it.", error),
  ECONNRESET: (error) => badBody("was cut off", error),
  ERR_HTTP_REQUEST_TIMEOUT: () => tooSlow(),
  HPE_HEADER_OVERFLOW: (error) => new OverlayError("INPUT_INVALID", "The headers are too large.", "Send fewer.", error),
};

const badBody = (how: string, cause: Error): OverlayError =>
  new OverlayError("INPUT_INVALID", `The body of the request ${how}.`, "Send a JSON object, or no body.", cause);

const tooSlow = (): OverlayError =>
  new OverlayError("REQUEST_TIMEOUT", "The request did not arrive in time.", "Send it in one go.");

/** Any error as one of ours. What is unexpected is an internal error. */
export function toOverlayError(error: unknown): OverlayError {
  if (error instanceof OverlayError) return error;
  const { code = "", statusCode } = error as { code?: string; statusCode?: number };
  const known = FOREIGN_ERRORS[code];
  if (known) return known(error as Error);
  if (statusCode !== undefined && statusCode >= 400 && statusCode < 500)
    return new OverlayError("INPUT_INVALID", "The request is malformed.", "See /docs.", error);
  return new OverlayError("INTERNAL", error instanceof Error ? error.message : String(error), "See the cause.", error);
}
