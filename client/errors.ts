import type { Code } from "../provider/errors";
import type { Problem } from "../service/problem";

/** Failures for which there is no answer of the service, or none that can be used. */
export type ClientCode = "SERVICE_UNREACHABLE" | "SERVICE_TIMEOUT" | "ANSWER_INVALID";

/** What an answer says beside its body. */
export interface AnswerFacts {
  status?: number;
  requestId?: string | undefined;
  retryAfter?: number | undefined;
}

/** A failed request: `CODE: what is wrong. What to do.` */
export class OverlayServiceError extends Error {
  override readonly name = "OverlayServiceError";
  /** A later version of the service may have further codes. */
  readonly code: Code | ClientCode | (string & {});
  readonly what: string;
  readonly fix: string;
  /** Of the answer, if there was one. */
  readonly status: number | undefined;
  /** The input that causes it, if one does. */
  readonly property: string | undefined;
  /** Under which the log of the service has the request. */
  readonly requestId: string | undefined;
  /** Milliseconds after which the service asks to try again. */
  readonly retryAfter: number | undefined;

  constructor(
    { code, what, fix, status, property }: Pick<Problem, "code" | "what" | "fix"> & Partial<Problem>,
    { requestId, retryAfter, cause }: AnswerFacts & { cause?: unknown } = {},
  ) {
    super(`${code}: ${what} ${fix}`, cause === undefined ? {} : { cause });
    this.code = code;
    this.what = what;
    this.fix = fix;
    this.status = status;
    this.property = property;
    this.requestId = requestId;
    this.retryAfter = retryAfter;
  }
}

export const unreachableError = (url: string, cause: unknown): OverlayServiceError =>
  new OverlayServiceError(
    {
      code: "SERVICE_UNREACHABLE",
      what: `The request to ${url} failed: ${reasonOf(cause)}.`,
      fix: "Check that the service runs, its address and its certificate.",
    },
    { cause },
  );

/** `fetch` has the reason in the cause of its own error. */
function reasonOf(error: unknown): string {
  const { message, cause } = error as { message?: string; cause?: { code?: string; message?: string } };
  return cause?.message || cause?.code || message || String(error);
}

export const timeoutError = (url: string, ms: number): OverlayServiceError =>
  new OverlayServiceError({
    code: "SERVICE_TIMEOUT",
    what: `${url} has not answered within ${ms / 1000} s.`,
    fix: "Check the load of the service, or give the client a longer timeout.",
  });

export const invalidAnswerError = (
  url: string,
  how: string,
  { status, ...more }: AnswerFacts & { cause?: unknown },
): OverlayServiceError =>
  new OverlayServiceError(
    {
      code: "ANSWER_INVALID",
      what: `The answer of ${url} ${how}.`,
      fix: "Check that the address is that of `overlayctl serve`, and its version.",
      ...(status !== undefined && { status }),
    },
    more,
  );
