import { isDeepStrictEqual } from "node:util";
import { OverlayError } from "../errors";
import type { Access } from "../ipam/decide/access";
import { equalRanges } from "../ipam/ranges";
import type { ExistingLease, Lease, OfferRequest, PoolSpec, Tenant } from "../ipam/types";
import {
  formatTenant,
  isOfOtherTenant,
  isOwnerForAllTenants,
  isSameTenant,
  isTenantBlockName,
  tenantBlockName,
} from "../owner";
import {
  describePool,
  HOSTS,
  IP_POOLS,
  KEYS,
  NETWORKS,
  networkPool,
  PLACED,
  REQUESTS,
  RUNNERS,
  requestLeaseName,
  runnerOfPool,
  SPACES,
  USERS,
} from "../pool-names";
import type { Caller } from "./caller";
import { isPoolInBounds } from "./caller";

/** `user/NETWORK/` and the container. */
const CONTAINER_NAME = new RegExp(`^(${USERS}[^/]+/)(.+)$`);

/**
 * What a caller with bounds may see and change.
 *
 * - A caller that is bound to a network reaches the network's pool of runners and the subnets of its runners; one that is bound to a pool
 *   reaches that pool, and may say that its runner lives.
 * - A caller with a tenant reaches pools of its tenant and pools without a tenant, but in both only leases of its tenant. What it requests
 *   belongs to its tenant. Only the ranges for all tenants have none.
 */
export class CallerAccess implements Access {
  constructor(
    readonly caller: Caller,
    /** The leases without a tenant that a request of any tenant may make. */
    private readonly sharedRanges: ExistingLease[],
  ) {}

  mayUse(pool: string): boolean {
    return this.#isInBounds(pool);
  }

  mayChange(lease: Lease): boolean {
    return this.#isInBounds(lease.pool) && this.#isOwn(lease);
  }

  mayTouch(lease: Lease): boolean {
    const isOwnRunner = lease.childPool !== undefined && lease.childPool === this.caller.pool;
    return this.mayChange(lease) || (isOwnRunner && this.#isOwn(lease));
  }

  mayHold(lease: Lease): boolean {
    if (this.caller.tenant && isOwnerForAllTenants(lease.owner)) return this.#isSharedRange(lease);
    return this.mayChange(lease) && !this.#isNameOfOther(lease.owner);
  }

  isShared(spec: PoolSpec): boolean {
    return this.caller.tenant === undefined || !isSameTenant(spec.tenant, this.caller.tenant);
  }

  hasOffered({ tenant, by }: Lease): boolean {
    if (this.caller.tenant) return isSameTenant(tenant, this.caller.tenant);
    return by === this.caller.name || by?.startsWith(`${this.caller.name} (`) === true;
  }

  /** Names of pools, devices, containers and placements lie in the pool of their lease. */
  mayName(name: string, lease: Lease): boolean {
    const { pool } = lease;
    const isIn = (...kinds: string[]) => kinds.some((kind) => pool.startsWith(kind));
    const network = runnerOfPool(pool)?.network;
    if (name.startsWith(REQUESTS)) return name.startsWith(requestLeaseName(this.caller.name, ""));
    if (name.startsWith(NETWORKS)) return isIn(SPACES) && this.#mayNamePool(name, lease);
    if (name.startsWith(IP_POOLS)) return isIn(SPACES, IP_POOLS) && this.#mayNamePool(name, lease);
    if (name.startsWith(RUNNERS)) return this.#isInBounds(name) && networkPool(name.split("/")[1]!) === pool;
    if (name.startsWith(HOSTS) || name.startsWith(KEYS)) return isIn(SPACES, NETWORKS);
    if (name.startsWith(USERS)) return name.split("/")[1] === network;
    if (!name.startsWith(PLACED)) return false;
    const { tenant } = this.caller;
    return (
      name.split("/")[1] === network || (tenant !== undefined && name.startsWith(PLACED + tenantBlockName(tenant, "")))
    );
  }

  mayOpen(spec: PoolSpec, lease: Lease): boolean {
    return this.#mayNamePool(spec.name, lease) && (this.#isOwn(spec) || this.#isSharedRange(lease));
  }

  /** Its own leases, and leases of networks and runners without a tenant, which own the pools that it may use. */
  maySee(lease: Lease): boolean {
    const ownsPool = lease.childPool !== undefined && lease.tenant === undefined;
    const isNear = this.#isInBounds(lease.pool) || (lease.childPool !== undefined && this.#isInBounds(lease.childPool));
    return isNear && (this.#isOwn(lease) || ownsPool);
  }

  maySeePool(spec: PoolSpec): boolean {
    return (this.#isInBounds(spec.name) || this.#isParent(spec.name)) && !isOfOtherTenant(spec, this.caller.tenant);
  }

  /** The request with the tenant of the caller, whatever it says itself. */
  bind<R extends OfferRequest>(request: R): R {
    const owners = [request.owner, request.formerOwner ?? ""];
    if (!this.caller.tenant || !owners.some(isOwnerForAllTenants)) return this.withTenant(request);
    // A range for all tenants is what the settings of the service say. A run of Pulumi adds what it knows about itself.
    const { run: _, program: __, inUp: ___, mayEnd: ____, stays: _____, ...range } = request;
    if (this.sharedRanges.some((known) => isDeepStrictEqual(known, range))) return request;
    throw new OverlayError(
      "ACCESS_DENIED",
      `Access token ${this.caller.name} may not make ${request.owner}: it is not a range of tenantDefaults of the service.`,
      "Set overlay:tenantDefaults to that of the service, or leave out the owner.",
    );
  }

  withTenant<T extends { tenant?: Tenant | null; childPool?: PoolSpec; names?: string[] }>(given: T): T {
    const { tenant } = this.caller;
    if (!tenant) return given;
    const { childPool, names } = given;
    return {
      ...given,
      tenant,
      ...(childPool && { childPool: { ...childPool, tenant } }),
      ...(names && { names: names.map((name) => this.scopeName(name)) }),
    };
  }

  /**
   * The name as the store has it: containers of two tenants may have one name. Names of containers have no blanks, so that this one is no other's.
   */
  scopeName(name: string): string {
    const [, network, container] = CONTAINER_NAME.exec(name) ?? [];
    return network === undefined ? name : `${network}${this.#scope}${container}`;
  }

  show(lease: Lease): Lease {
    const names = lease.names?.map((name) => this.#withoutScope(name));
    if (this.maySee(lease)) return this.#withoutStrangers({ ...lease, ...(names && { names }) });
    const { pool, type, state, createdAt, updatedAt, lastSeen, expiresAt } = lease;
    const times = { createdAt, updatedAt, lastSeen, ...(expiresAt !== undefined && { expiresAt }) };
    return { pool, type, state, ...times, owner: this.#stranger, ranges: [], uid: "", leaseId: "" };
  }

  denied(what: string): OverlayError {
    const { name, tenant, network, pool } = this.caller;
    const bounds = [
      ...(tenant ? [`tenant ${formatTenant(tenant)}`] : []),
      ...(network === undefined ? [] : [`network ${network}`]),
      ...(pool === undefined ? [] : [describePool(pool)]),
    ];
    return new OverlayError(
      "ACCESS_DENIED",
      `Access token ${name} is bound to ${bounds.join(" and ")}, and may not use ${what}.`,
      "Use a token without this bound.",
    );
  }

  #withoutScope(name: string): string {
    const [, network, container = ""] = CONTAINER_NAME.exec(name) ?? [];
    return network !== undefined && container.startsWith(this.#scope)
      ? `${network}${container.slice(this.#scope.length)}`
      : name;
  }

  get #scope(): string {
    return this.caller.tenant ? `${formatTenant(this.caller.tenant)} ` : "";
  }

  get #stranger(): string {
    return this.caller.tenant ? "another tenant" : "an owner outside of the bounds of the access token";
  }

  /** The owner that has the values after a lease of a tenant may be of another tenant. */
  #withoutStrangers(lease: Lease): Lease {
    const { end } = lease;
    if (!this.caller.tenant || end?.takenBy === undefined) return lease;
    return { ...lease, end: { ...end, takenBy: "another owner" } };
  }

  #isOwn({ tenant }: { tenant?: Tenant }): boolean {
    return this.caller.tenant === undefined || isSameTenant(tenant, this.caller.tenant);
  }

  #isInBounds(name: string): boolean {
    return isPoolInBounds(this.caller, name);
  }

  /** The network of the runner to whose subnet the caller is bound. */
  #isParent(name: string): boolean {
    const runner = runnerOfPool(this.caller.pool ?? "");
    return runner !== undefined && name === networkPool(runner.network);
  }

  #mayNamePool(name: string, lease: Lease): boolean {
    const poolName = name.startsWith(IP_POOLS) ? name.slice(IP_POOLS.length) : "";
    if (this.caller.tenant && isOwnerForAllTenants(poolName)) return poolName === lease.owner;
    return this.#isInBounds(name) && !this.#isNameOfOther(poolName);
  }

  #isSharedRange({ pool, owner, ranges, tenant }: Lease): boolean {
    const range = this.sharedRanges.find((known) => known.owner === owner && known.pool === pool);
    return range !== undefined && tenant === undefined && equalRanges(ranges, range.values);
  }

  /** Names of blocks of tenants, and their owners, are `tenant/ORG/PROJECT/TYPE`. */
  #isNameOfOther(name: string): boolean {
    const { tenant } = this.caller;
    return tenant !== undefined && isTenantBlockName(name) && !name.startsWith(tenantBlockName(tenant, ""));
  }
}
