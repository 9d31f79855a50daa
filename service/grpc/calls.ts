import { once } from "node:events";
import type { handleServerStreamingCall, handleUnaryCall, Metadata, ServiceError } from "@grpc/grpc-js";
import type { Logger } from "pino";
import { categoryOf, isOverlayError, OverlayError } from "../../provider/errors";
import type { Admission, Credentials } from "../admission";
import type { ServiceContext } from "../app";
import { toOverlayError } from "../problem";
import { invalidInputError } from "../requests";
import { isOptional, type MethodDefinition } from "./api";
import { type AnyCall, CallLog, headerOf, type Message, type StreamCall, trailerOf } from "./call-log";
import type { Connections } from "./connections";
import type { CallContext, Method, StreamMethod, UnaryMethod } from "./methods";
import { toServiceError } from "./status";

/** The way of a call: its caller, its request, its function, its answer. */

export interface CallServices {
  service: ServiceContext;
  admission: Admission;
  log: Logger;
  /** Calls under way. */
  active: Set<Promise<void>>;
  connections: Connections;
}

export const handleUnary =
  (services: CallServices, definition: MethodDefinition, method: UnaryMethod): handleUnaryCall<Message, object> =>
  (call, answer) =>
    serveCall(services, call, {
      isStream: definition.responseStream,
      run: async (log, trailer) => {
        const { context, request } = await admitCall(services, call, { definition, method, log });
        answer(null, await method.run(context, request), trailer);
      },
      fail: (error) => answer(error),
    });

export const handleStream =
  (
    services: CallServices,
    definition: MethodDefinition,
    method: StreamMethod,
  ): handleServerStreamingCall<Message, object> =>
  (call) =>
    serveCall(services, call, {
      isStream: definition.responseStream,
      run: async (log, trailer) => {
        const { context, request } = await admitCall(services, call, { definition, method, log });
        const { stopping } = services.service;
        const signal = abortedWith(call, stopping);
        for await (const message of method.stream(context, request, signal)) {
          await refuseRevoked(services, call);
          await send(call, message, signal);
        }
        if (stopping.aborted) throw stoppingError();
        call.end(trailer);
      },
      fail: (error) => call.emit("error", error),
    });

interface CallSteps {
  isStream: boolean;
  run(log: CallLog, trailer: Metadata): Promise<void>;
  fail(error: ServiceError): void;
}

function serveCall(services: CallServices, call: AnyCall, { isStream, run, fail }: CallSteps): void {
  const { active } = services;
  const trailer = trailerOf(call);
  const callLog = new CallLog(services, { call, isStream }, trailer);
  const done = run(callLog, trailer).then(
    () => callLog.end(),
    (reason: unknown) => {
      const error = toOverlayError(reason);
      callLog.end(error);
      fail(toServiceError(error, trailer));
    },
  );
  active.add(done);
  void done.finally(() => active.delete(done));
}

/** Nothing is done for a call whose client has gone, or whose deadline has passed. */
async function admitCall(
  { service, admission, connections }: CallServices,
  call: AnyCall,
  { definition, method, log }: { definition: MethodDefinition; method: Method; log: CallLog },
): Promise<{ context: CallContext; request: Message }> {
  if (service.stopping.aborted) throw stoppingError();
  const caller = await admission.identify(credentialsOf(call), method);
  log.caller = caller;
  connections.admit(call.getPeer());
  const overlay = admission.admit(caller, method.scope);
  const request = parseRequest(method, withoutDefaults(call.request, definition));
  if (call.cancelled) throw cancelledError();
  return { context: { overlay, caller, service }, request };
}

const credentialsOf = (call: AnyCall): Credentials => ({
  authorization: headerOf(call, "authorization"),
  host: call.getHost(),
  origin: headerOf(call, "origin"),
});

/** The token of a stream may be revoked. A store that does not answer does not end it. */
async function refuseRevoked({ admission }: CallServices, call: AnyCall): Promise<void> {
  await admission.identify(credentialsOf(call)).catch((error: unknown) => {
    if (isOverlayError(error) && categoryOf(error.code) === "unauthenticated") throw error;
  });
}

/** Some clients send fields that are not set, as empty text, 0 or false. Only `optional` fields may have these values. */
function withoutDefaults(message: Message, definition: MethodDefinition): Message {
  const isDefault = (value: unknown): boolean => value === "" || value === 0 || value === false;
  const isGiven = ([name, value]: [string, unknown]): boolean => !isDefault(value) || isOptional(definition, name);
  return Object.fromEntries(Object.entries(message).filter(isGiven));
}

function parseRequest({ request }: Method, given: Message): Message {
  const parsed = request.safeParse(given);
  if (parsed.success) return parsed.data;
  throw invalidInputError(request, given, parsed.error, "See overlay.proto.");
}

/** The client of a stream may be slower than its messages. */
async function send(call: StreamCall, message: object, signal: AbortSignal): Promise<void> {
  if (signal.aborted || call.write(message)) return;
  await once(call, "drain", { signal }).catch(() => {});
}

/** Aborted when the client has gone, the deadline has passed or the service is shutting down. */
function abortedWith(call: StreamCall, stopping: AbortSignal): AbortSignal {
  const gone = new AbortController();
  call.on("cancelled", () => gone.abort());
  if (call.cancelled) gone.abort();
  return AbortSignal.any([gone.signal, stopping]);
}

const stoppingError = (): OverlayError =>
  new OverlayError("SERVICE_STOPPING", "The service is being stopped.", "Try again, or use another instance.");

const cancelledError = (): OverlayError =>
  new OverlayError("REQUEST_TIMEOUT", "The client has gone, or its deadline has passed.", "Give it more time.");
