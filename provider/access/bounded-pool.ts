import { OverlayError } from "../errors";
import { isOfOtherTenant, isSameTenant } from "../owner";
import type {
  By,
  Changes,
  Condition,
  Event,
  EventPage,
  ExistingLease,
  Extent,
  Lease,
  LeaseFilter,
  MissingPool,
  OfferOptions,
  Pool,
  PoolPage,
  PoolSpec,
  Replacement,
  Request,
  StoreIdentity,
  Tenant,
} from "../pool/types";
import { describePool, networkPool, runnerOfPool } from "../pool-names";
import { isEventInBounds, isPoolInBounds } from "./bounds";
import type { Caller } from "./caller";

/**
 * The pool as one caller may see and change it. Lists leave out what is outside of the caller's bounds, everything else there is refused
 * with `ACCESS_DENIED`. Since all functions of an interface act through it, none of them can forget the check.
 *
 * - A caller that is bound to a network reaches the network's pool of runners and the subnets of its runners; one that is bound to a pool
 *   reaches that pool, and the lease of the runner that it belongs to.
 * - A caller with a tenant reaches pools of its tenant and pools without a tenant, but in both only leases of its tenant. What it claims
 *   gets its tenant, whatever the request says.
 */
export class BoundedPool implements Pool {
  constructor(
    private readonly pool: Pool,
    private readonly caller: Caller,
  ) {}

  get whyNoOffers(): string | undefined {
    return this.pool.whyNoOffers;
  }

  async offer(request: Request, options?: OfferOptions): Promise<Lease> {
    return this.#mustBeOwn(await this.pool.offer(await this.#bind(request), options));
  }

  async claim(request: Request): Promise<Lease> {
    return this.#mustBeOwn(await this.pool.claim(await this.#bind(request)));
  }

  async claimAll(requests: Request[]): Promise<Lease[]> {
    const bound: Request[] = [];
    for (const request of requests) bound.push(await this.#bind(request));
    return (await this.pool.claimAll(bound)).map((lease) => this.#mustBeOwn(lease));
  }

  async find(pool: string, by: By): Promise<Lease | undefined> {
    return this.#mustBeVisible(await this.pool.find(pool, by));
  }

  async endOf(pool: string, uid: string): Promise<Lease | undefined> {
    return this.#mustBeVisible(await this.pool.endOf(pool, uid));
  }

  /** Names are unique in the store: a name that another caller holds is not shown, and a claim of it fails. */
  async holder(name: string): Promise<Lease | undefined> {
    const lease = await this.pool.holder(name);
    return lease && this.#isVisible(lease) ? lease : undefined;
  }

  async spec(name: string): Promise<PoolSpec | undefined> {
    const spec = await this.pool.spec(name);
    if (spec && !this.#isReadable(spec)) throw this.#denied(describePool(name));
    return spec;
  }

  async usage(pool: string) {
    await this.spec(pool);
    return this.pool.usage(pool);
  }

  async usages(prefix: string) {
    const [specs, usages] = [await this.pools(prefix), await this.pool.usages(prefix)];
    const names = new Set(specs.map(({ name }) => name));
    return new Map([...usages].filter(([name]) => names.has(name)));
  }

  async leases(pool: string, options: LeaseFilter = {}): Promise<Lease[]> {
    await this.spec(pool);
    return fillPage(
      options.limit,
      (limit) => this.pool.leases(pool, limit === undefined ? options : { ...options, limit }),
      (lease) => this.#isVisible(lease),
    );
  }

  pools(prefix?: string, options: PoolPage = {}): Promise<PoolSpec[]> {
    return fillPage(
      options.limit,
      (limit) => this.pool.pools(prefix, limit === undefined ? options : { ...options, limit }),
      (spec) => this.#isReadable(spec),
    );
  }

  async freeExtents(pool: string, options?: { within?: Extent; limit?: number }): Promise<Extent[]> {
    await this.spec(pool);
    return this.pool.freeExtents(pool, options);
  }

  async history(pool: string, options?: { after?: number; limit?: number }): Promise<Event[]> {
    await this.spec(pool);
    return (await this.pool.history(pool, options)).filter((event) => this.#isOwnEvent(event));
  }

  /** Ids of other callers' events are missing in it. */
  async events(options: { after?: number; limit?: number }): Promise<EventPage> {
    const { events, last } = await this.pool.events(options);
    return { events: events.filter((event) => this.#isOwnEvent(event)), last };
  }

  async amend(
    pool: string,
    leaseId: string,
    changes: Changes,
    options?: { dryRun?: boolean; onlyIf?: Condition },
  ): Promise<Lease> {
    await this.#mustBeChangeable(pool, leaseId);
    const { tenant } = this.caller;
    return this.pool.amend(pool, leaseId, tenant ? { ...changes, tenant } : changes, options);
  }

  async close(pool: string, leaseId: string, options?: { onlyIf?: Condition }): Promise<void> {
    await this.#mustBeChangeable(pool, leaseId);
    return this.pool.close(pool, leaseId, options);
  }

  async release(pool: string, leaseId: string, options?: { onlyIf?: Condition }): Promise<boolean> {
    await this.#mustBeChangeable(pool, leaseId);
    return this.pool.release(pool, leaseId, options);
  }

  async touch(pool: string, leaseId: string, options?: { ttl?: number }): Promise<void> {
    await this.#mustBeChangeable(pool, leaseId);
    return this.pool.touch(pool, leaseId, options);
  }

  async importLeases(leases: ExistingLease[], options: { missing?: MissingPool[]; dryRun?: boolean } = {}) {
    for (const { pool, leaseId } of options.missing ?? []) await this.#mustBeChangeable(pool, leaseId);
    const bound: ExistingLease[] = [];
    for (const lease of leases) bound.push(await this.#bind(lease));
    return this.pool.importLeases(bound, options);
  }

  /** The keys of tokens are among them: the functions of an interface need them, and never return them. */
  secret(name: string, initial: string): Promise<string> {
    return this.pool.secret(name, initial);
  }

  findSecret(name: string): Promise<string | undefined> {
    return this.pool.findSecret(name);
  }

  async replaceSecret(): Promise<string> {
    throw this.#denied("a secret of the store");
  }

  identity(): Promise<StoreIdentity> {
    return this.pool.identity();
  }

  mustInclude(seen: StoreIdentity): Promise<{ recovered: boolean }> {
    return this.pool.mustInclude(seen);
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

  session(options: { actor: string }): Pool {
    return new BoundedPool(this.pool.session(options), this.caller);
  }

  async adoptIdentity(): Promise<void> {
    throw this.#denied("the identity of the store");
  }

  async fsck(): Promise<never> {
    throw this.#denied("the store as a whole");
  }

  // State of this run only: it shows and changes nothing that is stored.

  versionOf(lease: Lease) {
    return this.pool.versionOf(lease);
  }

  markKept(lease: Lease): Promise<void> {
    return this.pool.markKept(lease);
  }

  planReplacement(replacement: Replacement): Promise<void> {
    return this.pool.planReplacement(replacement);
  }

  mustFitReplacement(request: Request): void {
    this.pool.mustFitReplacement(request);
  }

  fitsReplacement(request: Request, extents: Extent[]): boolean {
    return this.pool.fitsReplacement(request, extents);
  }

  markEnding(lease: Lease): void {
    this.pool.markEnding(lease);
  }

  mustBeReplaceable(pool: string): Promise<void> {
    return this.pool.mustBeReplaceable(pool);
  }

  end(): Promise<void> {
    return this.pool.end();
  }

  /** A request in the caller's bounds, with the caller's tenant. The same owner may have a lease of another tenant in a shared pool. */
  async #bind<R extends Request>(request: R): Promise<R> {
    const spec = await this.spec(request.pool);
    if (!this.#isInBounds(request.pool)) throw this.#denied(describePool(request.pool));
    const { tenant } = this.caller;
    if (!tenant || !spec) return request;
    this.#mustBeOwn(await this.pool.find(request.pool, { owner: request.owner }));
    return { ...request, tenant };
  }

  async #mustBeChangeable(pool: string, leaseId: string): Promise<void> {
    const lease = await this.pool.find(pool, { leaseId });
    if (!lease) return; // The pool itself refuses what is no longer current.
    const isOwnRunner = lease.childPool !== undefined && lease.childPool === this.caller.pool;
    if (!this.#isInBounds(pool) && !isOwnRunner) throw this.#denied(describePool(pool));
    this.#mustBeOwn(lease);
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

export const isBounded = ({ tenant, network, pool }: Caller): boolean =>
  tenant !== undefined || network !== undefined || pool !== undefined;
