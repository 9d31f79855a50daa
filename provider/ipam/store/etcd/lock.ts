import { setTimeout as sleep } from "node:timers/promises";
import { Conflict } from "../store";
import type { Compare, RequestOp } from "./api";
import { del, type EtcdKv, isAbsent, put } from "./kv";

/** Seconds, the least that etcd grants by default. The lock of a process that was killed or sleeps ends after this time. */
const LEASE_TTL = 2;
/** How long to wait for the lock, in milliseconds. */
const TIMEOUT_MS = 30_000;
/** The longest pause between two questions for the lock. */
const POLL_MS = 20;

/** A key that one process has after conflicts: no other one commits meanwhile. It is for progress only: comparisons decide whether a commit is valid. */
export class EtcdLock {
  #isHeld = false;

  constructor(
    private readonly kv: EtcdKv,
    private readonly key: string,
  ) {}

  /** What each commit compares. */
  get compares(): Compare[] {
    return this.#isHeld ? [] : [isAbsent(this.key)];
  }

  /** A commit with the lock ends it. */
  get operations(): RequestOp[] {
    return this.#isHeld ? [del(this.key)] : [];
  }

  /** After a commit with `operations`. */
  noteCommit(): void {
    this.#isHeld = false;
  }

  /** Returns what ends the lock. */
  async acquire(): Promise<() => Promise<void>> {
    for (const deadline = Date.now() + TIMEOUT_MS; Date.now() < deadline; await sleep(Math.random() * POLL_MS)) {
      const { found } = await this.kv.read([{ key: this.key }]);
      if (found[0]!.length > 0) continue;
      const lease = await this.kv.grantLease(LEASE_TTL);
      this.#isHeld = (await this.kv.txn([isAbsent(this.key)], [put(this.key, "", lease)])).succeeded;
      if (this.#isHeld) return () => this.#release();
    }
    throw new Conflict();
  }

  /** If the key cannot be deleted, it is deleted with its lease. */
  async #release(): Promise<void> {
    if (!this.#isHeld) return;
    this.#isHeld = false;
    await this.kv.txn([], [del(this.key)]).catch(() => {});
  }
}
