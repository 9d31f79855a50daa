import { isSameTenant } from "../../owner";
import { covers, equalRanges, overlapsAny, sizeOf } from "../ranges";
import type { Details, Lease, LeaseEnd, PoolSpec, Port, Request, Tenant, ValueRange } from "../types";

/** The rows of a store as `decide/` reads and changes them. Rows are never modified: a change puts another row in their place. */

export interface PoolRow {
  name: string;
  /** Absent: no lease has opened the pool. The row only serves as the lock of its name. */
  spec?: PoolSpec;
  /** The uid of the lease whose child pool it is. */
  opener?: string;
  /** The pool takes no claims: the delete of its resource has begun. */
  isClosing?: boolean;
  /** It was made by a user with bounds. Only the operator changes the limits of others, and ends them. */
  isMadeInBounds?: boolean;
  /** Leases by state; `resting`: ended leases whose values are in quarantine. */
  reserved: number;
  used: number;
  resting: number;
  /** Values that live leases hold; a shared value counts once. */
  held: bigint;
}

/** Of a pool without leases. */
export const newPoolRow = (name: string): PoolRow => ({ name, reserved: 0, used: 0, resting: 0, held: 0n });

/** A lease, also after its end: then it is kept for thirty days. */
export interface LeaseRow extends Details {
  uid: string;
  leaseId: string;
  pool: string;
  owner: string;
  state: "reserved" | "used";
  ranges: ValueRange[];
  childPool?: string;
  ttl?: number;
  createdAt: number;
  updatedAt: number;
  lastSeen: number;
  expiresAt?: number;
  deletingSince?: number;
  endedAt?: number;
  endReason?: EndReason;
  /** The owner that has its values now. */
  takenBy?: string;
  /** After its end: the values that are in quarantine, and until when. */
  resting?: ValueRange[];
  freeAt?: number;
}

export type EndReason = LeaseEnd["reason"];

/** What a preview has shown to one owner in one program. */
export interface OfferRow extends Details {
  owner: string;
  program: string;
  /** The run that has shown it last. */
  run: string;
  pool: string;
  ranges: ValueRange[];
  /** The request named these values. */
  byValue: boolean;
  /** Uids of leases that must end before the offer is claimed. */
  afterLease: string[];
  childPool?: PoolSpec;
  /** The lease that answers it gets this uid. */
  uid: string;
  createdAt: number;
  updatedAt: number;
  expiresAt: number;
}

/** A free range of a pool; `zone`: `a` for any request, `r` for requests by value only. */
export interface FreeRow extends ValueRange {
  pool: string;
  zone: Zone;
}
export type Zone = "a" | "r";

export type Holder = LeaseRow | OfferRow;

export const isOffer = (holder: Holder): holder is OfferRow => "program" in holder;

/** A lease is still valid in the millisecond of its end. */
export const isLive = ({ endedAt, expiresAt }: LeaseRow, now: number): boolean =>
  endedAt === undefined && (expiresAt === undefined || now <= expiresAt);

export const isOverdue = ({ endedAt, expiresAt }: LeaseRow, now: number): boolean =>
  endedAt === undefined && expiresAt !== undefined && now > expiresAt;

export const isOfferLive = ({ expiresAt }: OfferRow, now: number): boolean => now <= expiresAt;

/** Whether the pool may give its values to another owner when the pool is full. */
export const isInactive = ({ reclaimAfter }: PoolSpec, { lastSeen, expiresAt }: LeaseRow, now: number): boolean =>
  reclaimAfter !== undefined && expiresAt === undefined && now - lastSeen >= reclaimAfter * 1000;

export const offerKey = ({ owner, program }: Pick<OfferRow, "owner" | "program">): string => `${owner}\n${program}`;

/** The sharing key with its tenant: the same word of another tenant is another key. */
export const sharingKeyOf = ({ sharingKey, tenant }: { sharingKey?: string; tenant?: Tenant }): string | undefined =>
  sharingKey === undefined ? undefined : `${tenant ? `${tenant.org}/${tenant.project}` : ""}/${sharingKey}`;

export const portText = ({ protocol, port }: Port): string => `${protocol}/${port}`;

export const touches = (some: ValueRange[], others: ValueRange[]): boolean =>
  some.some((range) => overlapsAny(others, range));

/** Whether the owner of a row is that of the request, or was before this run renamed it. */
export const isOwned = ({ owner }: { owner: string }, request: Pick<Request, "owner" | "formerOwner">): boolean =>
  owner === request.owner || owner === request.formerOwner;

/** Whether these values answer the request. */
export function answers({ pool, ranges }: { pool: string; ranges: ValueRange[] }, request: Request): boolean {
  if (pool !== request.pool) return false;
  if (request.values) return equalRanges(ranges, request.values);
  const { size = 1n, range, secondRange = [] } = request;
  const bounds = [range, ...secondRange];
  return (
    ranges.length === bounds.length &&
    ranges.every((range, i) => sizeOf(range) === size && (!bounds[i] || covers([bounds[i]], [range])))
  );
}

/** Whether a request may end this lease: it asks to, and both have the same type and tenant. */
export const mayTake = ({ evictSameTenant, type, tenant }: Request, lease: LeaseRow): boolean =>
  evictSameTenant === true && type === lease.type && isSameTenant(tenant, lease.tenant);

/** A lease row as callers see it. */
export function toLease({ endedAt, endReason, takenBy, resting, freeAt, ...row }: LeaseRow, now: number): Lease {
  if (endedAt === undefined && !(row.expiresAt !== undefined && now > row.expiresAt)) return row;
  const { expiresAt: _, ...rest } = row;
  const end = { reason: endReason ?? "expired", ...(takenBy !== undefined && { takenBy }) };
  if (resting && freeAt !== undefined && now < freeAt) return { ...rest, end, state: "quarantined", expiresAt: freeAt };
  return { ...rest, end, state: "ended", ...(freeAt !== undefined && { quarantinedUntil: freeAt }) };
}

export const offerIdOf = ({ uid }: { uid: string }): string => `${uid}.${"0".repeat(16)}`;

export function offerToLease({ program: _, run: __, byValue: ___, childPool, updatedAt, ...row }: OfferRow): Lease {
  return {
    ...row,
    state: "offered",
    leaseId: offerIdOf(row),
    updatedAt,
    lastSeen: updatedAt,
    ...(childPool && { childPool: childPool.name }),
  };
}

export const toPublic = (holder: Holder, now: number): Lease =>
  isOffer(holder) ? offerToLease(holder) : toLease(holder, now);

export function omitUndefined<T extends object>(fields: { [K in keyof T]: T[K] | undefined }): T {
  const rest: Partial<T> = {};
  for (const key in fields) if (fields[key] !== undefined) rest[key] = fields[key];
  return rest as T;
}
