import { randomUUID } from "node:crypto";
import { isOverlayError, OverlayError } from "../errors";
import { machineKey } from "../host/connection";
import { isForgotten } from "../owner";
import { type Changes, type Extent, isFirm, type Lease, type Pool, type Request } from "../pool/types";
import { type Definition, type TargetHost, targetsOf } from "../resource";
import { apply, askHosts, readDrift, removeItems } from "./apply";
import {
  buildRequest,
  changedInputs,
  diffLease,
  hasNoHostEffect,
  openedPool,
  pickInputs,
  replacingPaths,
} from "./changes";
import { type Checked, check } from "./check";
import { releaseContainerLeases } from "./containers";
import type { Caller, Dependencies } from "./dependencies";
import { forgetOrThrow, keepReserved, STAY_RESERVED } from "./forgotten";
import {
  amendOwned,
  fence,
  fencedError,
  ifOwned,
  isLeaseGone,
  type OwnedLease,
  readLeaseData,
  readStoreId,
  throwFenced,
} from "./owned-lease";
import { makeStamp, rejectLostStore, rejectOlderStore } from "./store-version";
import {
  configuredTargets,
  configuredTargetsBefore,
  findCleanHosts,
  formatTarget,
  machineKeys,
  readCleanHosts,
  removedTargets,
} from "./target-hosts";
import { unknownPaths, type Values } from "./values";

/**
 * check, diff, create, read, update, delete, for all resources. Properties are the checked inputs (the user's, the computed
 * values, the owner) and outputs (lease id, uid, drift, …).
 *
 *   create  claim → apply                    a failure after the claim keeps id and properties; the next up calls update
 *   update  amend → apply                    without contact to hosts if no change affects them
 *   delete  remove items → release           nothing to do if the lease id has changed: a later resource has the lease
 */
export interface DiffResult {
  changes: boolean;
  replaces: string[];
  deleteBeforeReplace: boolean;
}

/** The lease is claimed, but hosts are not configured: Pulumi keeps the state, and the next up calls update. */
export class PartialFailure extends Error {
  constructor(
    readonly id: string,
    readonly properties: Values,
    readonly reason: unknown,
  ) {
    super(reason instanceof Error ? reason.message : String(reason), { cause: reason });
  }
}

/** A lease that this run has taken over, and the stamp of its store for the state. */
type TakenLease = OwnedLease & Lease & { stamp: Values };

export class Lifecycle {
  /** Set by `check`, because Pulumi does not tell `diff` whether it is a preview. */
  #dryRun = false;
  /** Owner → owner before a rename. Pulumi checks a replacement a second time, without the old state. */
  readonly #formerOwners = new Map<string, string>();
  /** Owners that were in the state when this run checked them first. */
  readonly #existing = new Set<string>();
  /** Leases that this run has claimed. */
  readonly #claimed = new Set<string>();
  /** Extents of resources that this run has deleted: if it creates them again, they get the same if possible. */
  readonly #released = new Map<string, Extent[]>();

  constructor(
    readonly def: Definition,
    private readonly deps: Dependencies,
  ) {}

  check(caller: Caller, olds: Values | undefined, news: Values): Promise<Checked> {
    const { owner, dryRun } = caller;
    this.#dryRun = dryRun;
    if (olds && olds.owner !== owner) this.#formerOwners.set(owner, String(olds.owner));
    const known = {
      formerOwner: this.#formerOwners.get(owner),
      prefer: this.#released.get(owner),
      isReplacement: this.#existing.has(owner),
    };
    if (olds) this.#existing.add(owner);
    return check(this.def, this.deps, { ...caller, ...known }, olds, news);
  }

  async diff(olds: Values, news: Values): Promise<DiffResult> {
    const changed = changedInputs(this.def, olds, news);
    const replaces = replacingPaths(this.def, olds, news);
    const lease = await this.#findLease(olds);
    const lost = lease === "lost";
    const isDeleting = lease !== undefined && lease !== "lost" && lease.deletingSince !== undefined;
    const drifted = Array.isArray(olds.drift) && olds.drift.length > 0;
    const isOfReplaced = replaces.length > 0 && unknownPaths(news).length > 0; // see `replacingPaths`
    if (isOfReplaced && lease && lease !== "lost") (await this.deps.pool()).markEnding(lease);
    const first =
      replaces.length > 0 &&
      !(unknownPaths(news).length === 0 && this.def.createBeforeDelete && (await this.#hasRoom(news)));
    return {
      changes: changed.length > 0 || lost || drifted || isDeleting || (await this.#isTokenInvalid(olds)),
      replaces: lost ? [...replaces, "leaseId"] : replaces,
      // A forced replacement with equal inputs renews the lease in place, and the live network stays up.
      deleteBeforeReplace: first,
    };
  }

  async create(inputs: Values): Promise<{ id: string; props: Values }> {
    const pool = await this.deps.pool();
    const run = randomUUID();
    const opens = openedPool(this.def, inputs);
    const request = { ...this.#request(inputs, run), want: this.def.extentsFromProps(inputs), ...(opens && { opens }) };
    const { tenantDefaults } = this.deps;
    await this.def.sourcePool?.claimPrerequisites?.(inputs, { pool, owner: request.owner, tenantDefaults });
    const targets = targetsOf(this.def, inputs);
    // An earlier run that was killed after its claim may have written to the hosts.
    const earlier = targets.length > 0 ? await pool.find(request.pool, { owner: request.owner }) : undefined;
    const lease = await pool.claim(request);
    this.#claimed.add(lease.leaseId);
    const store = await readStoreId(pool);
    const props = { ...inputs, leaseId: lease.leaseId, uid: lease.uid, ...makeStamp(pool, store, lease) };
    const owned = { ...lease, run, store };
    const before = earlier && isFirm(earlier) ? targets : [];
    return { id: this.def.id(inputs), props: await this.#complete(pool, props, owned, this.def.id(inputs), before) };
  }

  /** Reads pool and hosts without changing them; differences are in `drift`. */
  async read(id: string, props: Values): Promise<{ id: string; props: Values; inputs: Values }> {
    const pool = await this.deps.pool();
    await rejectOlderStore(pool, props);
    const lease = await this.#findById(pool, props);
    if (!lease) await rejectLostStore(this.def, pool, props);
    const { found, complete } = await readDrift(
      this.def,
      this.deps,
      pool,
      props,
      await this.#leaseInState(pool, props),
    );
    if (lease && complete) await pool.touch(lease.pool, lease.leaseId).catch(ignoreReadOnly);
    const notes = [
      ...(lease?.deletingSince
        ? [`a delete began at ${new Date(lease.deletingSince).toISOString()} and did not finish`]
        : []),
      ...(lease ? [] : [`lease ${props.leaseId} is no longer in the store`]),
      ...(isComplete(this.def, props) ? [] : ["the last up did not finish"]),
    ];
    const outputs = lease ? await this.#leaseOutputs(pool, props, lease) : {};
    return { id, props: { ...props, ...outputs, drift: [...notes, ...found] }, inputs: pickInputs(this.def, props) };
  }

  async update(id: string, olds: Values, news: Values): Promise<Values> {
    const pool = await this.deps.pool();
    await rejectOlderStore(pool, olds);
    const { owned, wasDeleting, clean } = await this.#renew(
      pool,
      String(olds.leaseId),
      pickInputs(this.def, olds),
      news,
    );
    this.#formerOwners.delete(owned.owner);
    const outputs = Object.fromEntries(
      [...Object.keys(this.def.outputs.shape), "machines"].map((key) => [key, olds[key]]),
    );
    const props = { ...outputs, ...news, leaseId: owned.leaseId, uid: owned.uid, ...owned.stamp };
    if (!wasDeleting && hasNoHostEffect(this.def, olds, news))
      return { ...props, ...(await this.#leaseOutputs(pool, props, owned)), drift: [] };
    const removed = removedTargets(this.def, olds, news, clean);
    const before = configuredTargetsBefore(this.def, olds, news, clean);
    const done = await this.#complete(pool, { ...props, leaving: removed.map(formatTarget) }, owned, id, before);
    await this.#cleanRemoved(pool, olds, owned, removed);
    return { ...done, leaving: [] };
  }

  async delete(props: Values): Promise<void> {
    const pool = await this.deps.pool();
    await rejectOlderStore(pool, props);
    const lease = await this.#findById(pool, props);
    if (!lease) return this.#deleteWithoutLease(pool, props);
    const inputs = pickInputs(this.def, props);
    const opens = openedPool(this.def, inputs);
    this.def.validateDelete?.(props, lease, await this.#hasSuccessor(pool, lease));
    await pool.mustBeReplaceable(lease.pool);
    const clean = readCleanHosts(lease);
    const owned = await this.#takeOver(pool, lease, inputs, { deleting: true }, clean);
    this.#released.set(lease.owner, lease.extents);
    const entered =
      this.def.host?.containerLeases && lease.opens ? await releaseContainerLeases(pool, lease.opens) : [];
    // The resource stays, so its pool is opened again, with the leases of containers. If hosts were changed, so does the mark of the delete.
    const keep = (changes: Changes) => async (error: unknown) => {
      const restore = async () => {
        const { data } = this.#request(inputs, owned.run, clean);
        await amendOwned(pool, owned, { ...changes, data: data!, ...(opens && { opens }) }).catch(ignoreFenced);
        if (entered.length > 0) await pool.enrol(entered);
      };
      await restore().catch((failure: Error) =>
        this.deps.warn(`${this.def.id(props)} was not restored: ${failure.message}`),
      );
      throw error;
    };
    const withheld = await this.#close(pool, owned).catch(keep({ deleting: false }));
    const unreachable = await this.#removeAllItems(pool, props, owned, clean).catch(keep({}));
    if (unreachable)
      await keepReserved(machineKeys(configuredTargets(this.def, props, clean)), this.deps, pool, owned, unreachable);
    else if (withheld) await keepReserved([], this.deps, pool, owned);
    else await this.#release(pool, owned);
  }

  /**
   * If a later resource has renewed the lease, there is nothing to do. Else the items in our record on the hosts are removed; those
   * in other records stay.
   */
  async #deleteWithoutLease(pool: Pool, props: Values): Promise<void> {
    const targets = targetsOf(this.def, props);
    // A pool that no longer exists must not block the delete, but an empty store must.
    const isEmpty = (await pool.pools()).length === 0;
    if (isEmpty) await rejectLostStore(this.def, pool, props);
    const owned = await this.#leaseInState(pool, props);
    const later = await pool.find(owned.pool, { uid: owned.uid });
    if (later && isFirm(later) && !this.#claimed.has(later.leaseId)) this.deps.warn(takenOverWarning(this.def, later));
    if (later || targets.length === 0) return;
    const fence = async (): Promise<void> => {
      if (!(await isLeaseGone(pool, owned, owned.uid)))
        throw new OverlayError("LEASE_FENCED", `${owned.owner} was made again meanwhile.`, "Nothing was changed.");
    };
    try {
      await removeItems(this.def, this.deps, pool, props, owned, targets, fence);
    } catch (error) {
      const { message } = forgetOrThrow(error, this.deps);
      this.deps.warn(`${message} Nothing is reserved for it, because the lease is no longer in the store.`);
    }
  }

  /** Removes all items from the hosts, and adds those to `clean`. Returns the error of an unreachable host that is to be forgotten. */
  async #removeAllItems(
    pool: Pool,
    props: Values,
    owned: OwnedLease,
    clean: string[],
  ): Promise<OverlayError | undefined> {
    try {
      const targets = configuredTargets(this.def, props, clean);
      await removeItems(this.def, this.deps, pool, props, owned, targets, () => fence(pool, owned), clean);
      await this.#cleanRemoved(pool, props, owned, removedTargets(this.def, props, props, clean));
      return undefined;
    } catch (error) {
      return forgetOrThrow(error, this.deps, STAY_RESERVED);
    }
  }

  /** Closes the pool that it opened. true: only forgotten hosts have leases in it, so its range must stay reserved, too. */
  async #close(pool: Pool, owned: TakenLease): Promise<boolean> {
    try {
      await pool.close(owned.pool, owned.leaseId, ifOwned(owned)).catch(throwFenced(owned));
      return false;
    } catch (error) {
      if (!isOverlayError(error, "POOL_IN_USE") || this.deps.unreachableOnDelete !== "forget") throw error;
      const leases = (await pool.leases(owned.opens!)).filter(isFirm);
      if (!leases.every(({ owner }) => isForgotten(owner))) throw error;
      return true;
    }
  }

  /** A lease that has expired meanwhile needs no release; one that a later run has taken over is not ours to release. */
  async #release(pool: Pool, owned: OwnedLease): Promise<void> {
    const { pool: name, leaseId } = owned;
    if (await pool.release(name, leaseId, ifOwned(owned))) return;
    if (await pool.find(name, { leaseId })) throw fencedError(name, leaseId);
  }

  async #complete(
    pool: Pool,
    props: Values,
    owned: OwnedLease & Lease,
    id: string,
    before: TargetHost[],
  ): Promise<Values> {
    let seen: Values = {};
    try {
      const hasHosts = targetsOf(this.def, props).length > 0;
      const machines = hasHosts ? await askHosts(this.def, this.deps, props) : {};
      if (hasHosts) seen = { machines };
      const reported = hasHosts ? await apply(this.def, this.deps, pool, props, owned, machines) : { drift: [] };
      if ("lastSeen" in this.def.outputs.shape) seen.lastSeen = new Date().toISOString();
      return { ...props, ...reported, ...(await this.#leaseOutputs(pool, props, owned)), ...seen };
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      await this.#storeCleanHosts(pool, props, owned, before);
      throw new PartialFailure(id, { ...props, ...seen, drift: [`not applied: ${text}`] }, error);
    }
  }

  /** Without the list, every host counts as configured, so a failure to store it does no harm. */
  async #storeCleanHosts(pool: Pool, props: Values, owned: OwnedLease, before: TargetHost[]): Promise<void> {
    const clean = findCleanHosts(this.def, this.deps.fleet, props, owned.uid, before);
    if (clean.length === 0) return;
    const { data } = this.#request(pickInputs(this.def, props), owned.run, clean);
    await amendOwned(pool, owned, { data: data! }).catch(() => {});
  }

  async #leaseOutputs(pool: Pool, props: Values, lease: Lease): Promise<Values> {
    return (await this.def.leaseOutputs?.(props, lease, { pool, token: this.deps.token })) ?? {};
  }

  /** Updates the lease and takes it over: an earlier run is fenced off. */
  async #renew(
    pool: Pool,
    leaseId: string,
    olds: Values,
    news: Values,
  ): Promise<{ owned: TakenLease; wasDeleting: boolean; clean: string[] }> {
    const { pool: name } = buildRequest(this.def, news);
    const lease = await pool.find(name, { leaseId });
    if (!lease) throw fencedError(name, leaseId);
    const changes = { ...diffLease(this.def, olds, news, lease), deleting: false };
    const owned = await this.#takeOver(pool, lease, news, changes);
    return { owned, wasDeleting: lease.deletingSince !== undefined, clean: readCleanHosts(lease) };
  }

  /** Rejects if another run has taken the lease over since it was read, because its list of clean hosts may be outdated. */
  async #takeOver(
    pool: Pool,
    before: Lease,
    inputs: Values,
    changes: Changes = {},
    clean: string[] = [],
  ): Promise<TakenLease> {
    const run = randomUUID();
    const { data } = this.#request(inputs, run, clean);
    const lease = await amendOwned(pool, { ...before, run: readLeaseData(before).run }, { ...changes, data: data! });
    const store = await readStoreId(pool);
    return { ...lease, run, store, stamp: makeStamp(pool, store, lease) };
  }

  /** Whether the pool has room for the old lease and the new one. The offer that `check` made for the new one is counted. */
  async #hasRoom(news: Values): Promise<boolean> {
    const pool = await this.deps.pool();
    const { pool: name } = buildRequest(this.def, news);
    const [spec, usage] = [await pool.spec(name), await pool.usage(name)];
    if (!spec || !usage) return true;
    const { maxIps = Infinity, maxReservations = Infinity } = spec.quota ?? {};
    return usage.held <= maxIps && usage.offered + usage.reserved + usage.used <= maxReservations;
  }

  /** Whether the owner has a newer lease: then this one is of a resource that was replaced. */
  async #hasSuccessor(pool: Pool, { pool: name, owner, uid }: Lease): Promise<boolean> {
    const newest = await pool.find(name, { owner });
    return newest !== undefined && newest.uid !== uid && newest.state !== "offered";
  }

  /** Removes items from hosts that the resource no longer has; those that do not answer are skipped with a warning. */
  async #cleanRemoved(pool: Pool, props: Values, owned: OwnedLease, targets: TargetHost[]): Promise<void> {
    for (const target of targets) {
      try {
        await removeItems(this.def, this.deps, pool, props, owned, [target], () => fence(pool, owned));
      } catch (error) {
        if (!isOverlayError(error)) throw error;
        const machine = machineKey(target.connection);
        this.deps.warn(`${machine} is no longer part of it, but could not be cleaned: ${error.message}`);
      }
    }
  }

  /** Whether the signature of its token is no longer accepted: then an update issues a new one. */
  async #isTokenInvalid({ token }: Values): Promise<boolean> {
    if (typeof token !== "string" || !("token" in this.def.outputs.shape)) return false;
    try {
      return !(await this.deps.isSignedHere(token));
    } catch (error) {
      if (isOverlayError(error, "STORE_UNAVAILABLE") && this.#dryRun) return false;
      throw error;
    }
  }

  /** `lost`: another resource has renewed the lease, or it has ended. undefined: a preview without a store. */
  async #findLease(olds: Values): Promise<Lease | "lost" | undefined> {
    try {
      const pool = await this.deps.pool();
      await rejectOlderStore(pool, olds);
      const lease = await this.#findById(pool, olds);
      if (!lease) await rejectLostStore(this.def, pool, olds);
      return lease ?? "lost";
    } catch (error) {
      if (isOverlayError(error, "STORE_UNAVAILABLE") && this.#dryRun) return undefined;
      throw error;
    }
  }

  #findById(pool: Pool, props: Values): Promise<Lease | undefined> {
    return pool.find(this.#request(pickInputs(this.def, props)).pool, { leaseId: String(props.leaseId) });
  }

  #request(inputs: Values, run?: string, clean: string[] = []): Request {
    const { nameInput } = this.def;
    const known = { ...(nameInput && { name: String(inputs[nameInput]) }), ...this.def.leaseData?.(inputs) };
    const data = run ? { data: { run, ...known, ...(clean.length > 0 && { clean }) } } : {};
    return { ...buildRequest(this.def, inputs), ...data };
  }

  /** The lease as the state has it, whether or not the pool still has it. */
  async #leaseInState(pool: Pool, props: Values): Promise<Omit<OwnedLease, "run">> {
    const { pool: name, owner } = this.#request(pickInputs(this.def, props));
    return {
      pool: name,
      leaseId: String(props.leaseId),
      uid: String(props.uid),
      owner,
      store: await readStoreId(pool),
    };
  }
}

const isComplete = ({ outputs }: Definition, props: Values): boolean =>
  Object.entries(outputs.shape).every(
    ([key, schema]) => props[key] !== undefined || schema.safeParse(undefined).success,
  );

/** The lease id differs from the state: another state has claimed the lease since, such as that of a stack of the same name. */
const takenOverWarning = ({ type }: Definition, { owner, leaseId, updatedAt, by }: Lease): string =>
  `${type} ${owner.split("::").at(-1)}: its lease was taken over at ${new Date(updatedAt).toISOString()}${by ? ` by ${by}` : ""} (${leaseId}), and is left alone.`;

/** A later run has taken the lease over, and stored its own data. */
const ignoreFenced = (error: unknown): void => {
  if (!isOverlayError(error, "LEASE_FENCED")) throw error;
};

const ignoreReadOnly = (error: unknown): void => {
  if (!isOverlayError(error, "STORE_READ_ONLY")) throw error;
};
