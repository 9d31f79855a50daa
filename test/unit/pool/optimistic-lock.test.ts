import { expect, test } from "vitest";
import { OverlayError } from "../../../provider/errors";
import { createOptimisticStore } from "../../../provider/pool/engines/optimistic";
import {
  type Commit,
  type CommitLog,
  Conflict,
  type LockedLog,
  type ServerEngine,
  StoreUnavailable,
} from "../../../provider/pool/engines/server-engine";
import { SortedMap } from "../../../provider/pool/storage/sorted-map";
import type { Row, Tx } from "../../../provider/pool/storage/store";

/** A server where commits without the lock conflict. It records calls; `next.failure` is thrown by the next commit. */
function server() {
  const [rows, log, said] = [new SortedMap<string>(), [{ number: 0, id: "", at: 0 }] as Commit[], [] as string[]];
  const next: { failure?: Error } = {};
  const commitLog: CommitLog = {
    readUpdate: async (since) => ({ head: log.at(-1)!, ...(since && { commits: log.slice(since.number + 1) }) }),
    findId: async (number) => log[number]?.id,
    readRows: async (_at, spans) =>
      spans.map(({ from, to, limit }): Row[] => [...rows.entries(from, to)].slice(0, limit)),
    commit: (from) => commitLog.readUpdate(from),
  };
  const lock = async (): Promise<LockedLog> => {
    said.push("lock");
    return {
      ...commitLog,
      update: { head: log.at(-1)! },
      canKeep: false,
      commit: async (from, commit) => {
        const failure = next.failure;
        delete next.failure;
        if (failure) throw failure;
        if (log.at(-1)!.id !== from.id) return commitLog.readUpdate(from);
        said.push("commit");
        for (const [key, value] of commit.writes) value === null ? rows.delete(key) : rows.set(key, value);
        log.push(commit);
        return undefined;
      },
      unlock: async () => void said.push("unlock"),
    };
  };
  const unused = () => Promise.reject(new Error("not in this test"));
  const engine: ServerEngine = {
    ...commitLog,
    ...{ readOnly: false, place: "the server", clock: () => 1, machineTime: Date.now, lock, openSnapshot: unused },
    close: async () => void said.push("close"),
  };
  return { store: createOptimisticStore(engine), said, next, value: () => rows.get("sum") };
}

const add = async (tx: Tx): Promise<void> => {
  await tx.write([["sum", String(Number((await tx.get("sum")) ?? 0) + 1)]]);
};
const look = async (tx: Tx): Promise<unknown> => await tx.get("sum");

test("if each commit conflicts, each transaction takes the lock and commits once", async () => {
  const { store, said, value } = server();
  for (let i = 0; i < 3; i++) await store.transact(add);
  await store.close();
  expect(value()).toBe("3");
  expect(said.join(" ")).toBe("lock commit unlock lock commit unlock lock commit unlock close");
});

test.each([
  ["conflict", new Conflict()],
  ["lost connection", new StoreUnavailable(new OverlayError("STORE_UNAVAILABLE", "It is away.", "Wait."))],
])("after a %s with the lock it is released, and the transaction commits with a new lock, once", async (_, failure) => {
  const { store, said, next, value } = server();
  await store.transact(add);
  said.length = 0;
  next.failure = failure;
  await store.transact(add);
  expect(value()).toBe("2");
  expect(said.join(" ")).toBe("lock unlock lock commit unlock");
});

test("close waits for the transactions", async () => {
  const { store, said } = server();
  const done = store.transact(add);
  await store.close();
  await done;
  expect(said.join(" ")).toBe("lock commit unlock close");
});

test("a transaction that only reads has the newest rows", async () => {
  const { store } = server();
  for (let i = 0; i < 3; i++) await store.transact(add);
  expect(await store.transact(look)).toBe("3");
});
