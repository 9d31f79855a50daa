import { randomBytes } from "node:crypto";
import type { EtcdJournal, Keys } from "./etcd-journal";
import { look, put, remove, type Wire } from "./etcd-wire";
import { LostRace, type News, type Turn, type Version } from "./journal";

/** Seconds. The key of a process that was killed or stopped is deleted after this time. */
const LEASE_TTL = 5;

/**
 * A lock as in etcd's client/v3/concurrency: each process has a key on a lease of its own, the oldest key holds the lock, and each
 * process watches the key before its own. Commits without the lock fail while the queue is not empty. The lock is for progress
 * only: whether a commit is valid is decided by its comparison with the head.
 */
export class EtcdLock {
  readonly #key: string;
  #lease: { id: string; renewedAt: number } | undefined;

  constructor(
    private readonly wire: Wire,
    private readonly keys: Keys,
    private readonly journal: EtcdJournal,
  ) {
    this.#key = keys.lock(randomBytes(8).toString("hex"));
  }

  /** `since`: as in `Journal.news`. */
  async acquire(patience: number, since?: Version): Promise<Turn> {
    const { journal, wire } = this;
    const timeout = AbortSignal.timeout(Math.max(1, Math.ceil(patience)));
    const keepAlive = setInterval(() => void this.#keepLeaseAlive(), (LEASE_TTL * 1000) / 3).unref();
    let isQueued = true;
    const release = async () => {
      clearInterval(keepAlive);
      // If this fails, the key is deleted with its lease.
      if (isQueued) await wire.txn([], [remove(this.#key)]).catch(() => {});
    };
    try {
      const latest = await this.#waitForLock(timeout, since);
      return {
        latest,
        news: (...args) => journal.news(...args),
        findId: (...args) => journal.findId(...args),
        rows: (...args) => journal.rows(...args),
        commit: async (from, commit, hoped) => {
          const news = await journal.commit(from, commit, hoped, [remove(this.#key)]);
          isQueued = news !== undefined;
          return news;
        },
        end: release,
      };
    } catch (error) {
      await release();
      throw error;
    }
  }

  async #waitForLock(timeout: AbortSignal, since?: Version): Promise<News> {
    const { journal, keys, wire } = this;
    const reads = [look(keys.lock(), keys.lockEnd, { oldestFirst: true }), ...journal.looks(since)];
    for (let place = -1; !timeout.aborted; ) {
      // A key whose lease has expired is put again, behind the others.
      const join = place < 0 ? [put(this.#key, "", await this.#currentLease())] : [];
      const answer = await wire.txn([], [...join, ...reads]);
      const [queue, ...log] = answer.found;
      place = queue!.findIndex(([key]) => key === this.#key);
      if (place === 0) return journal.newsFrom({ ...answer, found: log }, since);
      if (place > 0) await wire.waitForDelete(queue![place - 1]![0], answer.revision, timeout);
    }
    throw new LostRace();
  }

  async #currentLease(): Promise<string> {
    if (!this.#lease || Date.now() - this.#lease.renewedAt > (LEASE_TTL * 1000) / 2)
      this.#lease = { id: await this.wire.lease(LEASE_TTL), renewedAt: Date.now() };
    return this.#lease.id;
  }

  async #keepLeaseAlive(): Promise<void> {
    const lease = this.#lease;
    const remaining = lease && (await this.wire.keepLeaseAlive(lease.id).catch(() => 0));
    if (remaining) lease.renewedAt = Date.now();
  }
}
