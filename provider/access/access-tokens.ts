import { createHash, randomBytes, timingSafeEqual } from "node:crypto";
import { z } from "zod";
import { OverlayError } from "../errors";
import { formatTime } from "../format-time";
import { ACCESS_SCOPES, type AccessToken } from "../ipam/admin";
import type { Store } from "../ipam/types";
import { COMMAND_LINE } from "../owner";
import { resourceName } from "../resources/inputs";
import { type BoundsInfo, boundsFields, describeBounds, resolveBounds } from "./caller";

/** Makes, lists and revokes access tokens. */

const TEN_YEARS = 315_360_000;

export const accessTokenInput = z.object({
  name: resourceName.refine(
    (name) => name !== COMMAND_LINE,
    `must not be ${COMMAND_LINE}, the name of the command line`,
  ),
  scopes: z
    .array(z.enum(ACCESS_SCOPES, `must be one of ${ACCESS_SCOPES.join(", ")}`))
    .min(1, "must be given at least once"),
  ...boundsFields,
  expiresIn: z.number().int().min(1).max(TEN_YEARS, "must be seconds, at most ten years").optional(),
});

export type AccessTokenInput = z.output<typeof accessTokenInput>;

/** Returns the token's text, which is not stored and cannot be shown again. */
export async function createAccessToken(
  { pool, createdBy }: { pool: Store; createdBy: string },
  input: AccessTokenInput,
  now = Date.now(),
): Promise<{ token: AccessToken; text: string }> {
  const { name, scopes, expiresIn } = input;
  const text = newTokenText();
  const token: AccessToken = {
    id: text.id,
    name,
    hash: hashSecret(text.secret),
    scopes: [...new Set(scopes)],
    ...(await resolveBounds(pool, input)),
    createdAt: now,
    createdBy,
    ...(expiresIn !== undefined && { expiresAt: now + expiresIn * 1000 }),
  };
  await pool.admin.updateAccessTokens((existing) => {
    refuseTakenName(existing, name, now);
    return token;
  });
  return { token, text: formatToken(text) };
}

/** Without tokens that were revoked or have expired, unless `all`; by name. */
export async function listAccessTokens(
  pool: Store,
  { all = false }: { all?: boolean } = {},
  now = Date.now(),
): Promise<AccessToken[]> {
  const tokens = (await pool.admin.accessTokens()).filter((token) => all || isActive(token, now));
  return tokens.sort((a, b) => (a.name === b.name ? a.createdAt - b.createdAt : a.name < b.name ? -1 : 1));
}

/** By its id or its name. A token that was revoked stays in the list of all tokens. */
export async function revokeAccessToken(pool: Store, idOrName: string, now = Date.now()): Promise<AccessToken> {
  return pool.admin.updateAccessTokens((existing) => {
    const active = existing.filter((token) => isActive(token, now));
    const token = active.find(({ id }) => id === idOrName) ?? active.find(({ name }) => name === idOrName);
    if (token) return { ...token, revokedAt: now };
    throw new OverlayError(
      "ACCESS_TOKEN_NOT_FOUND",
      `There is no active access token '${idOrName}'.`,
      "`overlayctl access list` shows those that there are.",
    );
  });
}

const isActive = ({ revokedAt, expiresAt }: AccessToken, now: number): boolean =>
  revokedAt === undefined && (expiresAt === undefined || expiresAt > now);

/** A name stands for one token, so that it can be revoked by name and the history is clear. */
function refuseTakenName(existing: AccessToken[], name: string, now: number): void {
  const holder = existing.find((token) => token.name === name && isActive(token, now));
  if (holder)
    throw new OverlayError(
      "ACCESS_TOKEN_EXISTS",
      `Access token ${holder.id} has the name '${name}' already.`,
      `Choose another name, or revoke it first: \`overlayctl access revoke ${holder.id}\`.`,
    );
}

/** An access token for JSON, without the hash. */
export interface AccessTokenInfo extends BoundsInfo {
  id: string;
  name: string;
  scopes: string[];
  createdAt: string;
  createdBy?: string;
  expiresAt?: string;
  revokedAt?: string;
}

export function describeAccessToken(token: AccessToken): AccessTokenInfo {
  const { id, name, scopes, createdAt, createdBy, expiresAt, revokedAt } = token;
  return {
    id,
    name,
    scopes,
    ...describeBounds(token),
    createdAt: formatTime(createdAt),
    ...(createdBy !== undefined && { createdBy }),
    ...(expiresAt !== undefined && { expiresAt: formatTime(expiresAt) }),
    ...(revokedAt !== undefined && { revokedAt: formatTime(revokedAt) }),
  };
}

/**
 * An access token as its bearer has it: `ovl_ID_SECRET`. The prefix lets secret scanners find it, the id names its row. The store has
 * only the hash of the secret: 256 random bits need no slow hash.
 */
const FORM = /^ovl_([0-9a-f]{8})_([\w-]{43})$/;

export interface TokenText {
  id: string;
  secret: string;
}

export const newTokenText = (): TokenText => ({
  id: randomBytes(4).toString("hex"),
  secret: randomBytes(32).toString("base64url"),
});

export const formatToken = ({ id, secret }: TokenText): string => `ovl_${id}_${secret}`;

export function parseToken(text: string): TokenText | undefined {
  const [, id, secret] = FORM.exec(text) ?? [];
  return id === undefined ? undefined : { id, secret: secret! };
}

export const hashSecret = (secret: string): string => createHash("sha256").update(secret).digest("hex");

/** In constant time. */
export function hasSecret({ hash }: { hash: string }, secret: string): boolean {
  const [kept, given] = [Buffer.from(hash, "hex"), Buffer.from(hashSecret(secret), "hex")];
  return kept.length === given.length && timingSafeEqual(kept, given);
}
