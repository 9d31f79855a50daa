import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { OverlayError } from "../../../provider/errors";
import { openPool } from "../../../provider/ipam";
import { createMemoryStore } from "../../../provider/pool/engines/memory/store";
import { ReadBatch } from "../../../provider/pool/queue";
import { EngineFault, type Store, type Tx } from "../../../provider/pool/storage/store";

function open() {
  const store = createMemoryStore();
  const counted = { transactions: 0 };
  const counting: Store = {
    ...store,
    read: (work) => {
      counted.transactions++;
      return store.read(work);
    },
  };
  return { store, counted, reads: new ReadBatch(counting) };
}

const get = (key: string) => async (tx: Tx) => tx.get(key);

test("reads of one turn share a transaction, and each gets its own result", async () => {
  const { store, counted, reads } = open();
  await store.transact(async (tx) =>
    tx.write([
      ["a", "1"],
      ["b", "2"],
    ]),
  );
  expect(await Promise.all([reads.read(get("a")), reads.read(get("b")), reads.read(get("c"))])).toEqual([
    "1",
    "2",
    undefined,
  ]);
  expect(counted.transactions).toBe(1);
  expect(await reads.read(get("a"))).toBe("1");
  expect(counted.transactions).toBe(2);
});

test("a read sees what was committed before it was asked for, and does not join an older transaction", async () => {
  const { store, counted, reads } = open();
  const older = reads.read(get("a"));
  await store.transact(async (tx) => tx.write([["a", "new"]]));
  await older;
  expect(await reads.read(get("a"))).toBe("new");
  expect(counted.transactions).toBe(2);
});

test("an error fails one read only", async () => {
  const { reads } = open();
  const refused = reads.read(async () => {
    throw new Error("refused");
  });
  const [one, other] = await Promise.allSettled([refused, reads.read(get("a"))]);
  expect(one).toMatchObject({ status: "rejected", reason: { message: "refused" } });
  expect(other).toEqual({ status: "fulfilled", value: undefined });
});

test("a fault of the engine fails the transaction, after all of its reads have ended", async () => {
  const { store } = open();
  const ended: string[] = [];
  const faults: unknown[] = [];
  const reads = new ReadBatch({
    ...store,
    read: async (work) => {
      try {
        return await store.read(work);
      } catch (error) {
        faults.push(error, [...ended]);
        throw new OverlayError("STORE_UNAVAILABLE", "The store does not answer.", "Wait.");
      }
    },
  });
  const broken = reads.read(async () => {
    throw new EngineFault(new Error("reset"));
  });
  const slow = reads.read(async () => {
    await new Promise(setImmediate);
    ended.push("slow");
  });
  const settled = await Promise.allSettled([broken, slow]);
  expect(settled.map((each) => each.status === "rejected" && each.reason.code)).toEqual([
    "STORE_UNAVAILABLE",
    "STORE_UNAVAILABLE",
  ]);
  expect(faults).toEqual([expect.any(EngineFault), ["slow"]]);
});

test("what the server refuses fails one read only", async () => {
  const { store, reads } = open();
  await store.transact(async (tx) => tx.write([["a", "1"]]));
  const refused = reads.read(async () => {
    throw new EngineFault(new Error("permission denied"));
  });
  const [one, other] = await Promise.allSettled([refused, reads.read(get("a"))]);
  expect(one.status).toBe("rejected");
  expect(other).toEqual({ status: "fulfilled", value: "1" });
});

test("it is idle when all reads have ended", async () => {
  const { reads } = open();
  const ended: string[] = [];
  void reads.read(get("a")).then(() => ended.push("read"));
  await reads.idle();
  expect(ended).toEqual(["read"]);
});

test("a read that was asked for before the pool is ended is answered", async () => {
  const folder = mkdtempSync(join(tmpdir(), "overlay-reads-"));
  const pool = await openPool(`sqlite:${join(folder, "pool.db")}`, { offerTtl: 60, quarantine: 0 });
  const read = pool.pools();
  await pool.end();
  expect(await read).toEqual([]);
  rmSync(folder, { recursive: true });
});
