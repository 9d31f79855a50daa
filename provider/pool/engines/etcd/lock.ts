import { randomBytes } from "node:crypto";
import { Conflict, type LockedLog, type LogUpdate, type Version } from "../server-engine";
import type { EtcdCommitLog, Keys } from "./commit-log";
import { del, type EtcdKv, get, put } from "./kv";

/** Seconds, the least that etcd grants by default. The key of a process that was killed or stopped is deleted after this time. */
const LEASE_TTL = 2;

/**
 * A lock as in etcd's client/v3/concurrency: each process has a key on a lease of its own, the oldest key holds the lock, and each
 * process watches the key before its own. Commits without the lock fail while the queue is not empty. The lock is for progress
 * only: whether a commit is valid is decided by its comparison with the head.
 */
export class EtcdLock {
  readonly #key: string;
  #lease: { id: string; renewedAt: number } | undefined;

  constructor(
    private readonly kv: EtcdKv,
    private readonly keys: Keys,
    private readonly log: EtcdCommitLog,
  ) {
    this.#key = keys.lock(randomBytes(8).toString("hex"));
  }

  /** `since`: as in `CommitLog.readUpdate`. */
  async acquire(timeoutMs: number, since?: Version): Promise<LockedLog> {
    const { log, kv } = this;
    const timeout = AbortSignal.timeout(Math.max(1, Math.ceil(timeoutMs)));
    const keepAlive = setInterval(() => void this.#keepLeaseAlive(), (LEASE_TTL * 1000) / 3).unref();
    let isQueued = true;
    const release = async () => {
      clearInterval(keepAlive);
      // If this fails, the key is deleted with its lease.
      if (isQueued) await kv.txn([], [del(this.#key)]).catch(() => {});
    };
    try {
      const update = await this.#waitForLock(timeout, since);
      return {
        update,
        readUpdate: (...args) => log.readUpdate(...args),
        findId: (...args) => log.findId(...args),
        readRows: (...args) => log.readRows(...args),
        canKeep: true,
        commit: async (from, commit, assertEmpty, keepLock) => {
          const update = await log.commit(from, commit, assertEmpty, keepLock ? [] : [del(this.#key)]);
          isQueued = keepLock === true || update !== undefined;
          return update;
        },
        unlock: release,
      };
    } catch (error) {
      await release();
      throw error;
    }
  }

  async #waitForLock(timeout: AbortSignal, since?: Version): Promise<LogUpdate> {
    const { log, keys, kv } = this;
    const reads = [get(keys.lock(), keys.lockEnd, { oldestFirst: true }), ...log.updateOps(since)];
    for (let place = -1; !timeout.aborted; ) {
      // A key whose lease has expired is put again, behind the others.
      const join = place < 0 ? [put(this.#key, "", await this.#currentLease())] : [];
      const answer = await kv.txn([], [...join, ...reads]);
      const [queue, ...updateRows] = answer.found;
      place = queue!.findIndex(([key]) => key === this.#key);
      if (place === 0) return log.parseUpdate({ ...answer, found: updateRows }, since);
      if (place > 0) await kv.waitForDelete(queue![place - 1]![0], answer.revision, timeout);
    }
    throw new Conflict();
  }

  async #currentLease(): Promise<string> {
    if (!this.#lease || Date.now() - this.#lease.renewedAt > (LEASE_TTL * 1000) / 2)
      this.#lease = { id: await this.kv.grantLease(LEASE_TTL), renewedAt: Date.now() };
    return this.#lease.id;
  }

  async #keepLeaseAlive(): Promise<void> {
    const lease = this.#lease;
    const remaining = lease && (await this.kv.keepLeaseAlive(lease.id).catch(() => 0));
    if (remaining) lease.renewedAt = Date.now();
  }
}
