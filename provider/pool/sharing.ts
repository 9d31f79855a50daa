import type { Draft } from "./draft";
import { givesWay, lapse, vacate } from "./endings";
import { leaseKey, portKey, sharersOf } from "./keys";
import { leasesIn } from "./ledger";
import { isOver, sharedAs } from "./rows";
import type { Extent, Lease, PoolSpec, Port, Request } from "./types";
import { portConflict, sharingConflict } from "./wording";

/** One value for several leases: same key of the same tenant, and no (protocol, port) twice. */

/**
 * The extents that a request joins because its key is already there: the lowest where its ports are free. undefined: it is the
 * first with its key, or it wants another address instead of a port conflict.
 */
export async function placeOfKey(
  tx: Draft,
  spec: PoolSpec,
  request: Request,
  suits: (extents: Extent[]) => boolean,
  taking: Taking,
): Promise<Extent[] | undefined> {
  const key = sharedAs(request);
  if (key === undefined) return undefined;
  const sharers = await leasesIn(tx, spec.name, await tx.all(sharersOf(spec.name, key)));
  const joinable = sharers.filter((lease) => !isOver(lease, tx.now) && suits(lease.extents));
  const places = new Map(joinable.map(({ extents }) => [extents[0]!.last, extents]));
  const isOpen = ({ holder }: Conflict): boolean => isOver(holder, tx.now);
  for (const extents of places.values()) {
    const conflicts = await conflictsOn(tx, spec, extents, request.ports ?? []);
    if (conflicts.every(isOpen)) return extents;
  }
  if (request.onPortConflict === "anotherAddress") return undefined;
  const [extents] = places.values();
  if (extents) await takePorts(tx, spec, extents, request.ports ?? [], undefined, taking);
  return extents;
}

/** Makes a holder leave, if it may. */
type Taking = (holder: Lease) => Promise<boolean>;

interface Conflict {
  extent: Extent;
  port: Port;
  holder: Lease;
}

/** The ports there that leases other than `uid` have, overdue ones too. */
async function conflictsOn(
  tx: Draft,
  spec: PoolSpec,
  extents: Extent[],
  ports: Port[],
  uid?: string,
): Promise<Conflict[]> {
  const conflicts: Conflict[] = [];
  for (const extent of extents) {
    for (const port of ports) {
      const user = await tx.get(portKey(spec.name, extent.last, port));
      const holder = user && user !== uid ? await tx.get(leaseKey(spec.name, user)) : undefined;
      if (holder) conflicts.push({ extent, port, holder });
    }
  }
  return conflicts;
}

/** Whether the ports of a request are, or can be made, free where its own lease is. */
export async function canHavePorts(tx: Draft, spec: PoolSpec, { ports = [] }: Request, own: Lease): Promise<boolean> {
  const conflicts = await conflictsOn(tx, spec, own.extents, ports, own.uid);
  return conflicts.every(({ holder }) => isOver(holder, tx.now) || givesWay(tx, holder));
}

/** Makes sure that nobody but `uid` has these ports there. */
export async function takePorts(
  tx: Draft,
  spec: PoolSpec,
  extents: Extent[],
  ports: Port[],
  uid?: string,
  taking?: Taking,
): Promise<void> {
  const displaced = new Set<string>();
  for (;;) {
    const conflicts = await conflictsOn(tx, spec, extents, ports, uid);
    const conflict = conflicts.find(({ holder }) => !displaced.has(holder.uid));
    if (!conflict) return;
    const { extent, port, holder } = conflict;
    if (isOver(holder, tx.now)) await lapse(tx, holder);
    else if (givesWay(tx, holder)) await vacate(tx, holder);
    else if (taking && (await taking(holder))) displaced.add(holder.uid);
    else throw portConflict(spec, extent, port, holder);
  }
}

/** The sole user of a value may change its key, or its values, in place; others must leave first. */
export async function mayChangeKey(tx: Draft, spec: PoolSpec, lease: Lease, key: string | undefined): Promise<void> {
  const old = sharedAs(lease);
  if (old === undefined || old === key) return;
  const [extent] = lease.extents as [Extent];
  for (const fellow of await leasesIn(tx, spec.name, await tx.all(sharersOf(spec.name, old, extent.last)))) {
    if (fellow.uid === lease.uid) continue;
    if (!isOver(fellow, tx.now)) throw sharingConflict(spec, extent, key, fellow);
    await lapse(tx, fellow);
  }
}
