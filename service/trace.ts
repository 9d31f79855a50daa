import { randomUUID } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";

/** W3C trace context, version 00. */
const TRACEPARENT = /^00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;

/** A list member of `tracestate`: KEY=VALUE, without a comma, an equals sign or a space at the end of the value. */
const MEMBER = /^[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]$/;
const MOST_MEMBERS = 32;
/** Characters that are passed on. A longer list is shortened: first by its long members, then from its end. */
const LONGEST_STATE = 512;
const LONG_MEMBER = 128;

const REQUEST_ID = /^[\w.:-]{1,128}$/;

export interface TraceContext {
  /** The header as it was received. */
  traceparent: string;
  /** undefined: there is none, or it is malformed. */
  tracestate: string | undefined;
  traceId: string;
}

/** undefined: there is no `traceparent`, or it is malformed and must be ignored, together with `tracestate`. */
export function parseTraceContext({ traceparent, tracestate }: IncomingHttpHeaders): TraceContext | undefined {
  const [text, traceId] = TRACEPARENT.exec(String(traceparent ?? "")) ?? [];
  return text === undefined
    ? undefined
    : { traceparent: text, tracestate: parseTraceState(String(tracestate ?? "")), traceId: traceId! };
}

/** The members of the list, as they are passed on. */
function parseTraceState(text: string): string | undefined {
  const members = text.split(",").flatMap((part) => part.replace(/^[ \t]+|[ \t]+$/g, "") || []);
  if (members.length > MOST_MEMBERS || !members.every((member) => MEMBER.test(member))) return undefined;
  let kept = members;
  if (lengthOf(kept) > LONGEST_STATE) kept = kept.filter(({ length }) => length <= LONG_MEMBER);
  while (lengthOf(kept) > LONGEST_STATE) kept = kept.slice(0, -1);
  return kept.join(",") || undefined;
}

const lengthOf = (members: string[]): number => members.join(",").length;

/** The client's own `X-Request-Id` if it is plain text, else a new one. */
export function requestIdOf({ "x-request-id": given }: IncomingHttpHeaders): string {
  return typeof given === "string" && REQUEST_ID.test(given) ? given : randomUUID();
}
