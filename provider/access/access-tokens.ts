import { z } from "zod";
import { OverlayError } from "../errors";
import { ACCESS_SCOPES, type AccessToken, type Pool, type Tenant } from "../pool/types";
import { IP_POOLS, networkPool, poolNamed, RUNNERS } from "../pool-names";
import { plainName, resourceName, tenant as tenantObject } from "../resources/inputs";
import { formatToken, hashSecret, newTokenText } from "./token-text";

/** Makes, lists and revokes access tokens. */

const tenantText = z
  .string()
  .regex(/^[^/]+\/[^/]+$/, "must be ORGANIZATION/PROJECT")
  .transform((text) => ({ org: text.split("/")[0], project: text.split("/")[1] }))
  .pipe(tenantObject);

const TEN_YEARS = 315_360_000;

export const accessTokenInput = z.object({
  name: plainName,
  scopes: z
    .array(z.enum(ACCESS_SCOPES, `must be one of ${ACCESS_SCOPES.join(", ")}`))
    .min(1, "must be given at least once"),
  tenant: tenantText.optional(),
  network: resourceName.optional(),
  pool: z.string().min(1).optional(),
  expiresIn: z.number().int().min(1).max(TEN_YEARS, "must be seconds, at most ten years").optional(),
});

export type AccessTokenInput = z.output<typeof accessTokenInput>;

/** Returns the token's text, which is not stored and cannot be shown again. */
export async function createAccessToken(
  { pool, createdBy }: { pool: Pool; createdBy: string },
  input: AccessTokenInput,
  now = Date.now(),
): Promise<{ token: AccessToken; text: string }> {
  await refuseTakenName(pool, input.name, now);
  const { name, scopes, tenant, network, expiresIn } = input;
  const text = newTokenText();
  const token: AccessToken = {
    id: text.id,
    name,
    hash: hashSecret(text.secret),
    scopes: [...new Set(scopes)],
    ...(tenant && { tenant }),
    ...(network !== undefined && { network: await requireNetworkName(pool, network) }),
    ...(input.pool !== undefined && { pool: await requirePoolName(pool, input.pool) }),
    createdAt: now,
    createdBy,
    ...(expiresIn !== undefined && { expiresAt: now + expiresIn * 1000 }),
  };
  await pool.putAccessToken(token);
  return { token, text: formatToken(text) };
}

/** Without tokens that were revoked or have expired, unless `all`; by name. */
export async function listAccessTokens(
  pool: Pool,
  { all = false }: { all?: boolean } = {},
  now = Date.now(),
): Promise<AccessToken[]> {
  const tokens = (await pool.accessTokens()).filter((token) => all || isActive(token, now));
  return tokens.sort((a, b) => (a.name === b.name ? a.createdAt - b.createdAt : a.name < b.name ? -1 : 1));
}

/** By its id or its name. A token that was revoked stays in the list of all tokens. */
export async function revokeAccessToken(pool: Pool, idOrName: string, now = Date.now()): Promise<AccessToken> {
  const active = (await pool.accessTokens()).filter((token) => isActive(token, now));
  const token = active.find(({ id }) => id === idOrName) ?? active.find(({ name }) => name === idOrName);
  if (!token)
    throw new OverlayError(
      "ACCESS_TOKEN_NOT_FOUND",
      `There is no active access token '${idOrName}'.`,
      "`overlayctl access list` shows those that there are.",
    );
  const revoked = { ...token, revokedAt: now };
  await pool.putAccessToken(revoked);
  return revoked;
}

const isActive = ({ revokedAt, expiresAt }: AccessToken, now: number): boolean =>
  revokedAt === undefined && (expiresAt === undefined || expiresAt > now);

/** A name stands for one token, so that it can be revoked by name and the history is clear. */
async function refuseTakenName(pool: Pool, name: string, now: number): Promise<void> {
  const holder = (await listAccessTokens(pool, {}, now)).find((token) => token.name === name);
  if (holder)
    throw new OverlayError(
      "ACCESS_TOKEN_EXISTS",
      `Access token ${holder.id} has the name '${name}' already.`,
      `Choose another name, or revoke it first: \`overlayctl access revoke ${holder.id}\`.`,
    );
}

async function requireNetworkName(pool: Pool, network: string): Promise<string> {
  if (await pool.spec(networkPool(network))) return network;
  throw missingError(`network '${network}'`);
}

/** `web` and `pool/web` are the same pool; `runner/NETWORK/RUNNER` is the subnet of a runner. */
async function requirePoolName(pool: Pool, given: string): Promise<string> {
  const name = given.startsWith(IP_POOLS) || given.startsWith(RUNNERS) ? given : poolNamed(given);
  if (await pool.spec(name)) return name;
  throw missingError(`pool '${given}'`);
}

const missingError = (what: string): OverlayError =>
  new OverlayError("POOL_NOT_FOUND", `There is no ${what} in the store.`, "`overlayctl pool list` shows the names.");

/** An access token for JSON, without the hash. */
export interface AccessTokenInfo {
  id: string;
  name: string;
  scopes: string[];
  tenant?: string;
  network?: string;
  pool?: string;
  createdAt: string;
  createdBy?: string;
  expiresAt?: string;
  revokedAt?: string;
}

export function describeAccessToken(token: AccessToken): AccessTokenInfo {
  const { id, name, scopes, tenant, network, pool, createdAt, createdBy, expiresAt, revokedAt } = token;
  return {
    id,
    name,
    scopes,
    ...(tenant && { tenant: formatTenant(tenant) }),
    ...(network !== undefined && { network }),
    ...(pool !== undefined && { pool }),
    createdAt: formatTime(createdAt),
    ...(createdBy !== undefined && { createdBy }),
    ...(expiresAt !== undefined && { expiresAt: formatTime(expiresAt) }),
    ...(revokedAt !== undefined && { revokedAt: formatTime(revokedAt) }),
  };
}

const formatTenant = ({ org, project }: Tenant): string => `${org}/${project}`;
const formatTime = (time: number): string => new Date(time).toISOString().replace(/\.\d+Z$/, "Z");
