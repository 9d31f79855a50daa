import { expect, test } from "vitest";
import type { Row, Store, Tx } from "../../../provider/pool/storage/store";
import type { RowEngine } from "./fixture";

/** What the store of every engine must do. */
export function storeContract(engine: RowEngine): void {
  const open = () => engine.openStore(engine.newUrl(), () => 1234);
  const put =
    (key: string, value: string | null) =>
    async (tx: Tx): Promise<void> => {
      await tx.write([[key, value]]);
    };
  const range =
    (from: string, to: string, limit: number) =>
    async (tx: Tx): Promise<Row[]> =>
      await tx.range(from, to, limit);

  test("ranges are ordered, include their start, exclude their end, and respect the limit", async () => {
    const store = await open();
    for (const key of ["b", "a/2", "a/1", "a0", "a/10"]) await store.transact(put(key, `<${key}>`));
    expect(await store.read(range("a/", "a0", 10))).toEqual([
      ["a/1", "<a/1>"],
      ["a/10", "<a/10>"],
      ["a/2", "<a/2>"],
    ]);
    expect(await store.read(range("a/10", "b", 2))).toEqual([
      ["a/10", "<a/10>"],
      ["a/2", "<a/2>"],
    ]);
    expect(await store.read(range("a/2\u0001", "z", 1))).toEqual([["a0", "<a0>"]]);
    await store.close();
  });

  test("a transaction sees its own writes and deletions", async () => {
    const store = await open();
    await store.transact(put("x", "1"));
    const seen = await store.transact(async (tx) => {
      await tx.write([
        ["x", null],
        ["y", "2"],
      ]);
      return [await tx.get("x"), await tx.get("y"), await tx.range("a", "z", 9)];
    });
    expect(seen).toEqual([undefined, "2", [["y", "2"]]]);
    await store.close();
  });

  test("a transaction that throws writes nothing", async () => {
    const store = await open();
    await store.transact(put("kept", "1"));
    const failing = store.transact(async (tx) => {
      await tx.write([
        ["kept", "2"],
        ["new", "3"],
      ]);
      throw new Error("changed my mind");
    });
    await expect(failing).rejects.toThrow("changed my mind");
    expect(await store.read(range("", "z", 9))).toEqual([["kept", "1"]]);
    await store.close();
  });

  test("parallel transactions of two clients lose no update", async () => {
    const url = engine.newUrl();
    const clients = [await engine.openStore(url, () => 1234), await engine.openStore(url, () => 1234)] as const;
    const increment = (client: Store) =>
      client.transact(async (tx) => {
        const count = Number((await tx.get("n")) ?? 0) + 1;
        await tx.write([["n", String(count)]]);
        return count;
      });
    const counts = await Promise.all(Array.from({ length: 50 }, (_, i) => increment(clients[i % 2]!)));
    expect(counts.sort((a, b) => a - b)).toEqual(Array.from({ length: 50 }, (_, i) => i + 1));
    for (const client of clients) expect(await client.read(range("n", "o", 1))).toEqual([["n", "50"]]);
    for (const client of clients) await client.close();
  });

  test("values keep quotes, newlines and characters outside the basic plane", async () => {
    const store = await open();
    const text = `a'b"c\\\n\u00e9\u4e2d\u{1f600}`;
    await store.transact(put(`k/${text}`, text));
    expect(await store.read(range("k/", "k0", 9))).toEqual([[`k/${text}`, text]]);
    await store.close();
  });
}
