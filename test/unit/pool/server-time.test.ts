import { expect, test } from "vitest";
import { createOptimisticStore } from "../../../provider/pool/engines/optimistic";
import type { Commit, ServerEngine } from "../../../provider/pool/engines/server-engine";

test("a server time that becomes too old during a transaction is read again", async () => {
  const commits: Required<Commit>[] = [{ number: 0, id: "none", at: 0, writes: [] }];
  let answers = 0;
  const never = () => Promise.reject(new Error("not in this test"));
  const engine: ServerEngine = {
    readOnly: false,
    place: "a place",
    machineTime: Date.now,
    clock: () => (answers-- > 0 ? 1000 : undefined),
    readUpdate: async () => {
      answers = 2;
      return { head: commits.at(-1)! };
    },
    findId: async (number) => commits[number]?.id,
    readRows: async (_at, spans) => spans.map(() => []),
    commit: async (_from, commit) => {
      commits.push(commit);
      return undefined;
    },
    lock: never,
    openSnapshot: never,
    close: async () => {},
  };
  const store = createOptimisticStore(engine);
  const write = () =>
    store.transact(async (tx) => {
      await tx.write([["now", String(await tx.now())]]);
    });
  await write();
  await write();
  expect(commits.map(({ at }) => at)).toEqual([0, 1000, 1000]);
});
