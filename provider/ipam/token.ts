import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { isOverlayError, OverlayError } from "../errors";
import { toTimeText } from "../format-time";
import { runnerOfPool } from "../pool-names";
import type { ExpectedToken, Ipam, Lease, TokenClaims } from "./types";

/**
 * A token lets its bearer use one reservation: `ipr1.KID.PAYLOAD.MAC`, where MAC is HMAC-SHA256 over the text before it. It proves without
 * a read of the store that the pool issued it, and for what. Whether the lease is still held only the store can tell. The MAC is compared as
 * text: base64 has several spellings for one value, and only one is accepted.
 */

interface SigningKey {
  id: string;
  secret: string;
}

/** The first key signs, all verify. A new key is added in front; an old one is removed when its last token has expired. */
export type KeyRing = readonly [SigningKey, ...SigningKey[]];

const PREFIX = "ipr1";
const FORM = /^(ipr1\.([\w-]{8})\.([\w-]{1,4000}))\.([\w-]{43})$/;
const SHORTEST_SECRET = 16;

export const newSecret = (): string => randomBytes(32).toString("base64url");

/** A key's id follows from the key, so that rotation needs no bookkeeping. */
const keyOf = (secret: string): SigningKey => ({ id: mac(secret, "key id").slice(0, 8), secret });

const mac = (secret: string, text: string): string => createHmac("sha256", secret).update(text).digest("base64url");

/** From the setting `tokenKeys`, or from the one secret that the store keeps. */
export function keyRing(text: string): KeyRing {
  const secrets = text.split(",").map((secret) => secret.trim());
  const short = secrets.findIndex((secret) => secret.length < SHORTEST_SECRET);
  if (short < 0) return secrets.map(keyOf) as unknown as KeyRing;
  throw new OverlayError(
    "SETTING_INVALID",
    `Setting tokenKeys: key ${short + 1} of ${secrets.length} has ${secrets[short]!.length} characters.`,
    `Give each at least ${SHORTEST_SECRET}, separated by commas; \`openssl rand -base64 32\` makes one.`,
  );
}

export function signToken({ value, expiresAt, ...grant }: TokenClaims, [key]: KeyRing): string {
  const exp = expiresAt === undefined ? {} : { exp: expiresAt / 1000 };
  const payload = Buffer.from(JSON.stringify({ ...grant, value: String(value), ...exp })).toString("base64url");
  const text = `${PREFIX}.${key.id}.${payload}`;
  return `${text}.${mac(key.secret, text)}`;
}

/** Whether the token was signed with a key of the pool. */
export async function isSignedHere(token: string, pool: Pick<Ipam, "openToken">): Promise<boolean> {
  try {
    await pool.openToken(token);
    return true;
  } catch (error) {
    if (isOverlayError(error, "TOKEN_SIGNATURE", "TOKEN_FORMAT")) return false;
    throw error;
  }
}

/** The name of the secret that holds the store's own key ring, written as the setting `tokenKeys` is. */
export const STORED_KEYS = "tokenKeys";

/** Adds keys in front of those that are kept: the first of them signs from now on, and every older token stays valid. */
export const withKeys = (added: string, kept: string | undefined): string =>
  [...new Set([...keyRing(added), ...(kept === undefined ? [] : keyRing(kept))].map(({ secret }) => secret))].join(",");

/** Adds a new key, which signs from now on, and drops all but the newest `keep` of those before it. */
export const rotateKeys = (kept: string | undefined, keep: number): string =>
  withKeys(newSecret(), kept)
    .split(",")
    .slice(0, keep + 1)
    .join(",");

/** The token of a lease on an address: of a runner, or else of the pool by its name. */
export const tokenOf = ({ pool, owner, leaseId, ranges, expiresAt }: Lease, ring: KeyRing): string =>
  signToken(
    {
      pool,
      owner,
      leaseId,
      value: ranges[0]!.first,
      runner: pool.replace(/^runner\//, ""),
      ...(expiresAt !== undefined && { expiresAt }),
    },
    ring,
  );

/** `ring`: undefined if the pool has signed nothing yet. */
export function openToken(token: string, ring: KeyRing | undefined, { runner, now }: ExpectedToken = {}): TokenClaims {
  const [, text, id, payload, given] = FORM.exec(token) ?? [];
  if (text === undefined) throw malformedError(token);
  const key = ring?.find((key) => key.id === id);
  if (!key || !isEqual(mac(key.secret, text), given!)) throw signatureError(key === undefined);
  const grant = grantOf(payload!);
  if (runner !== undefined && !isForRunner(grant, runner)) throw otherRunnerError(grant, runner);
  if (now !== undefined && isTokenExpired(grant, now)) throw tokenExpiredError(grant);
  return grant;
}

/** `NETWORK/RUNNER`, or the runner's name alone. A pool of that name is no runner. */
function isForRunner({ pool }: TokenClaims, runner: string): boolean {
  const found = runnerOfPool(pool);
  return found !== undefined && [found.runner, `${found.network}/${found.runner}`].includes(runner);
}

/** Both are 43 characters of base64url: `FORM` checks the length. */
const isEqual = (a: string, b: string): boolean => timingSafeEqual(Buffer.from(a), Buffer.from(b));

function grantOf(payload: string): TokenClaims {
  const { exp, value, ...rest } = JSON.parse(Buffer.from(payload, "base64url").toString());
  return { ...rest, value: BigInt(value), ...(exp !== undefined && { expiresAt: Math.round(exp * 1000) }) };
}

export const isTokenExpired = ({ expiresAt }: TokenClaims, now: number): boolean =>
  expiresAt !== undefined && now > expiresAt;

const malformedError = (token: string): OverlayError =>
  new OverlayError(
    "TOKEN_FORMAT",
    `This is not a token of this pool, or it is incomplete (${token.length} characters).`,
    `Pass it exactly as it was given out: ${PREFIX}.KEY.PAYLOAD.SIGNATURE.`,
  );

const signatureError = (otherKey: boolean): OverlayError =>
  new OverlayError(
    "TOKEN_SIGNATURE",
    otherKey ? "The token is signed with a key that is not in the key ring." : "The token's signature is wrong.",
    "Reserve again; if keys were rotated, keep the old one in tokenKeys until its tokens are over.",
  );

const otherRunnerError = (grant: TokenClaims, runner: string): OverlayError =>
  new OverlayError("TOKEN_RUNNER", `The token is for runner ${grant.runner}, not for ${runner}.`, "Use it there.");

export const tokenExpiredError = ({ expiresAt, runner }: TokenClaims): OverlayError =>
  new OverlayError(
    "TOKEN_EXPIRED",
    `The token for runner ${runner} ended at ${toTimeText(expiresAt!)}.`,
    "Reserve again, with a longer ttl if need be.",
  );

export const tokenUsedError = ({ runner, leaseId }: TokenClaims, usedBy?: string): OverlayError =>
  new OverlayError(
    "TOKEN_USED",
    usedBy === undefined
      ? `The token's lease ${leaseId} on runner ${runner} was released, or given out anew.`
      : `The token's lease ${leaseId} on runner ${runner} is used by ${usedBy} already.`,
    "Reserve again.",
  );
