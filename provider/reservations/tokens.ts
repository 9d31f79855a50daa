import { isTokenExpired, tokenExpiredError, tokenUsedError } from "../pool/token";
import type { Grant, Lease, Pool, Tenant } from "../pool/types";

/** Passed to all functions of this folder. */
export interface Context {
  pool: Pool;
  /** The setting of this name; without it the caller is the operator. */
  tenant?: Tenant | undefined;
}

/** The content of a token. Rejects a wrong signature or another runner. */
export const readToken = ({ pool }: Context, token: string, runner?: string): Promise<Grant> =>
  pool.openToken(token, runner === undefined ? {} : { runner });

/** The lease of a token, if it is still in the store. */
export async function leaseOfToken({ pool }: Context, grant: Grant): Promise<Lease> {
  const lease = await pool.find(grant.pool, { leaseId: grant.leaseId });
  if (!lease) throw isTokenExpired(grant, Date.now()) ? tokenExpiredError(grant) : tokenUsedError(grant);
  return lease;
}

/** `validate`: the reservation that a token stands for, while it is not used. */
export async function validateToken(context: Context, token: string, runner?: string): Promise<Lease> {
  const grant = await readToken(context, token, runner);
  return mustBeUnused(grant, await leaseOfToken(context, grant));
}

export function mustBeUnused(grant: Grant, lease: Lease): Lease {
  if (lease.state === "used") throw tokenUsedError(grant, lease.usedBy ?? lease.owner);
  return lease;
}
