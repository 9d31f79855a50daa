import { SPACES } from "../../pool-names";
import {
  addressSpaceError,
  nameTakenError,
  outsideLeaseError,
  poolInUseError,
  takenError,
  ttlWithPoolError,
} from "../errors";
import { covers, fits, overlapsAny, sameExtents } from "../extents";
import { leaseKey, leasesOf, poolKey } from "../storage/keys";
import { isExpired, isLive, leaseNamed, occupies, replaceLease, replaceRows, specOf } from "../storage/leases";
import { type PoolRecord, specText } from "../storage/records";
import type { WriteBuffer } from "../storage/write-buffer";
import { type Details, type Extent, isCommitted, type Lease, type PoolSpec, type Request } from "../types";
import { isOwnedBy, mustBeHoldable, mustBeNameable, mustBeOpenable, show } from "./access";
import { endLease, expireLease, isPreemptible, NO_QUARANTINE, quarantineEnd } from "./end-lease";
import { createPool, dropFreeRows, dropPool, freeRows } from "./pools";

/**
 * Writes a lease in the place of its older version, with its names and its child pool. `until`: when the child pool ends, if the lease is
 * only an offer.
 */
export async function putLease(
  tx: WriteBuffer,
  before: Lease | undefined,
  lease: Lease,
  { names, childPool, formerOwner }: Pick<Details, "names" | "childPool"> & Pick<Request, "formerOwner">,
  until?: number,
): Promise<Lease> {
  const { childPool: _, ...after }: Lease = { ...lease };
  if (names) after.names = await takeNames(tx, { ...lease, names }, formerOwner);
  if (childPool) mustBeOpenable(tx, childPool, lease);
  const spec = childPool ?? (lease.childPool === undefined ? undefined : await specOf(tx, lease.childPool));
  const mayHave = spec && (await mayHaveChildPool(tx, lease, spec, formerOwner));
  const opened: Lease = mayHave ? { ...after, childPool: spec.name } : after;
  mustBeHoldable(tx, opened);
  await replaceLease(tx, before, opened);
  if (!opened.childPool) return opened;
  const isMoved = !before || !sameExtents(before.extents, opened.extents);
  if (isMoved || !(await hasSameRanges(tx, spec!))) await mustBeInLease(tx, opened, spec!);
  await openChildPool(tx, opened, spec!, until);
  return opened;
}

async function mayHaveChildPool(tx: WriteBuffer, lease: Lease, spec: PoolSpec, formerOwner?: string): Promise<boolean> {
  if (spec.name.startsWith(SPACES)) throw addressSpaceError(spec.name);
  if (isCommitted(lease) && lease.expiresAt !== undefined) throw ttlWithPoolError(lease, spec);
  if (lease.childPool !== undefined && lease.childPool !== spec.name) await dropPool(tx, lease.childPool);
  return await takePoolName(tx, lease, spec.name, formerOwner);
}

/**
 * Takes the names of a lease from leases that may lose them, and returns those that it gets. An offer does not take a name from a committed
 * lease of the same owner, because a preview must not change that; the claim takes it.
 */
export async function takeNames(tx: WriteBuffer, lease: Lease, formerOwner?: string): Promise<string[]> {
  const taken: string[] = [];
  for (const name of lease.names ?? []) {
    const holder = await leaseNamed(tx, name);
    const isKept = holder?.uid === lease.uid && holder.pool === lease.pool;
    if (!isKept) mustBeNameable(tx, name, lease);
    if (!holder || isKept || (await takeName(tx, holder, lease, name, formerOwner))) taken.push(name);
  }
  return taken;
}

async function takeName(
  tx: WriteBuffer,
  holder: Lease,
  to: Lease,
  name: string,
  formerOwner?: string,
): Promise<boolean> {
  if (isExpired(holder, tx.now) || holder.state === "ended") {
    if (holder.state !== "ended") await expireLease(tx, holder);
    await removeNameOfEnded(tx, holder, name);
  } else if (isOwnedBy(tx, holder, to.owner, formerOwner)) {
    if (isCommitted(holder) && !isCommitted(to)) return false;
    await replaceLease(tx, holder, { ...holder, names: holder.names!.filter((other) => other !== name) });
  } else if (isPreemptible(tx, holder, to.owner))
    await endLease(tx, holder, quarantineEnd(tx, holder), { reason: "taken", takenBy: to.owner });
  else throw nameTakenError(name, show(tx, holder));
  return true;
}

/** Takes the name from an end record. Only rows are replaced, because the pool of the record may be deleted. */
async function removeNameOfEnded(tx: WriteBuffer, { pool, uid }: Lease, name: string): Promise<void> {
  const record = await tx.get(leaseKey(pool, uid));
  if (!record?.names) return;
  const { names, ...rest } = record;
  const others = names.filter((other) => other !== name);
  replaceRows(tx, [record, {}], [{ ...rest, ...(others.length > 0 && { names: others }) }, {}]);
}

const hasSameRanges = async (tx: WriteBuffer, spec: PoolSpec): Promise<boolean> => {
  const old = await tx.get(poolKey(spec.name));
  return old !== undefined && rangesText(old.spec) === rangesText(spec);
};

/** Ids and ports. */
const NUMBERS: Extent = { first: 0n, last: 0xffff_ffffn };

const hasNumbers = ({ kind }: PoolSpec): boolean => kind === "id" || kind === "port";

/**
 * A pool gives out addresses of its lease, so that two pools do not give out the same ones. The lease of a runner is an id: its addresses are
 * in the block of its network.
 */
async function mustBeInLease(tx: WriteBuffer, lease: Lease, spec: PoolSpec): Promise<void> {
  const parent = await tx.get(poolKey(lease.pool));
  const isRunner = !hasNumbers(spec) && parent !== undefined && hasNumbers(parent.spec);
  const opener = isRunner ? parent.opener : undefined;
  const block = opener && (await tx.get(leaseKey(opener.pool, opener.uid)));
  const held = hasNumbers(spec) ? [NUMBERS] : (block ?? lease).extents;
  if (!covers(held, spec.extents)) throw outsideLeaseError(spec, held);
  if (isRunner && tx.options.access) await mustNotOverlapSiblings(tx, lease, spec);
}

/** Runners of a network: the network's settings decide which addresses belong to an id, but a user with bounds may not follow them. */
async function mustNotOverlapSiblings(tx: WriteBuffer, lease: Lease, spec: PoolSpec): Promise<void> {
  for (const sibling of await tx.all(leasesOf(lease.pool))) {
    const other =
      sibling.uid === lease.uid || !sibling.childPool ? undefined : await tx.get(poolKey(sibling.childPool));
    const taken = spec.extents.find((extent) => other && overlapsAny(other.spec.extents, extent));
    if (taken) throw takenError(spec, taken, show(tx, sibling), lease.owner);
  }
}

/** Creates or updates the child pool of a lease. */
async function openChildPool(tx: WriteBuffer, lease: Lease, spec: PoolSpec, until?: number): Promise<void> {
  const old = await tx.get(poolKey(spec.name));
  const pool: PoolRecord = {
    spec,
    opener: { pool: lease.pool, uid: lease.uid },
    ...(until !== undefined && { until }),
  };
  if (!old) return await createPool(tx, pool);
  if (rangesText(old.spec) !== rangesText(spec)) await resizePool(tx, old.spec, spec);
  if (isReclaiming(old.spec) !== isReclaiming(spec)) await rebuildTimeIndex(tx, old.spec, spec);
  tx.put(poolKey(spec.name), pool);
}

/**
 * Takes the name of a child pool from a lease that may lose it. false: a committed lease of the same owner has the pool, and a preview must
 * not change that; the claim takes it over, with all leases in it.
 */
async function takePoolName(tx: WriteBuffer, lease: Lease, name: string, formerOwner?: string): Promise<boolean> {
  const opener = (await tx.get(poolKey(name)))?.opener;
  if (!opener || (opener.uid === lease.uid && opener.pool === lease.pool)) return true;
  const holder = await tx.get(leaseKey(opener.pool, opener.uid));
  if (!holder || isExpired(holder, tx.now)) {
    if (holder) await expireLease(tx, holder);
    await dropPool(tx, name);
    return true;
  }
  if (!isOwnedBy(tx, holder, lease.owner, formerOwner)) {
    if (!isPreemptible(tx, holder, lease.owner)) throw nameTakenError(name, show(tx, holder));
    await endLease(tx, holder, quarantineEnd(tx, holder), { reason: "taken", takenBy: lease.owner });
    return true;
  }
  if (!isCommitted(lease) && isCommitted(holder)) return false;
  const { childPool: _, ...rest } = holder;
  await replaceLease(tx, holder, rest);
  return true;
}

/** The fields that decide which values a pool has. Changes of other fields do not touch its free space. */
const rangesText = ({ name, kind, extents, reserved, staticOnly, avoidBoundaryIps }: PoolSpec): string =>
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

/** Only pools with `reclaimAfter` index their leases by `lastSeen`. */
async function rebuildTimeIndex(tx: WriteBuffer, old: PoolSpec, spec: PoolSpec): Promise<void> {
  for (const lease of await tx.all(leasesOf(spec.name))) replaceRows(tx, [lease, old], [lease, spec]);
}

/** Computes the free space again from the leases. */
async function resizePool(tx: WriteBuffer, old: PoolSpec, spec: PoolSpec): Promise<void> {
  const leases = (await tx.all(leasesOf(spec.name))).filter(occupies);
  const out = leases.filter((lease) => !fits(spec, lease));
  const held = out.filter((lease) => isCommitted(lease) && isLive(lease, tx.now));
  if (held.length) {
    const shown = held.slice(0, 10).map((lease) => show(tx, lease));
    throw poolInUseError(old, shown, "cannot lose values that are held");
  }
  for (const lease of out) await endLease(tx, lease, NO_QUARANTINE, { reason: "out of range" });
  await dropFreeRows(tx, spec.name);
  const kept = leases.filter((lease) => fits(spec, lease));
  for (const [key, text] of freeRows(spec, kept)) tx.set(key, text);
}
