import type { Lease } from "../../pool";
import { isOver, opened, ringOf, tokenExpired, tokenOf, tokenUsed } from "../../pool/token";
import type { Session } from "../command";

export const tokenFor = async ({ pool, settings }: Session, lease: Lease): Promise<string> =>
  tokenOf(lease, await ringOf(pool, settings.tokenKeys));

/** The reservation that a token stands for: still there by the store's word and clock, and not used by anybody. */
export async function unused(session: Session, token: string, runner?: string): Promise<Lease> {
  const grant = opened(
    token,
    await ringOf(session.pool, session.settings.tokenKeys),
    runner === undefined ? {} : { runner },
  );
  const lease = await session.pool.find(grant.pool, { leaseId: grant.leaseId });
  if (!lease) throw isOver(grant, Date.now()) ? tokenExpired(grant) : tokenUsed(grant);
  if (lease.state === "used") throw tokenUsed(grant, lease.usedBy ?? lease.owner);
  return lease;
}
