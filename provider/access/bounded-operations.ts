import { isDeepStrictEqual } from "node:util";
import { OverlayError } from "../errors";
import { isOwnerForAllTenants } from "../owner";
import { positionOf } from "../pool/extents";
import type { Committed, OfferTerms, Operations, SeenEpoch, SessionOptions, StackPlan } from "../pool/operations";
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
import { describePool } from "../pool-names";
import type { TenantDefaults } from "../resource";
import { sharedRangeLeases } from "../resources/tenants";
import { isPoolInBounds, showEvents } from "./bounds";
import type { Caller } from "./caller";
import { CallerAccess } from "./caller-access";

/** The ranges from which blocks of all tenants are given, by type of pool: the setting of this name. */
interface ServiceSettings {
  tenantDefaults?: TenantDefaults | undefined;
}

/** The pool as one caller may see and change it, as a run of its own. */
export const openSession = ({ operations }: PoolRun, caller: Caller, settings: ServiceSettings = {}): Pool =>
  new PoolRun(operationsFor(operations, caller, { actor: caller.name, ...settings }), {});

/** The operations that a caller may do, as a session. */
export function operationsFor(
  operations: Operations,
  caller: Caller,
  { tenantDefaults = {}, ...session }: SessionOptions & ServiceSettings,
): Operations {
  if (!isBounded(caller)) return operations.session(session);
  const sharedRanges = sharedRangeLeases(tenantDefaults);
  const access = new CallerAccess(caller, sharedRanges);
  return new BoundedOperations(operations.session({ ...session, access }), access, caller, sharedRanges);
}

export const isBounded = ({ tenant, network, pool }: Caller): boolean =>
  tenant !== undefined || network !== undefined || pool !== undefined;

/**
 * The store as one caller may see and change it. Changes are checked by the rules, in their transaction: see `Access`. Here requests get the
 * tenant of the caller, lists leave out what the caller may not see, and other reads of that are refused with `ACCESS_DENIED`.
 */
class BoundedOperations implements Operations {
  constructor(
    /** With the access of the caller. */
    private readonly operations: Operations,
    private readonly access: CallerAccess,
    private readonly caller: Caller,
    private readonly sharedRanges: ExistingLease[],
  ) {}

  get whyNoOffers(): string | undefined {
    return this.operations.whyNoOffers;
  }

  get whyNoClaims(): OverlayError | undefined {
    return this.operations.whyNoClaims;
  }

  async offer(request: Request, terms: OfferTerms, plan: StackPlan): Promise<Lease> {
    return this.access.show(await this.operations.offer(this.#bind(request), terms, plan));
  }

  async claim(request: Request, plan: StackPlan): Promise<Committed<Lease>> {
    const { value, ...claimed } = await this.operations.claim(this.#bind(request), plan);
    return { ...claimed, value: this.access.show(value) };
  }

  async claimAll(requests: Request[], plan: StackPlan): Promise<Committed<Lease[]>> {
    const bound = requests.map((request) => this.#bind(request));
    const { value, ...claimed } = await this.operations.claimAll(bound, plan);
    return { ...claimed, value: value.map((lease) => this.access.show(lease)) };
  }

  async amend(
    pool: string,
    leaseId: string,
    changes: Changes,
    options: AmendOptions,
    plan: StackPlan,
  ): Promise<Committed<Lease>> {
    const bound = this.#withTenant(changes);
    const { value, ...amended } = await this.operations.amend(pool, leaseId, bound, options, plan);
    return { ...amended, value: this.access.show(value) };
  }

  async importLeases(
    leases: ExistingLease[],
    { missing = [], ...options }: ImportOptions,
    plan: StackPlan,
  ): Promise<ImportResult> {
    const given = new Map(leases.map((lease) => [this.#bind(lease), lease]));
    const pools = missing.map(({ childPool, ...lease }) => ({ ...lease, childPool: this.#withTenant(childPool) }));
    const result = await this.operations.importLeases([...given.keys()], { ...options, missing: pools }, plan);
    return {
      added: result.added.map((lease) => this.access.show(lease)),
      unchanged: result.unchanged.map((lease) => this.access.show(lease)),
      conflicts: result.conflicts.map(({ lease, error }) => ({ lease: given.get(lease)!, error })),
    };
  }

  close(pool: string, leaseId: string, options?: { onlyIf?: Condition }): Promise<void> {
    return this.operations.close(pool, leaseId, options);
  }

  release(pool: string, leaseId: string, options?: { onlyIf?: Condition }): Promise<boolean> {
    return this.operations.release(pool, leaseId, options);
  }

  withdraw(pool: string, leaseId: string): Promise<boolean> {
    return this.operations.withdraw(pool, leaseId);
  }

  retract(pool: string, owner: string, program: string | undefined): Promise<void> {
    return this.operations.retract(pool, owner, program);
  }

  touch(pool: string, leaseId: string, options?: { ttl?: number }): Promise<void> {
    return this.operations.touch(pool, leaseId, options);
  }

  async signTokens(leases: Lease[]): Promise<string[]> {
    for (const lease of leases) this.#mustBeOwn(lease);
    return this.operations.signTokens(leases);
  }

  async openToken(token: string, expected?: ExpectedToken): Promise<Grant> {
    const grant = await this.operations.openToken(token, expected);
    if (!isPoolInBounds(this.caller, grant.pool)) throw this.access.denied(describePool(grant.pool));
    return grant;
  }

  async find(pool: string, by: By): Promise<Lease | undefined> {
    return this.#mustBeVisible(await this.operations.find(pool, by));
  }

  async endOf(pool: string, uid: string): Promise<Lease | undefined> {
    return this.#mustBeVisible(await this.operations.endOf(pool, uid));
  }

  /** Names are unique in the store: a name that another caller holds is not shown, and a claim of it fails. */
  async holder(name: string): Promise<Lease | undefined> {
    return this.#showVisible(await this.operations.holder(name));
  }

  async findPromise(name: string): Promise<Lease | undefined> {
    return this.#showVisible(await this.operations.findPromise(name));
  }

  #showVisible(lease: Lease | undefined): Lease | undefined {
    return lease && this.access.maySee(lease) ? this.access.show(lease) : undefined;
  }

  async spec(name: string): Promise<PoolSpec | undefined> {
    const spec = await this.operations.spec(name);
    if (spec && !this.access.maySeePool(spec)) throw this.access.denied(describePool(name));
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
    const { owner, ...page } = options;
    const leases = await fillPage(
      owner === undefined ? page : {},
      (next) => this.operations.leases(pool, { ...options, ...next }),
      (lease) => this.access.maySee(lease),
      positionOf,
    );
    return leases.map((lease) => this.access.show(lease));
  }

  pools(prefix?: string, options: PoolPage = {}): Promise<PoolSpec[]> {
    return fillPage(
      options,
      (page) => this.operations.pools(prefix, page),
      (spec) => this.access.maySeePool(spec),
      ({ name }) => name,
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
    return showEvents(this.caller, await this.operations.history(pool, options));
  }

  /** Ids of other callers' events are missing in it. */
  async events(options: { after?: number; limit?: number }): Promise<EventPage> {
    const { events, last } = await this.operations.events(options);
    return { events: showEvents(this.caller, events), last };
  }

  identity(): Promise<StoreIdentity> {
    return this.operations.identity();
  }

  findSeen(seen: StoreIdentity): Promise<SeenEpoch> {
    return this.operations.findSeen(seen);
  }

  session(options: SessionOptions): Operations {
    return new BoundedOperations(this.operations.session(options), this.access, this.caller, this.sharedRanges);
  }

  end(): Promise<void> {
    return this.operations.end();
  }

  async findSecret(): Promise<never> {
    throw this.access.denied("secrets of the store");
  }

  async replaceSecret(): Promise<never> {
    throw this.access.denied("secrets of the store");
  }

  async accessTokens(): Promise<never> {
    throw this.access.denied("access tokens");
  }

  async findAccessToken(): Promise<never> {
    throw this.access.denied("access tokens");
  }

  async updateAccessTokens(): Promise<never> {
    throw this.access.denied("access tokens");
  }

  get webhooks(): never {
    throw this.access.denied("webhooks");
  }

  async adoptIdentity(): Promise<never> {
    throw this.access.denied("the identity of the store");
  }

  async fsck(): Promise<never> {
    throw this.access.denied("the store as a whole");
  }

  /** The request with the tenant of the caller, whatever it says itself. */
  #bind<R extends Request>(request: R): R {
    const { tenant } = this.caller;
    if (!tenant) return request;
    if (isOwnerForAllTenants(request.owner)) return this.#mustBeSharedRange(request);
    const { childPool } = request;
    if (typeof childPool !== "function") return this.#withTenant(request);
    return { ...request, tenant, childPool: (extents: Extent[]) => ({ ...childPool(extents), tenant }) };
  }

  #withTenant<T extends { tenant?: Tenant | null; childPool?: Request["childPool"] }>(given: T): T {
    const { tenant } = this.caller;
    if (!tenant) return given;
    return { ...given, tenant, ...(given.childPool && { childPool: { ...given.childPool, tenant } }) };
  }

  /** A range for all tenants is what the settings of the service say. */
  #mustBeSharedRange<R extends Request>(request: R): R {
    if (this.sharedRanges.some((known) => isDeepStrictEqual(known, request))) return request;
    throw new OverlayError(
      "ACCESS_DENIED",
      `Access token ${this.caller.name} may not make ${request.owner}: it is not a range of tenantDefaults of the service.`,
      "Set overlay:tenantDefaults to that of the service, or leave out the owner.",
    );
  }

  #mustBeOwn(lease: Lease): void {
    if (!this.access.mayChange(lease))
      throw this.access.denied(`a lease in ${describePool(lease.pool)} that is not its own`);
  }

  #mustBeVisible(lease: Lease | undefined): Lease | undefined {
    if (!lease) return undefined;
    if (!this.access.maySee(lease)) throw this.access.denied(`a lease in ${describePool(lease.pool)}`);
    return this.access.show(lease);
  }
}

interface Page<Position> {
  after?: Position;
  limit?: number;
}

/** Entries that are read at once, after a first page of as many as are asked for. */
const PAGE = 500;

/** Reads page after page until at least `limit` entries are left, so that a page with fewer is the last one. */
async function fillPage<T, Position>(
  { after, limit }: Page<Position>,
  read: (page: Page<Position>) => Promise<T[]>,
  isShown: (entry: T) => boolean,
  positionOf: (entry: T) => Position,
): Promise<T[]> {
  const shown: T[] = [];
  for (let [at, size] = [after, limit]; ; size = PAGE) {
    const page = await read({ ...(at !== undefined && { after: at }), ...(size !== undefined && { limit: size }) });
    for (const entry of page) if (isShown(entry)) shown.push(entry);
    if (size === undefined || page.length < size || shown.length >= limit!) return shown;
    at = positionOf(page.at(-1)!);
  }
}
