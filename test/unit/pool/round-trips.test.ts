import { expect, test } from "vitest";
import { createOptimisticStore } from "../../../provider/pool/engines/optimistic";
import type { Commit, CommitLog, ServerEngine } from "../../../provider/pool/engines/server-engine";
import { StoredPool } from "../../../provider/pool/pool";
import { SortedMap } from "../../../provider/pool/storage/sorted-map";
import type { Row } from "../../../provider/pool/storage/store";
import { by, createPool, extents } from "../../contract/fixture";

/** A server without other clients, which records its requests. */
function server(clock = () => 1): { engine: ServerEngine; asked: string[] } {
  const [rows, log, asked] = [new SortedMap<string>(), [{ number: 0, id: "", at: 0 }] as Commit[], [] as string[]];
  const within = (from: string, to: string, limit: number): Row[] => [...rows.entries(from, to)].slice(0, limit);
  const commitLog: CommitLog = {
    readUpdate: async (since) => ({ head: log.at(-1)!, ...(since && { commits: log.slice(since.number + 1) }) }),
    findId: async (number) => log[number]?.id,
    readRows: async (_at, spans) => {
      asked.push("rows");
      return spans.map(({ from, to, limit }) => within(from, to, limit));
    },
    commit: async (from, commit, assertEmpty) => {
      asked.push("commit");
      if (assertEmpty.some((span) => within(span.from, span.to, 1).length > 0)) return commitLog.readUpdate(from);
      for (const [key, value] of commit.writes) value === null ? rows.delete(key) : rows.set(key, value);
      log.push(commit);
      return undefined;
    },
  };
  const unused = () => Promise.reject(new Error("there are no other clients"));
  const place = "the server";
  return {
    engine: {
      ...commitLog,
      readOnly: false,
      place,
      clock,
      machineTime: Date.now,
      lock: unused,
      openSnapshot: unused,
      close: unused,
    },
    asked,
  };
}

test.each(["hashed", "random"] as const)(
  "a %s choice in a large pool is one read and one commit",
  async (allocation) => {
    const { engine, asked } = server();
    const terms = { offerTtl: 3600, quarantine: 0 };
    const filling = new StoredPool(createOptimisticStore(engine), terms);
    await createPool(filling, { extents: extents("10.0.0.0/16"), allocation });
    for (let i = 0; i < 300; i++) await filling.claim(by(`before ${i}`));
    const pool = new StoredPool(createOptimisticStore(engine), terms);
    await pool.claim(by("first"));
    for (let i = 0; i < 20; i++) {
      asked.length = 0;
      await pool.claim(by(`after ${i}`));
      expect(["rows commit", "commit"]).toContain(asked.join(" "));
    }
  },
);

test("claims where all offers have expired fetch leases by whole pages", async () => {
  let now = 1;
  const { engine, asked } = server(() => now);
  const pool = new StoredPool(createOptimisticStore(engine), { offerTtl: 3600, quarantine: 0 });
  await createPool(pool, { extents: extents("10.0.0.0/23"), allocation: "lowest" });
  await Promise.all(Array.from({ length: 500 }, (_, i) => pool.offer(by(`offer ${i}`))));
  now += 3_601_000;
  asked.length = 0;
  await Promise.all(Array.from({ length: 400 }, (_, i) => pool.claim(by(`claim ${i}`))));
  expect(asked.filter((what) => what === "commit")).toHaveLength(7);
  expect(asked.filter((what) => what === "rows").length).toBeLessThan(50);
});
