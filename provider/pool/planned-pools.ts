import { isContainerOwner, isSameStack } from "../owner";
import { alsoRequestedError, cannotReplaceError, exhaustedError, quotaError } from "./errors";
import { automaticZone, capacityOf, commonSpec, fits, freeIn, mergeExtents, overlapsAny, total } from "./extents";
import type { Operations } from "./operations";
import { canGive, mustAllow, mustAssign } from "./rules/pools";
import { alignUp } from "./storage/free-space";
import {
  type Extent,
  isCommitted,
  isWithinQuota,
  type Lease,
  type PoolSpec,
  type Replacement,
  type Request,
} from "./types";

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
  /** Requests that a changed pool can give values only after the change, by pool and owner. They are counted, but promised nothing. */
  readonly #later = new Map<string, Map<string, Request>>();
  /** By name of the pool, and of all child pools of its leases: they end with it. */
  readonly #byPool = new Map<string, Replacement>();
  /** What pools will be if they are replaced, by their names. */
  readonly #replacementSpecs = new Map<string, PoolSpec>();
  /** What owners request in a pool that is replaced, by name of the pool. */
  readonly #requested = new Map<string, Map<string, Request>>();
  /** Leases whose resources Pulumi deletes before the pool, by uid. */
  readonly #ending = new Map<string, Lease>();
  /** The check before the first delete. It reads all leases, once for all deletes. */
  readonly #verified = new Map<Replacement, Promise<unknown>>();

  constructor(
    private readonly operations: Pick<Operations, "spec" | "leases" | "poolsEndingWith">,
    /** Uids of leases that their owners keep in this run. */
    private readonly kept: ReadonlySet<string>,
    /** Whether this run has checked the owner of an offer, and may give it these values. */
    private readonly isPlanned: (offer: Lease) => boolean,
  ) {}

  planChange(spec: PoolSpec): void {
    this.#changed.set(spec.name, spec);
  }

  /** What a pool that changes in place will be. */
  changeOf(pool: string): PoolSpec | undefined {
    return this.#changed.get(pool);
  }

  /**
   * Whether the changed pool can give the request what it cannot give it now. Other such requests of this run are counted, except shared
   * ones: how many values they need is decided when they are claimed. Rejects a request that the changed pool will refuse, too.
   */
  async willGive(request: Request): Promise<boolean> {
    const { pool, owner, want, sharingKey } = request;
    const planned = this.#changed.get(pool);
    const stored = planned && (await this.operations.spec(pool));
    if (!planned || !stored) return false;
    mustAllow(planned, request);
    if (!want) mustAssign(planned);
    if (want && fits(commonSpec(stored, planned), { extents: want })) return false;
    const later = this.#later.get(pool) ?? new Map<string, Request>();
    this.#later.set(pool, later);
    later.delete(owner);
    const others = [...later.values()];
    const rival = findRival(others, want);
    if (rival) throw alsoRequestedError(planned, want![0]!, rival.owner);
    const held = (await this.operations.leases(pool)).filter((lease) => this.#countsFor(request, lease));
    const taken = place(
      planned,
      [...others, request],
      held.flatMap(({ extents }) => extents),
    );
    if (!taken) return (planned.reclaimAfter ?? Infinity) < (stored.reclaimAfter ?? Infinity);
    if (sharingKey !== undefined) return true;
    later.set(owner, request);
    const would = { leases: held.length + later.size, values: total(mergeExtents(taken)) };
    if (!isWithinQuota(planned, would.leases, would.values)) throw quotaError(planned, would);
    return true;
  }

  /** Not a lease of the same owner, and no offer that the request may evict. */
  #countsFor(request: Request, lease: Lease): boolean {
    if (lease.owner === request.owner || lease.state === "quarantined") return false;
    return isCommitted(lease) || !isSameStack(lease.owner, request.owner) || this.isPlanned(lease);
  }

  /** Resources of the same stack are expected to refer to the pool, unless they were checked before it. */
  async planReplacement(replacement: Replacement): Promise<void> {
    const isOfStack = (holder: Lease) => replacement.owners.some((owner) => isSameStack(owner, holder.owner));
    const pools = await this.#mustBeEmpty(replacement, (lease) => isOfStack(lease) && !this.kept.has(lease.uid));
    for (const { name } of pools) this.#byPool.set(name, replacement);
  }

  noteReplacementSpec(spec: PoolSpec): void {
    this.#replacementSpecs.set(spec.name, spec);
  }

  /** Shared values are not counted: how many are needed is decided when they are claimed. */
  mustFitReplacement(request: Request): void {
    const { pool, owner, want, sharingKey } = request;
    const spec = this.replacementOf(pool);
    if (!spec) return;
    mustAllow(spec, request);
    if (sharingKey !== undefined) return;
    if (!want) mustAssign(spec);
    const requested = this.#requested.get(pool) ?? new Map<string, Request>();
    this.#requested.set(pool, requested);
    requested.delete(owner);
    const rival = findRival(requested.values(), want);
    if (rival) throw alsoRequestedError(spec, want![0]!, rival.owner);
    const requests = [...requested.values(), request];
    const values = requests.reduce((sum, each) => sum + countValues(each), 0n);
    if (!isWithinQuota(spec, requests.length, values)) throw quotaError(spec, { leases: requests.length, values });
    if (!hasRoomFor(spec, requests)) throw exhaustedError(spec, []);
    requested.set(owner, request);
  }

  fitsReplacement(request: Request, extents: Extent[]): boolean {
    const spec = this.replacementOf(request.pool);
    return !spec || canGive(spec, request, extents);
  }

  isReplaced(pool: string): boolean {
    return this.#byPool.has(pool);
  }

  /** What a pool that is replaced will be, if that is known. */
  replacementOf(pool: string): PoolSpec | undefined {
    return this.isReplaced(pool) ? this.#replacementSpecs.get(pool) : undefined;
  }

  markEnding(lease: Lease): void {
    this.#ending.set(lease.uid, lease);
  }

  isEnding({ uid }: Pick<Lease, "uid">): boolean {
    return this.#ending.has(uid);
  }

  get ending(): Lease[] {
    return [...this.#ending.values()];
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

/** One of these requests that is for the same values. */
const findRival = (requests: Iterable<Request>, want: Extent[] = []): Request | undefined =>
  [...requests].find((other) => want.some((extent) => overlapsAny(other.want ?? [], extent)));

const countValues = ({ want, size = 1n, also = [] }: Request): bigint =>
  want ? total(want) : size * BigInt(1 + also.length);

/** Whether an empty pool has as many values as these requests need. Blocks may need more, because they are aligned. */
function hasRoomFor(spec: PoolSpec, requests: Request[]): boolean {
  const reserved = mergeExtents(requests.flatMap(({ want = [] }) => want));
  const needed = new Map<string, { range: Extent | undefined; values: bigint }>();
  for (const { within, also = [], size = 1n } of requests.filter(({ want }) => !want)) {
    for (const range of [within, ...also]) {
      const key = range ? `${range.first}-${range.last}` : "";
      needed.set(key, { range, values: size + (needed.get(key)?.values ?? 0n) });
    }
  }
  return [...needed.values()].every(
    ({ range, values }) => values <= capacityOf({ ...spec, extents: automaticZone(spec, range), reserved }),
  );
}

/** What is taken when all these requests have got values, the lowest that are free; undefined if one gets none. */
function place(spec: PoolSpec, requests: Request[], held: Extent[]): Extent[] | undefined {
  const taken = [...held, ...requests.flatMap(({ want = [] }) => want)];
  for (const { within, also = [], size = 1n } of requests.filter(({ want }) => !want)) {
    for (const range of [within, ...also]) {
      const blocks = freeIn(spec, automaticZone(spec, range), taken).flatMap(({ first, last }) => {
        const start = alignUp(spec, first, size);
        return start + size - 1n <= last ? [{ first: start, last: start + size - 1n }] : [];
      });
      if (!blocks[0]) return undefined;
      taken.push(blocks[0]);
    }
  }
  return taken;
}
