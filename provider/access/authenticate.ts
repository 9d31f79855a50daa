import { isOverlayError, OverlayError } from "../errors";
import type { AccessToken, StoreAdmin } from "../ipam/admin";
import { hasSecret, parseToken } from "./access-tokens";
import type { Caller } from "./caller";

/** A revoked token is refused after this time at the latest, also if another process revoked it. Milliseconds. */
const CACHE_MS = 1000;

/** Rows and unknown ids that are kept at most, each. */
const MOST_KEPT = 10_000;

/** While the store does not answer, a token is known for so long. Milliseconds. */
const REMEMBERED_MS = 600_000;

interface CachedRow {
  row: AccessToken;
  readAt: number;
}

/** Finds the caller of an access token. */
export class Authenticator {
  /** The row that was read last is the last one. */
  readonly #rows = new Map<string, CachedRow>();
  /** Ids that the store did not have, and when it was asked. */
  readonly #unknown = new Map<string, number>();
  #ids: { readAt: number; read: Promise<Set<string>> } | undefined;
  /** When the store failed last. */
  #failedAt = -Infinity;

  constructor(
    private readonly admin: Pick<StoreAdmin, "findAccessToken" | "accessTokens">,
    private readonly now: () => number = Date.now,
  ) {}

  /** `ACCESS_TOKEN_INVALID`, for a reason that only the bearer of the right secret learns. */
  async authenticate(text: string): Promise<Caller> {
    const given = parseToken(text);
    return this.#check(given && (await this.#find(given.id)), given?.secret);
  }

  /**
   * For a request that needs no store. While the store does not answer, a token counts as it was read last, in the last ten minutes. `withTimeout`
   * bounds the time for which the store is asked.
   */
  async authenticateWithoutStore(text: string, withTimeout: <T>(work: Promise<T>) => Promise<T>): Promise<Caller> {
    const given = parseToken(text);
    const remembered = given && this.#remembered(given.id);
    if (!given || !remembered) return withTimeout(this.authenticate(text));
    if (this.now() - this.#failedAt < CACHE_MS) return this.#check(remembered.row, given.secret);
    return withTimeout(this.authenticate(text)).catch((error: unknown) => {
      if (isOverlayError(error, "ACCESS_TOKEN_INVALID")) throw error;
      this.#failedAt = this.now();
      return this.#check(remembered.row, given.secret);
    });
  }

  /** Whether a token costs no more than a read of one row in a second: its id is known, or it is no token. */
  isKnown(text: string): boolean {
    const given = parseToken(text);
    return !given || this.#remembered(given.id) !== undefined || this.#isUnknown(given.id);
  }

  /** Whether the store had the token a second ago. The ids of all tokens are read at most once in a second. */
  async isListed(text: string): Promise<boolean> {
    const given = parseToken(text);
    if (!this.#ids || this.now() - this.#ids.readAt >= CACHE_MS) {
      const read = this.admin.accessTokens().then((tokens) => new Set(tokens.map(({ id }) => id)));
      this.#ids = { readAt: this.now(), read };
    }
    const ids = await this.#ids.read;
    return given !== undefined && ids.has(given.id);
  }

  #check(row: AccessToken | undefined, secret = ""): Caller {
    if (!row || !hasSecret(row, secret)) throw invalidTokenError("is unknown");
    if (row.revokedAt !== undefined) throw invalidTokenError(`${row.name} was revoked`);
    if (row.expiresAt !== undefined && row.expiresAt <= this.now()) throw invalidTokenError(`${row.name} has expired`);
    const { name, scopes, tenant, network, pool } = row;
    return { name, scopes, ...(tenant && { tenant }), ...(network && { network }), ...(pool && { pool }) };
  }

  async #find(id: string): Promise<AccessToken | undefined> {
    const cached = this.#rows.get(id);
    if (cached && this.now() - cached.readAt < CACHE_MS) return cached.row;
    if (this.#isUnknown(id)) return undefined;
    const readAt = this.now(); // before the read: what changes meanwhile is read again in time
    const row = await this.admin.findAccessToken(id);
    this.#rows.delete(id);
    if (row) keep(this.#rows, id, { row, readAt });
    else keep(this.#unknown, id, readAt);
    return row;
  }

  #remembered(id: string): CachedRow | undefined {
    const cached = this.#rows.get(id);
    return cached && this.now() - cached.readAt < REMEMBERED_MS ? cached : undefined;
  }

  #isUnknown(id: string): boolean {
    const readAt = this.#unknown.get(id);
    return readAt !== undefined && this.now() - readAt < CACHE_MS;
  }
}

/** As the last entry. The first one, which is the oldest, is dropped if there are too many. */
function keep<V>(map: Map<string, V>, key: string, value: V): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > MOST_KEPT) map.delete(map.keys().next().value!);
}

const invalidTokenError = (why: string): OverlayError =>
  new OverlayError(
    "ACCESS_TOKEN_INVALID",
    `The access token ${why}.`,
    "Use one that `overlayctl access create` has printed, and `overlayctl access list` still shows.",
  );
