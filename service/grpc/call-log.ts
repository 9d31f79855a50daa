import { Metadata, type ServerUnaryCall, type ServerWritableStream, status } from "@grpc/grpc-js";
import type { Logger } from "pino";
import type { Caller } from "../../provider/access/caller";
import type { OverlayError } from "../../provider/errors";
import type { ServiceContext } from "../app";
import { parseTraceContext, requestIdOf } from "../trace";
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
  const { traceparent, tracestate } = traceOf(call) ?? {};
  if (traceparent !== undefined) trailer.set("traceparent", traceparent);
  if (tracestate !== undefined) trailer.set("tracestate", tracestate);
  return trailer;
}

const traceOf = (call: AnyCall) =>
  parseTraceContext({ traceparent: headerOf(call, "traceparent"), tracestate: headerOf(call, "tracestate") });

/** One line for each call, without its messages: they may contain a token. And its duration for metrics, unless it is a stream. */
export class CallLog {
  caller: Caller | undefined;
  readonly #start = performance.now();
  readonly #log: Logger;
  readonly #metrics: ServiceContext["metrics"];
  readonly #call: AnyCall;
  readonly #isStream: boolean;

  constructor(
    { log, service }: { log: Logger; service: Pick<ServiceContext, "metrics"> },
    // grpc-js gives unary calls the methods of a stream, too.
    { call, isStream }: { call: AnyCall; isStream: boolean },
    trailer: Metadata,
  ) {
    this.#log = log.child({ requestId: headerOf({ metadata: trailer }, "x-request-id") });
    this.#metrics = service.metrics;
    this.#call = call;
    this.#isStream = isStream;
  }

  end(error?: OverlayError): void {
    const code = error ? statusOf(error) : status.OK;
    const isFault = code === status.INTERNAL || code === status.UNAVAILABLE;
    if (error && isFault && error.code !== "SERVICE_STOPPING")
      this.#log.error({ code: error.code, err: error.cause ?? error }, error.message);
    const [method, name] = [this.#call.getPath(), this.#call.cancelled ? this.#reasonOfCancel() : status[code]!];
    const ms = performance.now() - this.#start;
    const trace = traceOf(this.#call);
    if (!this.#isStream) this.#metrics.observeCall({ method, status: name, seconds: ms / 1000 });
    this.#log.info({
      method,
      status: name,
      ms: Math.round(ms * 1000) / 1000,
      token: this.caller?.name,
      traceId: trace?.traceId,
      traceState: trace?.tracestate,
    });
  }

  #reasonOfCancel(): string {
    return Number(this.#call.getDeadline()) <= Date.now() ? "DEADLINE_EXCEEDED" : "CANCELLED";
  }
}
