import type { Lease } from "../../pool";
import { isOver, type KeyRing, keyRing, newSecret, opened, sealed, tokenExpired, tokenUsed } from "../../pool/token";
import type { Session } from "../command";

/** From the setting, else the one key that the store keeps and everybody shares. */
const ringOf = async ({ settings, pool }: Session): Promise<KeyRing> =>
  keyRing(settings.tokenKeys ?? (await pool.secret("tokenKeys", newSecret())));

export async function tokenFor(session: Session, lease: Lease): Promise<string> {
  const { pool, owner, leaseId, expiresAt } = lease;
  const grant = { pool, owner, leaseId, value: lease.extents[0]!.first, runner: pool.slice("runner/".length) };
  return sealed({ ...grant, ...(expiresAt !== undefined && { expiresAt }) }, await ringOf(session));
}

/** The reservation that a token stands for: still there by the store's word and clock, and not used by anybody. */
export async function unused(session: Session, token: string, runner?: string): Promise<Lease> {
  const grant = opened(token, await ringOf(session), runner === undefined ? {} : { runner });
  const lease = await session.pool.find(grant.pool, { leaseId: grant.leaseId });
  if (!lease) throw isOver(grant, Date.now()) ? tokenExpired(grant) : tokenUsed(grant);
  if (lease.state === "used") throw tokenUsed(grant, lease.usedBy ?? lease.owner);
  return lease;
}
