import { randomUUID } from "node:crypto";
import { isOverlayError } from "../errors";
import { isSameStack } from "../owner";
import { SPACES } from "../pool-names";
import type { Observer } from "./observer";
import {
  AttemptEnded,
  type Committed,
  type OfferTerms,
  type Operations,
  type SeenEpoch,
  type SessionOptions,
  type StackPlan,
} from "./operations";
import { Queue, ReadBatch } from "./queue";
import { amend, closeChildPool, release, retractOffers, touch, withdraw } from "./rules/amend";
import type { GrantContext } from "./rules/choose";
import { fsck } from "./rules/fsck";
import { claim, offer } from "./rules/grant";
import { importLeases } from "./rules/import";
import * as queries from "./rules/queries";
import { readEvents } from "./storage/event-log";
import { adoptIdentity, findSeen, readIdentity } from "./storage/identity";
import { accessTokenKey, accessTokens, secretKey } from "./storage/keys";
import type { Store } from "./storage/store";
import { type PoolOptions, type WriteBuffer, withBuffer } from "./storage/write-buffer";
import { keyRing, newSecret, openToken, STORED_KEYS, tokenOf } from "./token";
import type {
  AccessToken,
  AmendOptions,
  By,
  Changes,
  Condition,
  ExistingLease,
  ExpectedToken,
  Extent,
  Grant,
  ImportOptions,
  Lease,
  LeaseFilter,
  PoolPage,
  Request,
  StoreIdentity,
  Webhooks,
} from "./types";
import { StoredWebhooks } from "./webhooks";

export interface LocalSettings extends Omit<PoolOptions, "isAbandoned"> {
  /** Where the store is, for messages. */
  place?: string;
  /** The keys of tokens; default: the store has one. */
  tokenKeys?: string | undefined;
  /** See `SessionOptions`. */
  seed?: string;
  observer?: Observer;
}

/** An up needs its offers only from its check to its claim. Seconds. */
const UP_OFFER_TTL = 600;

/** The rules, applied to the rows of a store. Operations that wait for the same pool are committed together. */
export class LocalOperations implements Operations {
  /** The store itself refuses what a user of it may not write. */
  readonly whyNoClaims = undefined;
  readonly #queue: Queue;
  readonly #reads: ReadBatch;
  readonly webhooks: Webhooks = new StoredWebhooks(
    (view) => this.#read(view),
    (work) => this.#write("", work),
  );

  constructor(
    private readonly store: Store,
    private readonly settings: LocalSettings,
    /** Those whose session this is. */
    private readonly parent?: LocalOperations,
  ) {
    this.#reads = parent ? parent.#reads : new ReadBatch(store);
    this.#queue = parent ? parent.#queue : new Queue(store, (events) => settings.observer?.committed?.(events));
  }

  session(options: SessionOptions): LocalOperations {
    const { offerTtl, quarantine } = this.settings;
    const limits = {
      offerTtl: Math.min(options.offerTtl ?? offerTtl, offerTtl),
      quarantine: Math.max(options.quarantine ?? quarantine, quarantine),
    };
    return new LocalOperations(this.store, { ...this.settings, ...options, ...limits }, this.parent ?? this);
  }

  get whyNoOffers(): string | undefined {
    if (this.store.readOnly) return "the store is read-only";
    return this.settings.offerTtl === 0 ? "overlay:offerTtl is 0" : undefined;
  }

  offer(request: Request, { inUp, plannedExtents, plannedSpec }: OfferTerms, plan: StackPlan): Promise<Lease> {
    const offerTtl = inUp ? Math.max(this.settings.offerTtl, UP_OFFER_TTL) : this.settings.offerTtl;
    const context: GrantContext = {
      request,
      isClaim: false,
      wasPreviewed: false,
      inUp,
      offerTtl,
      seed: this.#seed(),
      willRelease: (holder) => mayBePromised(request, holder, plan),
      ...(plannedExtents && { plannedExtents }),
      ...(plannedSpec && { plannedSpec }),
    };
    const work = attempting(plan, (tx) => offer(tx, context));
    const options = { options: this.#optionsFor(plan), promised: true };
    return this.#observed(this.#queue.add(request.pool, work, options));
  }

  claim(request: Request, plan: StackPlan): Promise<Committed<Lease>> {
    const willRelease = (holder: Lease) => isSameStack(holder.owner, request.owner) && plan.willRelease(holder);
    const context = { ...this.#claimContext(request), willRelease };
    return this.#commitClaims(request.pool, (tx) => claim(tx, context), plan);
  }

  claimAll(requests: Request[], plan: StackPlan): Promise<Committed<Lease[]>> {
    const contexts = requests.map((request, i) => {
      const context = this.#claimContext(request);
      return { ...context, seed: `${context.seed}/${i}`, willRelease: () => false };
    });
    const work = async (tx: WriteBuffer): Promise<Lease[]> => {
      const leases: Lease[] = [];
      for (const context of contexts) leases.push(await claim(tx, context));
      return leases;
    };
    return this.#commitClaims(requests[0]?.pool ?? "", work, plan);
  }

  async amend(
    pool: string,
    leaseId: string,
    changes: Changes,
    { dryRun = false, onlyIf }: AmendOptions,
    plan: StackPlan,
  ): Promise<Committed<Lease>> {
    const work = (tx: WriteBuffer) => amend(tx, pool, leaseId, changes, onlyIf);
    return dryRun ? { value: await this.#read(work, plan) } : this.#commit(pool, work, plan);
  }

  async importLeases(leases: ExistingLease[], { missing = [], dryRun = false }: ImportOptions, plan: StackPlan) {
    const work = (tx: WriteBuffer) => importLeases(tx, leases, missing);
    return dryRun ? this.#read(work, plan) : (await this.#commit("", work, plan)).value;
  }

  close(pool: string, leaseId: string, { onlyIf }: { onlyIf?: Condition } = {}): Promise<void> {
    return this.#write(pool, (tx) => closeChildPool(tx, pool, leaseId, onlyIf));
  }

  release(pool: string, leaseId: string, { onlyIf }: { onlyIf?: Condition } = {}): Promise<boolean> {
    return this.#write(pool, (tx) => release(tx, pool, leaseId, onlyIf));
  }

  withdraw(pool: string, leaseId: string): Promise<boolean> {
    return this.#write(pool, (tx) => withdraw(tx, pool, leaseId));
  }

  retract(pool: string, owner: string, program: string | undefined): Promise<void> {
    return this.#write(pool, (tx) => retractOffers(tx, pool, owner, program));
  }

  touch(pool: string, leaseId: string, { ttl }: { ttl?: number } = {}): Promise<void> {
    return this.#write(pool, (tx) => touch(tx, pool, leaseId, ttl));
  }

  find(pool: string, by: By) {
    return this.#read((tx) => queries.find(tx, pool, by));
  }

  endOf(pool: string, uid: string) {
    return this.#read((tx) => queries.endOf(tx, pool, uid));
  }

  holder(name: string) {
    return this.#read((tx) => queries.holder(tx, name));
  }

  findPromise(name: string) {
    return this.#read((tx) => queries.findPromise(tx, name));
  }

  spec(pool: string) {
    return this.#read((tx) => queries.spec(tx, pool));
  }

  usage(pool: string) {
    return this.#read((tx) => queries.usage(tx, pool));
  }

  usages(prefix: string) {
    return this.#read((tx) => queries.usages(tx, prefix));
  }

  leases(pool: string, options: LeaseFilter = {}) {
    return this.#read((tx) => queries.leases(tx, pool, options));
  }

  pools(prefix = "", options: PoolPage = {}) {
    return this.#read((tx) => queries.pools(tx, prefix, options));
  }

  freeExtents(pool: string, options: { within?: Extent; limit?: number } = {}) {
    return this.#read((tx) => queries.freeExtents(tx, pool, options));
  }

  poolsEndingWith(pool: string) {
    return this.#read((tx) => queries.poolsEndingWith(tx, pool));
  }

  history(pool: string, options: { after?: number; limit?: number } = {}) {
    return this.#read((tx) => queries.history(tx, pool, options));
  }

  events({ after, limit = 1000 }: { after?: number; limit?: number }) {
    return this.#read((tx) => readEvents(tx, after, limit));
  }

  accessTokens(): Promise<AccessToken[]> {
    return this.#read((tx) => tx.all(accessTokens));
  }

  findAccessToken(id: string): Promise<AccessToken | undefined> {
    return this.#read((tx) => tx.get(accessTokenKey(id)));
  }

  updateAccessTokens(change: (tokens: AccessToken[]) => AccessToken): Promise<AccessToken> {
    return this.#write("", async (tx) => {
      const token = change(await tx.all(accessTokens));
      tx.put(accessTokenKey(token.id), token);
      return token;
    });
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

  async signTokens(leases: Lease[]): Promise<string[]> {
    const ring = keyRing(this.settings.tokenKeys ?? (await this.#secret(STORED_KEYS, newSecret())));
    return leases.map((lease) => tokenOf(lease, ring));
  }

  async openToken(token: string, expected?: ExpectedToken): Promise<Grant> {
    const keys = this.settings.tokenKeys ?? (await this.findSecret(STORED_KEYS));
    return openToken(token, keys === undefined ? undefined : keyRing(keys), expected);
  }

  async identity(): Promise<StoreIdentity> {
    const { recovered: _, ...found } = await this.#read(readIdentity);
    return { ...found, id: found.id ?? (await this.#secret("identity", randomUUID())) };
  }

  findSeen(seen: StoreIdentity): Promise<SeenEpoch> {
    return this.#read((tx) => findSeen(tx, seen, this.settings.place));
  }

  adoptIdentity(from: string[], version: number, { complete = false } = {}): Promise<void> {
    return this.#write("", (tx) => adoptIdentity(tx, from, version, complete));
  }

  fsck(options: { repair?: boolean } = {}) {
    return fsck(this.store, this.settings, options.repair ?? false);
  }

  async end(): Promise<void> {
    if (this.parent) return;
    await Promise.all([this.#queue.idle(), this.#reads.idle()]);
    await this.store.close();
  }

  #claimContext(request: Request): Omit<GrantContext, "willRelease"> {
    const { offerTtl } = this.settings;
    return { request, isClaim: true, wasPreviewed: true, inUp: true, offerTtl, seed: this.#seed() };
  }

  #seed(): string {
    return this.settings.seed ?? randomUUID();
  }

  /** Offers to other requests of an owner belong to other branches of its program. */
  #optionsFor(plan: StackPlan | undefined): PoolOptions {
    if (!plan) return this.settings;
    const isAbandoned = (holder: Lease, owner: string) =>
      holder.owner === owner || (isSameStack(holder.owner, owner) && plan.isAbandoned(holder));
    return { ...this.settings, isAbandoned };
  }

  async #commit<T>(pool: string, work: (tx: WriteBuffer) => Promise<T>, plan: StackPlan): Promise<Committed<T>> {
    const options = { options: this.#optionsFor(plan) };
    const [value, version] = await this.#observed(this.#queue.commit(pool, attempting(plan, work), options));
    return { value, ...(version && { version }) };
  }

  #commitClaims<T>(pool: string, work: (tx: WriteBuffer) => Promise<T>, plan: StackPlan): Promise<Committed<T>> {
    return this.#commit(pool, work, plan).catch((error: unknown) => {
      if (isOverlayError(error)) this.settings.observer?.claimFailed?.(pool, error);
      throw error;
    });
  }

  #write<T>(pool: string, work: (tx: WriteBuffer) => Promise<T>): Promise<T> {
    return this.#observed(this.#queue.add(pool, work, { options: this.settings }));
  }

  #read<T>(view: (tx: WriteBuffer) => Promise<T>, plan?: StackPlan): Promise<T> {
    return this.#observed(this.#reads.read((tx) => withBuffer(tx, this.#optionsFor(plan), attempting(plan, view))));
  }

  #observed<T>(operation: Promise<T>): Promise<T> {
    return operation.catch((error: unknown) => {
      if (!(error instanceof AttemptEnded)) this.settings.observer?.operationFailed?.(error);
      throw error;
    });
  }

  /** Stored with the first call that needs it. */
  async #secret(name: string, initial: string): Promise<string> {
    const kept = await this.findSecret(name);
    return kept ?? this.#write("", (tx) => initSecret(tx, name, initial));
  }
}

const attempting =
  <T>(plan: StackPlan | undefined, work: (tx: WriteBuffer) => Promise<T>) =>
  (tx: WriteBuffer): Promise<T> =>
    plan?.attempt ? plan.attempt(() => work(tx)) : work(tx);

/**
 * Whether an offer may promise values that another lease still holds: a lease of its own owner, or of a resource of the same stack that
 * releases them. Blocks of networks and pools are not swapped.
 */
function mayBePromised(request: Request, holder: Lease, plan: StackPlan): boolean {
  if (holder.owner === request.owner || holder.owner === request.formerOwner) return true;
  return isSameStack(holder.owner, request.owner) && !request.pool.startsWith(SPACES) && plan.willRelease(holder);
}

async function initSecret(tx: WriteBuffer, name: string, initial: string): Promise<string> {
  const kept = await tx.get(secretKey(name));
  if (kept === undefined) tx.put(secretKey(name), initial);
  return kept ?? initial;
}
