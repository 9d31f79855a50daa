import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError, OverlayError } from "../errors";
import type { Ipam, Lease } from "../ipam/types";
import { requireNamedPool } from "./address-pools";
import { claimAddress } from "./claim";
import type { Context } from "./context";
import type { HoldInput } from "./inputs";
import { ipOf } from "./leases";
import { gatewaysOf } from "./reserve";

/** An address that is held by a short lease, which is renewed until `release` is called. */
export interface Hold {
  lease: Lease;
  gateways: string[];
  /** Fulfilled when the lease could not be renewed: from then on the address may belong to another owner. */
  lost: Promise<OverlayError>;
  release(): Promise<void>;
}

/** If this process dies, the address is free again within `ttl` seconds and the quarantine. */
export async function holdAddress(context: Context, input: HoldInput): Promise<Hold> {
  const { ip, port, ttl } = input;
  const { pool } = context;
  const place = await requireNamedPool(context, input);
  const lease = await claimAddress(context, place, { ip, port, ttl });
  const stopped = new AbortController();
  return {
    lease,
    gateways: gatewaysOf(place),
    lost: renewUntil(stopped.signal, pool, lease, ttl),
    release: async () => {
      stopped.abort();
      await pool.release(lease.pool, lease.leaseId);
    },
  };
}

/** Renews a lease three times in its life. Never settles when it is stopped. */
async function renewUntil(stopped: AbortSignal, pool: Ipam, lease: Lease, ttl: number): Promise<OverlayError> {
  const never = new Promise<never>(() => {});
  for (let renewedAt = Date.now(); ; ) {
    await sleep((ttl * 1000) / 3, undefined, { signal: stopped }).catch(() => never);
    const error = await pool.touch(lease.pool, lease.leaseId, { ttl }).then(
      () => undefined,
      (reason: unknown) => reason,
    );
    if (stopped.aborted) return never;
    const isOver = isOverlayError(error, "LEASE_FENCED", "LEASE_EXPIRED") || Date.now() - renewedAt > ttl * 1000;
    if (error === undefined) renewedAt = Date.now();
    else if (isOver) {
      const what = `The lease on ${ipOf(lease)} could not be kept: ${(error as Error).message}`;
      return new OverlayError("LEASE_EXPIRED", what, "Reserve again.", error);
    }
  }
}
