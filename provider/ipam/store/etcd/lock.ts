import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { Conflict } from "../store";
import type { Compare, RequestOp } from "./api";
import type { Keys } from "./keys";
import { del, type EtcdKv, isAbsent, isPresent, put } from "./kv";

/** Seconds, the least that etcd grants by default. The key of a process that was killed or stopped is deleted after this time. */
const LEASE_TTL = 2;
/** How long to wait for each process in front, in milliseconds. */
const POLL_MS = 3;

/**
 * A queue as in etcd's client/v3/concurrency: each process has a key on a lease of its own, and the oldest key holds the lock. Commits without the
 * lock fail while the queue is not empty. The lock is for progress only: whether a commit is valid is decided by its comparisons.
 */
export class EtcdLock {
  readonly #key: string;
  #renewal: NodeJS.Timeout | undefined;
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
    clearInterval(this.#renewal);
  }

  /** Returns what ends the lock. */
  async acquire(timeoutMs: number): Promise<() => Promise<void>> {
    clearInterval(this.#renewal);
    this.#renewal = setInterval(() => void this.#renew().catch(() => {}), (LEASE_TTL * 1000) / 3).unref();
    try {
      await this.#waitForLock(Date.now() + timeoutMs);
      this.#isHeld = true;
      return () => this.release();
    } catch (error) {
      await this.#leave();
      throw error;
    }
  }

  async release(): Promise<void> {
    if (this.#isHeld) await this.#leave();
  }

  async #waitForLock(deadline: number): Promise<void> {
    const queue = this.keys.below("lock");
    for (let place = -1; Date.now() < deadline; ) {
      // A key whose lease has expired is put again, behind the others.
      if (place < 0) await this.kv.txn([], [put(this.#key, "", await this.kv.grantLease(LEASE_TTL))]);
      const { found } = await this.kv.read([{ ...queue, orderBy: "CREATE" }]);
      place = found[0]!.findIndex(({ key }) => key === this.#key);
      if (place === 0) return;
      if (place > 0) await sleep(POLL_MS * place);
    }
    throw new Conflict();
  }

  /** Another lease; the place in the queue stays. */
  async #renew(): Promise<void> {
    await this.kv.txn([isPresent(this.#key)], [put(this.#key, "", await this.kv.grantLease(LEASE_TTL))]);
  }

  /** If the key cannot be deleted, it is deleted with its lease. */
  async #leave(): Promise<void> {
    this.noteCommit();
    await this.kv.txn([], [del(this.#key)]).catch(() => {});
  }
}
