import { type LeaseRow, type OfferRow, portText, sharingKeyOf } from "../decide/rows";
import { positionOf } from "../extents";
import {
  documents,
  epochs,
  events,
  freeRanges,
  type LeaseName,
  type LeasePort,
  type LeaseRange,
  leaseNames,
  leasePorts,
  leaseRanges,
  leases,
  type OfferName,
  offerNames,
  offers,
  pools,
  type StoredLease,
  type StoredOffer,
  secrets,
} from "./schema";
import type { Changed, Changes } from "./store";
import type { Table } from "./table";

/** What a commit writes to one table: first it deletes, by key, then it puts. */
export interface Write {
  table: Table<object>;
  deleted: object[];
  put: object[];
}

/** In an order in which nothing waits for rows of another transaction that waits for rows of this one. */
export function writesOf({
  pools: pool,
  leases: lease,
  offers: offer,
  documents: document,
  free,
  log,
}: Changes): Write[] {
  const all: Write[] = [
    writeTo(pools, pool),
    writeTo(leases, { ...lease, put: lease.put.map(toStoredLease) }),
    derived<LeaseRow, LeaseRange>(leaseRanges, rangesOf, lease),
    derived<LeaseRow, LeasePort>(leasePorts, portsOf, lease),
    derived<LeaseRow, LeaseName>(leaseNames, namesOf, lease),
    writeTo(freeRanges, free),
    writeTo(offers, { ...offer, put: offer.put.map(toStoredOffer) }),
    derived<OfferRow, OfferName>(offerNames, offerNamesOf, offer),
    writeTo(secrets, only(document, true)),
    writeTo(documents, only(document, false)),
    writeTo(epochs, { put: log?.epochs ?? [], deleted: [] }),
    writeTo(events, { put: log?.events ?? [], deleted: [] }),
  ];
  return all.filter(({ deleted, put }) => deleted.length + put.length > 0);
}

const writeTo = <R extends object>(table: Table<R>, { put, deleted }: Changed<R>): Write => ({ table, put, deleted });

const only = ({ put, deleted }: Changes["documents"], isSecret: boolean): Changes["documents"] => {
  const fits = ({ kind }: { kind: string }) => (kind === "secret") === isSecret;
  return { put: put.filter(fits), deleted: deleted.filter(fits) };
};

/** Rows that follow from others: those that are new, and those that are gone. */
function derived<R extends object, D extends object>(
  table: Table<D>,
  derive: (row: R) => D[],
  { put, deleted, before }: Changed<R> & { before(row: R): R | undefined },
): Write {
  const old = [...put.flatMap((row) => before(row) ?? []), ...deleted].flatMap(derive);
  const now = put.flatMap(derive);
  if (old.length === 0) return { table, put: now, deleted: [] };
  const idOf = (row: D) => table.encode(row).join("\n");
  const [had, have] = [new Set(old.map(idOf)), new Set(now.map(idOf))];
  return { table, put: now.filter((row) => !had.has(idOf(row))), deleted: old.filter((row) => !have.has(idOf(row))) };
}

export function toStoredLease(lease: LeaseRow): StoredLease {
  const { endedAt, resting, expiresAt, freeAt } = lease;
  if (endedAt !== undefined && !resting) return lease;
  // A lease is still valid in the millisecond of its end.
  const dueAt = resting ? freeAt : expiresAt === undefined ? undefined : expiresAt + 1;
  return { ...lease, position: positionOf(lease), ...(dueAt !== undefined && { dueAt }) };
}

const toStoredOffer = (offer: OfferRow): StoredOffer =>
  offer.childPool ? { ...offer, childName: offer.childPool.name } : offer;

function rangesOf(lease: LeaseRow): LeaseRange[] {
  const { pool, uid, endedAt, extents, resting = [] } = lease;
  const isHeld = endedAt === undefined;
  const sharedAs = isHeld ? sharingKeyOf(lease) : undefined;
  return (isHeld ? extents : resting).map(({ first, last }) => ({
    ...{ pool, last, coHolder: isHeld && sharedAs === undefined ? "" : uid, first, uid, isHeld },
    ...(sharedAs !== undefined && { sharedAs }),
  }));
}

const portsOf = ({ pool, uid, endedAt, extents, ports = [] }: LeaseRow): LeasePort[] =>
  endedAt === undefined
    ? extents.flatMap(({ last }) => ports.map((port) => ({ pool, value: last, port: portText(port), uid })))
    : [];

const namesOf = ({ uid, endedAt, names = [] }: LeaseRow): LeaseName[] =>
  endedAt === undefined ? [...new Set(names)].map((name) => ({ name, uid })) : [];

const offerNamesOf = ({ owner, program, names = [] }: OfferRow): OfferName[] =>
  [...new Set(names)].map((name) => ({ name, owner, program }));
