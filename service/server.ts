import type { ServerResponse } from "node:http";
import type { ServerOptions as HttpsOptions } from "node:https";
import type { Socket } from "node:net";
import fastify, {
  type FastifyBaseLogger,
  type FastifyReply,
  type FastifyRequest,
  LogController,
  type RouteOptions,
} from "fastify";
import { serializerCompiler, type ZodTypeProvider } from "fastify-type-provider-zod";
import type { Logger } from "pino";
import type { z } from "zod";
import { OverlayError } from "../provider/errors";
import { Admission } from "./admission";
import type { App, ServiceContext } from "./app";
import { limitConnections } from "./connections";
import { guardRoutes } from "./guard";
import { parseJsonBodies } from "./json-body";
import { PROBLEM_TYPE, problemHeaders, toOverlayError, toProblem } from "./problem";
import { validatorFor } from "./requests";
import { ROUTE_GROUPS } from "./routes";
import { registerDocs } from "./routes/docs";
import { parseTraceContext, requestIdOf } from "./trace";
import { answerUnknownRoutes } from "./unknown-routes";

/** Milliseconds for which an idle connection stays open; longer than that of common proxies, so that the proxy closes it. */
const KEEP_ALIVE = 75_000;
/** Milliseconds between checks for requests that arrive too slowly. */
const CHECK_INTERVAL = 1000;
/** Milliseconds in which a TLS handshake must be complete, and in which the headers of a request must arrive. */
const HANDSHAKE_TIMEOUT = 10_000;
const HEADERS_TIMEOUT = 10_000;
const MOST_CONNECTIONS = 20_000;

/** The HTTP server with all its routes. It does not listen yet. */
export async function buildServer(
  service: ServiceContext,
  {
    log,
    version,
    https,
    admission = new Admission(service),
  }: { log: Logger; version: string; https?: HttpsOptions; admission?: Admission },
): Promise<App> {
  const { bodyLimit, requestTimeout } = service.limits;
  const timeouts = {
    headersTimeout: Math.min(HEADERS_TIMEOUT, requestTimeout * 1000),
    connectionsCheckingInterval: CHECK_INTERVAL,
  };
  const app = fastify({
    ...(https ? { https: { ...timeouts, handshakeTimeout: HANDSHAKE_TIMEOUT, ...https } } : { http: timeouts }),
    loggerInstance: log as FastifyBaseLogger,
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: "requestId" }),
    bodyLimit,
    requestTimeout: requestTimeout * 1000,
    keepAliveTimeout: KEEP_ALIVE,
    return503OnClosing: false, // see `drainWhileStopping`
    genReqId: ({ headers }) => requestIdOf(headers),
    clientErrorHandler: answerClientError,
    frameworkErrors: answerError,
    routerOptions: { maxParamLength: 300 },
  }).withTypeProvider<ZodTypeProvider>() as unknown as App;
  limitConnections(app.server, MOST_CONNECTIONS);
  app.removeContentTypeParser("text/plain");
  parseJsonBodies(app, service.limits);
  app.setValidatorCompiler(({ schema }) => validatorFor(schema as z.ZodType));
  app.setSerializerCompiler(serializerCompiler);
  app.setErrorHandler(answerError);
  listRoutes(app);
  logRequests(app);
  measureRequests(app, service);
  drainWhileStopping(app, service);
  answerUnknownRoutes(app);
  await registerDocs(app, version);
  guardRoutes(app, admission);
  for (const { prefix, tag, group } of ROUTE_GROUPS)
    await app.register(async (routes) => group(tagRoutes(routes as App, tag), service), { prefix });
  return app;
}

/** Gives the routes of a group their area in the OpenAPI document. */
function tagRoutes(routes: App, tag: string | undefined): App {
  return routes.addHook("onRoute", (route) => {
    if (tag !== undefined) route.schema = { ...route.schema, tags: [tag] };
  });
}

function listRoutes(app: App): void {
  const routes: RouteOptions[] = [];
  app.decorate("allRoutes", routes);
  app.addHook("onRoute", (route) => {
    routes.push(route);
  });
}

/** One line for each request, without its query: that may contain a token. */
function logRequests(app: App): void {
  app.addHook("onRequest", async (request, reply) => {
    // Answers may contain tokens: no proxy may keep them.
    reply.headers({ "x-request-id": request.id, "cache-control": "no-store", "x-content-type-options": "nosniff" });
    const { traceparent, tracestate } = parseTraceContext(request.headers) ?? {};
    if (traceparent !== undefined) reply.header("traceparent", traceparent);
    if (tracestate !== undefined) reply.header("tracestate", tracestate);
  });
  app.addHook("onResponse", async (request, reply) => {
    const trace = parseTraceContext(request.headers);
    request.log.info({
      method: request.method,
      route: request.routeOptions.url ?? "none",
      status: reply.statusCode,
      ms: Math.round(reply.elapsedTime * 1000) / 1000,
      token: request.caller?.name,
      traceId: trace?.traceId,
      traceState: trace?.tracestate,
    });
  });
}

/** Streams are left out: they last as long as their clients want. */
function measureRequests(app: App, { metrics }: ServiceContext): void {
  app.addHook("onResponse", async ({ method, routeOptions }, reply) => {
    if (String(reply.getHeader("content-type")).startsWith("text/event-stream")) return;
    const route = routeOptions.url ?? "none";
    metrics.observeRequest({ method, route, status: reply.statusCode, seconds: reply.elapsedTime / 1000 });
  });
}

/**
 * Requests on open connections are answered while the process is shutting down, and the client has to connect again for the next one. Proxies that
 * ask for readiness are told to use another instance.
 */
function drainWhileStopping(app: App, { stopping }: ServiceContext): void {
  app.addHook("onSend", async (_request, reply) => {
    if (stopping.aborted) reply.header("connection", "close");
  });
  app.addHook("onRequest", async (request) => {
    if (stopping.aborted && request.routeOptions.url === "/readyz")
      throw new OverlayError("SERVICE_STOPPING", "The service is being stopped.", "Use another instance.");
  });
}

function answerError(given: unknown, request: FastifyRequest, reply: FastifyReply): void {
  const error = toOverlayError(given);
  const problem = toProblem(error);
  if (problem.status >= 500) request.log.error({ code: error.code, err: error.cause ?? error }, error.message);
  reply.code(problem.status).headers(problemHeaders(error)).type(PROBLEM_TYPE).send(JSON.stringify(problem));
}

/** Answers what Node's HTTP parser refuses. There is no request object yet. An answer to an earlier request may be under way: it is cut off. */
function answerClientError(
  given: Error & { code?: string },
  socket: Socket & { _httpMessage?: ServerResponse | null },
): void {
  if (given.code === "ECONNRESET" || socket.destroyed) return;
  if (socket._httpMessage?.headersSent) return void socket.destroy();
  const error = given.code?.startsWith("HPE_") ? malformedError(given) : toOverlayError(given);
  const problem = toProblem(error);
  const body = JSON.stringify(problem);
  if (socket.writable)
    socket.write(
      `HTTP/1.1 ${problem.status} ${problem.title}\r\nContent-Type: ${PROBLEM_TYPE}\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
    );
  socket.destroySoon();
}

const malformedError = (cause: Error & { code?: string }): OverlayError =>
  cause.code === "HPE_HEADER_OVERFLOW"
    ? toOverlayError(cause)
    : new OverlayError("INPUT_INVALID", "The request is not valid HTTP.", "Check the client.", cause);
