import { OverlayError } from "../errors";
import { isOfOtherTenant, isOwnerForAllTenants, isSameTenant } from "../owner";
import type {
  Committed,
  Offered,
  OfferTerms,
  Operations,
  SeenEpoch,
  SessionOptions,
  StackPlan,
} from "../pool/operations";
import { PoolRun } from "../pool/run";
import type {
  AmendOptions,
  By,
  Changes,
  Condition,
  Event,
  EventPage,
  ExistingLease,
  ExpectedToken,
  Extent,
  Grant,
  ImportOptions,
  ImportResult,
  Lease,
  LeaseFilter,
  Pool,
  PoolPage,
  PoolSpec,
  Request,
  StoreIdentity,
  Tenant,
} from "../pool/types";
import { describePool, networkPool, runnerOfPool } from "../pool-names";
import { isEventInBounds, isPoolInBounds } from "./bounds";
import type { Caller } from "./caller";

/** The pool as one caller may see and change it, as a run of its own. */
export const openSession = ({ operations }: PoolRun, caller: Caller): Pool =>
  new PoolRun(operationsFor(operations.session({ actor: caller.name }), caller), {});

/** The operations that a caller may do. */
export const operationsFor = (operations: Operations, caller: Caller): Operations =>
  isBounded(caller) ? new BoundedOperations(operations, caller) : operations;

export const isBounded = ({ tenant, network, pool }: Caller): boolean =>
  tenant !== undefined || network !== undefined || pool !== undefined;

/**
 * The store as one caller may see and change it. Lists leave out what is outside of the caller's bounds, everything else there is refused
 * with `ACCESS_DENIED`. Since all functions of an interface act through it, none of them can forget the check.
 *
 * - A caller that is bound to a network reaches the network's pool of runners and the subnets of its runners; one that is bound to a pool
 *   reaches that pool, and the lease of the runner that it belongs to.
 * - A caller with a tenant reaches pools of its tenant and pools without a tenant, but in both only leases of its tenant. What it claims
 *   gets its tenant, whatever the request says, and so do the pools that it creates. Only ranges for all tenants (`tenants/TYPE`) have none.
 */
class BoundedOperations implements Operations {
  constructor(
    private readonly operations: Operations,
    private readonly caller: Caller,
  ) {}

  get whyNoOffers(): string | undefined {
    return this.operations.whyNoOffers;
  }

  get whyNoClaims(): OverlayError | undefined {
    return this.operations.whyNoClaims;
  }

  async offer(request: Request, terms: OfferTerms, plan: StackPlan): Promise<Offered> {
    const offered = await this.operations.offer(await this.#bind(request), terms, plan);
    this.#mustBeGranted(offered.lease);
    return offered;
  }

  async claim(request: Request, plan: StackPlan): Promise<Committed<Lease>> {
    const claimed = await this.operations.claim(await this.#bind(request), plan);
    this.#mustBeGranted(claimed.value);
    return claimed;
  }

  async claimAll(requests: Request[], plan: StackPlan): Promise<Committed<Lease[]>> {
    const bound: Request[] = [];
    for (const request of requests) bound.push(await this.#bind(request));
    const claimed = await this.operations.claimAll(bound, plan);
    for (const lease of claimed.value) this.#mustBeGranted(lease);
    return claimed;
  }

  async amend(
    pool: string,
    leaseId: string,
    changes: Changes,
    options: AmendOptions,
    plan: StackPlan,
  ): Promise<Committed<Lease>> {
    await this.#mustBeChangeable(pool, leaseId);
    const { tenant } = this.caller;
    const { childPool } = changes;
    const bound = tenant ? { ...changes, tenant, ...(childPool && { childPool: { ...childPool, tenant } }) } : changes;
    return this.operations.amend(pool, leaseId, bound, options, plan);
  }

  async importLeases(leases: ExistingLease[], options: ImportOptions, plan: StackPlan): Promise<ImportResult> {
    for (const { pool, leaseId } of options.missing ?? []) await this.#mustBeChangeable(pool, leaseId);
    const given = new Map<ExistingLease, ExistingLease>();
    for (const lease of leases) given.set(await this.#bind(lease), lease);
    const { conflicts, ...result } = await this.operations.importLeases([...given.keys()], options, plan);
    return { ...result, conflicts: conflicts.map(({ lease, error }) => ({ lease: given.get(lease)!, error })) };
  }

  async close(pool: string, leaseId: string, options?: { onlyIf?: Condition }): Promise<void> {
    await this.#mustBeChangeable(pool, leaseId);
    return this.operations.close(pool, leaseId, options);
  }

  async release(pool: string, leaseId: string, options?: { onlyIf?: Condition }): Promise<boolean> {
    await this.#mustBeChangeable(pool, leaseId);
    return this.operations.release(pool, leaseId, options);
  }

  async withdraw(pool: string, leaseId: string): Promise<boolean> {
    await this.#mustBeChangeable(pool, leaseId);
    return this.operations.withdraw(pool, leaseId);
  }

  async touch(pool: string, leaseId: string, options?: { ttl?: number }): Promise<void> {
    await this.#mustBeChangeable(pool, leaseId);
    return this.operations.touch(pool, leaseId, options);
  }

  async signTokens(leases: Lease[]): Promise<string[]> {
    return this.operations.signTokens(leases.map((lease) => this.#mustBeOwn(lease)));
  }

  openToken(token: string, expected?: ExpectedToken): Promise<Grant> {
    return this.operations.openToken(token, expected);
  }

  async find(pool: string, by: By): Promise<Lease | undefined> {
    return this.#mustBeVisible(await this.operations.find(pool, by));
  }

  async endOf(pool: string, uid: string): Promise<Lease | undefined> {
    return this.#mustBeVisible(await this.operations.endOf(pool, uid));
  }

  /** Names are unique in the store: a name that another caller holds is not shown, and a claim of it fails. */
  async holder(name: string): Promise<Lease | undefined> {
    const lease = await this.operations.holder(name);
    return lease && this.#isVisible(lease) ? lease : undefined;
  }

  async spec(name: string): Promise<PoolSpec | undefined> {
    const spec = await this.operations.spec(name);
    if (spec && !this.#isReadable(spec)) throw this.#denied(describePool(name));
    return spec;
  }

  async usage(pool: string) {
    await this.spec(pool);
    return this.operations.usage(pool);
  }

  async usages(prefix: string) {
    const [specs, usages] = [await this.pools(prefix), await this.operations.usages(prefix)];
    const names = new Set(specs.map(({ name }) => name));
    return new Map([...usages].filter(([name]) => names.has(name)));
  }

  async leases(pool: string, options: LeaseFilter = {}): Promise<Lease[]> {
    await this.spec(pool);
    return fillPage(
      options.limit,
      (limit) => this.operations.leases(pool, limit === undefined ? options : { ...options, limit }),
      (lease) => this.#isVisible(lease),
    );
  }

  pools(prefix?: string, options: PoolPage = {}): Promise<PoolSpec[]> {
    return fillPage(
      options.limit,
      (limit) => this.operations.pools(prefix, limit === undefined ? options : { ...options, limit }),
      (spec) => this.#isReadable(spec),
    );
  }

  async freeExtents(pool: string, options?: { within?: Extent; limit?: number }): Promise<Extent[]> {
    await this.spec(pool);
    return this.operations.freeExtents(pool, options);
  }

  /** None of the leases is left out: a pool with leases of others cannot end. */
  async poolsEndingWith(pool: string) {
    await this.spec(pool);
    const pools = await this.operations.poolsEndingWith(pool);
    for (const { held } of pools) for (const lease of held) this.#mustBeOwn(lease);
    return pools;
  }

  async history(pool: string, options?: { after?: number; limit?: number }): Promise<Event[]> {
    await this.spec(pool);
    return (await this.operations.history(pool, options)).filter((event) => this.#isOwnEvent(event));
  }

  /** Ids of other callers' events are missing in it. */
  async events(options: { after?: number; limit?: number }): Promise<EventPage> {
    const { events, last } = await this.operations.events(options);
    return { events: events.filter((event) => this.#isOwnEvent(event)), last };
  }

  identity(): Promise<StoreIdentity> {
    return this.operations.identity();
  }

  findSeen(seen: StoreIdentity): Promise<SeenEpoch> {
    return this.operations.findSeen(seen);
  }

  session(options: SessionOptions): Operations {
    return new BoundedOperations(this.operations.session(options), this.caller);
  }

  end(): Promise<void> {
    return this.operations.end();
  }

  async findSecret(): Promise<never> {
    throw this.#denied("secrets of the store");
  }

  async replaceSecret(): Promise<never> {
    throw this.#denied("secrets of the store");
  }

  async accessTokens(): Promise<never> {
    throw this.#denied("access tokens");
  }

  async findAccessToken(): Promise<never> {
    throw this.#denied("access tokens");
  }

  async putAccessToken(): Promise<never> {
    throw this.#denied("access tokens");
  }

  get webhooks(): never {
    throw this.#denied("webhooks");
  }

  async adoptIdentity(): Promise<never> {
    throw this.#denied("the identity of the store");
  }

  async fsck(): Promise<never> {
    throw this.#denied("the store as a whole");
  }

  /** A request in the caller's bounds, with the caller's tenant. The same owner may have a lease of another tenant in a shared pool. */
  async #bind<R extends Request>(request: R): Promise<R> {
    const spec = await this.spec(request.pool);
    if (!this.#isInBounds(request.pool)) throw this.#denied(describePool(request.pool));
    const { tenant } = this.caller;
    if (!tenant || !spec) return request;
    const held = await this.operations.find(request.pool, { owner: request.owner });
    const isForAll = isOwnerForAllTenants(request.owner);
    if (!isForAll || held?.state !== "offered") this.#mustBeOwn(held);
    if (isForAll) return request;
    const { childPool } = request;
    if (childPool === undefined) return { ...request, tenant };
    const withTenant =
      typeof childPool === "function"
        ? (extents: Extent[]) => ({ ...childPool(extents), tenant })
        : { ...childPool, tenant };
    return { ...request, tenant, childPool: withTenant };
  }

  async #mustBeChangeable(pool: string, leaseId: string): Promise<void> {
    const lease = await this.operations.find(pool, { leaseId });
    if (!lease) return; // The pool itself refuses what is no longer current.
    const isOwnRunner = lease.childPool !== undefined && lease.childPool === this.caller.pool;
    if (!this.#isInBounds(pool) && !isOwnRunner) throw this.#denied(describePool(pool));
    this.#mustBeOwn(lease);
  }

  #mustBeGranted(lease: Lease): void {
    if (!isOwnerForAllTenants(lease.owner)) this.#mustBeOwn(lease);
  }

  #mustBeOwn<L extends Lease | undefined>(lease: L): L {
    if (lease && !this.#isOwn(lease)) throw this.#denied(`a lease in ${describePool(lease.pool)} of another tenant`);
    return lease;
  }

  #mustBeVisible(lease: Lease | undefined): Lease | undefined {
    if (lease && !this.#isVisible(lease)) throw this.#denied(`a lease in ${describePool(lease.pool)}`);
    return lease;
  }

  #isOwnEvent(event: Event): boolean {
    return isEventInBounds(this.caller, event);
  }

  #isOwn({ tenant }: { tenant?: Tenant }): boolean {
    return this.caller.tenant === undefined || isSameTenant(tenant, this.caller.tenant);
  }

  /** Its own leases, and leases of networks and runners without a tenant, which own the pools that it may use. */
  #isVisible(lease: Lease): boolean {
    const ownsPool = lease.childPool !== undefined && lease.tenant === undefined;
    const isNear = this.#isInBounds(lease.pool) || (lease.childPool !== undefined && this.#isInBounds(lease.childPool));
    return isNear && (this.#isOwn(lease) || ownsPool);
  }

  #isReadable(spec: PoolSpec): boolean {
    return (this.#isInBounds(spec.name) || this.#isParent(spec.name)) && !isOfOtherTenant(spec, this.caller.tenant);
  }

  #isInBounds(name: string): boolean {
    return isPoolInBounds(this.caller, name);
  }

  /** The network of the runner to whose subnet the caller is bound. */
  #isParent(name: string): boolean {
    const runner = runnerOfPool(this.caller.pool ?? "");
    return runner !== undefined && name === networkPool(runner.network);
  }

  #denied(what: string): OverlayError {
    const { name, tenant, network, pool } = this.caller;
    const bounds = [
      ...(tenant ? [`tenant ${tenant.org}/${tenant.project}`] : []),
      ...(network === undefined ? [] : [`network ${network}`]),
      ...(pool === undefined ? [] : [describePool(pool)]),
    ];
    return new OverlayError(
      "ACCESS_DENIED",
      `Access token ${name} is bound to ${bounds.join(" and ")}, and may not use ${what}.`,
      "Use a token without this bound.",
    );
  }
}

/** Reads more until at least `limit` entries are left, so that a page with fewer is the last one. */
async function fillPage<T>(
  limit: number | undefined,
  read: (limit: number | undefined) => Promise<T[]>,
  isShown: (entry: T) => boolean,
): Promise<T[]> {
  for (let size = limit; ; size = size! * 4) {
    const page = await read(size);
    const shown = page.filter(isShown);
    if (size === undefined || page.length < size || shown.length >= limit!) return shown;
  }
}
