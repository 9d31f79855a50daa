import { hash } from "node:crypto";
import { isOverlayError } from "../../../provider/errors";
import { isCommitted, type Lease, type Request } from "../../../provider/ipam/types";
import type { Pool } from "../../contract/fixture";
import { firstOf, ranges } from "../../contract/fixture";
import type { OwnPool } from "./own-pool";

/**
 * What Pulumi and the lifecycle do with the pool in a preview and in an up, reduced to single values: checks of all resources in
 * some order, creates, then deletes. A kill drops the run between two of its operations.
 */

/** By resource: the requested value, or null for any. */
export type Wishes = Record<string, bigint | null>;

export type Run = Pick<Pool, "offer" | "claim" | "markKept" | "find" | "release" | "change" | "close" | "leases">;

/** Starts a process on the store. */
export type StartRun = () => Run;

/** How processes behave; `start` starts one of the provider. Called once for each store. */
export type Rules = (start: StartRun) => StartRun;

/** Old rules, as processes with the faults that they had. */
export const OLD_RULES: Record<string, Rules> = {
  "offers of the same run give way": (start) => () => ({
    ...forwarded(start()),
    // A process that has checked no other resource.
    offer: (request, options) => start().offer(request, options),
  }),
  "an offer belongs to its owner only": (start) => () => {
    const run = start();
    const offer: Run["offer"] = async (request, options) => {
      const newest = request.values ? undefined : await run.find({ pool: request.pool, owner: request.owner });
      return run.offer(newest?.state === "offered" ? { ...request, values: newest.ranges } : request, options);
    };
    return { ...forwarded(run), offer };
  },
  "a broken promise is replaced silently": (start) => () => {
    const run = start();
    const offer: Run["offer"] = async (request, options) => {
      const { warnings: _, ...lease } = await run.offer(request, { ...options, inUp: false });
      return lease;
    };
    return { ...forwarded(run), offer };
  },
};

/** The same for pools that are deleted. */
export const OLD_RULES_OF_POOLS: Record<string, Rules> = {
  "records of ends go with their pool": (start) => {
    const deleted = new Set<string>();
    return () => {
      const run = start();
      const close: Run["close"] = async (...args) => {
        const { childPool } = (await run.find({ pool: args[0], leaseId: args[1] }))!;
        await run.close(...args);
        deleted.add(childPool!);
      };
      /** Gives another value than what the records have. */
      const offer: Run["offer"] = async (request, options) => {
        const lease = await run.offer(request, options);
        if (lease.state !== "offered" || request.values || !deleted.delete(request.pool)) return lease;
        await run.release(request.pool, lease.leaseId);
        return run.offer({ ...request, values: ranges(`${(firstOf(lease) % 3n) + 1n}`) }, options);
      };
      return { ...forwarded(run), close, offer };
    };
  },
};

const forwarded = (run: Run): Run => ({
  offer: (...args) => run.offer(...args),
  claim: (...args) => run.claim(...args),
  markKept: (...args) => run.markKept(...args),
  find: (...args) => run.find(...args),
  release: (...args) => run.release(...args),
  change: (...args) => run.change(...args),
  close: (...args) => run.close(...args),
  leases: (...args) => run.leases(...args),
});

/** A resource in the state file of a stack. */
export interface Held {
  value: bigint;
  leaseId: string;
}

export interface Shown {
  values: Map<string, bigint>;
  warnings: string[];
  refusals: string[];
}

export class Killed extends Error {}

/** One stack: its state file, and runs of its program. */
export class ModelStack {
  readonly state = new Map<string, Held>();
  /** Replaced resources that are yet to be deleted. */
  #toDelete: string[] = [];

  constructor(
    private readonly start: StartRun,
    readonly name: string,
    /** Of its program; else it uses `POOL`, which always exists. */
    private readonly ownPool?: OwnPool,
  ) {}

  get pool(): string {
    return this.ownPool?.name ?? POOL;
  }

  readonly ownerOf = (resource: string): string =>
    `scope/urn:pulumi:${this.name}::project::overlay:index:IPReservation::${resource}`;

  async preview(wishes: Wishes, order: string[]): Promise<Shown> {
    const run = this.start();
    const values = new Map<string, bigint>();
    const warnings: string[] = [];
    const refusals: string[] = [];
    await this.ownPool?.check(run, programOf(wishes), false);
    for (const resource of order) {
      try {
        const lease = await this.#check(run, wishes, resource, false);
        values.set(resource, firstOf(lease));
        warnings.push(...(lease.warnings ?? []));
      } catch (error) {
        if (!isOverlayError(error)) throw error;
        refusals.push(error.message); // Pulumi goes on with the checks of other resources
      }
    }
    return { values, warnings, refusals };
  }

  #keeps(wishes: Wishes, resource: string): boolean {
    const held = this.state.get(resource);
    return held !== undefined && (wishes[resource] === null || wishes[resource] === held.value);
  }

  /**
   * `operations`: how many the run gets done before it is killed. `isChain`: each resource depends on the one before it, and is
   * checked when that one is made.
   */
  async up(wishes: Wishes, order: string[], { isChain = false, operations = Infinity } = {}): Promise<void> {
    const run = this.start();
    let left = operations;
    const step = () => {
      if (--left < 0) throw new Killed();
    };
    await this.ownPool?.up(run, programOf(wishes), step);
    for (const together of isChain ? order.map((resource) => [resource]) : [order])
      await this.#make(run, wishes, together, step);
    await this.#deleteReplaced(run, step);
    await this.#deleteAll(
      run,
      [...this.state.keys()].filter((resource) => !(resource in wishes)),
      step,
    );
  }

  async #make(run: Run, wishes: Wishes, resources: string[], step: () => void): Promise<void> {
    const planned = new Map<string, Lease>();
    for (const resource of resources) {
      step();
      planned.set(resource, await this.#check(run, wishes, resource, true));
    }
    for (const [resource, { ranges: values }] of planned) {
      const held = this.state.get(resource);
      if (held && isCommitted(planned.get(resource)!) && held.leaseId === planned.get(resource)!.leaseId) continue;
      step();
      const lease = await run.claim({ ...this.#request(wishes, resource), values });
      step();
      this.state.set(resource, { value: firstOf(lease), leaseId: lease.leaseId });
      if (held) this.#toDelete.push(held.leaseId);
    }
  }

  async destroy(operations = Infinity): Promise<void> {
    const run = this.start();
    let left = operations;
    const step = () => {
      if (--left < 0) throw new Killed();
    };
    await this.#deleteReplaced(run, step);
    await this.#deleteAll(run, [...this.state.keys()], step);
    await this.ownPool?.delete(run, step);
  }

  async #deleteReplaced(run: Run, step: () => void): Promise<void> {
    for (const leaseId of this.#toDelete) {
      step();
      await this.#delete(run, leaseId, step);
      step();
      this.#toDelete = this.#toDelete.filter((each) => each !== leaseId);
    }
  }

  async #deleteAll(run: Run, resources: string[], step: () => void): Promise<void> {
    for (const resource of resources) {
      step();
      await this.#delete(run, this.state.get(resource)!.leaseId, step);
      step();
      this.state.delete(resource);
    }
  }

  async #delete(run: Run, leaseId: string, step: () => void): Promise<void> {
    const lease = await run.find({ pool: this.pool, leaseId });
    if (!lease) return; // a later resource has the lease, or it has ended
    await run.change(this.pool, leaseId, { deleting: true });
    step();
    await run.release(this.pool, leaseId);
  }

  async #check(run: Run, wishes: Wishes, resource: string, inUp: boolean): Promise<Lease> {
    const held = this.state.get(resource);
    const wish = wishes[resource]!;
    if (held && this.#keeps(wishes, resource)) {
      const lease = await run.find({ pool: this.pool, leaseId: held.leaseId });
      if (lease) {
        await run.markKept(lease);
        if (inUp && lease.deletingSince !== undefined) await run.change(this.pool, lease.leaseId, { deleting: false });
        return lease;
      }
    }
    const movesAway = ({ owner, ranges: [range] }: Lease) => {
      const other = wishes[owner.split("::").at(-1)!];
      return other !== undefined && other !== null && other !== range!.first;
    };
    const values = wish === null ? {} : { values: ranges(`${wish}`) };
    const preferred = held ? { preferred: ranges(`${held.value}`) } : {};
    return run.offer({ ...this.#request(wishes, resource), ...values, ...preferred }, { inUp, movesAway });
  }

  #request(wishes: Wishes, resource: string): Request {
    const declared = Object.values(wishes).flatMap((value) => (value === null ? [] : ranges(`${value}`)));
    const from = { program: programOf(wishes), declared };
    return { pool: this.pool, owner: this.ownerOf(resource), type: "IPReservation", ...from };
  }
}

const programOf = (wishes: Wishes): string => hash("sha256", keyOf(wishes), "hex").slice(0, 8);

/** A name for a program. */
export const keyOf = (wishes: Wishes): string =>
  JSON.stringify(Object.entries(wishes).map(([name, value]) => `${name} ${value}`));

export const POOL = "pool/p";
