import { isDeepStrictEqual } from "node:util";
import { OverlayError } from "../errors";
import { positionOf } from "../ipam/extents";
import type { SeenEpoch } from "../ipam/identity";
import type { IpamSettings } from "../ipam/session";
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
  Ipam,
  Lease,
  LeaseFilter,
  OfferRequest,
  PoolPage,
  PoolSpec,
  Request,
  Store,
  StoreIdentity,
  StoreVersion,
  Tenant,
} from "../ipam/types";
import { isOwnerForAllTenants } from "../owner";
import { describePool } from "../pool-names";
import type { TenantDefaults } from "../resource";
import { sharedRangeLeases } from "../resources/tenants";
import { isPoolInBounds, showEvents } from "./bounds";
import type { Caller } from "./caller";
import { CallerAccess } from "./caller-access";

interface SessionSettings extends Partial<IpamSettings> {
  /** The ranges from which blocks of all tenants are given, by type of pool: the setting of this name. */
  tenantDefaults?: TenantDefaults | undefined;
}

/** The store as one caller may see and change it. */
export function openSession(
  store: Store,
  caller: Caller,
  { tenantDefaults = {}, ...settings }: SessionSettings = {},
): Ipam {
  const session = { actor: caller.name, ...settings };
  if (!isBounded(caller)) return store.session(session);
  const sharedRanges = sharedRangeLeases(tenantDefaults);
  const access = new CallerAccess(caller, sharedRanges);
  return new TenantIpam(store.session({ ...session, access }), access, caller, sharedRanges);
}

/** The store for its operator: `what` concerns all of it. */
export function openAsOperator(store: Store, caller: Caller, what: string): Store {
  if (!isBounded(caller)) return store.session({ actor: caller.name });
  throw new CallerAccess(caller, []).denied(what);
}

export const isBounded = ({ tenant, network, pool }: Caller): boolean =>
  tenant !== undefined || network !== undefined || pool !== undefined;

/**
 * The store as one caller may see and change it. Changes are checked in their transaction: see `Access`. Here requests get the tenant of the
 * caller, lists leave out what the caller may not see, and other reads of that are refused with `ACCESS_DENIED`.
 */
class TenantIpam implements Ipam {
  /** What was committed, by what the caller was shown of it. */
  readonly #committed = new WeakMap<Lease, Lease>();

  constructor(
    /** With the access of the caller. */
    private readonly ipam: Ipam,
    private readonly access: CallerAccess,
    private readonly caller: Caller,
    private readonly sharedRanges: ExistingLease[],
  ) {}

  get whyNoOffers(): string | undefined {
    return this.ipam.whyNoOffers;
  }

  get whyNoClaims(): OverlayError | undefined {
    return this.ipam.whyNoClaims;
  }

  async offer(request: OfferRequest): Promise<Lease> {
    return this.access.show(await this.ipam.offer(this.#bind(request)));
  }

  withdraw(owner: string, program: string, pool: string): Promise<void> {
    return this.ipam.withdraw(owner, program, pool);
  }

  async claim(request: Request): Promise<Lease> {
    return this.#showCommitted(await this.ipam.claim(this.#bind(request)));
  }

  async claimAll(requests: Request[]): Promise<Lease[]> {
    const leases = await this.ipam.claimAll(requests.map((request) => this.#bind(request)));
    return leases.map((lease) => this.#showCommitted(lease));
  }

  async amend(pool: string, leaseId: string, changes: Changes, options?: AmendOptions): Promise<Lease> {
    return this.#showCommitted(await this.ipam.amend(pool, leaseId, this.#withTenant(changes), options));
  }

  versionOf(lease: Lease): StoreVersion | undefined {
    const committed = this.#committed.get(lease);
    return committed && this.ipam.versionOf(committed);
  }

  async importLeases(leases: ExistingLease[], { missing = [], ...options }: ImportOptions = {}): Promise<ImportResult> {
    const given = new Map(leases.map((lease) => [this.#bind(lease), lease]));
    const pools = missing.map(({ childPool, ...lease }) => ({ ...lease, childPool: this.#withTenant(childPool) }));
    const result = await this.ipam.importLeases([...given.keys()], { ...options, missing: pools });
    return {
      added: result.added.map((lease) => this.access.show(lease)),
      unchanged: result.unchanged.map((lease) => this.access.show(lease)),
      conflicts: result.conflicts.map(({ lease, error }) => ({ lease: given.get(lease)!, error })),
    };
  }

  close(pool: string, leaseId: string, options?: { onlyIf?: Condition }): Promise<void> {
    return this.ipam.close(pool, leaseId, options);
  }

  release(pool: string, leaseId: string, options?: { onlyIf?: Condition; program?: string }): Promise<boolean> {
    return this.ipam.release(pool, leaseId, options);
  }

  touch(pool: string, leaseId: string, options?: { ttl?: number }): Promise<void> {
    return this.ipam.touch(pool, leaseId, options);
  }

  async signTokens(leases: Lease[]): Promise<string[]> {
    for (const lease of leases) this.#mustBeOwn(lease);
    return this.ipam.signTokens(leases);
  }

  async openToken(token: string, expected?: ExpectedToken): Promise<Grant> {
    const grant = await this.ipam.openToken(token, expected);
    if (!isPoolInBounds(this.caller, grant.pool)) throw this.access.denied(describePool(grant.pool));
    return grant;
  }

  async find(pool: string, by: By): Promise<Lease | undefined> {
    const scoped = "name" in by ? { name: this.access.scopeName(by.name) } : by;
    return this.#mustBeVisible(await this.ipam.find(pool, scoped));
  }

  async endOf(pool: string, uid: string): Promise<Lease | undefined> {
    return this.#mustBeVisible(await this.ipam.endOf(pool, uid));
  }

  /** Names are unique in the store: a name that another caller holds is not shown, and a claim of it fails. */
  async holder(name: string): Promise<Lease | undefined> {
    return this.#showVisible(await this.ipam.holder(this.access.scopeName(name)));
  }

  async findOffer(owner: string, program: string): Promise<Lease | undefined> {
    return this.#showVisible(await this.ipam.findOffer(owner, program));
  }

  #showVisible(lease: Lease | undefined): Lease | undefined {
    return lease && this.access.maySee(lease) ? this.access.show(lease) : undefined;
  }

  async spec(name: string): Promise<PoolSpec | undefined> {
    const spec = await this.ipam.spec(name);
    if (spec && !this.access.maySeePool(spec)) throw this.access.denied(describePool(name));
    return spec;
  }

  async usage(pool: string) {
    await this.spec(pool);
    return this.ipam.usage(pool);
  }

  async usages(prefix: string) {
    const [specs, usages] = [await this.pools(prefix), await this.ipam.usages(prefix)];
    const names = new Set(specs.map(({ name }) => name));
    return new Map([...usages].filter(([name]) => names.has(name)));
  }

  async leases(pool: string, options: LeaseFilter = {}): Promise<Lease[]> {
    await this.spec(pool);
    const { owner, ...page } = options;
    const leases = await fillPage(
      owner === undefined ? page : {},
      (next) => this.ipam.leases(pool, { ...options, ...next }),
      (lease) => this.access.maySee(lease),
      positionOf,
    );
    return leases.map((lease) => this.access.show(lease));
  }

  pools(prefix?: string, options: PoolPage = {}): Promise<PoolSpec[]> {
    return fillPage(
      options,
      (page) => this.ipam.pools(prefix, page),
      (spec) => this.access.maySeePool(spec),
      ({ name }) => name,
    );
  }

  async freeExtents(pool: string, options?: { within?: Extent; limit?: number }): Promise<Extent[]> {
    await this.spec(pool);
    return this.ipam.freeExtents(pool, options);
  }

  /** None of the leases is left out: a pool with leases of others cannot end. */
  async poolsEndingWith(pool: string) {
    await this.spec(pool);
    const pools = await this.ipam.poolsEndingWith(pool);
    for (const { held } of pools) for (const lease of held) this.#mustBeOwn(lease);
    return pools;
  }

  async history(pool: string, options?: { after?: number; limit?: number }): Promise<Event[]> {
    await this.spec(pool);
    return showEvents(this.caller, await this.ipam.history(pool, options));
  }

  /** Ids of other callers' events are missing in it. */
  async events(options: { after?: number; limit?: number }): Promise<EventPage> {
    const { events, last } = await this.ipam.events(options);
    return { events: showEvents(this.caller, events), last };
  }

  identity(): Promise<StoreIdentity> {
    return this.ipam.identity();
  }

  findSeen(seen: StoreIdentity): Promise<SeenEpoch> {
    return this.ipam.findSeen(seen);
  }

  /** The request with the tenant of the caller, whatever it says itself. */
  #bind<R extends OfferRequest>(request: R): R {
    const owners = [request.owner, request.formerOwner ?? ""];
    return this.caller.tenant && owners.some(isOwnerForAllTenants)
      ? this.#mustBeSharedRange(request)
      : this.#withTenant(request);
  }

  #withTenant<T extends { tenant?: Tenant | null; childPool?: PoolSpec; names?: string[] }>(given: T): T {
    const { tenant } = this.caller;
    if (!tenant) return given;
    const { childPool, names } = given;
    return {
      ...given,
      tenant,
      ...(childPool && { childPool: { ...childPool, tenant } }),
      ...(names && { names: names.map((name) => this.access.scopeName(name)) }),
    };
  }

  /** A range for all tenants is what the settings of the service say. A run of Pulumi adds what it knows about itself. */
  #mustBeSharedRange<R extends OfferRequest>(request: R): R {
    const { run: _, program: __, inUp: ___, mayEnd: ____, stays: _____, ...range } = request;
    if (this.sharedRanges.some((known) => isDeepStrictEqual(known, range))) return request;
    throw new OverlayError(
      "ACCESS_DENIED",
      `Access token ${this.caller.name} may not make ${request.owner}: it is not a range of tenantDefaults of the service.`,
      "Set overlay:tenantDefaults to that of the service, or leave out the owner.",
    );
  }

  #showCommitted(lease: Lease): Lease {
    const shown = this.access.show(lease);
    this.#committed.set(shown, lease);
    return shown;
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
