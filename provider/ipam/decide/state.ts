import { randomUUID } from "node:crypto";
import { mergeRanges, overlapsAny, overlapWith, subtract, total } from "../ranges";
import { type Changes, type DocumentRow, KEPT_MS, type Query, type Rows } from "../store/store";
import type { Event, Port, ValueRange } from "../types";
import type { Access } from "./access";
import { FreeSpace } from "./free-space";
import {
  isOfferLive,
  type LeaseRow,
  type OfferRow,
  offerKey,
  type PoolRow,
  portText,
  sharingKeyOf,
  type Zone,
} from "./rows";
import { Journal, Table } from "./table";

const POOL_INDEXES = { all: (_: PoolRow) => "" };
const LEASE_INDEXES = {
  pool: (lease: LeaseRow) => (takesValues(lease) ? lease.pool : undefined),
  owner: (lease: LeaseRow) => (takesValues(lease) ? keyIn(lease.pool, lease.owner) : undefined),
  ended: ({ endedAt, pool, owner }: LeaseRow) => (endedAt === undefined ? undefined : keyIn(pool, owner)),
  name: ({ endedAt, names }: LeaseRow) => (endedAt === undefined ? names : undefined),
  key: (lease: LeaseRow) => (lease.endedAt === undefined ? keyIn(lease.pool, sharingKeyOf(lease)) : undefined),
  past: (lease: LeaseRow) => (takesValues(lease) ? undefined : ""),
};
const OFFER_INDEXES = {
  pool: ({ pool }: OfferRow) => pool,
  owner: ({ owner }: OfferRow) => owner,
  name: ({ names }: OfferRow) => names,
  childPool: ({ childPool }: OfferRow) => childPool?.name,
  all: (_: OfferRow) => "",
};
const DOCUMENT_INDEXES = { kind: ({ kind }: DocumentRow) => kind };

/**
 * The rows that a decision reads and changes. Each question loads the rows that it is about, or ends the decision with `Missing` until they
 * are loaded; then it is answered from all rows at hand, with the changes that were made so far.
 */
export class State {
  readonly #journal = new Journal();
  readonly pools = new Table(this.#journal, ({ name }: PoolRow) => name, POOL_INDEXES);
  readonly leases = new Table(this.#journal, ({ uid }: LeaseRow) => uid, LEASE_INDEXES);
  readonly offers = new Table(this.#journal, offerKey, OFFER_INDEXES);
  readonly documents = new Table(this.#journal, ({ kind, key }: DocumentRow) => `${kind}/${key}`, DOCUMENT_INDEXES);
  #events: Event[] = [];
  readonly #offered = new Map<string, Offered>();
  readonly #free = new Map<string, FreeSpace>();
  readonly #asked = new Set<string>();
  readonly #names = new Set<string>();
  readonly #active: string[] = [];
  /** Of the request at hand. */
  terms: Terms = { offerTtl: 0, quarantine: 0, seed: "" };
  /** What the decision needs besides. */
  readonly missing: Query[] = [];

  constructor(
    /** The store's clock. */
    readonly now: number,
    /** The names of pools that are locked. `all`: the whole store is, or it only reads. */
    private readonly locked: ReadonlySet<string> | "all",
    /** Loads rows at once, where the engine can. */
    private readonly loadNow?: (query: Query) => Rows,
  ) {}

  get mark(): number {
    return this.#journal.mark;
  }

  rollBack(mark: number): void {
    this.#journal.rollBack(mark);
  }

  /** Adds rows of the store, as the answer to these queries. */
  absorb(
    queries: Query[],
    { pools = [], leases = [], offers = [], documents = [], free = [], active = [] }: Rows,
  ): void {
    for (const query of queries) this.#asked.add(idOf(query));
    for (const row of pools) this.pools.load(row);
    for (const row of leases) this.leases.load(row);
    for (const row of offers) this.offers.load(row);
    for (const row of documents) this.documents.load(row);
    for (const { query, rows } of free) this.space(query.pool, query.zone).load(query.from, query.limit, rows);
    this.#active.push(...active);
  }

  /** Ends the decision if these rows are not loaded. */
  need(...queries: Query[]): void {
    const open = queries.filter((query) => !this.#asked.has(idOf(query)));
    if (open.length === 0) return;
    if (this.loadNow) {
      for (const query of open) this.absorb([query], this.loadNow(query));
      return;
    }
    this.missing.push(...open);
    throw new Missing();
  }

  // Pools

  pool(name: string): PoolRow | undefined {
    this.lock([name]);
    this.need({ of: "pool", name });
    return this.pools.get(name);
  }

  /** Ends the decision unless these pools are locked. */
  lock(names: string[]): void {
    const { locked } = this;
    const open = locked === "all" ? [] : names.filter((name) => !locked.has(name));
    for (const name of open) this.#names.add(name);
    if (open.length > 0) throw new Missing();
  }

  /** Pools with a spec, by name. */
  poolsFrom(prefix: string, after: string, limit: number): PoolRow[] {
    this.need({ of: "pools", prefix, after, limit });
    const found = this.pools.by("all", "").filter(({ name, spec }) => spec && name.startsWith(prefix) && name > after);
    return found.sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  /** Pools that the decision needs to lock besides. */
  get missingLocks(): string[] {
    return [...this.#names];
  }

  space(pool: string, zone: Zone): FreeSpace {
    const id = `${zone} ${pool}`;
    const space =
      this.#free.get(id) ??
      new FreeSpace(pool, zone, this.#journal, (from, limit) => this.need({ of: "free", pool, zone, from, limit }));
    this.#free.set(id, space);
    return space;
  }

  // Leases

  lease(uid: string): LeaseRow | undefined {
    this.need({ of: "lease", uid });
    return this.leases.get(uid);
  }

  /** Leases of the owner that have not ended or rest. */
  leasesOf(pool: string, owner: string): LeaseRow[] {
    this.need({ of: "owner", pool, owner });
    return this.leases.by("owner", keyIn(pool, owner)!);
  }

  /** Leases of the owner that ended, the newest first: at least `limit` of them, or all. */
  endedOf(pool: string, owner: string, limit: number): LeaseRow[] {
    this.need({ of: "ended", pool, owner, limit });
    return this.leases.by("ended", keyIn(pool, owner)!).sort((a, b) => b.endedAt! - a.endedAt!);
  }

  /** Leases and offers that are no longer kept: at least `limit` of each, or all. */
  past(limit: number): { leases: LeaseRow[]; offers: OfferRow[] } {
    const before = this.now - KEPT_MS;
    this.need({ of: "pastLeases", before, limit }, { of: "pastOffers", before, limit });
    return {
      leases: this.leases.by("past", "").filter(({ endedAt }) => endedAt! < before),
      offers: this.offers.by("all", "").filter(({ expiresAt }) => expiresAt < before),
    };
  }

  leaseNamed(name: string): LeaseRow | undefined {
    this.need({ of: "name", name });
    return this.leases.by("name", name)[0];
  }

  /** Leases that hold a value of these ranges; overdue ones, too. */
  holdersOf(pool: string, ranges: ValueRange[]): LeaseRow[] {
    this.need(...ranges.map(({ first, last }): Query => ({ of: "values", pool, first, last })));
    const isIn = overlapWith(ranges);
    return this.leases.by("pool", pool).filter((lease) => lease.endedAt === undefined && isIn(lease.ranges));
  }

  /** Leases that ended and whose quarantined values are in these ranges. */
  restingOn(pool: string, ranges: ValueRange[]): LeaseRow[] {
    this.need(...ranges.map(({ first, last }): Query => ({ of: "values", pool, first, last })));
    const isIn = overlapWith(ranges);
    return this.leases.by("pool", pool).filter(({ resting }) => resting && isIn(resting));
  }

  /** Leases that share values under this key, overdue ones included. */
  sharersOf(pool: string, key: string): LeaseRow[] {
    this.need({ of: "sharers", pool, sharedAs: key });
    return this.leases.by("key", keyIn(pool, key)!);
  }

  /** Leases that use one of these ports on these values. */
  portHolders(pool: string, ranges: ValueRange[], ports: Port[]): LeaseRow[] {
    const texts = ports.map(portText);
    this.need(...ranges.map(({ last }): Query => ({ of: "ports", pool, value: last, ports: texts })));
    return this.leases
      .by("pool", pool)
      .filter(
        (lease) =>
          lease.endedAt === undefined &&
          lease.ports?.some((port) => texts.includes(portText(port))) &&
          lease.ranges.some((range) => overlapsAny(ranges, range)),
      );
  }

  /** Leases in quarantine, the longest ended first: at least `limit` of them, or all. */
  restingIn(pool: string, limit: number): LeaseRow[] {
    this.need({ of: "resting", pool, limit });
    const found = this.leases.by("pool", pool).filter(({ resting }) => resting);
    return found.sort((a, b) => a.endedAt! - b.endedAt!);
  }

  /** Leases that have not ended, the longest unseen first: at least `limit` of them, or all. */
  idlest(pool: string, limit: number): LeaseRow[] {
    this.need({ of: "idle", pool, limit });
    const found = this.leases.by("pool", pool).filter(({ endedAt }) => endedAt === undefined);
    return found.sort((a, b) => a.lastSeen - b.lastSeen);
  }

  /** Overdue leases and those whose quarantine is over. */
  due(pool: string, limit: number): LeaseRow[] {
    const { now } = this;
    this.need({ of: "due", pool, limit });
    return this.leases
      .by("pool", pool)
      .filter(({ endedAt, expiresAt, freeAt }) =>
        endedAt === undefined ? (expiresAt ?? Infinity) < now : (freeAt ?? 0) <= now,
      );
  }

  /** Leases that have not ended and have a child pool. */
  parentsIn(pool: string): LeaseRow[] {
    this.need({ of: "parents", pool });
    return this.leases.by("pool", pool).filter(({ endedAt, childPool }) => endedAt === undefined && childPool);
  }

  /** Leases that have not ended or rest, after this value: at least `limit`, or all. */
  page(pool: string, after: bigint, limit: number): LeaseRow[] {
    this.need({ of: "page", pool, after, limit });
    return this.leases.by("pool", pool);
  }

  // Offers

  offer(owner: string, program: string): OfferRow | undefined {
    this.need({ of: "offersOf", owner });
    return this.offers.get(offerKey({ owner, program }));
  }

  /** All offers of the owner, also expired ones. */
  offersOf(owner: string): OfferRow[] {
    this.need({ of: "offersOf", owner });
    return this.offers.by("owner", owner);
  }

  offersIn = (pool: string): OfferRow[] => this.#offeredIn(pool).rows;

  /** The values of all offers in the pool, merged. */
  offeredRanges(pool: string): ValueRange[] {
    const offered = this.#offeredIn(pool);
    offered.ranges ??= mergeRanges(offered.rows.flatMap(({ ranges }) => ranges));
    return offered.ranges;
  }

  #offeredIn(pool: string): Offered {
    this.need({ of: "offersIn", pool });
    const { version } = this.offers;
    const known = this.#offered.get(pool);
    if (known?.version === version) return known;
    const rows = this.offers.by("pool", pool).filter((offer) => isOfferLive(offer, this.now));
    const offered = { version, rows };
    this.#offered.set(pool, offered);
    return offered;
  }

  offersNamed(name: string): OfferRow[] {
    this.need({ of: "offersNamed", name });
    return this.offers.by("name", name).filter((offer) => isOfferLive(offer, this.now));
  }

  /** Offers with a child pool of this name. */
  offersOfPool(name: string): OfferRow[] {
    this.need({ of: "offersOfPool", childName: name });
    return this.offers.by("childPool", name).filter((offer) => isOfferLive(offer, this.now));
  }

  /** Offers with a child pool whose name begins so. */
  offersWithPool(prefix: string): OfferRow[] {
    this.need({ of: "offersWithPool", prefix });
    const found = this.offers.by("all", "").filter((offer) => isOfferLive(offer, this.now));
    return found.filter(({ childPool }) => childPool?.name.startsWith(prefix));
  }

  /** Names of pools with overdue or resting leases, or with offers. */
  activePools(prefix: string): Set<string> {
    this.need({ of: "activePools", prefix });
    return new Set(this.#active);
  }

  document(kind: DocumentRow["kind"], key: string): string | undefined {
    this.need({ of: "documents", kind });
    return this.documents.get(`${kind}/${key}`)?.value;
  }

  documentsOf(kind: DocumentRow["kind"]): DocumentRow[] {
    this.need({ of: "documents", kind });
    return this.documents.by("kind", kind);
  }

  record(event: Event): void {
    this.#events.push(event);
    this.#journal.add(() => this.#events.pop());
  }

  get events(): Event[] {
    return this.#events;
  }

  /** How many of these values no other lease holds. */
  countOwn(lease: LeaseRow): bigint {
    const others = sharingKeyOf(lease) === undefined ? [] : this.holdersOf(lease.pool, lease.ranges);
    return total(
      subtract(
        lease.ranges,
        others.filter(({ uid }) => uid !== lease.uid).flatMap(({ ranges }) => ranges),
      ),
    );
  }

  /** Changes of the head of the store, such as its identity. */
  head: Pick<Changes, "head" | "resetEpochs"> = {};

  changes(): Changes {
    const [leases, offers] = [this.leases, this.offers];
    const pools = this.pools.changes;
    const documents = this.documents.changes;
    const free = [...this.#free.values()].map((space) => space.changes());
    const changed = leases.changes;
    return {
      ...this.head,
      nextEpoch: randomUUID().slice(0, 8),
      pools,
      leases: { ...changed, before: (row) => leases.before(row) },
      offers: { ...offers.changes, before: (row) => offers.before(row) },
      documents,
      free: {
        put: free.flatMap(({ put }) => put),
        deleted: free.flatMap(({ deleted }) => deleted),
        cleared: free.flatMap(({ cleared }) => cleared),
      },
      events: this.#events,
      isVersion:
        this.#events.length > 0 || [...documents.put, ...documents.deleted].some(({ kind }) => kind !== "delivery"),
    };
  }
}

/** Live offers of a pool, until an offer changes: each request of a batch asks for them. */
interface Offered {
  /** Of the table of offers. */
  version: number;
  rows: OfferRow[];
  ranges?: ValueRange[];
}

/** What a request brings with it besides itself. */
export interface Terms {
  /** Lifetime of a new offer, in seconds. */
  offerTtl: number;
  /** How long values of ended leases are given to no other owner unless the pool is full, in seconds. */
  quarantine: number;
  /** Decides random choices. */
  seed: string;
  /** The user, as `USER@HOST`. */
  actor?: string;
  access?: Access;
}

/** Ends a decision that needs rows or locks which are not there yet. */
class Missing extends Error {}

export const isMissing = (error: unknown): boolean => error instanceof Missing;

/** A lease takes values until its end, and while it rests. */
const takesValues = ({ endedAt, resting }: LeaseRow): boolean => endedAt === undefined || resting !== undefined;

const keyIn = (pool: string, key: string | undefined): string | undefined =>
  key === undefined ? undefined : `${pool}\n${key}`;

/** Equal for equal queries. */
export function idOf(query: Query): string {
  let id = "";
  for (const key in query) id += `${query[key as keyof Query]} `;
  return id;
}
