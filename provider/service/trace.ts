import { randomUUID } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";

/** W3C trace context, version 00. */
const TRACEPARENT = /^00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;

const REQUEST_ID = /^[\w.:-]{1,128}$/;

export interface TraceParent {
  /** The header as it was received. */
  text: string;
  traceId: string;
}

/** undefined: there is none, or it is malformed and must be ignored. */
export function parseTraceParent({ traceparent }: IncomingHttpHeaders): TraceParent | undefined {
  const [text, traceId] = TRACEPARENT.exec(String(traceparent ?? "")) ?? [];
  return text === undefined ? undefined : { text, traceId: traceId! };
}

/** The client's own `X-Request-Id` if it is plain text, else a new one. */
export function requestIdOf({ "x-request-id": given }: IncomingHttpHeaders): string {
  return typeof given === "string" && REQUEST_ID.test(given) ? given : randomUUID();
}
