import { Metadata, type ServerUnaryCall, type ServerWritableStream, status } from "@grpc/grpc-js";
import type { Logger } from "pino";
import type { Caller } from "../../access/caller";
import type { OverlayError } from "../../errors";
import { parseTraceParent, requestIdOf } from "../trace";
import { statusOf } from "./status";

/** A request as it is decoded. */
export type Message = Record<string, unknown>;
export type UnaryCall = ServerUnaryCall<Message, object>;
export type StreamCall = ServerWritableStream<Message, object>;
export type AnyCall = UnaryCall | StreamCall;

export function headerOf({ metadata }: Pick<AnyCall, "metadata">, name: string): string | undefined {
  const [value] = metadata.get(name);
  return typeof value === "string" ? value : undefined;
}

/** Sent at the end of a call. */
export function trailerOf(call: AnyCall): Metadata {
  const trailer = new Metadata();
  trailer.set("x-request-id", requestIdOf({ "x-request-id": headerOf(call, "x-request-id") }));
  const trace = traceOf(call);
  if (trace) trailer.set("traceparent", trace.text);
  return trailer;
}

const traceOf = (call: AnyCall) => parseTraceParent({ traceparent: headerOf(call, "traceparent") });

/** One line for each call, without its messages: they may contain a token. */
export class CallLog {
  caller: Caller | undefined;
  readonly #start = performance.now();
  readonly #log: Logger;

  constructor(
    log: Logger,
    private readonly call: AnyCall,
    trailer: Metadata,
  ) {
    this.#log = log.child({ requestId: headerOf({ metadata: trailer }, "x-request-id") });
  }

  end(error?: OverlayError): void {
    const code = error ? statusOf(error) : status.OK;
    const isFault = code === status.INTERNAL || code === status.UNAVAILABLE;
    if (error && isFault && error.code !== "SERVICE_STOPPING")
      this.#log.error({ code: error.code, err: error.cause ?? error }, error.message);
    this.#log.info({
      method: this.call.getPath(),
      status: this.call.cancelled ? this.#reasonOfCancel() : status[code],
      ms: Math.round((performance.now() - this.#start) * 1000) / 1000,
      token: this.caller?.name,
      traceId: traceOf(this.call)?.traceId,
    });
  }

  #reasonOfCancel(): string {
    return Number(this.call.getDeadline()) <= Date.now() ? "DEADLINE_EXCEEDED" : "CANCELLED";
  }
}
