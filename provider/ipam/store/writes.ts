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
  /** Rows are new: one that is there is another holder. */
  isGuard?: boolean;
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

/** Sorted by key. */
const writeTo = <R extends object>(table: Table<R>, { put, deleted }: Changed<R>): Write => ({
  table,
  put: sortBy(table, put),
  deleted: sortBy(table, deleted),
});

function sortBy<R extends object>(table: Table<R>, rows: R[]): R[] {
  if (rows.length < 2) return rows;
  const fields = table.columns.filter(({ name }) => table.key.includes(name));
  const keyed = rows.map((row) => ({
    row,
    key: fields.map(({ field, column }) => String(column.encode(row[field as keyof R]))).join("\n"),
  }));
  return keyed.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0)).map(({ row }) => row);
}

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
  if (old.length === 0) return { ...writeTo(table, { put: now, deleted: [] }), isGuard: true };
  const idOf = (row: D) => table.encode(row).join("\n");
  const [had, have] = [new Set(old.map(idOf)), new Set(now.map(idOf))];
  const changed = { put: now.filter((row) => !had.has(idOf(row))), deleted: old.filter((row) => !have.has(idOf(row))) };
  return { ...writeTo(table, changed), isGuard: true };
}

export function toStoredLease(lease: LeaseRow): StoredLease {
  const isListed = lease.endedAt === undefined || lease.resting;
  return isListed ? { ...lease, position: positionOf(lease) } : lease;
}

const toStoredOffer = (offer: OfferRow): StoredOffer =>
  offer.childPool ? { ...offer, childName: offer.childPool.name } : offer;

function rangesOf(lease: LeaseRow): LeaseRange[] {
  const { pool, uid, endedAt, extents, resting = [] } = lease;
  const isHeld = endedAt === undefined;
  const sharedAs = isHeld ? sharingKeyOf(lease) : undefined;
  return (isHeld ? extents : resting).map(({ first, last }) => ({
    ...{ pool, last, first, uid, isHeld },
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
