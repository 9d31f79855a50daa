import { escapeLine } from "../../provider/errors";
import type { Webhook } from "../../provider/ipam/admin";
import { EVENT_ID_HEADER, SIGNATURE_HEADER, signatureOf } from "../../provider/webhooks/webhooks";

/** Milliseconds in which a receiver must answer. */
export const POST_TIMEOUT_MS = 10_000;

/** Longest reason that is kept. */
const LONGEST_REASON = 300;

/**
 * Sends a body to a webhook. Returns undefined if its receiver has accepted it, else the reason. Any answer but 2xx is a failure, also a
 * redirection: it could lead to a place that the operator has not chosen.
 */
export async function post(
  { url, secret }: Webhook,
  { body, eventId }: { body: string; eventId: number },
  signal: AbortSignal,
): Promise<string | undefined> {
  const headers = {
    "content-type": "application/json",
    "user-agent": "pulumi-overlay",
    [SIGNATURE_HEADER]: signatureOf(secret, Math.floor(Date.now() / 1000), body),
    [EVENT_ID_HEADER]: String(eventId),
  };
  const timeout = AbortSignal.timeout(POST_TIMEOUT_MS);
  try {
    const request = {
      method: "POST",
      headers,
      body,
      redirect: "manual",
      signal: AbortSignal.any([timeout, signal]),
    } as const;
    const { ok, status, body: answer } = await fetch(url, request);
    await answer?.cancel();
    return ok ? undefined : `The receiver answered with status ${status}.`;
  } catch (error) {
    if (timeout.aborted) return `The receiver did not answer within ${POST_TIMEOUT_MS / 1000} s.`;
    return escapeLine(`The receiver cannot be reached: ${reasonOf(error)}.`).slice(0, LONGEST_REASON);
  }
}

/** `fetch` has the reason in the cause of its error. */
function reasonOf(error: unknown): string {
  const { cause, message } = error as Error;
  const { code, message: detail } = (cause ?? {}) as { code?: string; message?: string };
  return detail || code || message;
}
