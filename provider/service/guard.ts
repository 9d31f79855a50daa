import type { FastifyRequest } from "fastify";
import { BoundedPool, isBounded } from "../access/bounded-pool";
import { type Caller, requireScope } from "../access/caller";
import { OverlayError } from "../errors";
import { isLoopbackName } from "../loopback";
import type { App, ServiceContext } from "./app";
import { RateLimit } from "./rate-limit";

/** Tokens that are not known from the last second, for each address: each costs a read of the store. */
const UNKNOWN_TOKENS_PER_SECOND = 50;

/** Decides who may use a route, before its body is read. Refuses to start with a route that does not declare its scope. */
export function guardRoutes(app: App, service: ServiceContext): void {
  const findCaller = callerFinder(service);
  const requests = new RateLimit(service.limits.rateLimit);
  app.decorateRequest("caller");
  app.decorateRequest("overlay");
  app.addHook("onRoute", ({ method, url, config }) => {
    if (config?.scope === undefined) throw new Error(`Route ${String(method)} ${url} declares no scope.`);
  });
  app.addHook("onRequest", async (request) => {
    const { scope } = request.routeOptions.config;
    if (scope === "public" || request.is404) return;
    if (scope === undefined) throw new Error(`Route ${request.routeOptions.url} declares no scope.`);
    const caller = await findCaller(request);
    request.caller = caller;
    if (!requests.take(caller.name)) throw rateLimitError(`Access token ${caller.name}`, service.limits.rateLimit);
    requireScope(caller, scope);
    const session = service.pool.session({ actor: caller.name });
    const pool = isBounded(caller) ? new BoundedPool(session, caller) : session;
    const { tokenKeys, tenantDefaults, authenticator } = service;
    const name = authenticator && { caller: caller.name };
    request.overlay = { pool, tokenKeys, tenantDefaults, tenant: caller.tenant, ...name };
  });
}

function callerFinder({ authenticator, operator }: ServiceContext): (request: FastifyRequest) => Promise<Caller> {
  if (!authenticator)
    return async (request) => {
      refuseBrowsers(request);
      return operator;
    };
  const unknown = new RateLimit(UNKNOWN_TOKENS_PER_SECOND);
  return async ({ headers, ip }) => {
    const token = readBearerToken(headers.authorization);
    if (authenticator.isCached(token)) return authenticator.authenticate(token);
    if (!unknown.take(ip)) throw rateLimitError(`Address ${ip}, with unknown tokens,`, UNKNOWN_TOKENS_PER_SECOND);
    const caller = await authenticator.authenticate(token);
    unknown.giveBack(ip);
    return caller;
  };
}

export function readBearerToken(authorization: string | undefined): string {
  const [, token] = /^Bearer +([^\s]+)$/i.exec(authorization ?? "") ?? [];
  if (token !== undefined) return token;
  throw new OverlayError(
    "ACCESS_TOKEN_MISSING",
    "The request has no access token.",
    "Send `Authorization: Bearer TOKEN`; `overlayctl access create` makes a token.",
  );
}

/** Without authentication, a web page in a browser on this machine must not reach the service, also not by a name that leads to loopback. */
function refuseBrowsers({ headers: { host = "", origin } }: FastifyRequest): void {
  const names = [host, ...(origin === undefined ? [] : [origin.replace(/^https?:\/\//, "")])];
  if (names.every((name) => isLoopbackName(name.replace(/:\d+$/, "")))) return;
  throw new OverlayError(
    "ACCESS_DENIED",
    `The service runs without authentication, and answers requests for localhost only, not for ${names.join(" from ")}.`,
    "Use http://127.0.0.1, or start it with authentication.",
  );
}

const rateLimitError = (who: string, perSecond: number): OverlayError =>
  new OverlayError("RATE_LIMITED", `${who} may send ${perSecond} requests a second.`, "Wait a second, and try again.");
