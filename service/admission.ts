import type { Authenticator } from "../provider/access/authenticate";
import { type Caller, hasScope, requireScope, type Scope } from "../provider/access/caller";
import { openSession } from "../provider/access/tenant-ipam";
import { OverlayError } from "../provider/errors";
import { isLoopbackName } from "../provider/loopback";
import type { Context } from "../provider/reservations";
import type { ServiceContext } from "./app";
import { RateLimit } from "./rate-limit";
import { withStoreTimeout } from "./readiness";

/** Tokens whose ids were not seen lately and that turn out to be invalid. Each costs a read of the store. */
const UNKNOWN_TOKENS_PER_SECOND = 50;

/** A request that reads many rows of the store counts as one more for so many. */
const ROWS_PER_REQUEST = 20;

/** The one key of a limit for all callers together. */
const ALL = "";

/** What an interface knows of a request before it is admitted. */
export interface Credentials {
  /** `Bearer TOKEN`. */
  authorization: string | undefined;
  /** The name under which the client reaches the service. */
  host: string | undefined;
  /** The site of the page, if the client is a browser. */
  origin?: string | undefined;
  /** The header Sec-Fetch-Site: how that page's site is related to the service. Browsers send it also where they send no origin. */
  fetchSite?: string | undefined;
}

/** Decides whether a caller may make a request, for all interfaces of a service: they share the limits of an access token. */
export class Admission {
  readonly #requests: RateLimit;
  readonly #lookups = new RateLimit(UNKNOWN_TOKENS_PER_SECOND);

  constructor(private readonly service: ServiceContext) {
    this.#requests = new RateLimit(service.limits.rateLimit);
  }

  /** The caller of a request; without authentication, the operator. `needsStore` false: the request is served while the store does not answer. */
  async identify(request: Credentials, { needsStore = true }: { needsStore?: boolean } = {}): Promise<Caller> {
    const { authenticator, operator } = this.service;
    if (!authenticator) {
      this.refuseOtherSites(request);
      return operator;
    }
    const token = readBearerToken(request.authorization);
    const isKnown = authenticator.isKnown(token);
    if (!isKnown) await this.#limitLookups(authenticator, token);
    const caller = await (needsStore
      ? authenticator.authenticate(token)
      : authenticator.authenticateWithoutStore(token, withStoreTimeout));
    if (!isKnown) this.#lookups.giveBack(ALL);
    return caller;
  }

  /** Without authentication, also for routes that need none. */
  refuseOtherSites(request: Credentials): void {
    if (!this.service.authenticator) refuseBrowsers(request);
  }

  /** Past the limit, only tokens are looked up that were in the store a second ago. So invalid ones neither load the store nor lock out others. */
  async #limitLookups(authenticator: Authenticator, token: string): Promise<void> {
    if (this.#lookups.take(ALL) || (await authenticator.isListed(token))) return;
    throw new OverlayError(
      "RATE_LIMITED",
      `More than ${UNKNOWN_TOKENS_PER_SECOND} unknown access tokens were sent in a second, and this one is unknown, too.`,
      "Check the token. One that was just made is known after a second.",
    );
  }

  /** Counts rows of the store that a caller has read as requests. */
  chargeTo(caller: Caller): (rows: number) => void {
    return (rows) => this.#requests.charge(caller.name, Math.floor(rows / ROWS_PER_REQUEST));
  }

  /** For the functions of `reservations/`, in the bounds of the caller. */
  admit(caller: Caller, scope: Scope): Context {
    const { limits, tokenKeys, tenantDefaults, authenticator } = this.service;
    if (!this.#requests.take(caller.name)) throw rateLimitError(`Access token ${caller.name}`, limits.rateLimit);
    requireScope(caller, scope);
    const pool = openSession(this.service.pool, caller, { tenantDefaults, rowsRead: this.chargeTo(caller) });
    const name = authenticator && { caller: caller.name };
    return {
      pool,
      tokenKeys,
      tenantDefaults,
      tenant: caller.tenant,
      mayOpenBlocks: hasScope(caller, "admin"),
      ...name,
    };
  }
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

/**
 * Without authentication, a web page in a browser on this machine must not reach the service, also not by a name that leads to loopback. Only
 * its own pages may, under the name and port that they were loaded from.
 */
function refuseBrowsers({ host = "", origin, fetchSite = "none" }: Credentials): void {
  const names = [host, ...(origin === undefined ? [] : [origin.replace(/^https?:\/\//, "")])];
  const isOwnPage = fetchSite === "same-origin" || fetchSite === "none";
  if (isLoopbackName(host.replace(/:\d+$/, "")) && names.every((name) => name === host) && isOwnPage) return;
  throw new OverlayError(
    "ACCESS_DENIED",
    `The service runs without authentication, and answers requests for localhost only, not for ${names.join(" from ")}${isOwnPage ? "" : ` from another site`}.`,
    "Use http://127.0.0.1, or start it with authentication.",
  );
}

const rateLimitError = (caller: string, perSecond: number): OverlayError =>
  new OverlayError(
    "RATE_LIMITED",
    `${caller} may send ${perSecond} requests a second, and fewer that read many leases.`,
    "Wait a second, and try again.",
  );
