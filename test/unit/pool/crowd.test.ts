import { expect, test } from "vitest";
import { OverlayError } from "../../../provider/errors";
import { Sorted } from "../../../provider/pool/sorted";
import type { Row, Tx } from "../../../provider/pool/store";
import {
  Away,
  type Commit,
  type Engine,
  type Journal,
  LostRace,
  type Turn,
} from "../../../provider/pool/stores/journal";
import { optimisticStore } from "../../../provider/pool/stores/optimistic";

/** A server on which nobody commits without a turn; it says what it was asked, and what happens next can be set. */
function server() {
  const [rows, log, said] = [new Sorted<string>(), [{ number: 0, id: "", at: 0 }] as Commit[], [] as string[]];
  const next: { failure?: Error } = {};
  const journal: Journal = {
    news: async (since) => ({ head: log.at(-1)!, ...(since && { since: log.slice(since.number + 1) }) }),
    findId: async (number) => log[number]?.id,
    rows: async (_at, spans) => spans.map(({ from, to, limit }): Row[] => [...rows.entries(from, to)].slice(0, limit)),
    commit: (from) => journal.news(from),
  };
  const turn = async (): Promise<Turn> => {
    said.push("turn");
    return {
      ...journal,
      latest: { head: log.at(-1)! },
      commit: async (from, commit) => {
        const failure = next.failure;
        delete next.failure;
        if (failure) throw failure;
        if (log.at(-1)!.id !== from.id) return journal.news(from);
        said.push("commit");
        for (const [key, value] of commit.writes) value === null ? rows.delete(key) : rows.set(key, value);
        log.push(commit);
        return undefined;
      },
      end: async () => void said.push("end"),
    };
  };
  const unused = () => Promise.reject(new Error("nobody asks this"));
  const engine: Engine = {
    ...journal,
    ...{ readOnly: false, place: "the server", clock: () => 1, machineTime: Date.now, turn, read: unused },
    close: async () => void said.push("close"),
  };
  return { store: optimisticStore(engine), said, next, value: () => rows.get("sum") };
}

const add = async (tx: Tx): Promise<void> => {
  await tx.write([["sum", String(Number((await tx.get("sum")) ?? 0) + 1)]]);
};
const look = async (tx: Tx): Promise<unknown> => await tx.get("sum");

test("where others are ahead every time, each transaction is made in a turn, once", async () => {
  const { store, said, value } = server();
  for (let i = 0; i < 3; i++) await store.transact(add);
  await store.close();
  expect(value()).toBe("3");
  expect(said.join(" ")).toBe("turn commit end turn commit end turn commit end close");
});

test.each([
  ["lost a race", new LostRace()],
  ["lost the server", new Away(new OverlayError("STORE_UNAVAILABLE", "It is away.", "Wait."))],
])("a turn in which it has %s is given up, and the work is done in another, once", async (_, failure) => {
  const { store, said, next, value } = server();
  await store.transact(add);
  said.length = 0;
  next.failure = failure;
  await store.transact(add);
  expect(value()).toBe("2");
  expect(said.join(" ")).toBe("turn end turn commit end");
});

test("a store is closed when its transactions are done", async () => {
  const { store, said } = server();
  const done = store.transact(add);
  await store.close();
  await done;
  expect(said.join(" ")).toBe("turn commit end close");
});

test("a look within a turn is answered from it", async () => {
  const { store } = server();
  for (let i = 0; i < 3; i++) await store.transact(add);
  expect(await store.transact(look)).toBe("3");
});
