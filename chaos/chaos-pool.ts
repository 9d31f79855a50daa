import { parseIp } from "../provider/addressing/ip";
import type { Ipam, Lease, Settings } from "../provider/ipam";
import type { GrantedLease } from "./ledger";

/** The pool that all workers claim from. It is small, so that each address has many owners one after another. */
export const POOL = "pool/chaos";
export const SETTINGS: Settings = { offerTtl: 3600, quarantine: 0 };

export async function createChaosPool(pool: Ipam): Promise<void> {
  const ranges = [{ first: parseIp("10.0.0.0"), last: parseIp("10.0.1.127") }];
  const childPool = { name: POOL, kind: "address", ranges, allocation: "lowest" } as const;
  await pool.claim([{ pool: "space/default", owner: "opener", type: "IPPool", values: ranges, childPool }]);
}

export const toGrantedLease = ({ ranges, leaseId, state }: Lease): GrantedLease => ({
  value: ranges[0]!.first.toString(16),
  leaseId,
  state,
});
