import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError } from "../errors";
import { isSameTenant } from "../owner";
import { notDeletedError, portConflictError, takenError } from "./errors";
import { overlapsAny } from "./extents";
import type { Committed, Operations, SeenEpoch, StackPlan } from "./operations";
import { PlannedPools } from "./planned-pools";
import { PlannedPorts } from "./planned-ports";
import { sharingKeyOf, uidOf } from "./storage/leases";
import {
  type AccessToken,
  type AmendOptions,
  type By,
  type Changes,
  type Condition,
  type ExistingLease,
  type ExpectedToken,
  type Extent,
  type ImportOptions,
  type ImportResult,
  isCommitted,
  type Json,
  type Lease,
  type LeaseFilter,
  type OfferOptions,
  type Pool,
  type PoolPage,
  type PoolSpec,
  type Replacement,
  type Request,
  type StoreIdentity,
  type StoreVersion,
} from "./types";

export interface RunSettings {
  /** How long a claim waits for another resource of its stack to release the value. Seconds; default 5. */
  swapWait?: number;
}

/** How long a create waits for the delete of its resource. */
const LONGEST_DELETE_MS = 120_000;

/** The pool during one run of Pulumi: what the run plans for the resources of its stack, and the operations on the store. */
export class PoolRun implements Pool {
  /** What owners get in this run. Not stored: a preview that is not merged must not change anything. */
  readonly #planned = new Map<string, Extent[]>();
  /** Uids of leases whose owners ask for other values in this run, as the program declares; their owners may not be checked yet. */
  readonly #releasing = new Set<string>();
  /** Uids of leases that their owners keep in this run. */
  readonly #kept = new Set<string>();
  readonly #ports = new PlannedPorts();
  /** The data that leases of resources that this run has checked will have, by uid. */
  readonly #data = new Map<string, Json | undefined>();
  readonly #pools: PlannedPools;
  /** Offers of this run, by the leases that must end or move for them. */
  readonly #waiters = new Map<string, Lease>();
  /** Offers that are being made. */
  readonly #offering = new Set<Promise<Lease>>();
  /** Owners that this run has checked. */
  readonly #requested = new Set<string>();
  /** Uids of leases whose resources this run has begun to delete. */
  readonly #deleting = new Set<string>();
  /** Ids of leases that this run has claimed. */
  readonly #claimed = new Set<string>();
  /** Epochs that the store has. They are never removed while it runs, so one read serves all resources of an epoch. */
  readonly #included: (StoreIdentity & SeenEpoch)[] = [];
  /** The version of the store that the commit of a lease has made. */
  readonly #versions = new WeakMap<Lease, StoreVersion>();

  constructor(
    /** On its store. They know nothing of this run. */
    readonly operations: Operations,
    private readonly settings: RunSettings,
  ) {
    this.#pools = new PlannedPools(operations, this.#kept, (offer) => this.#isPlanned(offer));
  }

  session(options: { actor: string }): PoolRun {
    return new PoolRun(this.operations.session(options), this.settings);
  }

  get whyNoOffers(): string | undefined {
    return this.operations.whyNoOffers;
  }

  mustAllowClaims(): void {
    if (this.operations.whyNoClaims) throw this.operations.whyNoClaims;
  }

  async offer(request: Request, { inUp = false, movesAway = () => undefined }: OfferOptions = {}): Promise<Lease> {
    const plannedExtents = this.#planned.get(planKey(request));
    this.#notePlan(request, request.want);
    const plan = this.#planWith((holder) => this.#mayBeReleased(holder, movesAway));
    const offerIn = (plannedSpec: PoolSpec | undefined): Promise<Lease> => {
      const terms = { inUp, ...(plannedExtents && { plannedExtents }), ...(plannedSpec && { plannedSpec }) };
      return this.#offerUndeclared(request, (asked) => this.operations.offer(asked, terms, plan));
    };
    const returning = inUp && !request.want ? this.#returningTo(request) : [];
    const offered =
      returning.length > 0
        ? this.#offerOthers(request.pool, returning, offerIn)
        : offerIn(this.#pools.changeOf(request.pool));
    const granted = offered.then(async (lease) => {
      this.#notePlan(request, lease.extents);
      this.#data.set(lease.uid, request.data);
      for (const uid of lease.waitsFor ?? []) this.#waiters.set(uid, lease);
      if (request.onPortConflict !== "anotherAddress") await this.#refusePlannedPorts(lease, request);
      return lease;
    });
    this.#offering.add(granted);
    return granted.finally(() => this.#offering.delete(granted));
  }

  /** In an up: what other resources that were deleted get again, and do not share. It is free until they are created. */
  #returningTo(request: Request): Extent[] {
    const { pool, owner, formerOwner } = request;
    const key = sharingKeyOf(request);
    return this.#pools.ending
      .filter((lease) => lease.pool === pool && ![owner, formerOwner].includes(lease.owner))
      .filter((lease) => key === undefined || sharingKeyOf(lease) !== key)
      .flatMap(({ extents }) => extents);
  }

  /** An offer of other values than these. If there are none, those resources may not be created again: then also of these. */
  async #offerOthers(
    pool: string,
    returning: Extent[],
    offerIn: (spec: PoolSpec | undefined) => Promise<Lease>,
  ): Promise<Lease> {
    const changed = this.#pools.changeOf(pool);
    const spec = changed ?? (await this.spec(pool));
    try {
      return await offerIn(spec && { ...spec, reserved: [...(spec.reserved ?? []), ...returning] });
    } catch (error) {
      if (!isExhausted(error)) throw error;
      return offerIn(changed);
    }
  }

  /** If the pool has no other values, the declared ones may be of another pool: then also one of these. */
  async #offerUndeclared(request: Request, offerFor: (asked: Request) => Promise<Lease>): Promise<Lease> {
    try {
      return await offerFor(request);
    } catch (error) {
      const { declared = [], ...anyValue } = request;
      if (declared.length === 0 || !isExhausted(error)) throw error;
      return offerFor(anyValue);
    }
  }

  async claim(request: Request): Promise<Lease> {
    this.#notePlan(request, request.want);
    const started = Date.now();
    for (;;) {
      let isHeldInStack = false;
      let wait = (this.settings.swapWait ?? 5) * 1000;
      const plan = this.#planWith((holder) => {
        isHeldInStack = true;
        if (!this.#deleting.has(holder.uid)) return this.#isReleasing(holder);
        wait = LONGEST_DELETE_MS; // Its delete is at work on hosts, and would be fenced off.
        return false;
      });
      try {
        const lease = this.#noteVersion(await this.operations.claim(request, plan));
        this.#notePlan(request, lease.extents);
        this.#data.set(lease.uid, request.data);
        this.#claimed.add(lease.leaseId);
        if (lease.childPool !== undefined) this.#pools.finish(lease.childPool);
        return lease;
      } catch (error) {
        // The other resource may be about to claim another value, or to release this one.
        if (!isHeldInStack || !isOverlayError(error, "PLAN_STALE") || Date.now() > started + wait) throw error;
      }
      await sleep(100);
    }
  }

  async claimAll(requests: Request[]): Promise<Lease[]> {
    const { value: leases, version } = await this.operations.claimAll(
      requests,
      this.#planWith(() => false),
    );
    for (const lease of leases) if (version) this.#versions.set(lease, version);
    return leases;
  }

  async amend(pool: string, leaseId: string, changes: Changes, options: AmendOptions = {}): Promise<Lease> {
    const plan = this.#planWith(() => false);
    if (changes.deleting) this.#deleting.add(uidOf(leaseId));
    const lease = options.dryRun && changes.ports?.length ? await this.find(pool, { leaseId }) : undefined;
    if (lease) await this.#refusePlannedPorts(lease, changes);
    return this.#noteVersion(await this.operations.amend(pool, leaseId, changes, options, plan));
  }

  importLeases(leases: ExistingLease[], options: ImportOptions = {}): Promise<ImportResult> {
    return this.operations.importLeases(
      leases,
      options,
      this.#planWith(() => false),
    );
  }

  async markKept(lease: Lease, { data, ports = [] }: Pick<Request, "data" | "ports"> = {}): Promise<void> {
    this.#notePlan(lease, lease.extents);
    this.#kept.add(lease.uid);
    this.#data.set(lease.uid, data);
    this.#ports.plan(lease, ports);
    await this.#pools.refuseKept(lease);
    await Promise.allSettled(this.#offering); // Later ones find that it is kept.
    const waiter = this.#waiters.get(lease.uid);
    const spec = waiter && (await this.spec(lease.pool));
    if (!spec) return;
    await this.operations.withdraw(waiter.pool, waiter.leaseId); // Refused with this lease: it promises nothing.
    throw takenError(spec, lease.extents[0]!, waiter, lease.owner);
  }

  isInRun(lease: Lease): boolean {
    return this.#requested.has(planKey(lease));
  }

  wasClaimedInRun({ leaseId }: Lease): boolean {
    return this.#claimed.has(leaseId);
  }

  plannedData({ uid }: Lease): Json | undefined {
    return this.#data.get(uid);
  }

  planChange(spec: PoolSpec): void {
    this.#pools.planChange(spec);
  }

  plannedSpec(spec: PoolSpec): PoolSpec {
    return this.#pools.changeOf(spec.name) ?? this.#pools.replacementOf(spec.name) ?? spec;
  }

  willGive(request: Request): Promise<boolean> {
    return this.#pools.willGive(request);
  }

  retract({ pool, owner, program }: Request): Promise<void> {
    return this.operations.retract(pool, owner, program);
  }

  planReplacement(replacement: Replacement): Promise<void> {
    return this.#pools.planReplacement(replacement);
  }

  noteReplacementSpec(spec: PoolSpec): void {
    this.#pools.noteReplacementSpec(spec);
  }

  mustFitReplacement(request: Request): void {
    this.#pools.mustFitReplacement(request);
  }

  async mustNotReturn(request: Request, movesAway: OfferOptions["movesAway"] = () => undefined): Promise<void> {
    const { pool, owner, formerOwner, type, tenant, want = [], takes } = request;
    const key = sharingKeyOf(request);
    const mayHave = (lease: Lease) =>
      (takes && lease.type === type && isSameTenant(lease.tenant, tenant)) ||
      (key !== undefined && key === sharingKeyOf(lease)) ||
      this.#mayBeReleased(lease, movesAway);
    const others = this.#pools.ending.filter(
      (lease) => lease.pool === pool && ![owner, formerOwner].includes(lease.owner),
    );
    const holder = others.find((lease) => overlap(want, lease.extents) && !mayHave(lease));
    const spec = holder && (await this.spec(pool));
    if (spec) throw takenError(spec, want[0]!, holder, owner);
  }

  fitsReplacement(request: Request, extents: Extent[]): boolean {
    return this.#pools.fitsReplacement(request, extents);
  }

  isReplaced(pool: string): boolean {
    return this.#pools.isReplaced(pool);
  }

  markEnding(lease: Lease): void {
    this.#pools.markEnding(lease);
  }

  isEnding(lease: Lease): boolean {
    return this.#pools.isEnding(lease);
  }

  async waitUntilEnded(owner: string): Promise<void> {
    const deadline = Date.now() + LONGEST_DELETE_MS;
    for (const { pool, uid } of this.#pools.ending.filter((lease) => lease.owner === owner)) {
      for (;;) {
        const lease = await this.find(pool, { uid });
        if (!lease || !isCommitted(lease)) break;
        if (Date.now() > deadline) throw notDeletedError(lease);
        await sleep(100);
      }
    }
  }

  mustBeReplaceable(pool: string): Promise<void> {
    return this.#pools.mustBePossible(pool);
  }

  versionOf(lease: Lease): StoreVersion | undefined {
    return this.#versions.get(lease);
  }

  identity(): Promise<StoreIdentity> {
    return this.operations.identity();
  }

  async mustInclude(seen: StoreIdentity): Promise<{ recovered: boolean }> {
    const known = this.#included.find(
      ({ id, epoch, first, last }) =>
        id === seen.id && epoch === seen.epoch && first <= seen.version && seen.version <= last,
    );
    if (known) return known;
    const { first, last, recovered } = await this.operations.findSeen(seen);
    this.#included.push({ ...seen, first, last, recovered });
    return { recovered };
  }

  find(pool: string, by: By) {
    return this.operations.find(pool, by);
  }

  endOf(pool: string, uid: string) {
    return this.operations.endOf(pool, uid);
  }

  holder(name: string) {
    return this.operations.holder(name);
  }

  findPromise(name: string) {
    return this.operations.findPromise(name);
  }

  spec(pool: string) {
    return this.operations.spec(pool);
  }

  leases(pool: string, options?: LeaseFilter) {
    return this.operations.leases(pool, options);
  }

  pools(prefix?: string, options?: PoolPage) {
    return this.operations.pools(prefix, options);
  }

  freeExtents(pool: string, options?: { within?: Extent; limit?: number }) {
    return this.operations.freeExtents(pool, options);
  }

  usage(pool: string) {
    return this.operations.usage(pool);
  }

  usages(prefix: string) {
    return this.operations.usages(prefix);
  }

  history(pool: string, options?: { after?: number; limit?: number }) {
    return this.operations.history(pool, options);
  }

  events(options: { after?: number; limit?: number }) {
    return this.operations.events(options);
  }

  close(pool: string, leaseId: string, options?: { onlyIf?: Condition }) {
    return this.operations.close(pool, leaseId, options);
  }

  release(pool: string, leaseId: string, options?: { onlyIf?: Condition }) {
    return this.operations.release(pool, leaseId, options);
  }

  touch(pool: string, leaseId: string, options?: { ttl?: number }) {
    return this.operations.touch(pool, leaseId, options);
  }

  signTokens(leases: Lease[]) {
    return this.operations.signTokens(leases);
  }

  openToken(token: string, expected?: ExpectedToken) {
    return this.operations.openToken(token, expected);
  }

  findSecret(name: string) {
    return this.operations.findSecret(name);
  }

  replaceSecret(name: string, change: (kept: string | undefined) => string) {
    return this.operations.replaceSecret(name, change);
  }

  adoptIdentity(from: string[], version: number, options?: { complete?: boolean }) {
    return this.operations.adoptIdentity(from, version, options);
  }

  accessTokens() {
    return this.operations.accessTokens();
  }

  findAccessToken(id: string) {
    return this.operations.findAccessToken(id);
  }

  updateAccessTokens(change: (tokens: AccessToken[]) => AccessToken) {
    return this.operations.updateAccessTokens(change);
  }

  get webhooks() {
    return this.operations.webhooks;
  }

  fsck(options?: { repair?: boolean }) {
    return this.operations.fsck(options);
  }

  end(): Promise<void> {
    return this.operations.end();
  }

  /** Refuses ports that another resource of this run has or gets, unless the request may take them. */
  async #refusePlannedPorts(
    lease: Lease,
    { ports = [], takes, formerOwner }: Pick<Request, "ports" | "takes" | "formerOwner">,
  ): Promise<void> {
    const conflict = takes ? undefined : this.#ports.findHolder(lease, ports, [lease.owner, formerOwner]);
    const spec = conflict && (await this.spec(lease.pool));
    if (spec) throw portConflictError(spec, conflict.extent, conflict.port, conflict.holder);
  }

  #noteVersion({ value: lease, version }: Committed<Lease>): Lease {
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

  #planWith(willRelease: StackPlan["willRelease"]): StackPlan {
    return { willRelease, isAbandoned: (offer) => !this.#isPlanned(offer) };
  }

  /** Whether the resource that holds this lease asks for other values in this run, or may do so. */
  #mayBeReleased(holder: Lease, movesAway: NonNullable<OfferOptions["movesAway"]>): boolean {
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

  #isReleasing(holder: Lease): boolean {
    const planned = this.#planned.get(planKey(holder));
    return planned ? !overlap(planned, holder.extents) : this.#releasing.has(holder.uid);
  }
}

const isExhausted = (error: unknown): boolean => isOverlayError(error, "POOL_EXHAUSTED", "RUNNER_IDS_EXHAUSTED");

const overlap = (some: Extent[], others: Extent[]): boolean => some.some((extent) => overlapsAny(others, extent));

const planKey = ({ pool, owner }: { pool: string; owner: string }): string => JSON.stringify([pool, owner]);
