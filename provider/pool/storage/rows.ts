import type { Lease, PoolSpec, Tenant } from "../types";
import { ownerHash } from "./ids";
import {
  allocationKey,
  type Key,
  leaseKey,
  nameKey,
  ownerKey,
  portKey,
  sharerKey,
  type TimeClass,
  timeKey,
  waiterKey,
} from "./keys";
import type { Counts } from "./records";

/** What a lease means in rows: the one place that says so. The ledger writes them, `fsck` compares with them. */

/** A lease still stands at the very millisecond of its end. */
export const isExpired = ({ expiresAt }: { expiresAt?: number }, now: number): boolean =>
  expiresAt !== undefined && now > expiresAt;
/** Held in the eyes of any reader. */
export const isLive = (lease: Lease, now: number): boolean =>
  lease.state !== "quarantined" && lease.state !== "ended" && !isExpired(lease, now);
/** Whether its values are taken by it: not while it waits for other leases to end, and not after its own end. */
export const occupies = ({ state, waitsFor }: Pick<Lease, "state" | "waitsFor">): boolean =>
  state !== "ended" && waitsFor === undefined;

/** A sharing key belongs to its tenant: the same word of another tenant is another key. */
export const sharingKeyOf = ({ sharingKey, tenant }: { sharingKey?: string; tenant?: Tenant }): string | undefined =>
  sharingKey === undefined ? undefined : `${tenant ? `${tenant.org}/${tenant.project}` : ""}/${sharingKey}`;

function timeClassOf(
  { state, expiresAt, lastSeen }: Lease,
  { reclaimAfter }: Pick<PoolSpec, "reclaimAfter">,
): [TimeClass, number] | undefined {
  if (state === "offered") return ["o", expiresAt!];
  if (state === "quarantined") return ["r", expiresAt!];
  if (state === "ended") return ["e", expiresAt!];
  if (expiresAt !== undefined) return ["t", expiresAt];
  return reclaimAfter === undefined ? undefined : ["h", lastSeen];
}

/** `spec` is that of its pool. */
export function rowsOf(lease: Lease, spec: Pick<PoolSpec, "reclaimAfter">): Map<string, string> {
  const { pool, uid } = lease;
  const rows = new Map<string, string>();
  const put = <T>({ at, codec }: Key<T>, value: T) => rows.set(at, codec.encode(value));
  put(leaseKey(pool, uid), lease);
  if (!uid.startsWith(ownerHash(lease.owner))) put(ownerKey(pool, lease.owner, uid), uid);
  const time = timeClassOf(lease, spec);
  if (time) put(timeKey(pool, ...time, uid), uid);
  for (const name of lease.names ?? []) put(nameKey(name), { pool, uid });
  for (const other of lease.waitsFor ?? []) put(waiterKey(pool, other), uid);
  if (!occupies(lease)) return rows;
  const key = sharingKeyOf(lease);
  for (const extent of lease.extents) {
    put(allocationKey(pool, extent.last), key === undefined ? { extent, uid } : { extent, sharedAs: key });
    if (key !== undefined) put(sharerKey(pool, key, extent.last, uid), uid);
    for (const port of lease.ports ?? []) put(portKey(pool, extent.last, port), uid);
  }
  return rows;
}

export const noCounts = (): Counts => ({ offered: 0, reserved: 0, used: 0, quarantined: 0, held: 0n });

/** Counts with a lease more or less. `values` is how many values are held by it alone. */
export function countLease(counts: Counts, lease: Lease, sign: 1 | -1, values: bigint): Counts {
  const { state } = lease;
  const held = state === "quarantined" ? counts.held : counts.held + BigInt(sign) * values;
  const next: Counts = { ...counts, ...(state !== "ended" && { [state]: counts[state] + sign }), held };
  if (sign === 1 && lease.expiresAt !== undefined) next.soonest = Math.min(counts.soonest ?? Infinity, lease.expiresAt);
  return next;
}
