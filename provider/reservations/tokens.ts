import type { Validation } from "../answers";
import { OverlayError } from "../errors";
import { formatTime } from "../format-time";
import { isTokenExpired, keyRing, openToken, tokenExpiredError, tokenUsedError } from "../ipam/token";
import type { Lease, TokenClaims } from "../ipam/types";
import { tenantBlockName } from "../owner";
import { describePool, poolNamed, runnerOfPool } from "../pool-names";
import { type Context, refuseLeaseOfOther } from "./context";
import type { ValidateInput } from "./inputs";
import { describeLease, formatValue } from "./leases";

/** The content of a token. Rejects a wrong signature or another runner. */
export const readToken = ({ pool }: Context, token: string, runner?: string): Promise<TokenClaims> =>
  pool.openToken(token, runner === undefined ? {} : { runner });

/** The lease of a token, if it is still in the store. */
export async function leaseOfToken(context: Context, grant: TokenClaims): Promise<Lease> {
  const lease = await context.pool.find({ pool: grant.pool, leaseId: grant.leaseId });
  if (!lease) throw isTokenExpired(grant, Date.now()) ? tokenExpiredError(grant) : tokenUsedError(grant);
  refuseLeaseOfOther(lease, context);
  return lease;
}

/** What a token permits, and how that was checked. */
export type ValidToken = Omit<Validation, "valid">;

/** The reservation that a token stands for, while it is not used. */
export async function validateToken(context: Context, input: ValidateInput): Promise<ValidToken> {
  const { token, runner, offline = false } = input;
  if (offline) {
    requireKeys(context);
    const grant = await context.pool.openToken(token, expectNow(runner)); // with these keys, without the store
    refuseUnlessOwnBlock(grant, context);
    return describeGrant(grant);
  }
  const grant = await readToken(context, token, runner);
  return { checked: "store", ...describeLease(mustBeUnused(grant, await leaseOfToken(context, grant))) };
}

/** The same without the store, by this machine's clock. A token whose lease was used or released since is valid here. */
export const validateOffline = (keys: Pick<Context, "tokenKeys">, { token, runner }: ValidateInput): ValidToken =>
  describeGrant(openToken(token, keyRing(requireKeys(keys)), expectNow(runner)));

function requireKeys({ tokenKeys }: Pick<Context, "tokenKeys">): string {
  if (tokenKeys !== undefined) return tokenKeys;
  throw new OverlayError(
    "TOKEN_KEYS_MISSING",
    "The keys of tokens are in the store, so none can be validated without it.",
    "Validate with the store (not offline), or set tokenKeys (OVERLAY_TOKEN_KEYS) where it is validated.",
  );
}

const expectNow = (runner: string | undefined) => ({ now: Date.now(), ...(runner !== undefined && { runner }) });

/** A token does not say which tenant its lease is of; only the block of a tenant does. */
function refuseUnlessOwnBlock({ pool }: TokenClaims, { tenant }: Context): void {
  if (!tenant || pool.startsWith(poolNamed(tenantBlockName(tenant, "")))) return;
  throw new OverlayError(
    "ACCESS_DENIED",
    `Only the store has the tenant of a reservation in ${describePool(pool)}.`,
    "Validate with the store (not offline).",
  );
}

const describeGrant = ({ pool, value, owner, leaseId, expiresAt }: TokenClaims): ValidToken => ({
  checked: "signature",
  ip: formatValue(value),
  pool,
  ...runnerOfPool(pool),
  ...(expiresAt !== undefined && { expiresAt: formatTime(expiresAt) }),
  owner,
  leaseId,
});

export function mustBeUnused(grant: TokenClaims, lease: Lease): Lease {
  if (lease.state === "used") throw tokenUsedError(grant, lease.usedBy ?? lease.owner);
  return lease;
}
