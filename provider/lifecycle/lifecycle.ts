import { randomUUID } from "node:crypto";
import { escapeLine, isOverlayError } from "../errors";
import { toTimeText } from "../format-time";
import { findSpec } from "../ipam/interface";
import type { RunPlan } from "../ipam/run-plan";
import { isCommitted, isWithinQuota, type Lease, type ValueRange } from "../ipam/types";
import { shortName } from "../owner";
import { type Definition, shownOutputs, type TargetHost, targetsOf } from "../resource";
import { type Checked, check } from "./check";
import { deleteWithoutLease, removeAndRelease } from "./delete";
import type { Caller, Dependencies } from "./dependencies";
import { NOT_COMPARED, NOT_READ, readDrift } from "./drift";
import { apply, askHosts, cleanRemovedHosts } from "./hosts";
import {
  buildChildPool,
  buildLeaseData,
  buildRequest,
  changeOwned,
  diffLease,
  findLeaseInState,
  leaseInState,
  makeStamp,
  type OwnedLease,
  overtakenError,
  readLeaseData,
  readStoreId,
  rejectLostStore,
  rejectOlderStore,
  takeOverLease,
} from "./lease";
import { joinMesh, leaveMesh } from "./mesh";
import { compareRoutes, findPeers, leavesMesh, meshPool, readDirectRoutes } from "./mesh-peers";
import { mayHaveUndeclaredBeside, refuseUndeclaredPool, warnOfUndeclaredBeside } from "./removals";
import {
  configuredTargetsBefore,
  findCleanHosts,
  formatTarget,
  hasNewCredentials,
  hasNoHostEffect,
  readCleanHosts,
  removedTargets,
} from "./target-hosts";
import { changedInputs, pickInputs, replacingPaths, unknownPaths, type Values } from "./values";

/**
 * check, diff, create, read, update, delete, for all resources. Properties are the checked inputs (the user's, the computed
 * values, the owner) and outputs (lease id, uid, drift, …).
 *
 *   create  claim → apply                    a failure after the claim keeps id and properties; the next up calls update
 *   update  change → apply                   without contact to hosts if no change affects them
 *   delete  remove items → release           nothing to do if the lease id has changed: a later resource has the lease
 */
export interface DiffResult {
  changes: boolean;
  /** Whether inputs are among the changes. */
  hasNewInputs: boolean;
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

export class Lifecycle {
  /** Set by `check`, because Pulumi does not tell `diff` whether it is a preview. */
  #dryRun = false;
  /** See `Caller`. */
  #declares: Caller["declares"];
  /** Owner → owner before a rename. Pulumi checks a replacement a second time, without the old state. */
  readonly #formerOwners = new Map<string, string>();
  /** Owners that were in the state when this run checked them first. */
  readonly #existing = new Set<string>();
  /** Ranges of resources that this run has deleted: if it creates them again, they get the same if possible. */
  readonly #released = new Map<string, ValueRange[]>();
  /** By pool: whether a delete beside a resource would fail. */
  readonly #besideChecked = new Set<string>();
  /** Owner → name in the state, of resources that this run may delete and create again. */
  readonly #formerNames = new Map<string, string>();

  constructor(
    readonly def: Definition,
    private readonly deps: Dependencies,
  ) {}

  async check(caller: Caller, olds: Values | undefined, news: Values): Promise<Checked> {
    const { owner, dryRun } = caller;
    this.#dryRun = dryRun;
    this.#declares = caller.declares;
    if (olds && olds.owner !== owner) this.#formerOwners.set(owner, String(olds.owner));
    const known = {
      formerOwner: this.#formerOwners.get(owner),
      preferred: this.#released.get(owner),
      formerName: this.#formerNames.get(owner),
      isReplacement: this.#existing.has(owner),
    };
    if (olds) this.#existing.add(owner);
    const checked = await check(this.def, this.deps, { ...caller, ...known }, olds, news);
    if (dryRun && !olds && checked.failures.length === 0) await this.#showJoin(caller, checked.inputs);
    return checked;
  }

  async diff(olds: Values, news: Values): Promise<DiffResult> {
    const { nameInput } = this.def;
    if (nameInput) this.#formerNames.set(String(news.owner), String(olds[nameInput]));
    const replaces = replacingPaths(this.def, olds, news);
    const lease = await this.#findLease(olds);
    const isLost = lease === "lost";
    if (typeof lease === "object") this.deps.mesh.add(this.def, olds); // until its own update begins
    const isDeleteUnfinished = typeof lease === "object" && lease.deletingSince !== undefined;
    const drift = linesOf(olds.drift);
    this.#showDrift(olds, drift);
    const hasUnknown = unknownPaths(news).length > 0;
    // Unknown values and a replacement: the resource that this one refers to is about to be deleted, see `replacingPaths`.
    if (typeof lease === "object" && !hasUnknown) await this.#refuseUndeclared(lease, news);
    if (replaces.length > 0 && hasUnknown && typeof lease === "object") (await this.deps.pool()).markEnding(lease);
    const hasNewInputs = changedInputs(this.def, olds, news).length > 0;
    const onlyCredentials = hasNewCredentials(this.def, olds, news);
    const isCompared = typeof lease === "object" && (!hasNewInputs || onlyCredentials);
    const isBehind = isCompared && (await this.#isBehind(lease, { ...olds, ...news }));
    if (onlyCredentials)
      this.deps.note(`${shortName(String(olds.owner))}: credentials change${isBehind ? "" : ", no host is touched"}.`);
    return {
      hasNewInputs,
      changes:
        hasNewInputs ||
        isLost ||
        drift.length > 0 ||
        isDeleteUnfinished ||
        isBehind ||
        (await this.#isTokenInvalid(olds)),
      replaces: isLost ? [...replaces, "leaseId"] : replaces,
      // A forced replacement with equal inputs renews the lease in place, and the live network stays up.
      deleteBeforeReplace:
        replaces.length > 0 && !(!hasUnknown && this.def.createBeforeDelete && (await this.#hasRoom(news))),
    };
  }

  /** In the preview of a runner that joins a mesh: which hosts an up changes, too. */
  async #showJoin({ owner }: Caller, inputs: Values): Promise<void> {
    const pool = meshPool(this.def, inputs);
    if (pool === undefined || unknownPaths(inputs).length > 0) return;
    const { ipam } = await this.deps.pool();
    const isOpen = (await findSpec(ipam, pool)) !== undefined; // in the preview of a new network it is not
    const others = isOpen ? await findPeers(this.def, ipam, inputs, { underlayIp: "" }) : [];
    const names = others.map(({ name }) => name);
    if (names.length > 0)
      this.deps.note(
        `${shortName(owner)} joins the mesh of ${names.length} runners, whose hosts get it as a peer: ${names.join(", ")}.`,
      );
  }

  /** Whether its host lacks direct routes of its mesh. If nothing else changes, later creates and deletes of this run change its peers. */
  async #isBehind(lease: Lease, props: Values): Promise<boolean> {
    if (meshPool(this.def, props) === undefined) return false;
    this.deps.mesh.add(this.def, props); // before the leases are read: see `joinMesh`
    const lacks = compareRoutes(
      readDirectRoutes(lease),
      await findPeers(this.def, (await this.deps.pool()).ipam, props),
    );
    for (const text of lacks) this.deps.note(`${shortName(lease.owner)}: its host ${text}.`);
    return lacks.length > 0;
  }

  async create(inputs: Values): Promise<{ id: string; props: Values }> {
    const { def, deps } = this;
    const pool = await deps.pool();
    const run = randomUUID();
    const childPool = buildChildPool(def, inputs);
    const request = {
      ...buildRequest(def, inputs),
      values: def.rangesFromProps(inputs),
      ...(childPool && { childPool }),
    };
    const { owner } = request;
    for (const name of [owner, this.#formerOwners.get(owner)]) if (name !== undefined) await pool.waitUntilEnded(name);
    await def.sourcePool?.claimPrerequisites?.(inputs, { pool, owner, tenantDefaults: deps.tenantDefaults });
    const targets = targetsOf(def, inputs);
    // An earlier run that was killed after its claim may have written to the hosts.
    const earlier = targets.length > 0 ? await pool.ipam.find({ pool: request.pool, owner }) : undefined;
    const data = buildLeaseData(def, inputs, run, earlier && readLeaseData(earlier));
    const lease = await pool.claim({ ...request, data });
    const store = await readStoreId(pool);
    const props = { ...inputs, leaseId: lease.leaseId, uid: lease.uid, ...makeStamp(store, lease) };
    const before = earlier && isCommitted(earlier) ? targets : [];
    const id = def.id(inputs);
    return { id, props: await this.#applyToHosts(pool, id, props, { ...lease, run, store }, before) };
  }

  /** Reads pool and hosts without changing them; differences are in `drift`. */
  async read(id: string, props: Values): Promise<{ id: string; props: Values; inputs: Values }> {
    const pool = await this.deps.pool();
    await rejectOlderStore(pool, props);
    const lease = await findLeaseInState(this.def, pool, props);
    if (!lease) await rejectLostStore(this.def, pool, props);
    const owned = await leaseInState(this.def, pool, props);
    const { found, isComplete } = await readDrift(this.def, this.deps, pool, props, owned);
    if (lease && isComplete) await pool.ipam.touch(lease.pool, lease.leaseId).catch(ignoreRefusedWrite);
    const notes = [
      ...(lease?.deletingSince ? [`a delete began at ${toTimeText(lease.deletingSince)} and did not finish`] : []),
      ...(lease ? [] : [`lease ${props.leaseId} is no longer in the store`]),
      ...linesOf(props.drift).filter((line) => line.startsWith(NOT_APPLIED)),
    ];
    const outputs = lease ? await this.#leaseOutputs(pool, props, lease, (held) => this.#renewToken(held, props)) : {};
    const drift = [...notes, ...found];
    this.#showDrift(props, drift);
    return { id, props: { ...props, ...outputs, drift }, inputs: pickInputs(this.def, props) };
  }

  /** Pulumi shows outputs only where they differ from the state, and only with `--diff`: drift that is in the state already would not be named. */
  #showDrift({ owner }: Values, lines: string[]): void {
    for (const line of lines) this.deps.warn(`drift of ${shortName(String(owner))}: ${line}`);
  }

  update(id: string, olds: Values, news: Values): Promise<Values> {
    return this.deps.mesh.during(this.def, olds, () => this.#update(id, olds, news));
  }

  async #update(id: string, olds: Values, news: Values): Promise<Values> {
    const { def, deps } = this;
    const pool = await deps.pool();
    await rejectOlderStore(pool, olds);
    const { pool: name } = buildRequest(def, news);
    const leaseId = String(olds.leaseId);
    const lease = await pool.ipam.find({ pool: name, leaseId });
    if (!lease) throw overtakenError(name, leaseId);
    const clean = readCleanHosts(lease);
    const changes = diffLease(def, pickInputs(def, olds), news, lease);
    const owned = await takeOverLease(def, pool, lease, news, { ...changes, deleting: false });
    this.#formerOwners.delete(owned.owner);
    if (leavesMesh(def, owned, olds, news)) await leaveMesh(def, deps, pool, olds, owned);
    const kept = Object.keys(def.outputs.shape).filter((key) => !shownOutputs(def).includes(key));
    const outputs = Object.fromEntries(kept.map((key) => [key, olds[key]]));
    outputs.underlays = olds.underlays;
    if (olds.tunnelEnd) outputs.tunnelEnd = olds.tunnelEnd;
    const props = { ...outputs, ...news, leaseId: owned.leaseId, uid: owned.uid, ...owned.stamp };
    const wasDeleting = lease.deletingSince !== undefined;
    if (!wasDeleting && hasNoHostEffect(def, olds, news)) {
      await joinMesh(def, deps, pool, props, owned);
      return { ...props, ...(await this.#leaseOutputs(pool, props, owned)), drift: [] };
    }
    const removed = removedTargets(def, olds, news, clean);
    const before = configuredTargetsBefore(def, olds, news, clean);
    const pending = { ...props, pendingCleanup: removed.map(formatTarget) };
    const updated = await this.#applyToHosts(pool, id, pending, owned, before, async () => {
      await cleanRemovedHosts(def, deps, pool, olds, owned, removed);
      return { pendingCleanup: [] };
    });
    const left = linesOf(updated.drift);
    for (const line of linesOf(olds.drift).filter(isDifference))
      if (!left.includes(line)) deps.note(`corrected: ${line}`);
    return updated;
  }

  async delete(props: Values): Promise<void> {
    const { def, deps } = this;
    const pool = await deps.pool();
    await rejectOlderStore(pool, props);
    const lease = await findLeaseInState(def, pool, props);
    if (!lease) return deleteWithoutLease(def, deps, pool, props);
    def.validateDelete?.(props, lease, await hasSuccessor(pool, lease));
    await pool.mustBeReplaceable(lease.pool);
    const clean = readCleanHosts(lease);
    const owned = await takeOverLease(def, pool, lease, pickInputs(def, props), { deleting: true }, clean).catch(
      async (error: unknown) => {
        // Another resource of this run has got its values since it was read.
        if (isOverlayError(error, "LEASE_FENCED") && !(await findLeaseInState(def, pool, props))) return undefined;
        throw error;
      },
    );
    if (!owned) return deleteWithoutLease(def, deps, pool, props);
    this.#released.set(lease.owner, lease.ranges);
    await removeAndRelease(def, deps, pool, props, owned, clean);
  }

  /**
   * Brings the hosts to the desired state, does what comes last, and returns all properties. `before`: hosts that may already have
   * items of the resource.
   */
  async #applyToHosts(
    pool: RunPlan,
    id: string,
    props: Values,
    owned: OwnedLease & Lease,
    before: TargetHost[],
    finish: () => Promise<Values> = async () => ({}),
  ): Promise<Values> {
    let seen: Values = {};
    try {
      const hasHosts = targetsOf(this.def, props).length > 0;
      const underlays = hasHosts ? await askHosts(this.def, this.deps, props, true) : {};
      if (hasHosts) seen = { underlays };
      const reported = hasHosts ? await apply(this.def, this.deps, pool, props, owned, underlays) : { drift: [] };
      await joinMesh(this.def, this.deps, pool, props, owned);
      if ("lastSeen" in this.def.outputs.shape) seen.lastSeen = new Date().toISOString();
      const outputs = await this.#leaseOutputs(pool, props, owned);
      return { ...props, ...reported, ...outputs, ...seen, ...(await finish()) };
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      await this.#storeCleanHosts(pool, props, owned, before);
      throw new PartialFailure(id, { ...props, ...seen, drift: [`${NOT_APPLIED}${escapeLine(text)}`] }, error);
    }
  }

  /** Without the list, every host counts as configured, so a failure to store it does no harm. */
  async #storeCleanHosts(pool: RunPlan, props: Values, owned: OwnedLease, before: TargetHost[]): Promise<void> {
    const clean = findCleanHosts(this.def, this.deps.fleet, props, owned.uid, before);
    if (clean.length === 0) return;
    const inputs = pickInputs(this.def, props);
    const lease = await pool.ipam.find({ pool: owned.pool, leaseId: owned.leaseId }).catch(() => undefined);
    const data = buildLeaseData(this.def, inputs, owned.run, lease && readLeaseData(lease), clean);
    await changeOwned(pool, owned, { data }).catch(() => {});
  }

  async #leaseOutputs(pool: RunPlan, props: Values, lease: Lease, token = this.deps.token): Promise<Values> {
    return (await this.def.leaseOutputs?.(props, lease, { pool, token })) ?? {};
  }

  /** A user that may only preview gets no new token: that of the state stays. */
  async #renewToken(lease: Lease, { token }: Values): Promise<string> {
    try {
      return await this.deps.token(lease);
    } catch (error) {
      if (typeof token !== "string") throw error;
      ignoreRefusedWrite(error);
      return token;
    }
  }

  async #refuseUndeclared(lease: Lease, news: Values): Promise<void> {
    const declares = this.#declares;
    if (!declares || buildRequest(this.def, news).pool !== lease.pool) return;
    const pool = await this.deps.pool();
    if (this.#dryRun) await refuseUndeclaredPool(pool, lease, declares);
    if (this.#besideChecked.has(lease.pool) || !mayHaveUndeclaredBeside(lease, declares)) return;
    this.#besideChecked.add(lease.pool);
    await warnOfUndeclaredBeside(pool, lease, declares, this.deps);
  }

  /** Whether the pool has room for the old lease and the new one. The offer that `check` made for the new one is counted. */
  async #hasRoom(news: Values): Promise<boolean> {
    const pool = await this.deps.pool();
    const { pool: name } = buildRequest(this.def, news);
    const [found] = await pool.ipam.pools({ name, withUsage: true });
    if (!found?.usage) return true;
    const { spec, usage } = found;
    return isWithinQuota(pool.plannedSpec(spec), usage.offered + usage.reserved + usage.used, usage.held);
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
      const lease = await findLeaseInState(this.def, pool, olds);
      if (!lease) await rejectLostStore(this.def, pool, olds);
      return lease ?? "lost";
    } catch (error) {
      if (isOverlayError(error, "STORE_UNAVAILABLE") && this.#dryRun) return undefined;
      throw error;
    }
  }
}

/** Why an up failed. Only an up that succeeds takes it out of the drift. */
const NOT_APPLIED = "not applied: ";

/** Whether a line of drift is about an object on a host, and not about what could not be read or done. */
const isDifference = (line: string): boolean =>
  !line.startsWith(NOT_APPLIED) && !line.includes(NOT_READ) && !line.includes(NOT_COMPARED);

const linesOf = (drift: unknown): string[] => (Array.isArray(drift) ? drift.map(String) : []);

/** Whether the owner has a newer lease: then this one is of a resource that was replaced. */
async function hasSuccessor(pool: RunPlan, { pool: name, owner, uid }: Lease): Promise<boolean> {
  const newest = await pool.ipam.find({ pool: name, owner });
  return newest !== undefined && newest.uid !== uid && newest.state !== "offered";
}

/** A preview with refresh may have no right to write. */
const ignoreRefusedWrite = (error: unknown): void => {
  if (!isOverlayError(error, "STORE_READ_ONLY", "ACCESS_DENIED")) throw error;
};
