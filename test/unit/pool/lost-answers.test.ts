import { expect, test } from "vitest";
import { OverlayError } from "../../../provider/errors";
import { createOptimisticStore } from "../../../provider/pool/engines/optimistic";
import { type Commit, type ServerEngine, StoreUnavailable } from "../../../provider/pool/engines/server-engine";
import type { Tx } from "../../../provider/pool/storage/store";

/** A server whose log updates have only its head. `lose` is called in place of the next answer to a commit, and may make that commit. */
function server({ sendsOnce = false } = {}) {
  let log: Commit[] = [{ number: 0, id: "", at: 0 }];
  const next: { lose?: (make: () => void) => void } = {};
  const unused = () => Promise.reject(new Error("not in this test"));
  const engine: ServerEngine = {
    ...{ readOnly: false, sendsOnce, place: "the server", clock: () => 1, machineTime: () => 1 },
    ...{ lock: unused, openSnapshot: unused, close: unused },
    readUpdate: async () => ({ head: log.at(-1)! }),
    findId: async (number) => log.find((commit) => commit.number === number)?.id,
    readRows: async (_at, spans) => spans.map(() => []),
    commit: async (from, commit) => {
      if (from.id !== log.at(-1)!.id) return engine.readUpdate();
      const { lose } = next;
      delete next.lose;
      lose?.(() => log.push(commit));
      if (lose) throw new StoreUnavailable(new OverlayError("STORE_UNAVAILABLE", "It is away.", "Wait."));
      log.push(commit);
      return undefined;
    },
  };
  /** Another process commits so often, and the log keeps its newest entries only. */
  const others = (commits: number, kept = 1000) => {
    for (let i = 0; i < commits; i++) log.push({ number: log.at(-1)!.number + 1, id: `other ${log.length}`, at: 1 });
    log = log.slice(-kept);
  };
  return { store: createOptimisticStore(engine), next, others };
}

/** Returns how often it has run. */
function counted() {
  let runs = 0;
  return async (tx: Tx): Promise<number> => {
    await tx.write([["x", "1"]]);
    return ++runs;
  };
}

test("a commit that was made is not made again, however many came after it", async () => {
  const { store, next, others } = server();
  next.lose = (make) => {
    make();
    others(500);
  };
  expect(await store.transact(counted())).toBe(1);
});

test("a commit whose number another one has is made again, also when that one is removed from the log later", async () => {
  const { store, next, others } = server();
  next.lose = () => {
    others(500);
    next.lose = () => others(0, 3);
  };
  expect(await store.transact(counted())).toBe(3);
});

test("a commit whose entry was removed from the log is an error, and the next transaction succeeds", async () => {
  const { store, next, others } = server();
  next.lose = (make) => {
    make();
    others(500, 100);
  };
  await expect(store.transact(counted())).rejects.toThrow(
    "STORE_UNAVAILABLE: the server did not answer commit 1, and at version 501 its log no longer has that one: it may have been made or not. Run it again.",
  );
  expect(await store.transact(counted())).toBe(1);
});

test("a commit that was refused is made again after any number of others, if no request is sent twice", async () => {
  const { store, others } = server({ sendsOnce: true });
  await store.transact(counted());
  others(5000);
  expect(await store.transact(counted())).toBe(2);
});

test("if requests may be sent twice, its outcome is unknown once its number is no longer in the log", async () => {
  const { store, others } = server();
  await store.transact(counted());
  others(5000);
  await expect(store.transact(counted())).rejects.toThrow("did not answer commit 2, and at version 5001");
});
