import { OverlayServiceError } from "./errors";

/** Decides whether a failed request is sent again, and when. */

/**
 * `repeatable`: sent twice, it has the effect of once. `once`: sent again only if it is certain that the first one was not executed, which a lost
 * answer does not say.
 */
export type Effect = "repeatable" | "once";

/** What a proxy or the service answers while instances are replaced. */
const TEMPORARY = [429, 502, 503, 504];

/** Answers that say that the request was not executed. */
const REFUSALS = ["RATE_LIMITED", "SERVICE_STOPPING"];

export function mayRepeat(error: unknown, effect: Effect): error is OverlayServiceError {
  if (!(error instanceof OverlayServiceError)) return false;
  const { code, status } = error;
  if (effect === "once") return REFUSALS.includes(code) || isRefusedConnection(error);
  return code === "SERVICE_UNREACHABLE" || code === "SERVICE_TIMEOUT" || TEMPORARY.includes(status ?? 0);
}

/** Only Node tells. */
function isRefusedConnection({ cause }: OverlayServiceError): boolean {
  const { cause: reason } = (cause ?? {}) as { cause?: { code?: unknown } };
  return reason?.code === "ECONNREFUSED";
}

/** Milliseconds. */
const FIRST_DELAY = 100;
const LONGEST_DELAY = 5000;
const LONGEST_RETRY_AFTER = 30_000;

/** Milliseconds before the retry of this number (1, 2, …): exponential, with jitter, after the time that the service asks for. */
export function retryDelay(retry: number, retryAfter = 0, random: () => number = Math.random): number {
  const longest = Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** (retry - 1));
  return retryAfter + longest / 2 + (random() * longest) / 2;
}

/** The header `Retry-After`, in milliseconds. It has seconds, or a date (RFC 9110, 10.2.3). */
export function parseRetryAfter(text: string | null, now = Date.now()): number | undefined {
  const ms = /^\d+$/.test(text ?? "") ? Number(text) * 1000 : Date.parse(text ?? "") - now;
  return Number.isNaN(ms) ? undefined : Math.min(Math.max(ms, 0), LONGEST_RETRY_AFTER);
}

/** Throws the reason of the signal when it is aborted. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort, { once: true });
  });
}
