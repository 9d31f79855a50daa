import type { CommitLog, LockedLog } from "./server-engine";

/** A process keeps the lock at most this long. */
const MAX_HOLD_MS = 100;
/** A transaction that begins so soon after the one before it belongs to the same burst. */
const BURST_GAP_MS = 3;

/** Whether transactions come one now and then, or each as soon as the one before it has ended. */
export class BurstDetector {
  #endedAt = -Infinity;
  isBurst = false;

  async track<T>(transaction: () => Promise<T>): Promise<T> {
    this.isBurst = performance.now() - this.#endedAt < BURST_GAP_MS;
    try {
      return await transaction();
    } finally {
      this.#endedAt = performance.now();
    }
  }
}

/**
 * A lock that is kept for a burst of transactions. Under contention it takes longer to hand the lock over, and to read the commits of
 * other processes, than to commit. Other processes wait at most `MAX_HOLD_MS` for each one that is before them in the queue.
 */
export class LockBatch implements CommitLog {
  readonly readUpdate: CommitLog["readUpdate"];
  readonly findId: CommitLog["findId"];
  readonly readRows: CommitLog["readRows"];
  readonly #keepUntil = performance.now() + MAX_HOLD_MS;
  #isKept = false;
  #unlocked: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly locked: LockedLog,
    private readonly bursts: BurstDetector,
  ) {
    ({ readUpdate: this.readUpdate, findId: this.findId, readRows: this.readRows } = locked);
  }

  async commit(...[from, commit, assertEmpty]: Parameters<CommitLog["commit"]>): ReturnType<CommitLog["commit"]> {
    const keepLock = this.locked.canKeep && this.bursts.isBurst && performance.now() < this.#keepUntil;
    const update = await this.locked.commit(from, commit, assertEmpty, keepLock);
    // An update with the same head: a range in `assertEmpty` has rows, which is no reason to unlock.
    this.#isKept = keepLock && (!update || update.head.id === from.id);
    return update;
  }

  /** Whether the next transaction still has the lock. */
  resume(): boolean {
    clearTimeout(this.#timer);
    this.#isKept = false;
    return this.#unlocked === undefined;
  }

  /** After a transaction: unlocks now, or soon if no other transaction begins. */
  pause(): void {
    if (!this.#isKept) void this.unlock();
    else this.#timer = setTimeout(() => void this.unlock(), BURST_GAP_MS).unref();
  }

  unlock(): Promise<void> {
    clearTimeout(this.#timer);
    this.#unlocked ??= this.locked.unlock();
    return this.#unlocked;
  }
}
