import type { Draft } from "./draft";
import { givesWay, lapse, NO_REST, restOf, vacate } from "./endings";
import { covers, isBoundary, sizeOf, zonesOf } from "./extents";
import { leaseKey, leasesOf, poolKey } from "./keys";
import { record, replaceRows } from "./ledger";
import { dropFree, establish, freeRows, vanish } from "./pools";
import { type PoolRecord, specText } from "./records";
import { isLive, isOver, occupies } from "./rows";
import type { Rule } from "./rule";
import { isFirm, type Lease, type PoolSpec } from "./types";
import { nameTaken, poolInUse } from "./wording";

/** The pools that leases open, and how they grow and shrink. */

/** Opens the pool of a lease, or brings it up to date. `until` is set while the lease is only an offer. */
export function* open(tx: Draft, lease: Lease, spec: PoolSpec, until?: number): Rule<void> {
  const old = yield* tx.get(poolKey(spec.name));
  const pool: PoolRecord = {
    spec,
    opener: { pool: lease.pool, uid: lease.uid },
    ...(until !== undefined && { until }),
  };
  if (!old) return yield* establish(tx, pool);
  if (layoutOf(old.spec) !== layoutOf(spec)) yield* relayout(tx, old.spec, spec);
  if (reclaims(old.spec) !== reclaims(spec)) yield* reindex(tx, old.spec, spec);
  tx.put(poolKey(spec.name), pool);
}

/**
 * Makes room for the pool's name. false: this offer must not open it, because its owner's firm lease has it open and
 * nothing firm may move in a preview; a claim takes the pool over, with all that is in it.
 */
export function* mayOpen(tx: Draft, lease: Lease, name: string, formerOwner?: string): Rule<boolean> {
  const opener = (yield* tx.get(poolKey(name)))?.opener;
  if (!opener || opener.uid === lease.uid) return true;
  const holder = yield* tx.get(leaseKey(opener.pool, opener.uid));
  if (!holder || isOver(holder, tx.now)) {
    if (holder) yield* lapse(tx, holder);
    yield* vanish(tx, name);
    return true;
  }
  if (holder.owner !== lease.owner && holder.owner !== formerOwner) {
    if (!givesWay(tx, holder, lease.owner)) throw nameTaken(name, holder);
    yield* vacate(tx, holder, restOf(tx, holder), { reason: "taken", takenBy: lease.owner });
    return true;
  }
  if (!isFirm(lease) && isFirm(holder)) return false;
  const { opens: _, ...rest } = holder;
  yield* record(tx, holder, rest);
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

/** Whether the pool can have given out this lease. */
export function fits(spec: PoolSpec, { extents }: Pick<Lease, "extents">): boolean {
  const { automatic, onRequest } = zonesOf(spec);
  const avoided = spec.avoidBoundaryIps && extents.some((e) => sizeOf(e) > 1n || isBoundary(e.first));
  return !avoided && covers([...automatic, ...onRequest], extents);
}

const reclaims = ({ reclaimAfter }: PoolSpec): boolean => reclaimAfter !== undefined;

/** Who was last seen when is kept only where somebody will ask. */
function* reindex(tx: Draft, old: PoolSpec, spec: PoolSpec): Rule<void> {
  for (const lease of yield* tx.all(leasesOf(spec.name))) replaceRows(tx, [lease, old], [lease, spec]);
}

/** Growing and shrinking. Free space is counted anew from the leases: rare, and one rule for every kind of change. */
function* relayout(tx: Draft, old: PoolSpec, spec: PoolSpec): Rule<void> {
  const leases = (yield* tx.all(leasesOf(spec.name))).filter(occupies);
  const out = leases.filter((lease) => !fits(spec, lease));
  const held = out.filter((lease) => isFirm(lease) && isLive(lease, tx.now));
  if (held.length) throw poolInUse(old, held.slice(0, 10), "cannot lose values that are held");
  for (const lease of out) yield* vacate(tx, lease, NO_REST, { reason: "out of range" });
  yield* dropFree(tx, spec.name);
  const kept = leases.filter((lease) => fits(spec, lease));
  for (const [key, text] of freeRows(spec, kept)) tx.set(key, text);
}
