import { expect, test } from "vitest";
import { OverlayError } from "../../../provider/errors";
import { createMemoryStore } from "../../../provider/pool/engines/memory/store";
import { Queue } from "../../../provider/pool/queue";
import { textCodec } from "../../../provider/pool/storage/records";
import { EngineFault, type Store } from "../../../provider/pool/storage/store";
import type { WriteBuffer } from "../../../provider/pool/storage/write-buffer";

const options = { offerTtl: 1, quarantine: 1 };
const key = (at: string) => ({ at, codec: textCodec });

function counting(): { store: Store; transactions: () => number } {
  const store = createMemoryStore();
  let transactions = 0;
  const transact: Store["transact"] = (work) => {
    transactions++;
    return store.transact(work);
  };
  return { store: { ...store, transact }, transactions: () => transactions };
}

const append =
  (letter: string) =>
  async (tx: WriteBuffer): Promise<string> => {
    const text = `${(await tx.get(key("text"))) ?? ""}${letter}`;
    tx.put(key("text"), text);
    return text;
  };

test("operations that wait for one pool share one transaction, in order, and each sees those before it", async () => {
  const { store, transactions } = counting();
  const queue = new Queue(store);
  expect(await Promise.all([..."abc"].map((letter) => queue.add("p", append(letter), { options })))).toEqual([
    "a",
    "ab",
    "abc",
  ]);
  expect(transactions()).toBe(1);
  await Promise.all(Array.from({ length: 200 }, () => queue.add("p", append("x"), { options })));
  expect(transactions()).toBe(5);
});

test("an operation that throws is rolled back, the others are not", async () => {
  const { store, transactions } = counting();
  const queue = new Queue(store);
  const fail = async (tx: WriteBuffer) => {
    await append("b")(tx);
    throw new OverlayError("IP_IN_USE", "Taken.", "Take another.");
  };
  const failing = queue.add("p", fail, { options });
  const results = await Promise.allSettled([
    queue.add("p", append("a"), { options }),
    failing,
    queue.add("p", append("c"), { options }),
  ]);
  expect(results.map((result) => (result.status === "fulfilled" ? result.value : result.reason.code))).toEqual([
    "a",
    "IP_IN_USE",
    "ac",
  ]);
  expect(transactions()).toBe(1);
});

test("when the engine fails, all operations of the transaction fail", async () => {
  const queue = new Queue(createMemoryStore());
  const fail = async (tx: WriteBuffer) => {
    await append("b")(tx);
    throw new EngineFault(new Error("disk on fire"));
  };
  const failing = queue.add("p", fail, { options });
  const results = await Promise.allSettled([
    queue.add("p", append("a"), { options }),
    failing,
    queue.add("p", append("c"), { options }),
  ]);
  expect(results.map(({ status }) => status)).toEqual(["rejected", "rejected", "rejected"]);
  expect(await queue.add("p", append("z"), { options })).toBe("z");
});

test("a transaction with only offers may be lost in a power cut; one with a committed lease may not", async () => {
  const [memory, promised] = [createMemoryStore(), [] as unknown[]];
  const transact: Store["transact"] = (work, isPromised) => {
    promised.push(isPromised);
    return memory.transact(work);
  };
  const queue = new Queue({ ...memory, transact });
  await Promise.all([
    queue.add("p", append("a"), { options, promised: true }),
    queue.add("p", append("b"), { options, promised: true }),
  ]);
  await Promise.all([
    queue.add("p", append("c"), { options, promised: true }),
    queue.add("p", append("d"), { options }),
  ]);
  expect(promised).toEqual([true, false]);
});
