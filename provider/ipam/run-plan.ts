import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { isOverlayError, type OverlayError } from "../errors";
import { isContainerOwner, isSameStack } from "../owner";
import { SPACES } from "../pool-names";
import { programOf } from "./decide/access";
import { touches } from "./decide/rows";
import { cannotReplaceError, notDeletedError, portConflictError, takenError } from "./errors";
import type { Ipam } from "./interface";
import { claimOne, findSpec } from "./interface";
import { PlannedPorts } from "./planned-ports";
import {
  type ChangeOptions,
  type Changes,
  isCommitted,
  type Json,
  type Lease,
  type PoolSpec,
  type Request,
  type SeenEpoch,
  type StoreIdentity,
  type StoreInfo,
  type ValueRange,
} from "./types";

export interface RunSettings {
  /** How long a claim waits for another resource of its stack to release the value. Seconds; default 5. */
  swapWait?: number | undefined;
}

export interface OfferOptions {
  /** This run is an up, which stops at a broken promise. Default: a preview, which warns. */
  inUp?: boolean;
  /**
   * Whether the resource of the same stack that holds this lease asks for other values in this run. undefined, the default: unknown until
   * that resource is checked. Then the value may be promised, and a claim waits for that check.
   */
  movesAway?(holder: Lease): boolean | undefined;
}

/** A pool that a run deletes and creates again. */
export interface Replacement {
  pool: string;
  /** Its resource, by its names before and after this run. */
  owners: string[];
  /** The properties of its resource that cannot change in place. */
  changed: string[];
}

/** How long a create waits for the delete of its resource. */
const LONGEST_DELETE_MS = 120_000;

/** A request of a resource; its child pool may follow from the values that it gets. */
export type PlannedRequest = Omit<Request, "childPool"> & {
  childPool?: PoolSpec | ((ranges: ValueRange[]) => PoolSpec);
};

/**
 * What one run of Pulumi knows about the resources of its stack. It is kept in this process only. It builds requests: a refusal names the
 * holder of the values, and if the run knows that this resource gives them up, the request is sent again with its lease in `mayEnd`.
 */
export class RunPlan {
  readonly #id = randomUUID();
  /** What owners get in this run. */
  readonly #planned = new Map<string, ValueRange[]>();
  /** Uids of leases whose owners ask for other values in this run, as the program declares; their owners may not be checked yet. */
  readonly #releasing = new Set<string>();
  /** Uids of leases that their owners keep in this run. */
  readonly #kept = new Set<string>();
  readonly #ports = new PlannedPorts();
  /** The data that leases of resources that this run has checked will have, by uid. */
  readonly #data = new Map<string, Json | undefined>();
  /** Pools as the program declares them, by name. */
  readonly #specs = new Map<string, PoolSpec>();
  /** By name of the pool, and of all child pools of its leases: they end with it. */
  readonly #replaced = new Map<string, Replacement>();
  /** Leases whose resources Pulumi deletes before the pool that is replaced, by uid. */
  readonly #ending = new Map<string, Lease>();
  /** The check before the first delete. It reads all leases, once for all deletes. */
  readonly #verified = new Map<Replacement, Promise<unknown>>();
  /** Offers of this run, by the leases that must end for them. */
  readonly #waiting = new Map<string, Lease>();
  /** Offers that are being made. */
  readonly #offering = new Set<Promise<Lease>>();
  /** Owners that this run has checked. */
  readonly #checked = new Set<string>();
  /** Owners for which this run has made an offer ahead of their check. */
  readonly #ahead = new Set<string>();
  readonly #holders = new Map<string, Promise<Set<string>>>();
  /** Uids of leases whose resources this run has begun to delete. */
  readonly #deleting = new Set<string>();
  /** Ids of leases that this run has claimed. */
  readonly #claimed = new Set<string>();
  /** Epochs that the store has. They are never removed while it runs, so one read serves all resources of an epoch. */
  readonly #included: (StoreIdentity & SeenEpoch)[] = [];
  #program: string | undefined;
  #store: Promise<StoreInfo> | undefined;

  constructor(
    readonly ipam: Ipam,
    private readonly settings: RunSettings = {},
  ) {}

  /** The store as this run has found it first: its id, and what the user may not do there, stay the same. */
  describeStore(): Promise<StoreInfo> {
    this.#store ??= this.ipam.describe().catch((error: unknown) => {
      this.#store = undefined;
      throw error;
    });
    return this.#store;
  }

  async offer(
    request: PlannedRequest,
    { inUp = false, movesAway = () => undefined }: OfferOptions = {},
  ): Promise<Lease> {
    this.#notePlan(request, request.values);
    const offered = this.#offerWithPool(request, inUp, movesAway).then((lease) => this.#accept(request, lease));
    this.#offering.add(offered);
    return offered.finally(() => this.#offering.delete(offered));
  }

  /**
   * Pulumi checks resources in any order, and the pool serves those that the program declares earlier first: their offers are made ahead, unless
   * they hold a lease. Their own checks complete these offers, or say why there are none.
   */
  async offerAhead(request: Request, inUp: boolean): Promise<void> {
    const key = planKey(request);
    if (this.#checked.has(key) || this.#ahead.has(key)) return;
    this.#ahead.add(key);
    if ((await this.#holdersIn(request.pool)).has(request.owner)) return;
    const spec = this.#specs.get(request.pool);
    const full = { ...request, ...this.#inRun(request), inUp, ...(spec && { spec }) };
    await this.#offerKnowing(full, () => undefined).catch((error: unknown) => {
      if (!isOverlayError(error)) throw error;
    });
  }

  /** The owners that held a lease in the pool when the run began. */
  #holdersIn(pool: string): Promise<Set<string>> {
    const found =
      this.#holders.get(pool) ??
      this.ipam.leases(pool).then((all) => new Set(all.filter(isCommitted).map(({ owner }) => owner)));
    this.#holders.set(pool, found);
    return found;
  }

  /** The child pool follows from the values: the offer is made first, and then completed with it. */
  async #offerWithPool({ childPool, ...request }: PlannedRequest, inUp: boolean, movesAway: MovesAway): Promise<Lease> {
    const spec = this.#specs.get(request.pool);
    const full = { ...request, ...this.#inRun(request), inUp, ...(spec && { spec }) };
    if (typeof childPool !== "function")
      return this.#offerKnowing({ ...full, ...(childPool && { childPool }) }, movesAway);
    const lease = await this.#offerKnowing(full, movesAway);
    if (lease.state !== "offered") return lease;
    return this.#offerKnowing({ ...full, childPool: childPool(lease.ranges) }, movesAway);
  }

  /** Asks until it is known of each holder in the way whether its resource gives the values up. */
  async #offerKnowing(request: Request & { inUp: boolean }, movesAway: MovesAway): Promise<Lease> {
    const [mayEnd, stays]: [string[], string[]] = [[], []];
    for (;;) {
      try {
        return await this.ipam.offer({ ...request, mayEnd, stays });
      } catch (error) {
        const holder = this.#holderInStack(error, request);
        if (!holder || [...mayEnd, ...stays].includes(holder.uid)) throw error;
        const ends = !request.pool.startsWith(SPACES) && this.#mayBeReleased(holder, movesAway);
        (ends ? mayEnd : stays).push(holder.uid);
      }
    }
  }

  async #accept(request: PlannedRequest, lease: Lease): Promise<Lease> {
    this.#notePlan(request, lease.ranges);
    this.#data.set(lease.uid, request.data);
    for (const uid of lease.afterLease ?? []) {
      if (this.#kept.has(uid)) await this.#refuseWaiting(lease, uid);
      this.#waiting.set(uid, lease);
    }
    if (request.onPortConflict !== "anotherAddress") await this.#refusePlannedPorts(lease, request);
    return lease;
  }

  async #refuseWaiting(lease: Lease, uid: string): Promise<void> {
    await this.withdrawOffer(lease);
    const [spec, holder] = [await findSpec(this.ipam, lease.pool), await this.ipam.find({ pool: lease.pool, uid })];
    if (spec && holder) throw takenError(spec, lease.ranges[0]!, holder, lease.owner);
  }

  /** After a preview that could show no value: what the program was shown before is no promise any more. */
  withdrawOffer(request: Pick<Request, "owner" | "pool" | "values" | "program">): Promise<void> {
    return this.ipam.withdraw({ pool: request.pool, owner: request.owner, program: programOf(request as Request) });
  }

  /** With a child pool that follows from the values, these are chosen first. */
  async claim({ childPool, ...request }: PlannedRequest): Promise<Lease> {
    if (typeof childPool !== "function") return this.#claim({ ...request, ...(childPool && { childPool }) });
    const values = request.values ?? (await this.offer(request, { inUp: true })).ranges;
    return this.#claim({ ...request, values, childPool: childPool(values) });
  }

  async #claim(request: Request): Promise<Lease> {
    this.#notePlan(request, request.values);
    const started = Date.now();
    const mayEnd: string[] = [];
    for (;;) {
      try {
        const lease = await claimOne(this.ipam, { ...request, ...this.#inRun(request), mayEnd });
        this.#notePlan(request, lease.ranges);
        this.#data.set(lease.uid, request.data);
        this.#claimed.add(lease.leaseId);
        if (lease.childPool !== undefined) this.#finishReplacement(lease.childPool);
        return lease;
      } catch (error) {
        const holder = isOverlayError(error, "PLAN_STALE") ? this.#holderInStack(error, request) : undefined;
        if (!holder || mayEnd.includes(holder.uid)) throw error;
        // A lease that is being deleted is at work on hosts, and would be fenced off: it ends by itself.
        const isDeleting = this.#deleting.has(holder.uid);
        const wait = isDeleting ? LONGEST_DELETE_MS : (this.settings.swapWait ?? 5) * 1000;
        if (!isDeleting && this.#isReleasing(holder)) mayEnd.push(holder.uid);
        else if (Date.now() > started + wait) throw error;
        else await sleep(100);
      }
    }
  }

  async change(pool: string, leaseId: string, changes: Changes, options: ChangeOptions = {}): Promise<Lease> {
    if (changes.deleting) this.#deleting.add(leaseId.split(".")[0]!);
    const lease = options.dryRun && changes.ports?.length ? await this.ipam.find({ pool, leaseId }) : undefined;
    if (lease) await this.#refusePlannedPorts(lease, changes);
    return this.ipam.change(pool, leaseId, changes, options);
  }

  release(pool: string, leaseId: string, options: Parameters<Ipam["release"]>[2] = {}): Promise<boolean> {
    return this.ipam.release(pool, leaseId, {
      ...options,
      ...(this.#program !== undefined && { program: this.#program }),
    });
  }

  /**
   * Its owner keeps the lease in this run, and it will have this data and these ports. Later requests of the run for its values are refused; if
   * there was an earlier one, this call rejects.
   */
  async markKept(lease: Lease, { data, ports = [] }: Pick<Request, "data" | "ports"> = {}): Promise<void> {
    this.#notePlan(lease, lease.ranges);
    this.#kept.add(lease.uid);
    this.#data.set(lease.uid, data);
    this.#ports.plan(lease, ports);
    await this.#refuseKeptIn(lease);
    await Promise.allSettled(this.#offering); // Later ones find that it is kept.
    const waiting = this.#waiting.get(lease.uid);
    const spec = waiting && (await findSpec(this.ipam, lease.pool));
    if (!spec) return;
    await this.withdrawOffer({ ...waiting, ...(this.#program !== undefined && { program: this.#program }) });
    throw takenError(spec, lease.ranges[0]!, waiting, lease.owner);
  }

  /** Whether this run has checked the owner of this lease, so that the program declares it. */
  isInRun = (lease: Lease): boolean => this.#checked.has(planKey(lease));

  wasClaimedInRun = ({ leaseId }: Lease): boolean => this.#claimed.has(leaseId);

  /** The data that the lease has after this run; undefined if the run has not checked its owner. */
  plannedData = ({ uid }: Lease): Json | undefined => this.#data.get(uid);

  /** The pool will be this after the run. Offers in it are judged by that. */
  planSpec(spec: PoolSpec): void {
    this.#specs.set(spec.name, spec);
  }

  plannedSpec = (spec: PoolSpec): PoolSpec => this.#specs.get(spec.name) ?? spec;

  // Pools that are replaced. Pulumi first deletes the resources that refer to such a pool, then the pool, then creates it again. The delete of
  // the pool is refused if other leases are left in it, but by then those resources are deleted: so this is checked earlier.

  /** `POOL_IN_USE` if the pool, or one that ends with it, has leases of other stacks, or leases that are kept. */
  async planReplacement(replacement: Replacement): Promise<void> {
    const isOfStack = (holder: Lease) => replacement.owners.some((owner) => isSameStack(owner, holder.owner));
    const pools = await this.#mustBeEmpty(replacement, (lease) => isOfStack(lease) && !this.#kept.has(lease.uid));
    for (const { name } of pools) this.#replaced.set(name, replacement);
  }

  /** Whether the pool is replaced, by itself or with the pool that it is in. */
  isReplaced = (pool: string): boolean => this.#replaced.has(pool);

  /** The resource of this lease is deleted before its pool is replaced. */
  markEnding(lease: Lease): void {
    this.#ending.set(lease.uid, lease);
  }

  isEnding = ({ uid }: Pick<Lease, "uid">): boolean => this.#ending.has(uid);

  /**
   * Before a create: waits until such leases of this owner have ended. If a resource has left the pool that is replaced, Pulumi deletes the old
   * one and creates the new one at the same time. Where the create ends first, Pulumi writes a state with two resources of one name, and refuses
   * to read it.
   */
  async waitUntilEnded(owner: string): Promise<void> {
    const deadline = Date.now() + LONGEST_DELETE_MS;
    for (const { pool, uid } of [...this.#ending.values()].filter((lease) => lease.owner === owner)) {
      for (;;) {
        const lease = await this.ipam.find({ pool, uid });
        if (!lease || !isCommitted(lease)) break;
        if (Date.now() > deadline) throw notDeletedError(lease);
        await sleep(100);
      }
    }
  }

  /** Before a lease in this pool ends: `POOL_IN_USE` if the pool is to be replaced, and has leases that do not end before it. */
  async mustBeReplaceable(pool: string): Promise<void> {
    const replacement = this.#replaced.get(pool);
    if (!replacement) return;
    const verified =
      this.#verified.get(replacement) ?? this.#mustBeEmpty(replacement, ({ uid }) => this.#ending.has(uid));
    this.#verified.set(replacement, verified);
    await verified;
  }

  /** Returns the pool and the child pools of its leases, which end with it. */
  async #mustBeEmpty(replacement: Replacement, ends: (lease: Lease) => boolean): Promise<PoolSpec[]> {
    const found: PoolSpec[] = [];
    for (let names = [replacement.pool]; names.length > 0; ) {
      const specs = (await Promise.all(names.map((name) => findSpec(this.ipam, name)))).flatMap((spec) => spec ?? []);
      const held = await Promise.all(specs.map(async ({ name }) => (await this.ipam.leases(name)).filter(isCommitted)));
      for (const [i, spec] of specs.entries()) {
        const rest = held[i]!.filter((lease) => !ends(lease) && !isDeletedWithRunner(lease));
        if (rest.length > 0) throw cannotReplaceError(replacement, spec, rest.slice(0, 10));
      }
      found.push(...specs);
      names = held.flat().flatMap(({ childPool }) => childPool ?? []);
    }
    return found;
  }

  async #refuseKeptIn(lease: Lease): Promise<void> {
    const replacement = this.#replaced.get(lease.pool);
    const spec = replacement && (await findSpec(this.ipam, lease.pool));
    if (spec) throw cannotReplaceError(replacement, spec, [lease]);
  }

  /** The pool has been created again. */
  #finishReplacement(pool: string): void {
    const done = this.#replaced.get(pool);
    for (const [name, replacement] of this.#replaced) if (replacement === done) this.#replaced.delete(name);
  }

  // The store

  /** Rejects with `STORE_LOST` unless the store is the one that was `seen`. `recovered`: it was rebuilt since. */
  async mustInclude(seen: StoreIdentity): Promise<{ recovered: boolean }> {
    const known = this.#included.find(
      ({ id, epoch, first, last }) =>
        id === seen.id && epoch === seen.epoch && first <= seen.version && seen.version <= last,
    );
    if (known) return known;
    const { seen: epoch } = await this.ipam.describe(seen);
    this.#included.push({ ...seen, ...epoch! });
    return epoch!;
  }

  // Swaps

  /** The lease of the same stack that an error names. */
  #holderInStack(
    error: unknown,
    { owner, formerOwner }: Pick<Request, "owner" | "formerOwner">,
  ): OverlayError["holder"] {
    const holder = isOverlayError(error) ? error.holder : undefined;
    return holder && [owner, formerOwner].some((each) => each !== undefined && isSameStack(holder.owner, each))
      ? holder
      : undefined;
  }

  #notePlan(request: Pick<Request, "pool" | "owner" | "formerOwner">, ranges: ValueRange[] | undefined): void {
    const { program } = request as Request;
    if (program !== undefined) this.#program = program;
    for (const owner of [request.owner, request.formerOwner]) {
      if (owner === undefined) continue;
      this.#checked.add(planKey({ pool: request.pool, owner }));
      if (ranges) this.#planned.set(planKey({ pool: request.pool, owner }), ranges);
    }
  }

  #inRun = (request: Pick<Request, "program">) => ({
    run: this.#id,
    ...((request.program ?? this.#program) !== undefined && { program: (request.program ?? this.#program)! }),
  });

  /** Whether an offer may be made for values that this holder has: it gives them up, or that is not known yet. */
  #mayBeReleased(holder: Holder, movesAway: MovesAway): boolean {
    if (this.#kept.has(holder.uid)) return false;
    const planned = this.#planned.get(planKey(holder));
    if (planned) return !touches(planned, holder.ranges);
    const moves = movesAway(holder as Lease);
    if (moves) this.#releasing.add(holder.uid);
    return moves !== false;
  }

  /** Whether the owner of this lease gets other values in this run. */
  #isReleasing(holder: Holder): boolean {
    const planned = this.#planned.get(planKey(holder));
    return planned ? !touches(planned, holder.ranges) : this.#releasing.has(holder.uid);
  }

  /** Refuses ports that another resource of this run has or gets, unless the request may take them. */
  async #refusePlannedPorts(
    lease: Lease,
    { ports = [], evictSameTenant, formerOwner }: Pick<Request, "ports" | "evictSameTenant" | "formerOwner">,
  ): Promise<void> {
    const conflict = evictSameTenant ? undefined : this.#ports.findHolder(lease, ports, [lease.owner, formerOwner]);
    const spec = conflict && (await findSpec(this.ipam, lease.pool));
    if (spec) throw portConflictError(spec, conflict.range, conflict.port, conflict.holder);
  }
}

type Holder = NonNullable<OverlayError["holder"]>;

type MovesAway = NonNullable<OfferOptions["movesAway"]>;

const planKey = ({ pool, owner }: Pick<Request, "pool" | "owner">): string => `${pool}\n${owner}`;

/** Leases that the delete of a runner releases itself. */
export const isDeletedWithRunner = ({ owner, state }: Lease): boolean => isContainerOwner(owner) && state === "used";
