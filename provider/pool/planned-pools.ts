import { isDeepStrictEqual } from "node:util";
import { isContainerOwner, isSameStack } from "../owner";
import { cannotReplaceError, exhaustedError, quotaError } from "./errors";
import { capacityOf, commonSpec, total } from "./extents";
import type { Operations } from "./operations";
import { canGive, mustAllowBlocks, mustAssign, mustBeGivable } from "./rules/pools";
import { type Extent, isWithinQuota, type Lease, type PoolSpec, type Replacement, type Request } from "./types";

/**
 * Pools that one run changes in place, or replaces. A preview changes no pool, so offers in it have to respect what the pool will be.
 *
 * Pulumi first deletes the resources that refer to a replaced pool, then the pool, then creates it again. The delete of the pool is refused
 * if other leases are left in it, but by then those resources are deleted. So this is checked earlier: when the pool is checked, and again
 * before the first of the resources is deleted.
 */
export class PlannedPools {
  /** What pools that change in place will be, by their names. */
  readonly #changed = new Map<string, PoolSpec>();
  /** By name of the pool, and of all child pools of its leases: they end with it. */
  readonly #byPool = new Map<string, Replacement>();
  /** How many values each owner requests in a pool that is replaced, by name of the pool. */
  readonly #requested = new Map<string, Map<string, bigint>>();
  /** Uids of leases whose resources Pulumi deletes before the pool. */
  readonly #ending = new Set<string>();
  /** The check before the first delete. It reads all leases, once for all deletes. */
  readonly #verified = new Map<Replacement, Promise<unknown>>();

  constructor(
    private readonly operations: Pick<Operations, "spec" | "poolsEndingWith">,
    /** Uids of leases that their owners keep in this run. */
    private readonly kept: ReadonlySet<string>,
  ) {}

  planChange(spec: PoolSpec): void {
    this.#changed.set(spec.name, spec);
  }

  /** What a pool that changes in place will be. */
  changeOf(pool: string): PoolSpec | undefined {
    return this.#changed.get(pool);
  }

  /** Whether the pool changes so that it gives more than it does now. */
  async willGiveMore(pool: string): Promise<boolean> {
    const planned = this.#changed.get(pool);
    const stored = await this.operations.spec(pool);
    if (!planned || !stored) return false;
    return !isDeepStrictEqual(commonSpec(stored, planned), commonSpec(planned, planned));
  }

  /** Resources of the same stack are expected to refer to the pool, unless they were checked before it. */
  async planReplacement(replacement: Replacement): Promise<void> {
    const isOfStack = (holder: Lease) => replacement.owners.some((owner) => isSameStack(owner, holder.owner));
    const pools = await this.#mustBeEmpty(replacement, (lease) => isOfStack(lease) && !this.kept.has(lease.uid));
    for (const { name } of pools) this.#byPool.set(name, replacement);
  }

  mustFit(request: Request): void {
    const { pool, want, sharingKey } = request;
    const replaced = this.#byPool.get(pool)?.spec;
    const spec = replaced?.name === pool ? replaced : this.#changed.get(pool);
    if (!spec) return;
    mustAllowBlocks(spec, request);
    for (const extent of want ?? []) mustBeGivable(spec, extent);
    if (sharingKey !== undefined) return;
    if (!want) mustAssign(spec);
    if (spec === replaced) this.#mustHaveRoom(spec, request);
  }

  /** Shared values are not counted: how many are needed is decided when they are claimed. */
  #mustHaveRoom(spec: PoolSpec, { pool, owner, want, size = 1n, also = [] }: Request): void {
    const requested = this.#requested.get(pool) ?? new Map<string, bigint>();
    this.#requested.set(pool, requested.set(owner, want ? total(want) : size * BigInt(1 + also.length)));
    const values = [...requested.values()].reduce((sum, each) => sum + each, 0n);
    if (!isWithinQuota(spec, requested.size, values)) throw quotaError(spec, { leases: requested.size, values });
    if (values > capacityOf(spec)) throw exhaustedError(spec, []);
  }

  fits(request: Request, extents: Extent[]): boolean {
    const spec = this.#byPool.get(request.pool)?.spec;
    return spec?.name !== request.pool || canGive(spec, request, extents);
  }

  markEnding({ uid }: Pick<Lease, "uid">): void {
    this.#ending.add(uid);
  }

  isEnding({ uid }: Pick<Lease, "uid">): boolean {
    return this.#ending.has(uid);
  }

  /** Refuses a lease that its owner keeps, in a pool that is replaced. */
  async refuseKept(lease: Lease): Promise<void> {
    const replacement = this.#byPool.get(lease.pool);
    const spec = replacement && (await this.operations.spec(lease.pool));
    if (spec) throw cannotReplaceError(replacement, spec, [lease]);
  }

  /** Before a lease of this pool ends. */
  async mustBePossible(pool: string): Promise<void> {
    const replacement = this.#byPool.get(pool);
    if (!replacement) return;
    const verified =
      this.#verified.get(replacement) ?? this.#mustBeEmpty(replacement, ({ uid }) => this.#ending.has(uid));
    this.#verified.set(replacement, verified);
    await verified;
  }

  /** The pool has been created again. */
  finish(pool: string): void {
    const done = this.#byPool.get(pool);
    for (const [name, replacement] of this.#byPool) if (replacement === done) this.#byPool.delete(name);
  }

  async #mustBeEmpty(replacement: Replacement, ends: (lease: Lease) => boolean): Promise<PoolSpec[]> {
    const pools = await this.operations.poolsEndingWith(replacement.pool);
    for (const { spec, held } of pools) {
      const rest = held.filter((lease) => !ends(lease) && !isDeletedWithRunner(lease));
      if (rest.length > 0) throw cannotReplaceError(replacement, spec, rest.slice(0, 10));
    }
    return pools.map(({ spec }) => spec);
  }
}

/** Leases that the delete of a runner releases itself. */
const isDeletedWithRunner = ({ owner, state }: Lease): boolean => isContainerOwner(owner) && state === "used";
