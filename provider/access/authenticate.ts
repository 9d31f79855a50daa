import { OverlayError } from "../errors";
import type { AccessToken, Pool } from "../pool/types";
import type { Caller } from "./caller";
import { hasSecret, parseToken } from "./token-text";

/** A revoked token is refused after this time at the latest, also if another process revoked it. Milliseconds. */
const CACHE_MS = 1000;

/** Rows that are kept at most: one for each token in use, and unknown ids that were tried. */
const CACHE_ROWS = 10_000;

interface CachedRow {
  row: AccessToken | undefined;
  readAt: number;
}

/** Finds the caller of an access token. */
export class Authenticator {
  readonly #cache = new Map<string, CachedRow>();

  constructor(
    private readonly pool: Pick<Pool, "findAccessToken">,
    private readonly now: () => number = Date.now,
  ) {}

  /** `ACCESS_TOKEN_INVALID`, for a reason that only the bearer of the right secret learns. */
  async authenticate(text: string): Promise<Caller> {
    const given = parseToken(text);
    const row = given && (await this.#find(given.id));
    if (!row || !hasSecret(row, given.secret)) throw invalidTokenError("is unknown");
    if (row.revokedAt !== undefined) throw invalidTokenError(`${row.name} was revoked`);
    if (row.expiresAt !== undefined && row.expiresAt <= this.now()) throw invalidTokenError(`${row.name} has expired`);
    const { name, scopes, tenant, network, pool } = row;
    return { name, scopes, ...(tenant && { tenant }), ...(network && { network }), ...(pool && { pool }) };
  }

  /** Whether the next call needs no read of the store. */
  isCached(text: string): boolean {
    const given = parseToken(text);
    return given === undefined || this.#cached(given.id) !== undefined;
  }

  async #find(id: string): Promise<AccessToken | undefined> {
    const cached = this.#cached(id);
    if (cached) return cached.row;
    const readAt = this.now(); // before the read: what changes meanwhile is read again in time
    const row = await this.pool.findAccessToken(id);
    if (this.#cache.size >= CACHE_ROWS) this.#cache.clear();
    this.#cache.set(id, { row, readAt });
    return row;
  }

  #cached(id: string): CachedRow | undefined {
    const cached = this.#cache.get(id);
    return cached && this.now() - cached.readAt < CACHE_MS ? cached : undefined;
  }
}

const invalidTokenError = (why: string): OverlayError =>
  new OverlayError(
    "ACCESS_TOKEN_INVALID",
    `The access token ${why}.`,
    "Use one that `overlayctl access create` has printed, and `overlayctl access list` still shows.",
  );
