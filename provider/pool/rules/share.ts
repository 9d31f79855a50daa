import { portConflictError, sharingConflictError } from "../errors";
import { leaseKey, portKey, sharersOf } from "../storage/keys";
import { getLeases, isExpired, sharingKeyOf } from "../storage/leases";

import type { WriteBuffer } from "../storage/write-buffer";
import type { Extent, Lease, PoolSpec, Port, Request } from "../types";
import { show } from "./access";
import { endLease, expireLease, isPreemptible } from "./end-lease";

/** Shared values: leases with the same key and tenant share a value if no two of them have the same protocol and port. */

/**
 * The extents that leases with the key of the request already have: the lowest on which its ports are free. undefined: there are none, or
 * the request gets another address because of a port conflict.
 */
export async function findShared(
  tx: WriteBuffer,
  spec: PoolSpec,
  request: Request,
  suits: (extents: Extent[]) => boolean,
  taking: Evict,
): Promise<Extent[] | undefined> {
  const places = await findSharedExtents(tx, spec, request, ({ extents }) => suits(extents));
  const free = await findFreeOf(tx, spec, places, request.ports);
  if (free || request.onPortConflict === "anotherAddress") return free;
  const [extents] = places;
  if (extents) await takePorts(tx, spec, extents, request.ports ?? [], undefined, taking);
  return extents;
}

/** Whether the request shares a value of other owners, if it gets no value of its own. */
export async function canShare(tx: WriteBuffer, spec: PoolSpec, request: Request): Promise<boolean> {
  const places = await findSharedExtents(tx, spec, request, ({ owner }) => owner !== request.owner);
  if (request.onPortConflict !== "anotherAddress") return places.length > 0;
  return (await findFreeOf(tx, spec, places, request.ports)) !== undefined;
}

/** The extents of live leases with the key of the request, the lowest first. */
async function findSharedExtents(
  tx: WriteBuffer,
  spec: PoolSpec,
  request: Request,
  suits: (lease: Lease) => boolean,
): Promise<Extent[][]> {
  const key = sharingKeyOf(request);
  if (key === undefined) return [];
  const sharers = await getLeases(tx, spec.name, await tx.all(sharersOf(spec.name, key)));
  const joinable = sharers.filter((lease) => !isExpired(lease, tx.now) && suits(lease));
  return [...new Map(joinable.map(({ extents }) => [extents[0]!.last, extents])).values()];
}

/** The first of these extents on which the ports are free. */
async function findFreeOf(
  tx: WriteBuffer,
  spec: PoolSpec,
  places: Extent[][],
  ports: Port[] = [],
): Promise<Extent[] | undefined> {
  for (const extents of places) {
    const conflicts = await conflictsOn(tx, spec, extents, ports);
    if (conflicts.every(({ holder }) => isExpired(holder, tx.now))) return extents;
  }
  return undefined;
}

/** Evicts the holder, if that is allowed; returns whether it did. */
type Evict = (holder: Lease) => Promise<boolean>;

interface PortConflict {
  extent: Extent;
  port: Port;
  holder: Lease;
}

/** Ports on these extents that leases other than `uid` have, expired ones included. */
async function conflictsOn(
  tx: WriteBuffer,
  spec: PoolSpec,
  extents: Extent[],
  ports: Port[],
  uid?: string,
): Promise<PortConflict[]> {
  const conflicts: PortConflict[] = [];
  for (const extent of extents) {
    for (const port of ports) {
      const user = await tx.get(portKey(spec.name, extent.last, port));
      const holder = user && user !== uid ? await tx.get(leaseKey(spec.name, user)) : undefined;
      if (holder) conflicts.push({ extent, port, holder });
    }
  }
  return conflicts;
}

/** Whether the ports of a request are free, or can be made free, on the extents of its own lease. */
export async function canHavePorts(
  tx: WriteBuffer,
  spec: PoolSpec,
  { ports = [] }: Request,
  own: Lease,
): Promise<boolean> {
  const conflicts = await conflictsOn(tx, spec, own.extents, ports, own.uid);
  return conflicts.every(({ holder }) => isExpired(holder, tx.now) || isPreemptible(tx, holder));
}

/** Takes these ports for `uid`: evicts other holders, or rejects. */
export async function takePorts(
  tx: WriteBuffer,
  spec: PoolSpec,
  extents: Extent[],
  ports: Port[],
  uid?: string,
  taking?: Evict,
): Promise<void> {
  const displaced = new Set<string>();
  for (;;) {
    const conflicts = await conflictsOn(tx, spec, extents, ports, uid);
    const conflict = conflicts.find(({ holder }) => !displaced.has(holder.uid));
    if (!conflict) return;
    const { extent, port, holder } = conflict;
    if (isExpired(holder, tx.now)) await expireLease(tx, holder);
    else if (isPreemptible(tx, holder)) await endLease(tx, holder);
    else if (taking && (await taking(holder))) displaced.add(holder.uid);
    else throw portConflictError(spec, extent, port, show(tx, holder));
  }
}

/** Rejects a change of the sharing key, or of shared values, while another lease shares them. */
export async function mustKeepKey(
  tx: WriteBuffer,
  spec: PoolSpec,
  lease: Lease,
  key: string | undefined,
): Promise<void> {
  const old = sharingKeyOf(lease);
  if (old === undefined || old === key) return;
  const [extent] = lease.extents as [Extent];
  for (const coHolder of await getLeases(tx, spec.name, await tx.all(sharersOf(spec.name, old, extent.last)))) {
    if (coHolder.uid === lease.uid) continue;
    if (!isExpired(coHolder, tx.now)) throw sharingConflictError(spec, extent, key, show(tx, coHolder));
    await expireLease(tx, coHolder);
  }
}
