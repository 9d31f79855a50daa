import type { IncomingMessage, ServerResponse } from "node:http";
import type { FastifyBaseLogger, FastifyInstance, RawServerDefault, RouteOptions } from "fastify";
import type { ZodTypeProvider } from "fastify-type-provider-zod";
import type { Authenticator } from "../provider/access/authenticate";
import type { Caller, Scope } from "../provider/access/caller";
import type { Store } from "../provider/ipam/types";
import type { Context } from "../provider/reservations";
import type { WebhookDeliveries } from "./events/deliveries";
import type { EventFeed } from "./events/feed";
import type { OpenStreams } from "./events/open-streams";
import type { Metrics } from "./metrics/metrics";

/** What a route demands of its caller; `public`: no access token. */
export type RouteScope = Scope | "public";

declare module "fastify" {
  interface FastifyContextConfig {
    scope?: RouteScope;
    /** false: it is served while the store does not answer, to callers that are known. */
    needsStore?: boolean;
    /**
     * Statuses that the route can fail with, other than those that every route of its kind has (`answers.ts`). 404: it names what may not exist.
     * 409: the state of the store forbids it. 410: what it names has expired or is no longer kept.
     */
    failures?: (404 | 409 | 410 | 503)[];
    /** A body, or the parts of the path, that work on the store that `--demo` fills, after the examples of the routes before it. */
    example?: Record<string, unknown>;
  }
  interface FastifyInstance {
    allRoutes: RouteOptions[];
  }
  interface FastifyRequest {
    /** Set before the handler of every route that is not public. */
    caller: Caller;
    /** For the functions of `reservations/`, in the bounds of the caller. */
    overlay: Context;
    /** Counts rows of the store in the limit of the caller. `overlay` does that itself. */
    rowsRead: (rows: number) => void;
  }
}

/** The server, with routes whose types follow from their zod schemas. */
export type App = FastifyInstance<
  RawServerDefault,
  IncomingMessage,
  ServerResponse,
  FastifyBaseLogger,
  ZodTypeProvider
>;

/** What routes need. */
export interface ServiceContext {
  pool: Store;
  tokenKeys?: string | undefined;
  tenantDefaults?: Context["tenantDefaults"];
  /** Without one, every caller is the operator. */
  authenticator?: Authenticator;
  /** Of requests without authentication. */
  operator: Caller;
  limits: Limits;
  /** Events of the store, of all processes. */
  feed: EventFeed;
  streams: OpenStreams;
  deliveries: WebhookDeliveries;
  metrics: Metrics;
  /** Metrics need no access token. */
  metricsPublic: boolean;
  /** Aborted when the process was told to end. */
  stopping: AbortSignal;
}

export interface Limits {
  /** Bytes of a body. */
  bodyLimit: number;
  /** Entries of a page. */
  pageLimit: number;
  /** Requests in a second for each access token. */
  rateLimit: number;
  /** Time limit for receiving a request, in seconds. */
  requestTimeout: number;
}

/** A group of routes, registered under a prefix. */
export type RouteGroup = (app: App, service: ServiceContext) => void;
