import type { Draft } from "./draft";
import { givesWay, lapse, NO_REST, restOf, vacate } from "./endings";
import { fits } from "./extents";
import { leaseKey, leasesOf, poolKey } from "./keys";
import { record, replaceRows } from "./ledger";
import { dropFree, establish, freeRows, vanish } from "./pools";
import { type PoolRecord, specText } from "./records";
import { isLive, isOver, occupies } from "./rows";
import { isFirm, type Lease, type PoolSpec } from "./types";
import { nameTaken, poolInUse } from "./wording";

/** The pools that leases open, and how they grow and shrink. */

/** Opens the pool of a lease, or brings it up to date. `until` is set while the lease is only an offer. */
export async function open(tx: Draft, lease: Lease, spec: PoolSpec, until?: number): Promise<void> {
  const old = await tx.get(poolKey(spec.name));
  const pool: PoolRecord = {
    spec,
    opener: { pool: lease.pool, uid: lease.uid },
    ...(until !== undefined && { until }),
  };
  if (!old) return await establish(tx, pool);
  if (layoutOf(old.spec) !== layoutOf(spec)) await relayout(tx, old.spec, spec);
  if (reclaims(old.spec) !== reclaims(spec)) await reindex(tx, old.spec, spec);
  tx.put(poolKey(spec.name), pool);
}

/**
 * Makes room for the pool's name. false: this offer must not open it, because its owner's firm lease has it open and
 * nothing firm may move in a preview; a claim takes the pool over, with all that is in it.
 */
export async function mayOpen(tx: Draft, lease: Lease, name: string, formerOwner?: string): Promise<boolean> {
  const opener = (await tx.get(poolKey(name)))?.opener;
  if (!opener || opener.uid === lease.uid) return true;
  const holder = await tx.get(leaseKey(opener.pool, opener.uid));
  if (!holder || isOver(holder, tx.now)) {
    if (holder) await lapse(tx, holder);
    await vanish(tx, name);
    return true;
  }
  if (holder.owner !== lease.owner && holder.owner !== formerOwner) {
    if (!givesWay(tx, holder, lease.owner)) throw nameTaken(name, holder);
    await vacate(tx, holder, restOf(tx, holder), { reason: "taken", takenBy: lease.owner });
    return true;
  }
  if (!isFirm(lease) && isFirm(holder)) return false;
  const { opens: _, ...rest } = holder;
  await record(tx, holder, rest);
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

const reclaims = ({ reclaimAfter }: PoolSpec): boolean => reclaimAfter !== undefined;

/** Who was last seen when is kept only where somebody will ask. */
async function reindex(tx: Draft, old: PoolSpec, spec: PoolSpec): Promise<void> {
  for (const lease of await tx.all(leasesOf(spec.name))) replaceRows(tx, [lease, old], [lease, spec]);
}

/** Growing and shrinking. Free space is counted anew from the leases: rare, and one rule for every kind of change. */
async function relayout(tx: Draft, old: PoolSpec, spec: PoolSpec): Promise<void> {
  const leases = (await tx.all(leasesOf(spec.name))).filter(occupies);
  const out = leases.filter((lease) => !fits(spec, lease));
  const held = out.filter((lease) => isFirm(lease) && isLive(lease, tx.now));
  if (held.length) throw poolInUse(old, held.slice(0, 10), "cannot lose values that are held");
  for (const lease of out) await vacate(tx, lease, NO_REST, { reason: "out of range" });
  await dropFree(tx, spec.name);
  const kept = leases.filter((lease) => fits(spec, lease));
  for (const [key, text] of freeRows(spec, kept)) tx.set(key, text);
}
