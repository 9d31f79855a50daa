import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError, type OverlayError } from "../errors";
import { isSameStack } from "../owner";
import { SPACES } from "../pool-names";
import { takenError } from "./errors";
import { overlapsAny } from "./extents";
import type { Observer } from "./observer";
import { Queue } from "./queue";
import { Replacements } from "./replacements";
import { amend, closeChildPool, release, touch } from "./rules/amend";
import { fsck } from "./rules/fsck";
import { claim, offer } from "./rules/grant";
import { importLeases } from "./rules/import";
import * as queries from "./rules/queries";
import { readEvents } from "./storage/event-log";
import { adoptIdentity, findSeen, readIdentity } from "./storage/identity";
import { accessTokenKey, accessTokens, secretKey } from "./storage/keys";
import type { Store } from "./storage/store";
import { type PoolOptions, type WriteBuffer, withBuffer } from "./storage/write-buffer";
import type {
  AccessToken,
  By,
  Changes,
  Condition,
  ExistingLease,
  Extent,
  Lease,
  LeaseFilter,
  MissingPool,
  OfferOptions,
  Pool,
  PoolPage,
  Replacement,
  Request,
  StoreIdentity,
  StoreVersion,
} from "./types";

export interface Settings extends PoolOptions {
  /** Where the store is, for messages. */
  place?: string;
  /** How long a claim waits for another resource of its stack to release the value. Seconds; default 5. */
  swapWait?: number;
  observer?: Observer;
}

/** An up needs its offers only from its check to its claim. Seconds. */
const UP_OFFER_TTL = 600;

/** The pool on any store: rules, group commit, and the state of one run of Pulumi. */
export class StoredPool implements Pool {
  readonly #queue: Queue;
  /** What owners get in this run. Not stored: a preview that is not merged must not change anything. */
  readonly #planned = new Map<string, Extent[]>();
  /** Uids of leases whose owners ask for other values in this run, as the program declares; their owners may not be checked yet. */
  readonly #releasing = new Set<string>();
  /** Uids of leases that their owners keep in this run. */
  readonly #kept = new Set<string>();
  readonly #replacements = new Replacements((view) => this.#read(view), this.#kept);
  /** Offers of this run, by the leases that must end or move for them. */
  readonly #waiters = new Map<string, Lease>();
  /** Offers that are being made. */
  readonly #offering = new Set<Promise<Lease>>();
  /** Owners that this run has checked. */
  readonly #requested = new Set<string>();
  /** Epochs that the store has. They are never removed while it runs, so one read serves all resources of an epoch. */
  readonly #included: (StoreIdentity & { first: number; last: number; recovered: boolean })[] = [];
  /** The version of the store that the commit of a lease has made. */
  readonly #versions = new WeakMap<Lease, StoreVersion>();
  private readonly settings: Settings;

  constructor(
    private readonly store: Store,
    settings: Settings,
    /** The pool whose session this is. */
    private readonly parent?: StoredPool,
  ) {
    // Offers to other requests of an owner belong to other branches of its program.
    const isAbandoned = (holder: Lease, owner: string) =>
      holder.owner === owner || (isSameStack(holder.owner, owner) && !this.#isPlanned(holder));
    this.settings = { ...settings, isAbandoned };
    this.#queue = parent ? parent.#queue : new Queue(store, (events) => settings.observer?.committed?.(events));
  }

  session({ actor }: { actor: string }): Pool {
    return new StoredPool(this.store, { ...this.settings, actor }, this.parent ?? this);
  }

  get whyNoOffers(): string | undefined {
    if (this.store.readOnly) return "the store is read-only";
    return this.settings.offerTtl === 0 ? "overlay:offerTtl is 0" : undefined;
  }

  async offer(
    request: Request,
    { inUp = false, movesAway = () => undefined, quota }: OfferOptions = {},
  ): Promise<Lease> {
    const plannedExtents = this.#planned.get(planKey(request));
    this.#notePlan(request, request.want);
    const offerTtl = inUp ? Math.max(this.settings.offerTtl, UP_OFFER_TTL) : this.settings.offerTtl;
    const context = {
      request,
      isClaim: false,
      wasPreviewed: false,
      inUp,
      offerTtl,
      seed: randomUUID(),
      ...(quota && { quota }),
    };
    const willRelease = (holder: Lease) => this.#mayBeReleased(request, holder, movesAway);
    // A transaction may be tried again: the refusal of the attempt that is committed counts.
    const attempt = async (tx: WriteBuffer): Promise<{ lease: Lease; refusal?: OverlayError }> => {
      let refusal: OverlayError | undefined;
      const refuseLater = (error: OverlayError) => {
        refusal = error;
      };
      const lease = await offer(tx, {
        ...context,
        ...(plannedExtents && { plannedExtents }),
        willRelease,
        refuseLater,
      });
      return { lease, ...(refusal && { refusal }) };
    };
    const granted = this.#write(request.pool, attempt, true).then(({ lease, refusal }) => {
      this.#notePlan(request, lease.extents);
      for (const uid of lease.waitsFor ?? []) this.#waiters.set(uid, lease);
      if (refusal) throw refusal;
      return lease;
    });
    this.#offering.add(granted);
    return granted.finally(() => this.#offering.delete(granted));
  }

  async claim(request: Request): Promise<Lease> {
    this.#notePlan(request, request.want);
    const deadline = Date.now() + (this.settings.swapWait ?? 5) * 1000;
    for (;;) {
      let isHeldInStack = false;
      const willRelease = (holder: Lease) => {
        isHeldInStack ||= isSameStack(holder.owner, request.owner);
        return this.#isReleasing(request, holder);
      };
      try {
        const { offerTtl } = this.settings;
        const context = { isClaim: true, wasPreviewed: true, inUp: true, offerTtl, seed: randomUUID() };
        const lease = await this.#commitLease(request.pool, (tx) => claim(tx, { request, willRelease, ...context }));
        this.#notePlan(request, lease.extents);
        if (lease.childPool !== undefined) this.#replacements.finish(lease.childPool);
        return lease;
      } catch (error) {
        // The other resource may be about to claim another value, or to release this one.
        if (!isHeldInStack || !isOverlayError(error, "PLAN_STALE") || Date.now() > deadline) throw error;
      }
      await sleep(100);
    }
  }

  async claimAll(requests: Request[]): Promise<Lease[]> {
    const { offerTtl } = this.settings;
    const context = { isClaim: true, wasPreviewed: true, inUp: true, offerTtl, willRelease: () => false };
    const work = async (tx: WriteBuffer): Promise<Lease[]> => {
      const leases: Lease[] = [];
      for (const request of requests) leases.push(await claim(tx, { request, ...context, seed: randomUUID() }));
      return leases;
    };
    const [leases, version] = await this.#queue.commit(requests[0]?.pool ?? "", work, { options: this.settings });
    for (const lease of leases) if (version) this.#versions.set(lease, version);
    return leases;
  }

  async markKept(lease: Lease): Promise<void> {
    this.#notePlan(lease, lease.extents);
    this.#kept.add(lease.uid);
    await this.#replacements.refuseKept(lease);
    await Promise.allSettled(this.#offering); // Later ones find that it is kept.
    const waiter = this.#waiters.get(lease.uid);
    const spec = waiter && (await this.spec(lease.pool));
    if (!spec) return;
    await this.release(waiter.pool, waiter.leaseId); // Refused with this lease: it promises nothing.
    throw takenError(spec, lease.extents[0]!, waiter, lease.owner);
  }

  planReplacement(replacement: Replacement): Promise<void> {
    return this.#replacements.plan(replacement);
  }

  mustFitReplacement(request: Request): void {
    this.#replacements.mustFit(request);
  }

  fitsReplacement(request: Request, extents: Extent[]): boolean {
    return this.#replacements.fits(request, extents);
  }

  markEnding(lease: Lease): void {
    this.#replacements.markEnding(lease);
  }

  mustBeReplaceable(pool: string): Promise<void> {
    return this.#replacements.mustBePossible(pool);
  }

  versionOf(lease: Lease): StoreVersion | undefined {
    return this.#versions.get(lease);
  }

  async find(pool: string, by: By): Promise<Lease | undefined> {
    return this.#read((tx) => queries.find(tx, pool, by));
  }

  async endOf(pool: string, uid: string): Promise<Lease | undefined> {
    return this.#read((tx) => queries.endOf(tx, pool, uid));
  }

  async holder(name: string): Promise<Lease | undefined> {
    return this.#read((tx) => queries.holder(tx, name));
  }

  async spec(pool: string) {
    return this.#read((tx) => queries.spec(tx, pool));
  }

  async usage(pool: string) {
    return this.#read((tx) => queries.usage(tx, pool));
  }

  async usages(prefix: string) {
    return this.#read((tx) => queries.usages(tx, prefix));
  }

  async leases(pool: string, options: LeaseFilter = {}) {
    return this.#read((tx) => queries.leases(tx, pool, options));
  }

  async pools(prefix = "", options: PoolPage = {}) {
    return this.#read((tx) => queries.pools(tx, prefix, options));
  }

  async freeExtents(pool: string, options: { within?: Extent; limit?: number } = {}) {
    return this.#read((tx) => queries.freeExtents(tx, pool, options));
  }

  async history(pool: string, options: { after?: number; limit?: number } = {}) {
    return this.#read((tx) => queries.history(tx, pool, options));
  }

  amend(
    pool: string,
    leaseId: string,
    changes: Changes,
    { dryRun = false, onlyIf }: { dryRun?: boolean; onlyIf?: Condition } = {},
  ): Promise<Lease> {
    const work = (tx: WriteBuffer) => amend(tx, pool, leaseId, changes, onlyIf);
    return dryRun ? this.#read(work) : this.#commitLease(pool, work);
  }

  close(pool: string, leaseId: string, { onlyIf }: { onlyIf?: Condition } = {}): Promise<void> {
    return this.#write(pool, (tx) => closeChildPool(tx, pool, leaseId, onlyIf));
  }

  release(pool: string, leaseId: string, { onlyIf }: { onlyIf?: Condition } = {}): Promise<boolean> {
    return this.#write(pool, (tx) => release(tx, pool, leaseId, onlyIf));
  }

  touch(pool: string, leaseId: string, { ttl }: { ttl?: number } = {}): Promise<void> {
    return this.#write(pool, (tx) => touch(tx, pool, leaseId, ttl));
  }

  importLeases(
    leases: ExistingLease[],
    { missing = [], dryRun = false }: { missing?: MissingPool[]; dryRun?: boolean } = {},
  ) {
    const work = (tx: WriteBuffer) => importLeases(tx, leases, missing);
    return dryRun ? this.#read(work) : this.#write("", work);
  }

  events({ after, limit = 1000 }: { after: number; limit?: number }) {
    return this.#read((tx) => readEvents(tx, after, limit));
  }

  accessTokens(): Promise<AccessToken[]> {
    return this.#read((tx) => tx.all(accessTokens));
  }

  findAccessToken(id: string): Promise<AccessToken | undefined> {
    return this.#read((tx) => tx.get(accessTokenKey(id)));
  }

  putAccessToken(token: AccessToken): Promise<void> {
    return this.#write("", async (tx) => tx.put(accessTokenKey(token.id), token));
  }

  findSecret(name: string): Promise<string | undefined> {
    return this.#read((tx) => tx.get(secretKey(name)));
  }

  replaceSecret(name: string, change: (kept: string | undefined) => string): Promise<string> {
    return this.#write("", async (tx): Promise<string> => {
      const value = change(await tx.get(secretKey(name)));
      tx.put(secretKey(name), value);
      return value;
    });
  }

  async secret(name: string, initial: string): Promise<string> {
    const kept = await this.findSecret(name);
    return kept ?? this.#write("", (tx) => initSecret(tx, name, initial));
  }

  async identity(): Promise<StoreIdentity> {
    const { recovered: _, ...found } = await this.#read(readIdentity);
    return { ...found, id: found.id ?? (await this.secret("identity", randomUUID())) };
  }

  async mustInclude(seen: StoreIdentity): Promise<{ recovered: boolean }> {
    const known = this.#included.find(
      ({ id, epoch, first, last }) =>
        id === seen.id && epoch === seen.epoch && first <= seen.version && seen.version <= last,
    );
    if (known) return known;
    const { first, last, recovered } = await this.#read((tx) => findSeen(tx, seen, this.settings.place));
    this.#included.push({ ...seen, first, last, recovered });
    return { recovered };
  }

  adoptIdentity(from: string[], version: number, { complete = false } = {}): Promise<void> {
    return this.#write("", (tx) => adoptIdentity(tx, from, version, complete));
  }

  fsck(options: { repair?: boolean } = {}) {
    return fsck(this.store, this.settings, options.repair ?? false);
  }

  async end(): Promise<void> {
    if (this.parent) return;
    await this.#queue.idle();
    await this.store.close();
  }

  async #commitLease(pool: string, work: (tx: WriteBuffer) => Promise<Lease>): Promise<Lease> {
    const [lease, version] = await this.#queue.commit(pool, work, { options: this.settings });
    if (version) this.#versions.set(lease, version);
    return lease;
  }

  #notePlan(owner: Pick<Request, "pool" | "owner" | "formerOwner">, extents: Extent[] | undefined): void {
    for (const name of [owner.owner, owner.formerOwner]) {
      if (name === undefined) continue;
      const key = planKey({ pool: owner.pool, owner: name });
      this.#requested.add(key);
      if (extents) this.#planned.set(key, extents);
    }
  }

  /**
   * Whether a request may be promised values that another lease still holds: a lease of its own owner, or of a resource of the same stack
   * that may ask for other values in this run. Blocks of networks and pools are not swapped.
   */
  #mayBeReleased(request: Request, holder: Lease, movesAway: NonNullable<OfferOptions["movesAway"]>): boolean {
    if (holder.owner === request.owner || holder.owner === request.formerOwner) return true;
    if (!isSameStack(holder.owner, request.owner) || request.pool.startsWith(SPACES)) return false;
    if (this.#kept.has(holder.uid)) return false;
    const planned = this.#planned.get(planKey(holder));
    if (planned) return !overlap(planned, holder.extents);
    const moves = movesAway(holder);
    if (moves) this.#releasing.add(holder.uid);
    return moves !== false;
  }

  /** Whether this run has checked the owner of an offer, and may give it these values. */
  #isPlanned(offer: Lease): boolean {
    const key = planKey(offer);
    const planned = this.#planned.get(key);
    return this.#requested.has(key) && (!planned || overlap(planned, offer.extents));
  }

  #isReleasing(request: Request, holder: Lease): boolean {
    if (!isSameStack(holder.owner, request.owner)) return false;
    const planned = this.#planned.get(planKey(holder));
    return planned ? !overlap(planned, holder.extents) : this.#releasing.has(holder.uid);
  }

  #write<T>(pool: string, work: (tx: WriteBuffer) => Promise<T>, promised = false): Promise<T> {
    return this.#queue.add(pool, work, { options: this.settings, promised });
  }

  #read<T>(view: (tx: WriteBuffer) => Promise<T>): Promise<T> {
    return this.store.read((tx) => withBuffer(tx, this.settings, view));
  }
}

const overlap = (some: Extent[], others: Extent[]): boolean => some.some((extent) => overlapsAny(others, extent));

async function initSecret(tx: WriteBuffer, name: string, initial: string): Promise<string> {
  const kept = await tx.get(secretKey(name));
  if (kept === undefined) tx.put(secretKey(name), initial);
  return kept ?? initial;
}

const planKey = ({ pool, owner }: { pool: string; owner: string }): string => JSON.stringify([pool, owner]);
