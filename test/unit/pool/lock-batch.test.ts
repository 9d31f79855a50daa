import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { BurstDetector, LockBatch } from "../../../provider/pool/engines/lock-batch";
import type { LockedLog } from "../../../provider/pool/engines/server-engine";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const [VERSION, COMMIT] = [
  { number: 1, id: "one", at: 0 },
  { number: 2, id: "two", at: 0, writes: [] },
];

/** A lock that records its calls. With `head`, commits fail with an update to it. */
function fakeLock({ head = undefined as typeof VERSION | undefined, canKeep = true } = {}): {
  locked: LockedLog;
  calls: string[];
} {
  const calls: string[] = [];
  const locked: LockedLog = {
    update: { head: VERSION },
    canKeep,
    readUpdate: async () => ({ head: VERSION }),
    findId: async () => undefined,
    readRows: async () => [],
    commit: async (_from, _commit, _assertEmpty, keepLock) => {
      calls.push(keepLock ? "commit and keep" : "commit and unlock");
      return head && { head };
    },
    unlock: async () => void calls.push("unlock"),
  };
  return { locked, calls };
}

/** A transaction that takes some time and commits with the lock. */
async function transact(batch: LockBatch, bursts: BurstDetector, milliseconds = 1): Promise<boolean> {
  return bursts.track(async () => {
    const hasLock = batch.resume();
    if (!hasLock) return false;
    vi.advanceTimersByTime(milliseconds);
    await batch.commit(VERSION, COMMIT, []);
    batch.pause();
    return true;
  });
}

test("a single transaction unlocks with its commit", async () => {
  const [{ locked, calls }, bursts] = [fakeLock(), new BurstDetector()];
  await transact(new LockBatch(locked, bursts), bursts);
  expect(calls).toEqual(["commit and unlock", "unlock"]);
});

test("a burst keeps the lock, until no transaction follows", async () => {
  const [{ locked, calls }, bursts] = [fakeLock(), new BurstDetector()];
  await bursts.track(async () => {});
  const batch = new LockBatch(locked, bursts);
  for (let i = 0; i < 3; i++) expect(await transact(batch, bursts)).toBe(true);
  expect(calls).toEqual(["commit and keep", "commit and keep", "commit and keep"]);
  vi.advanceTimersByTime(50);
  expect(calls.at(-1)).toBe("unlock");
  expect(await transact(batch, bursts)).toBe(false);
});

test("the lock is kept for a limited time", async () => {
  const [{ locked, calls }, bursts] = [fakeLock(), new BurstDetector()];
  await bursts.track(async () => {});
  const batch = new LockBatch(locked, bursts);
  for (let i = 0; i < 1000 && (await transact(batch, bursts, 10)); i++);
  expect(calls.length).toBeLessThan(20);
  expect(calls.slice(-2)).toEqual(["commit and unlock", "unlock"]);
});

test("a conflict unlocks; a wrong assumption does not", async () => {
  for (const [head, after] of [
    [{ ...VERSION, id: "another" }, ["commit and keep", "unlock"]],
    [VERSION, ["commit and keep"]],
  ] as const) {
    const [{ locked, calls }, bursts] = [fakeLock({ head }), new BurstDetector()];
    await bursts.track(async () => {});
    await transact(new LockBatch(locked, bursts), bursts);
    expect(calls).toEqual(after);
  }
});

test("a lock that cannot be kept is released with each commit", async () => {
  const [{ locked, calls }, bursts] = [fakeLock({ canKeep: false }), new BurstDetector()];
  await bursts.track(async () => {});
  await transact(new LockBatch(locked, bursts), bursts);
  expect(calls).toEqual(["commit and unlock", "unlock"]);
});
