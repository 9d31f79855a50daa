import { isOverlayError } from "../errors";
import type { Connection } from "../host/types";
import type { Lease, Pool, Request } from "../pool/types";
import type { Definition, Part } from "../resource";
import { apply, drift, fence, type Held, withdraw } from "./apply";
import { type Caller, type Checked, check, refuseLost } from "./check";
import { changedPaths, equal, isWithin, type Path, unknownPaths, type Values, valueAt, without } from "./values";
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

export class Lifecycle {
  /** Set by check; diff is not told whether this is a preview. */
  #dryRun = false;

  constructor(
    readonly def: Definition,
    private readonly world: World,
  ) {}

  check(caller: Caller, olds: Values | undefined, news: Values): Promise<Checked> {
    this.#dryRun = caller.dryRun;
    return check(this.def, this.world, caller, olds, news);
  }

  async diff(olds: Values, news: Values): Promise<Difference> {
    const changed = this.#changed(olds, news);
    const unknown = unknownPaths(news);
    const replaces = this.def.replaceOn.filter(
      (path) =>
        isTouched(changed, path) && !isTouched(unknown, path) && !equal(valueAt(olds, path), valueAt(news, path)),
    );
    const lost = await this.#leaseLost(olds);
    const drifted = Array.isArray(olds.drift) && olds.drift.length > 0;
    return {
      changes: changed.length > 0 || lost || drifted,
      replaces: lost ? [...replaces, "leaseId"] : replaces,
      // A forced replacement with equal inputs renews the lease in place, and the live network stays up.
      deleteBeforeReplace: replaces.length > 0,
    };
  }

  async create(inputs: Values): Promise<{ id: string; props: Values }> {
    const pool = await this.world.pool();
    const lease = await pool.claim({ ...this.#request(inputs), want: this.def.held(inputs) });
    const props = { ...inputs, leaseId: lease.leaseId, uid: lease.uid };
    return { id: this.def.id(inputs), props: await this.#complete(pool, props, lease) };
  }

  /** Pool and machines as they are, and no change; what differs stands in `drift`. */
  async read(id: string, props: Values): Promise<{ id: string; props: Values; inputs: Values }> {
    const pool = await this.world.pool();
    const lease = await this.#lease(pool, props);
    if (!lease) await refuseLost(this.def, pool, props);
    const notes = lease ? [] : [`lease ${props.leaseId}: not in the pool any more`];
    const found = [...notes, ...(await drift(this.def, this.world, props, heldBy(props)))];
    if (lease && !found.some((text) => text.startsWith("not read"))) await pool.touch(lease.pool, lease.leaseId);
    return { id, props: { ...props, drift: found }, inputs: this.#inputsOf(props) };
  }

  async update(id: string, olds: Values, news: Values): Promise<Values> {
    const pool = await this.world.pool();
    const lease = await this.#amend(pool, olds, news);
    const outputs = Object.fromEntries(Object.keys(this.def.outputs.shape).map((key) => [key, olds[key]]));
    const props = { ...outputs, ...news, leaseId: lease.leaseId, uid: lease.uid };
    if (this.#isQuiet(olds, news)) return { ...props, drift: [] };
    const done = await this.#complete(pool, props, lease, id);
    await this.#leaveFormerHosts(olds, news, lease);
    return done;
  }

  async delete(props: Values): Promise<void> {
    const pool = await this.world.pool();
    const { pool: name } = this.def.request(this.#inputsOf(props));
    const parts = this.def.hosts(props);
    const held = { ...heldBy(props), pool: name };
    const lease = await this.#lease(pool, props);
    if (!lease) {
      await refuseLost(this.def, pool, props);
      if (await pool.find(name, { owner: held.owner })) return;
      return withdraw(this.def, this.world, props, held, parts, async () => {});
    }
    await pool.close(name, lease.leaseId);
    try {
      await withdraw(this.def, this.world, props, lease, parts, () => fence(pool, lease));
    } catch (error) {
      if (this.world.unreachableOnDelete !== "forget" || !isOverlayError(error, "SSH_UNREACHABLE")) throw error;
      this.world.warn(`${error.message} Its values stay withheld, since the machine may come back with them.`);
      await pool.amend(name, lease.leaseId, { owner: `forgotten/${lease.owner}` });
      return;
    }
    await pool.release(name, lease.leaseId);
  }

  async #complete(pool: Pool, props: Values, lease: Lease, id = this.def.id(props)): Promise<Values> {
    try {
      const told = await apply(this.def, this.world, pool, props, lease);
      const seen = "lastSeen" in this.def.outputs.shape ? { lastSeen: new Date().toISOString() } : {};
      return { ...props, ...told, ...seen };
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      throw new Incomplete(id, { ...props, drift: [`not applied: ${text}`] }, error);
    }
  }

  /** Renames and changed details reach the lease, and only when there are some. */
  async #amend(pool: Pool, olds: Values, news: Values): Promise<Lease> {
    const [before, after] = [this.#request(this.#inputsOf(olds)), this.#request(news)];
    const { names, opens, labels, owner } = after;
    const same = (key: keyof Request): boolean => jsonText(before[key]) === jsonText(after[key]);
    if ((["names", "opens", "labels", "owner"] as const).every(same)) {
      const lease = await this.#lease(pool, olds);
      if (lease) return lease;
    }
    return pool.amend(after.pool, String(olds.leaseId), {
      owner,
      ...(names && { names }),
      ...(opens && { opens }),
      ...(labels && { labels }),
    });
  }

  /** A machine that is no longer part of it is cleaned, if it can be reached. */
  async #leaveFormerHosts(olds: Values, news: Values, lease: Held): Promise<void> {
    const now = new Set(this.def.hosts(news).map(addressOf));
    const former = this.def.hosts(olds).filter((part) => !now.has(addressOf(part)));
    for (const part of former) {
      try {
        await withdraw(this.def, this.world, olds, lease, [part], async () => {});
      } catch (error) {
        if (!isOverlayError(error)) throw error;
        this.world.warn(`${part.connection.host} is no longer part of it, but could not be cleaned: ${error.message}`);
      }
    }
  }

  /** Credentials, labels and the owner concern no machine, unless there is something left to do or a machine changed. */
  #isQuiet(olds: Values, news: Values): boolean {
    const changed = this.#changed(olds, news);
    const unfinished = !Array.isArray(olds.drift) || olds.drift.length > 0;
    const moved = !equal(this.def.hosts(olds).map(addressOf), this.def.hosts(news).map(addressOf));
    return (
      changed.length > 0 &&
      !unfinished &&
      !moved &&
      changed.every((path) => isWithin(path, [...this.def.quiet, "owner"]))
    );
  }

  #changed(olds: Values, news: Values): Path[] {
    return changedPaths(this.#inputsOf(olds), this.#inputsOf(news));
  }

  /** Another life of the resource may have renewed the lease; then it is not ours any more. */
  async #leaseLost(olds: Values): Promise<boolean> {
    try {
      const pool = await this.world.pool();
      if (await this.#lease(pool, olds)) return false;
      await refuseLost(this.def, pool, olds);
      return true;
    } catch (error) {
      if (isOverlayError(error, "STORE_UNAVAILABLE") && this.#dryRun) return false;
      throw error;
    }
  }

  #lease(pool: Pool, props: Values): Promise<Lease | undefined> {
    return pool.find(this.def.request(this.#inputsOf(props)).pool, { leaseId: String(props.leaseId) });
  }

  #request(inputs: Values): Request {
    return {
      ...this.def.request(without(inputs, unknownPaths(inputs))),
      owner: String(inputs.owner),
      type: this.def.type,
    };
  }

  #inputsOf(props: Values): Values {
    const keys = [...Object.keys(this.def.inputs.shape), ...Object.keys(this.def.computed.shape), "owner"];
    return Object.fromEntries(keys.filter((key) => props[key] !== undefined).map((key) => [key, props[key]]));
  }
}

const heldBy = (props: Values): Omit<Held, "pool"> => ({
  leaseId: String(props.leaseId),
  uid: String(props.uid),
  owner: String(props.owner),
});

const addressOf = ({ connection: { host, port } }: { connection: Connection } | Part): string =>
  `${host}:${port ?? 22}`;

const isTouched = (paths: Path[], path: string): boolean =>
  paths.some((p) => isWithin(p, [path]) || isWithin(path.split("."), [p.join(".")]));

const jsonText = (value: unknown): string =>
  JSON.stringify(value, (_, v) => (typeof v === "bigint" ? String(v) : v)) ?? "";
