import { isOverlayError, OverlayError } from "../../errors";
import { PAGE } from "../interface";
import { positionOf } from "../ranges";
import { isTokenExpired, tokenExpiredError } from "../token";
import { type Changes, type Condition, dataEntries, type ExistingLease, type ImportResult, type Store } from "../types";
import {
  answerOf,
  bodyOf,
  type ClientSession,
  type InputOf,
  MOST_LEASES,
  MOST_RANGES,
  type OperationName,
  type OutputOf,
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

/** A store behind a service, for one user. Each method sends the operation of its name. */
class RemoteIpam implements Store {
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

  readonly session: Store["session"] = ({ access, actor, offerTtl, quarantine }) => {
    if (access) throw access.denied(`the service at ${this.client.place}, which has access tokens of its own`);
    const { client } = this;
    const options = {
      actor: actor ?? client.actor,
      offerTtl: offerTtl ?? client.offerTtl,
      quarantine: quarantine ?? client.quarantine,
    };
    return new RemoteIpam(this.transport, { ...client, ...options }, true);
  };

  readonly end: Store["end"] = async () => {
    if (!this.isSession) this.transport.close();
  };

  readonly describe: Store["describe"] = (seen) =>
    this.#call("describe", seen ? { seen: { id: seen.id, version: seen.version, epoch: seen.epoch } } : {});

  readonly offer: Store["offer"] = (request) => this.#call("offer", withoutUser(request));

  readonly withdraw: Store["withdraw"] = (offer) => this.#call("withdraw", offer);

  readonly claim: Store["claim"] = async (requests) =>
    requests.length === 0 ? [] : this.#call("claim", requests.map(withoutUser));

  readonly change: Store["change"] = (pool, leaseId, changes, options = {}) => {
    const given = { pool, leaseId, changes: withoutUser(changes), ...options };
    return this.#call("change", given).catch((error: unknown) => {
      // The change may have been made by the request whose answer was lost.
      if (!isOverlayError(error, "LEASE_CHANGED") || !this.transport.wasRepeated(error)) throw error;
      return this.#call("change", { ...given, onlyIf: conditionAfter(changes) });
    });
  };

  readonly close: Store["close"] = (pool, leaseId, options = {}) => this.#call("close", { pool, leaseId, ...options });

  readonly release: Store["release"] = async (pool, leaseId, options = {}) => {
    const { result, wasRepeated } = await this.#post("release", { pool, leaseId, ...options });
    return result || (wasRepeated && (await this.find({ pool, leaseId })) === undefined);
  };

  readonly touch: Store["touch"] = (pool, leaseId, options = {}) => this.#call("touch", { pool, leaseId, ...options });

  /** Many leases are checked first, and then added in parts: a conflict that arises meanwhile leaves the parts before it. */
  readonly importLeases: Store["importLeases"] = async (leases, { dryRun = false } = {}) => {
    const isInParts = leases.length > MOST_LEASES;
    const result = await this.#importParts(leases, dryRun || isInParts);
    return dryRun || !isInParts || result.conflicts.length > 0 ? result : this.#importParts(leases, false);
  };

  async #importParts(leases: ExistingLease[], dryRun: boolean): Promise<ImportResult> {
    const all: ImportResult = { added: [], unchanged: [], conflicts: [] };
    for (const part of partsOf(leases)) {
      const { conflicts, ...found } = await this.#call("importLeases", { leases: part.map(withoutUser), dryRun });
      const known = conflicts.filter(({ index }) => index < part.length);
      all.added.push(...found.added);
      all.unchanged.push(...found.unchanged);
      all.conflicts.push(...known.map(({ index, error }) => ({ lease: part[index]!, error })));
      if (conflicts.length > 0 && !dryRun) break;
    }
    return all;
  }

  readonly signTokens: Store["signTokens"] = async (leases) => {
    const tokens: string[] = [];
    for (const part of partsOf(leases)) {
      const places = part.map(({ pool, leaseId }) => ({ pool, leaseId }));
      tokens.push(...(await this.#call("signTokens", places)));
    }
    return tokens;
  };

  readonly openToken: Store["openToken"] = async (token, { now, ...expected } = {}) => {
    const claims = await this.#call("openToken", { token, ...expected });
    if (now !== undefined && isTokenExpired(claims, now)) throw tokenExpiredError(claims);
    return claims;
  };

  readonly find: Store["find"] = (selector) => this.#call("find", selector);

  /** Reads pages: leases that change meanwhile may be missing, or have changed. */
  readonly leases: Store["leases"] = async (pool, { owner, ...page } = {}) => {
    if (owner !== undefined) return this.#call("leases", { pool, owner, limit: PAGE });
    return readPages(page, (next) => this.#call("leases", { pool, ...next }), positionOf);
  };

  readonly pools: Store["pools"] = async (selector = {}) => {
    if ("name" in selector) return this.#call("pools", selector);
    const { after, limit, ...list } = selector;
    const page = { ...(after !== undefined && { after }), ...(limit !== undefined && { limit }) };
    return readPages(
      page,
      (next) => this.#call("pools", { ...list, ...next }),
      ({ spec }) => spec.name,
    );
  };

  readonly freeRanges: Store["freeRanges"] = (pool, { range, limit = MOST_RANGES } = {}) =>
    this.#call("freeRanges", { pool, ...(range && { range }), limit: Math.min(limit, MOST_RANGES) });

  readonly events: Store["events"] = ({ limit = PAGE, ...selector } = {}) =>
    this.#call("events", { ...selector, limit: Math.min(limit, PAGE) });

  async #call<N extends OperationName>(name: N, input: InputOf<N>): Promise<OutputOf<N>> {
    return (await this.#post(name, input)).result;
  }

  /** `wasRepeated`: the service may have done the same call before. */
  async #post<N extends OperationName>(
    name: N,
    input: InputOf<N>,
  ): Promise<{ result: OutputOf<N>; wasRepeated: boolean }> {
    const body = encodeCall(name, this.client, input);
    const { json, wasRepeated } = await this.transport.post(`/api/pool/v1/${name}`, body);
    return { result: decodeAnswer(name, json, this.client.place), wasRepeated };
  }
}

function encodeCall<N extends OperationName>(name: N, session: ClientSession, input: InputOf<N>): unknown {
  const encoded = bodyOf(name).safeEncode({ session, input } as Parameters<
    ReturnType<typeof bodyOf<N>>["safeEncode"]
  >[0]);
  if (encoded.success) return encoded.data;
  const { path, message } = encoded.error.issues[0]!;
  throw new OverlayError("INPUT_INVALID", `${path.slice(1).join(".")} ${message}.`, "Correct it.");
}

/** Rejects what is not an answer of the service, such as that of a program of another kind. */
function decodeAnswer<N extends OperationName>(name: N, json: unknown, place?: string): OutputOf<N> {
  const decoded = answerOf(name).safeParse(json);
  if (decoded.success) return decoded.data.result as OutputOf<N>;
  const { path, message } = decoded.error.issues[0]!;
  throw new OverlayError(
    "STORE_UNAVAILABLE",
    `The answer of the service at ${place} to ${name} is not valid: ${[...path, ""].join(".")} ${message}.`,
    "Set overlay:store to the URL of `overlayctl serve`, of this release or a newer one.",
  );
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

const partsOf = <T>(all: T[]): T[][] =>
  Array.from({ length: Math.ceil(all.length / MOST_LEASES) }, (_, i) =>
    all.slice(i * MOST_LEASES, (i + 1) * MOST_LEASES),
  );

/** A service takes the user from the access token. */
const withoutUser = <R extends { by?: string }>({ by: _, ...request }: R): Omit<R, "by"> => request;

/** What a lease meets after these changes. Only these fields can be in a condition. */
const conditionAfter = ({ state, usedBy, data }: Changes): Condition => ({
  ...(state !== undefined && { state }),
  ...(usedBy !== undefined && { usedBy }),
  ...(data !== undefined && { data: dataEntries({ data }) }),
});

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
