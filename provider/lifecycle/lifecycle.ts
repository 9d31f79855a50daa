import { randomUUID } from "node:crypto";
import { isOverlayError, OverlayError } from "../errors";
import { machineKey } from "../host/connection";
import { isForgotten } from "../owner";
import { type Changes, type Extent, isFirm, type Lease, type Pool, type Request } from "../pool/types";
import { type Definition, type TargetHost, targetsOf } from "../resource";
import {
  amendHeld,
  apply,
  askAll,
  dataOf,
  drift,
  fence,
  type Held,
  ifHeld,
  notOurs,
  storeOf,
  throwNotOurs,
  withdraw,
} from "./apply";
import { changesOf, opensOf, requestOf } from "./changes";
import { type Caller, type Checked, check } from "./check";
import { forget } from "./containers";
import { refuseLost } from "./deciding";
import { changedInputs, inputsOf, isQuiet, replacedBy } from "./difference";
import { forgetOrThrow, keepFor, STAY_RESERVED } from "./forgotten";
import { cleanAfter, cleanIn, leftParts, machinesOf, partsBefore, partText, usedParts } from "./parts";
import { refuseOlderStore, stampOf } from "./store-version";
import { unknownPaths, type Values } from "./values";
import type { World } from "./world";

/**
 * check, diff, create, read, update, delete: once, for all resources and both faces. Properties are the checked inputs
 * (the user's, the values of the lease, the owner) and what only hosts and pool can tell (lease id, uid, drift, …).
 *
 *   create  claim → apply                    a failure after the claim keeps id and properties; the next up goes on
 *   update  amend → apply, or no host at all when only credentials, labels or the owner changed
 *   delete  is the lease id still current? no: done, a later life has taken over. yes: withdraw → release
 */
export interface Difference {
  changes: boolean;
  replaces: string[];
  deleteBeforeReplace: boolean;
}

/** The claim stands, the machines do not: Pulumi keeps the state, and the next up calls update. */
export class Incomplete extends Error {
  constructor(
    readonly id: string,
    readonly properties: Values,
    readonly reason: unknown,
  ) {
    super(reason instanceof Error ? reason.message : String(reason), { cause: reason });
  }
}

/** A lease that this run has made its own, and what the state is to carry of its store. */
type Taken = Held & Lease & { stamp: Values };

export class Lifecycle {
  /** Set by check; diff is not told whether this is a preview. */
  #dryRun = false;
  /** New name → old name: for a replacement Pulumi calls check once more, without what was. */
  readonly #formerly = new Map<string, string>();
  /** Owners that were in the state when this run checked them first. */
  readonly #existing = new Set<string>();
  /** Leases that this run has claimed. */
  readonly #claimed = new Set<string>();
  /** What resources held that this run has deleted: those that it makes anew get the same where they can. */
  readonly #released = new Map<string, Extent[]>();

  constructor(
    readonly def: Definition,
    private readonly world: World,
  ) {}

  check(caller: Caller, olds: Values | undefined, news: Values): Promise<Checked> {
    const { owner, dryRun } = caller;
    this.#dryRun = dryRun;
    if (olds && olds.owner !== owner) this.#formerly.set(owner, String(olds.owner));
    const known = {
      formerly: this.#formerly.get(owner),
      prefer: this.#released.get(owner),
      isReplacement: this.#existing.has(owner),
    };
    if (olds) this.#existing.add(owner);
    return check(this.def, this.world, { ...caller, ...known }, olds, news);
  }

  async diff(olds: Values, news: Values): Promise<Difference> {
    const changed = changedInputs(this.def, olds, news);
    const replaces = replacedBy(this.def, olds, news);
    const lease = await this.#findLease(olds);
    const lost = lease === "lost";
    const isDeleting = lease !== undefined && lease !== "lost" && lease.deletingSince !== undefined;
    const drifted = Array.isArray(olds.drift) && olds.drift.length > 0;
    const isOfReplaced = replaces.length > 0 && unknownPaths(news).length > 0; // see `replacedBy`
    if (isOfReplaced && lease && lease !== "lost") (await this.world.pool()).markEnding(lease);
    const first =
      replaces.length > 0 &&
      !(unknownPaths(news).length === 0 && this.def.createBeforeDelete && (await this.#hasRoom(news)));
    return {
      changes: changed.length > 0 || lost || drifted || isDeleting || (await this.#isTokenDead(olds)),
      replaces: lost ? [...replaces, "leaseId"] : replaces,
      // A forced replacement with equal inputs renews the lease in place, and the live network stays up.
      deleteBeforeReplace: first,
    };
  }

  async create(inputs: Values): Promise<{ id: string; props: Values }> {
    const pool = await this.world.pool();
    const run = randomUUID();
    const opens = opensOf(this.def, inputs);
    const request = { ...this.#request(inputs, run), want: this.def.extentsFromProps(inputs), ...(opens && { opens }) };
    const { tenantDefaults } = this.world;
    await this.def.sourcePool?.claimPrerequisites?.(inputs, { pool, owner: request.owner, tenantDefaults });
    const parts = targetsOf(this.def, inputs);
    // An earlier run that was killed after its claim may have written to the hosts.
    const earlier = parts.length > 0 ? await pool.find(request.pool, { owner: request.owner }) : undefined;
    const lease = await pool.claim(request);
    this.#claimed.add(lease.leaseId);
    const store = await storeOf(pool);
    const props = { ...inputs, leaseId: lease.leaseId, uid: lease.uid, ...stampOf(pool, store, lease) };
    const held = { ...lease, run, store };
    const before = earlier && isFirm(earlier) ? parts : [];
    return { id: this.def.id(inputs), props: await this.#complete(pool, props, held, this.def.id(inputs), before) };
  }

  /** Pool and machines as they are, and no change; what differs stands in `drift`. */
  async read(id: string, props: Values): Promise<{ id: string; props: Values; inputs: Values }> {
    const pool = await this.world.pool();
    await refuseOlderStore(pool, props);
    const lease = await this.#lease(pool, props);
    if (!lease) await refuseLost(this.def, pool, props);
    const { found, complete } = await drift(this.def, this.world, pool, props, await this.#heldBy(pool, props));
    if (lease && complete) await pool.touch(lease.pool, lease.leaseId).catch(unlessReadOnly);
    const notes = [
      ...(lease?.deletingSince
        ? [`a delete began at ${new Date(lease.deletingSince).toISOString()} and did not finish`]
        : []),
      ...(lease ? [] : [`lease ${props.leaseId} is no longer in the store`]),
      ...(isFinished(this.def, props) ? [] : ["the last up did not finish"]),
    ];
    const outputs = lease ? await this.#tell(pool, props, lease) : {};
    return { id, props: { ...props, ...outputs, drift: [...notes, ...found] }, inputs: inputsOf(this.def, props) };
  }

  async update(id: string, olds: Values, news: Values): Promise<Values> {
    const pool = await this.world.pool();
    await refuseOlderStore(pool, olds);
    const { held, wasDeleting, clean } = await this.#renew(pool, String(olds.leaseId), inputsOf(this.def, olds), news);
    this.#formerly.delete(held.owner);
    const outputs = Object.fromEntries(
      [...Object.keys(this.def.outputs.shape), "machines"].map((key) => [key, olds[key]]),
    );
    const props = { ...outputs, ...news, leaseId: held.leaseId, uid: held.uid, ...held.stamp };
    if (!wasDeleting && isQuiet(this.def, olds, news))
      return { ...props, ...(await this.#tell(pool, props, held)), drift: [] };
    const leaving = leftParts(this.def, olds, news, clean);
    const before = partsBefore(this.def, olds, news, clean);
    const done = await this.#complete(pool, { ...props, leaving: leaving.map(partText) }, held, id, before);
    await this.#leave(pool, olds, held, leaving);
    return { ...done, leaving: [] };
  }

  async delete(props: Values): Promise<void> {
    const pool = await this.world.pool();
    await refuseOlderStore(pool, props);
    const lease = await this.#lease(pool, props);
    if (!lease) return this.#deleteWithoutLease(pool, props);
    const inputs = inputsOf(this.def, props);
    const opens = opensOf(this.def, inputs);
    this.def.validateDelete?.(props, lease, await this.#hasSuccessor(pool, lease));
    await pool.mustBeReplaceable(lease.pool);
    const clean = cleanIn(lease);
    const held = await this.#take(pool, lease, inputs, { deleting: true }, clean);
    this.#released.set(lease.owner, lease.extents);
    const entered = this.def.host?.containerLeases && lease.opens ? await forget(pool, lease.opens) : [];
    // It stays, so it must be usable, with what containers have in it. Where hosts were changed, the mark of the delete stays, too.
    const keep = (changes: Changes) => async (error: unknown) => {
      const restore = async () => {
        const { data } = this.#request(inputs, held.run, clean);
        await amendHeld(pool, held, { ...changes, data: data!, ...(opens && { opens }) }).catch(unlessFenced);
        if (entered.length > 0) await pool.enrol(entered);
      };
      await restore().catch((failure: Error) =>
        this.world.warn(`${this.def.id(props)} was not restored: ${failure.message}`),
      );
      throw error;
    };
    const withheld = await this.#close(pool, held).catch(keep({ deleting: false }));
    const unreachable = await this.#withdrawAll(pool, props, held, clean).catch(keep({}));
    if (unreachable) await keepFor(machinesOf(usedParts(this.def, props, clean)), this.world, pool, held, unreachable);
    else if (withheld) await keepFor([], this.world, pool, held);
    else await this.#release(pool, held);
  }

  /**
   * A later life has renewed the lease: done. Else it has one of its own, or none; what our record lists on the machines is
   * still ours to remove, and what other records list stays.
   */
  async #deleteWithoutLease(pool: Pool, props: Values): Promise<void> {
    const parts = targetsOf(this.def, props);
    // A pool that is no longer there must not stop anybody from leaving it. An empty store is another matter.
    const isEmpty = (await pool.pools()).length === 0;
    if (isEmpty) await refuseLost(this.def, pool, props);
    const held = await this.#heldBy(pool, props);
    const later = await pool.find(held.pool, { uid: held.uid });
    if (later && isFirm(later) && !this.#claimed.has(later.leaseId)) this.world.warn(leftAlone(this.def, later));
    if (later || parts.length === 0) return;
    const overtaken = async (): Promise<boolean> => (await pool.find(held.pool, { uid: held.uid })) !== undefined;
    const fence = async (): Promise<void> => {
      if (await overtaken())
        throw new OverlayError("LEASE_FENCED", `${held.owner} was made again meanwhile.`, "Nothing was changed.");
    };
    try {
      await withdraw(this.def, this.world, pool, props, held, parts, fence);
    } catch (error) {
      const { message } = forgetOrThrow(error, this.world);
      this.world.warn(`${message} Nothing is reserved for it, because the lease is no longer in the store.`);
    }
  }

  /** Everything of ours off the machines, which `clean` then has. Returns the error when a dead machine is to be forgotten. */
  async #withdrawAll(pool: Pool, props: Values, held: Held, clean: string[]): Promise<OverlayError | undefined> {
    try {
      const parts = usedParts(this.def, props, clean);
      await withdraw(this.def, this.world, pool, props, held, parts, () => fence(pool, held), clean);
      await this.#leave(pool, props, held, leftParts(this.def, props, props, clean));
      return undefined;
    } catch (error) {
      return forgetOrThrow(error, this.world, STAY_RESERVED);
    }
  }

  /** true: only forgotten machines still have values of the pool that it opened, so that it must stay withheld, too. */
  async #close(pool: Pool, held: Taken): Promise<boolean> {
    try {
      await pool.close(held.pool, held.leaseId, ifHeld(held)).catch(throwNotOurs(held));
      return false;
    } catch (error) {
      if (!isOverlayError(error, "POOL_IN_USE") || this.world.unreachableOnDelete !== "forget") throw error;
      const leases = (await pool.leases(held.opens!)).filter(isFirm);
      if (!leases.every(({ owner }) => isForgotten(owner))) throw error;
      return true;
    }
  }

  /** A lease that has expired meanwhile needs no release; one that a later run has taken over is not ours to release. */
  async #release(pool: Pool, held: Held): Promise<void> {
    const { pool: name, leaseId } = held;
    if (await pool.release(name, leaseId, ifHeld(held))) return;
    if (await pool.find(name, { leaseId })) throw notOurs(name, leaseId);
  }

  async #complete(pool: Pool, props: Values, held: Held & Lease, id: string, before: TargetHost[]): Promise<Values> {
    let seen: Values = {};
    try {
      const isOnMachines = targetsOf(this.def, props).length > 0;
      const machines = isOnMachines ? await askAll(this.def, this.world, props) : {};
      if (isOnMachines) seen = { machines };
      const reported = isOnMachines ? await apply(this.def, this.world, pool, props, held, machines) : { drift: [] };
      if ("lastSeen" in this.def.outputs.shape) seen.lastSeen = new Date().toISOString();
      return { ...props, ...reported, ...(await this.#tell(pool, props, held)), ...seen };
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      await this.#keepClean(pool, props, held, before);
      throw new Incomplete(id, { ...props, ...seen, drift: [`not applied: ${text}`] }, error);
    }
  }

  /** Without the list, every host counts as one that may have something; so it does not matter if it cannot be kept. */
  async #keepClean(pool: Pool, props: Values, held: Held, before: TargetHost[]): Promise<void> {
    const clean = cleanAfter(this.def, this.world.fleet, props, held.uid, before);
    if (clean.length === 0) return;
    const { data } = this.#request(inputsOf(this.def, props), held.run, clean);
    await amendHeld(pool, held, { data: data! }).catch(() => {});
  }

  async #tell(pool: Pool, props: Values, lease: Lease): Promise<Values> {
    return (await this.def.leaseOutputs?.(props, lease, { pool, token: this.world.token })) ?? {};
  }

  /** Brings the lease's details up to date and makes it this run's: whoever held it before is fenced off. */
  async #renew(
    pool: Pool,
    leaseId: string,
    olds: Values,
    news: Values,
  ): Promise<{ held: Taken; wasDeleting: boolean; clean: string[] }> {
    const { pool: name } = requestOf(this.def, news);
    const lease = await pool.find(name, { leaseId });
    if (!lease) throw notOurs(name, leaseId);
    const changes = { ...changesOf(this.def, olds, news, lease), deleting: false };
    const held = await this.#take(pool, lease, news, changes);
    return { held, wasDeleting: lease.deletingSince !== undefined, clean: cleanIn(lease) };
  }

  /** Refused if another run has taken the lease since it was read: its list of clean hosts may be outdated. */
  async #take(pool: Pool, before: Lease, inputs: Values, changes: Changes = {}, clean: string[] = []): Promise<Taken> {
    const run = randomUUID();
    const { data } = this.#request(inputs, run, clean);
    const lease = await amendHeld(pool, { ...before, run: dataOf(before).run }, { ...changes, data: data! });
    const store = await storeOf(pool);
    return { ...lease, run, store, stamp: stampOf(pool, store, lease) };
  }

  /** Whether the pool can have the old life and the new one at once: what check has offered to the new one is counted. */
  async #hasRoom(news: Values): Promise<boolean> {
    const pool = await this.world.pool();
    const { pool: name } = requestOf(this.def, news);
    const [spec, usage] = [await pool.spec(name), await pool.usage(name)];
    if (!spec || !usage) return true;
    const { maxIps = Infinity, maxReservations = Infinity } = spec.quota ?? {};
    return usage.held <= maxIps && usage.offered + usage.reserved + usage.used <= maxReservations;
  }

  /** Its owner holds another one as well: this one is the old life of a resource that was replaced. */
  async #hasSuccessor(pool: Pool, { pool: name, owner, uid }: Lease): Promise<boolean> {
    const newest = await pool.find(name, { owner });
    return newest !== undefined && newest.uid !== uid && newest.state !== "offered";
  }

  /** They are cleaned, if they can be reached. */
  async #leave(pool: Pool, props: Values, held: Held, parts: TargetHost[]): Promise<void> {
    for (const part of parts) {
      try {
        await withdraw(this.def, this.world, pool, props, held, [part], () => fence(pool, held));
      } catch (error) {
        if (!isOverlayError(error)) throw error;
        const machine = machineKey(part.connection);
        this.world.warn(`${machine} is no longer part of it, but could not be cleaned: ${error.message}`);
      }
    }
  }

  /** No verifier accepts its token any more: an update issues a new one. */
  async #isTokenDead({ token }: Values): Promise<boolean> {
    if (typeof token !== "string" || !("token" in this.def.outputs.shape)) return false;
    try {
      return !(await this.world.isSignedHere(token));
    } catch (error) {
      if (isOverlayError(error, "STORE_UNAVAILABLE") && this.#dryRun) return false;
      throw error;
    }
  }

  /** Another life of the resource may have renewed the lease; then it is lost. undefined: a preview without a store. */
  async #findLease(olds: Values): Promise<Lease | "lost" | undefined> {
    try {
      const pool = await this.world.pool();
      await refuseOlderStore(pool, olds);
      const lease = await this.#lease(pool, olds);
      if (!lease) await refuseLost(this.def, pool, olds);
      return lease ?? "lost";
    } catch (error) {
      if (isOverlayError(error, "STORE_UNAVAILABLE") && this.#dryRun) return undefined;
      throw error;
    }
  }

  #lease(pool: Pool, props: Values): Promise<Lease | undefined> {
    return pool.find(this.#request(inputsOf(this.def, props)).pool, { leaseId: String(props.leaseId) });
  }

  #request(inputs: Values, run?: string, clean: string[] = []): Request {
    const { nameInput } = this.def;
    const known = { ...(nameInput && { name: String(inputs[nameInput]) }), ...this.def.leaseData?.(inputs) };
    const data = run ? { data: { run, ...known, ...(clean.length > 0 && { clean }) } } : {};
    return { ...requestOf(this.def, inputs), ...data };
  }

  /** What the state says of the lease, whether or not the pool still has it. */
  async #heldBy(pool: Pool, props: Values): Promise<Omit<Held, "run">> {
    const { pool: name, owner } = this.#request(inputsOf(this.def, props));
    return { pool: name, leaseId: String(props.leaseId), uid: String(props.uid), owner, store: await storeOf(pool) };
  }
}

const isFinished = ({ outputs }: Definition, props: Values): boolean =>
  Object.entries(outputs.shape).every(
    ([key, schema]) => props[key] !== undefined || schema.safeParse(undefined).success,
  );

/** Its lease id is not the one in the state: another state has claimed it since, such as that of a stack with the same name. */
const leftAlone = ({ type }: Definition, { owner, leaseId, updatedAt, by }: Lease): string =>
  `${type} ${owner.split("::").at(-1)}: its lease was taken over at ${new Date(updatedAt).toISOString()}${by ? ` by ${by}` : ""} (${leaseId}), and is left alone.`;

/** A later run has taken the lease over, with data of its own. */
const unlessFenced = (error: unknown): void => {
  if (!isOverlayError(error, "LEASE_FENCED")) throw error;
};

const unlessReadOnly = (error: unknown): void => {
  if (!isOverlayError(error, "STORE_READ_ONLY")) throw error;
};
