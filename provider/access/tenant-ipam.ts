import { isDeepStrictEqual } from "node:util";
import { OverlayError } from "../errors";
import { positionOf } from "../ipam/extents";
import type { IpamSettings } from "../ipam/session";
import type {
  ChangeOptions,
  Changes,
  Condition,
  EventPage,
  EventSelector,
  ExistingLease,
  ExpectedToken,
  Extent,
  ImportResult,
  Ipam,
  Lease,
  LeaseFilter,
  LeaseSelector,
  OfferRequest,
  PoolInfo,
  PoolSelector,
  PoolSpec,
  Request,
  Store,
  StoreIdentity,
  StoreInfo,
  Tenant,
  TokenClaims,
} from "../ipam/types";
import { isOwnerForAllTenants } from "../owner";
import { describePool } from "../pool-names";
import type { TenantDefaults } from "../resource";
import { sharedRangeLeases } from "../resources/tenants";
import type { Caller } from "./caller";
import { isPoolInBounds, showEvents } from "./caller";
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
 * caller. What the caller may not see is not there for it: an answer does not tell it from what does not exist.
 */
class TenantIpam implements Ipam {
  constructor(
    /** With the access of the caller. */
    private readonly ipam: Ipam,
    private readonly access: CallerAccess,
    private readonly caller: Caller,
    private readonly sharedRanges: ExistingLease[],
  ) {}

  describe(seen?: StoreIdentity): Promise<StoreInfo> {
    return this.ipam.describe(seen);
  }

  async offer(request: OfferRequest): Promise<Lease> {
    return this.access.show(await this.ipam.offer(this.#bind(request)));
  }

  withdraw(offer: { pool: string; owner: string; program: string }): Promise<void> {
    return this.ipam.withdraw(offer);
  }

  async claim(requests: Request[]): Promise<Lease[]> {
    const leases = await this.ipam.claim(requests.map((request) => this.#bind(request)));
    return leases.map((lease) => this.access.show(lease));
  }

  async change(pool: string, leaseId: string, changes: Changes, options?: ChangeOptions): Promise<Lease> {
    return this.access.show(await this.ipam.change(pool, leaseId, this.#withTenant(changes), options));
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

  async importLeases(leases: ExistingLease[], options?: { dryRun?: boolean }): Promise<ImportResult> {
    const given = new Map(leases.map((lease) => [this.#bind(lease), lease]));
    const result = await this.ipam.importLeases([...given.keys()], options);
    return {
      added: result.added.map((lease) => this.access.show(lease)),
      unchanged: result.unchanged.map((lease) => this.access.show(lease)),
      conflicts: result.conflicts.map(({ lease, error }) => ({ lease: given.get(lease)!, error })),
    };
  }

  async signTokens(leases: Lease[]): Promise<string[]> {
    for (const lease of leases) this.#mustBeOwn(lease);
    return this.ipam.signTokens(leases);
  }

  async openToken(token: string, expected?: ExpectedToken): Promise<TokenClaims> {
    const grant = await this.ipam.openToken(token, expected);
    if (!isPoolInBounds(this.caller, grant.pool)) throw this.access.denied(describePool(grant.pool));
    return grant;
  }

  /** Names are unique in the store: a name that another caller holds is not shown, and a claim of it fails. So are offers of others. */
  async find(selector: LeaseSelector): Promise<Lease | undefined> {
    const lease = await this.ipam.find(
      "name" in selector ? { ...selector, name: this.access.scopeName(selector.name) } : selector,
    );
    if (!lease) return undefined;
    if (this.access.maySee(lease)) return this.access.show(lease);
    // Ids are not guessed: the caller has a token of the lease.
    if (!("leaseId" in selector || "uid" in selector)) return undefined;
    throw this.access.denied(`a lease in ${describePool(lease.pool)}`);
  }

  async leases(pool: string, options: LeaseFilter = {}): Promise<Lease[]> {
    if (!(await this.#hasPool(pool))) return [];
    const { owner, ...page } = options;
    const leases = await fillPage(
      owner === undefined ? page : {},
      (next) => this.ipam.leases(pool, { ...options, ...next }),
      (lease) => this.access.maySee(lease),
      positionOf,
    );
    return leases.map((lease) => this.access.show(lease));
  }

  async pools(selector: PoolSelector = {}): Promise<PoolInfo[]> {
    if ("endingWith" in selector) return this.#poolsEndingWith(selector.endingWith);
    if (!("name" in selector))
      return fillPage(
        selector,
        (page) => this.ipam.pools({ ...selector, ...page }),
        ({ spec }) => this.access.maySeePool(spec),
        ({ spec }) => spec.name,
      );
    return (await this.ipam.pools(selector)).filter(({ spec }) => this.access.maySeePool(spec));
  }

  /** None of the leases is left out: a pool with leases of others cannot end. */
  async #poolsEndingWith(pool: string): Promise<PoolInfo[]> {
    if (!(await this.#hasPool(pool))) return [];
    const pools = await this.ipam.pools({ endingWith: pool });
    for (const { held = [] } of pools) for (const lease of held) this.#mustBeOwn(lease);
    return pools;
  }

  async freeExtents(pool: string, options?: { range?: Extent; limit?: number }): Promise<Extent[]> {
    if (!(await this.#hasPool(pool))) return [];
    return this.ipam.freeExtents(pool, options);
  }

  /** Ids of other callers' events are missing in it. */
  async events(selector: EventSelector = {}): Promise<EventPage> {
    const { events, last } = await this.ipam.events(selector);
    return { events: showEvents(this.caller, events), last };
  }

  async #hasPool(name: string): Promise<boolean> {
    return (await this.pools({ name })).length > 0;
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

  #mustBeOwn(lease: Lease): void {
    if (!this.access.mayChange(lease))
      throw this.access.denied(`a lease in ${describePool(lease.pool)} that is not its own`);
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
