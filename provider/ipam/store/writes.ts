import { type LeaseRow, type OfferRow, portText, sharingKeyOf } from "../decide/rows";
import { positionOf } from "../ranges";
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
  /** Rows that are replaced or deleted, as far as they have entries in indexes. */
  old: object[];
}

/** In an order in which nothing waits for rows of another transaction that waits for rows of this one. */
export function writesOf(changes: Changes): Write[] {
  const { pools: pool, leases: lease, offers: offer, free, log } = changes;
  const all: Write[] = [
    writeTo(pools, pool),
    writeTo(leases, lease, toStoredLease),
    derived<LeaseRow, LeaseRange>(leaseRanges, rangesOf, lease),
    derived<LeaseRow, LeasePort>(leasePorts, portsOf, lease),
    derived<LeaseRow, LeaseName>(leaseNames, namesOf, lease),
    writeTo(freeRanges, free),
    writeTo(offers, offer, toStoredOffer),
    derived<OfferRow, OfferName>(offerNames, offerNamesOf, offer),
    writeTo(secrets, documentsOf(changes, true)),
    writeTo(documents, documentsOf(changes, false)),
    writeTo(epochs, { put: log?.epochs ?? [], deleted: [] }),
    writeTo(events, { put: log?.events ?? [], deleted: [] }),
  ];
  return all.filter(({ deleted, put }) => deleted.length + put.length > 0);
}

type Replaced<R> = Changed<R> & { before?(row: R): R | undefined };

const oldOf = <R>({ put, deleted, before }: Replaced<R>): R[] => [
  ...put.flatMap((row) => before?.(row) ?? []),
  ...deleted,
];

const writeTo = <R extends object>(
  table: Table<R>,
  changed: Replaced<R>,
  toStored: (row: R) => R = (row) => row,
): Write => ({
  ...{ table, put: changed.put.map(toStored), deleted: changed.deleted },
  old: oldOf(changed).map(toStored),
});

/** The changed secrets, or all other changed documents. */
export const documentsOf = (
  { documents: { put, deleted } }: Pick<Changes, "documents">,
  areSecret: boolean,
): Changes["documents"] => {
  const fits = ({ kind }: { kind: string }) => (kind === "secret") === areSecret;
  return { put: put.filter(fits), deleted: deleted.filter(fits) };
};

/** Rows that follow from others: those that are new, and those that are gone. */
function derived<R extends object, D extends object>(
  table: Table<D>,
  derive: (row: R) => D[],
  changed: Replaced<R>,
): Write {
  const [old, now] = [oldOf(changed).flatMap(derive), changed.put.flatMap(derive)];
  if (old.length === 0) return { table, put: now, deleted: [], old };
  const idOf = (row: D) => table.encode(row).join("\n");
  const [had, have] = [new Set(old.map(idOf)), new Set(now.map(idOf))];
  const deleted = old.filter((row) => !have.has(idOf(row)));
  return { table, put: now.filter((row) => !had.has(idOf(row))), deleted, old: deleted };
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
  const { pool, uid, endedAt, ranges, resting = [] } = lease;
  const isHeld = endedAt === undefined;
  const sharedAs = isHeld ? sharingKeyOf(lease) : undefined;
  return (isHeld ? ranges : resting).map(({ first, last }) => ({
    ...{ pool, last, coHolder: isHeld && sharedAs === undefined ? "" : uid, first, uid, isHeld },
    ...(sharedAs !== undefined && { sharedAs }),
  }));
}

const portsOf = ({ pool, uid, endedAt, ranges, ports = [] }: LeaseRow): LeasePort[] =>
  endedAt === undefined
    ? ranges.flatMap(({ last }) => ports.map((port) => ({ pool, value: last, port: portText(port), uid })))
    : [];

const namesOf = ({ uid, endedAt, names = [] }: LeaseRow): LeaseName[] =>
  endedAt === undefined ? [...new Set(names)].map((name) => ({ name, uid })) : [];

const offerNamesOf = ({ owner, program, names = [] }: OfferRow): OfferName[] =>
  [...new Set(names)].map((name) => ({ name, owner, program }));
