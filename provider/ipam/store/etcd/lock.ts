import { randomBytes } from "node:crypto";
import { Conflict } from "../store";
import type { Compare, RequestOp } from "./api";
import type { Keys } from "./keys";
import { del, type EtcdKv, get, isAbsent, put } from "./kv";

/** Seconds, the least that etcd grants by default. The key of a process that was killed or stopped is deleted after this time. */
const LEASE_TTL = 2;

/**
 * A lock as in etcd's client/v3/concurrency: each process has a key on a lease of its own, the oldest key holds the lock, and each process watches
 * the key before its own. Commits without the lock fail while the queue is not empty. The lock is for progress only: whether a commit is valid is
 * decided by its comparisons.
 */
export class EtcdLock {
  readonly #key: string;
  #lease: { id: string; renewedAt: number } | undefined;
  #keepAlive: NodeJS.Timeout | undefined;
  #isHeld = false;

  constructor(
    private readonly kv: EtcdKv,
    private readonly keys: Keys,
  ) {
    this.#key = keys.at("lock", randomBytes(8).toString("hex"));
  }

  /** What each commit compares. */
  get compares(): Compare[] {
    const { key, end } = this.keys.below("lock");
    return this.#isHeld ? [] : [isAbsent(key, end)];
  }

  /** A commit with the lock ends it. */
  get operations(): RequestOp[] {
    return this.#isHeld ? [del(this.#key)] : [];
  }

  /** After a commit with `operations`. */
  noteCommit(): void {
    this.#isHeld = false;
    clearInterval(this.#keepAlive);
  }

  /** Returns what ends the lock. */
  async acquire(timeoutMs: number): Promise<() => Promise<void>> {
    const timeout = AbortSignal.timeout(timeoutMs);
    clearInterval(this.#keepAlive);
    this.#keepAlive = setInterval(() => void this.#keepLeaseAlive(), (LEASE_TTL * 1000) / 3).unref();
    try {
      await this.#waitForLock(timeout);
      this.#isHeld = true;
      return async () => {
        if (this.#isHeld) await this.#leave();
      };
    } catch (error) {
      await this.#leave();
      throw error;
    }
  }

  /** If the key cannot be deleted, it is deleted with its lease. */
  async #leave(): Promise<void> {
    this.noteCommit();
    await this.kv.txn([], [del(this.#key)]).catch(() => {});
  }

  async #waitForLock(timeout: AbortSignal): Promise<void> {
    const { keys, kv } = this;
    for (let place = -1; !timeout.aborted; ) {
      // A key whose lease has expired is put again, behind the others.
      const join = place < 0 ? [put(this.#key, "", await this.#currentLease())] : [];
      const { found, revision } = await kv.txn([], [...join, get({ ...keys.below("lock"), orderBy: "CREATE" })]);
      place = found[0]!.findIndex(({ key }) => key === this.#key);
      if (place === 0) return;
      if (place > 0) await kv.waitForDelete(found[0]![place - 1]!.key, revision, timeout);
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
