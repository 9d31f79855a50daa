import { isOverlayError, OverlayError } from "../../errors";
import type { IpamSettings } from "../session";
import { isTokenExpired, tokenExpiredError } from "../token";
import {
  type ChangeOptions,
  type Changes,
  type Condition,
  dataEntries,
  type EventPage,
  type EventSelector,
  type ExistingLease,
  type ExpectedToken,
  type Extent,
  type ImportResult,
  type Lease,
  type LeaseFilter,
  type LeaseSelector,
  type OfferRequest,
  type PoolInfo,
  type PoolSelector,
  type Request,
  type Store,
  type StoreIdentity,
  type StoreInfo,
  type TokenClaims,
} from "../types";
import {
  type ClientSession,
  decodeAnswer,
  encodeCall,
  type InputOf,
  MOST_EVENTS,
  MOST_EXTENTS,
  type OperationName,
  type OutputOf,
  PAGE,
  pathOf,
} from "./api";
import { Transport } from "./transport";
import { parseServiceUrl } from "./url";

export interface RemoteSettings {
  offerTtl: number;
  quarantine: number;
  actor?: string | undefined;
  /** The access token. */
  storeToken?: string | undefined;
  tokenKeys?: string | undefined;
}

/** The store of a service, such as `https://overlay.example`. */
export function openRemoteIpam(url: string, settings: RemoteSettings): Store {
  const address = parseServiceUrl(url);
  const token = requireToken(settings.storeToken);
  if (settings.tokenKeys !== undefined) throw tokenKeysError();
  const { offerTtl, quarantine, actor = "unknown" } = settings;
  const client = { actor, offerTtl, quarantine, place: address.place };
  return new RemoteIpam(new Transport({ address, token }), client);
}

/** A store behind a service. */
export class RemoteIpam implements Store {
  constructor(
    private readonly transport: Transport,
    private readonly client: ClientSession,
    private readonly isSession = false,
  ) {}

  get admin(): never {
    throw new OverlayError(
      "ACCESS_DENIED",
      `The service at ${this.client.place} does not administer its store for others.`,
      "Run the command on a machine of the service, with the URL of the store that it has.",
    );
  }

  session({ access, actor, offerTtl, quarantine }: Partial<IpamSettings>): RemoteIpam {
    if (access) throw access.denied(`the service at ${this.client.place}, which has access tokens of its own`);
    const client = {
      ...this.client,
      ...(actor !== undefined && { actor }),
      ...(offerTtl !== undefined && { offerTtl }),
      ...(quarantine !== undefined && { quarantine }),
    };
    return new RemoteIpam(this.transport, client, true);
  }

  async end(): Promise<void> {
    if (!this.isSession) this.transport.close();
  }

  describe(seen?: StoreIdentity): Promise<StoreInfo> {
    if (!seen) return this.#call("describe", {});
    const { id, version, epoch } = seen;
    return this.#call("describe", { seen: { id, version, epoch } });
  }

  offer(request: OfferRequest): Promise<Lease> {
    return this.#call("offer", withoutUser(request));
  }

  async withdraw(offer: { pool: string; owner: string; program: string }): Promise<void> {
    await this.#call("withdraw", offer);
  }

  async claim(requests: Request[]): Promise<Lease[]> {
    return requests.length === 0 ? [] : this.#call("claim", requests.map(withoutUser));
  }

  change(pool: string, leaseId: string, changes: Changes, options: ChangeOptions = {}): Promise<Lease> {
    const call = { pool, leaseId, changes: withoutUser(changes), ...options };
    return this.#call("change", call).catch((error: unknown) => {
      // The change may have been made by the request whose answer was lost.
      if (!isOverlayError(error, "LEASE_CHANGED") || !this.transport.wasRepeated(error)) throw error;
      return this.#call("change", { ...call, onlyIf: conditionAfter(changes) });
    });
  }

  async close(pool: string, leaseId: string, options: { onlyIf?: Condition } = {}): Promise<void> {
    await this.#call("close", { pool, leaseId, ...options });
  }

  async release(
    pool: string,
    leaseId: string,
    options: { onlyIf?: Condition; program?: string } = {},
  ): Promise<boolean> {
    const { result, wasRepeated } = await this.#reply("release", { pool, leaseId, ...options });
    return result || (wasRepeated && (await this.find({ pool, leaseId })) === undefined);
  }

  async touch(pool: string, leaseId: string, options: { ttl?: number } = {}): Promise<void> {
    await this.#call("touch", { pool, leaseId, ...options });
  }

  async importLeases(leases: ExistingLease[], options: { dryRun?: boolean } = {}): Promise<ImportResult> {
    const result = await this.#call("importLeases", { leases: leases.map(withoutUser), ...options });
    const conflicts = result.conflicts.flatMap(({ index, error }) =>
      leases[index] ? [{ lease: leases[index], error }] : [],
    );
    return { ...result, conflicts };
  }

  async signTokens(leases: Lease[]): Promise<string[]> {
    if (leases.length === 0) return [];
    return this.#call(
      "signTokens",
      leases.map(({ pool, leaseId }) => ({ pool, leaseId })),
    );
  }

  async openToken(token: string, { now, ...expected }: ExpectedToken = {}): Promise<TokenClaims> {
    const grant = await this.#call("openToken", { token, ...expected });
    if (now !== undefined && isTokenExpired(grant, now)) throw tokenExpiredError(grant);
    return grant;
  }

  find(selector: LeaseSelector): Promise<Lease | undefined> {
    return this.#call("find", selector);
  }

  /** Reads pages: leases that change meanwhile may be missing, or have changed. */
  async leases(pool: string, { owner, ...page }: LeaseFilter = {}): Promise<Lease[]> {
    if (owner !== undefined) return this.#call("leases", { pool, owner, limit: PAGE });
    return readPages(page, (next) => this.#call("leases", { pool, ...next }), lastValue);
  }

  async pools(selector: PoolSelector = {}): Promise<PoolInfo[]> {
    if ("name" in selector || "endingWith" in selector) return this.#call("pools", selector);
    const { after, limit, ...list } = selector;
    const page = { ...(after !== undefined && { after }), ...(limit !== undefined && { limit }) };
    return readPages(
      page,
      (next) => this.#call("pools", { ...list, ...next }),
      ({ spec }) => spec.name,
    );
  }

  freeExtents(pool: string, { range, limit }: { range?: Extent; limit?: number } = {}): Promise<Extent[]> {
    const bounds = { ...(range && { range }), limit: Math.min(limit ?? Infinity, MOST_EXTENTS) };
    return this.#call("freeExtents", { pool, ...bounds });
  }

  events(selector: EventSelector = {}): Promise<EventPage> {
    const { limit } = selector;
    return this.#call("events", { ...selector, ...(limit !== undefined && { limit: Math.min(limit, MOST_EVENTS) }) });
  }

  async #call<N extends OperationName>(name: N, input: InputOf<N>): Promise<OutputOf<N>> {
    return (await this.#reply(name, input)).result;
  }

  /** `wasRepeated`: the service may have done the same call before. */
  async #reply<N extends OperationName>(
    name: N,
    input: InputOf<N>,
  ): Promise<{ result: OutputOf<N>; wasRepeated: boolean }> {
    const { json, wasRepeated } = await this.transport.post(pathOf(name), encodeCall(name, this.client, input));
    return { result: decodeAnswer(name, json, this.client.place), wasRepeated };
  }
}

/** Reads `limit` entries, or all of them. It stops at a service that answers the same page again. */
async function readPages<T, Position extends bigint | string>(
  { after, limit = Infinity }: { after?: Position; limit?: number },
  read: (page: { after?: Position; limit: number }) => Promise<T[]>,
  positionOf: (entry: T) => Position,
): Promise<T[]> {
  const found: T[] = [];
  for (let from = after; found.length < limit; ) {
    const size = Math.min(PAGE, limit - found.length);
    const page = await read({ limit: size, ...(from !== undefined && { after: from }) });
    found.push(...page);
    const next = page.length < size ? undefined : positionOf(page.at(-1)!);
    if (next === undefined || (from !== undefined && next <= from)) break;
    from = next;
  }
  return found;
}

/** A service takes the user from the access token. */
const withoutUser = <R extends { by?: string }>({ by: _, ...request }: R): Omit<R, "by"> => request;

/** What a lease meets after these changes. Only these fields can be in a condition. */
const conditionAfter = ({ state, usedBy, data }: Changes): Condition => ({
  ...(state !== undefined && { state }),
  ...(usedBy !== undefined && { usedBy }),
  ...(data !== undefined && { data: dataEntries({ data }) }),
});

/** A lease is listed with its lowest extent. */
const lastValue = ({ extents }: Lease): bigint =>
  extents.reduce((lowest, extent) => (extent.first < lowest.first ? extent : lowest)).last;

function requireToken(token: string | undefined): string {
  if (token !== undefined && /^[\x21-\x7e]+$/.test(token)) return token;
  throw new OverlayError(
    "SETTING_INVALID",
    token === undefined ? "The store is a service, and there is no access token for it." : "storeToken is not a token.",
    "Set overlay:storeToken (or OVERLAY_STORE_TOKEN, or OVERLAY_STORE_TOKEN_FILE) to what `overlayctl access create` has printed.",
  );
}

const tokenKeysError = (): OverlayError =>
  new OverlayError(
    "SETTING_INVALID",
    "tokenKeys is set, but the store is a service, which signs tokens itself.",
    "Remove overlay:tokenKeys (OVERLAY_TOKEN_KEYS) here, and set it for the service.",
  );
