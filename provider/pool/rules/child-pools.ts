import { nameTakenError, poolInUseError } from "../errors";
import { fits } from "../extents";
import { leaseKey, leasesOf, poolKey } from "../storage/keys";
import { replaceLease, replaceRows } from "../storage/leases";
import { type PoolRecord, specText } from "../storage/records";
import { isExpired, isLive, occupies } from "../storage/rows";
import type { WriteBuffer } from "../storage/write-buffer";
import { isCommitted, type Lease, type PoolSpec } from "../types";
import { endLease, expireLease, isPreemptible, NO_QUARANTINE, quarantineEnd } from "./end-lease";
import { createPool, dropFreeRows, dropPool, freeRows } from "./pools";

/** The pools that leases open, and how they grow and shrink. */

/** Opens the pool of a lease, or brings it up to date. `until` is set while the lease is only an offer. */
export async function openChildPool(tx: WriteBuffer, lease: Lease, spec: PoolSpec, until?: number): Promise<void> {
  const old = await tx.get(poolKey(spec.name));
  const pool: PoolRecord = {
    spec,
    opener: { pool: lease.pool, uid: lease.uid },
    ...(until !== undefined && { until }),
  };
  if (!old) return await createPool(tx, pool);
  if (layoutOf(old.spec) !== layoutOf(spec)) await resizePool(tx, old.spec, spec);
  if (isReclaiming(old.spec) !== isReclaiming(spec)) await rebuildTimeIndex(tx, old.spec, spec);
  tx.put(poolKey(spec.name), pool);
}

/**
 * Makes room for the pool's name. false: this offer must not open it, because its owner's firm lease has it open and
 * nothing firm may move in a preview; a claim takes the pool over, with all that is in it.
 */
export async function takePoolName(
  tx: WriteBuffer,
  lease: Lease,
  name: string,
  formerOwner?: string,
): Promise<boolean> {
  const opener = (await tx.get(poolKey(name)))?.opener;
  if (!opener || opener.uid === lease.uid) return true;
  const holder = await tx.get(leaseKey(opener.pool, opener.uid));
  if (!holder || isExpired(holder, tx.now)) {
    if (holder) await expireLease(tx, holder);
    await dropPool(tx, name);
    return true;
  }
  if (holder.owner !== lease.owner && holder.owner !== formerOwner) {
    if (!isPreemptible(tx, holder, lease.owner)) throw nameTakenError(name, holder);
    await endLease(tx, holder, quarantineEnd(tx, holder), { reason: "taken", takenBy: lease.owner });
    return true;
  }
  if (!isCommitted(lease) && isCommitted(holder)) return false;
  const { childPool: _, ...rest } = holder;
  await replaceLease(tx, holder, rest);
  return true;
}

/** What decides which values it has; a change of anything else does not touch free space. */
const layoutOf = ({ name, kind, extents, reserved, staticOnly, avoidBoundaryIps }: PoolSpec): string =>
  specText({
    name,
    kind,
    extents,
    allocation: "lowest",
    ...(reserved && { reserved }),
    ...(staticOnly && { staticOnly }),
    ...(avoidBoundaryIps && { avoidBoundaryIps }),
  });

const isReclaiming = ({ reclaimAfter }: PoolSpec): boolean => reclaimAfter !== undefined;

/** Who was last seen when is kept only where somebody will ask. */
async function rebuildTimeIndex(tx: WriteBuffer, old: PoolSpec, spec: PoolSpec): Promise<void> {
  for (const lease of await tx.all(leasesOf(spec.name))) replaceRows(tx, [lease, old], [lease, spec]);
}

/** Growing and shrinking. Free space is counted anew from the leases: rare, and one rule for every kind of change. */
async function resizePool(tx: WriteBuffer, old: PoolSpec, spec: PoolSpec): Promise<void> {
  const leases = (await tx.all(leasesOf(spec.name))).filter(occupies);
  const out = leases.filter((lease) => !fits(spec, lease));
  const held = out.filter((lease) => isCommitted(lease) && isLive(lease, tx.now));
  if (held.length) throw poolInUseError(old, held.slice(0, 10), "cannot lose values that are held");
  for (const lease of out) await endLease(tx, lease, NO_QUARANTINE, { reason: "out of range" });
  await dropFreeRows(tx, spec.name);
  const kept = leases.filter((lease) => fits(spec, lease));
  for (const [key, text] of freeRows(spec, kept)) tx.set(key, text);
}
