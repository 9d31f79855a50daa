import fc from "fast-check";
import { expect, test } from "vitest";
import { createMemoryStore } from "../../../provider/pool/engines/memory/store";
import { textCodec } from "../../../provider/pool/storage/records";
import { SortedMap } from "../../../provider/pool/storage/sorted-map";
import { WriteBuffer } from "../../../provider/pool/storage/write-buffer";

const key = fc.constantFrom(..."abcdefgh").map((letter) => `k/${letter}`);
const write = fc.tuple(key, fc.option(fc.constantFrom("1", "2", "3"), { nil: null }));

test("the buffer reads as if its writes were in the store already", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(write),
      fc.array(write),
      fc.tuple(key, key),
      fc.integer({ min: 1, max: 9 }),
      async (stored, own, [from, to], limit) => {
        const store = createMemoryStore();
        const merged = new SortedMap<string>();
        for (const [at, value] of [...stored, ...own]) value === null ? merged.delete(at) : merged.set(at, value);
        await store.transact(async (tx) => {
          await tx.write(stored);
          const buffer = new WriteBuffer(0, { offerTtl: 1, quarantine: 1 }, tx);
          for (const [at, value] of own) {
            if (value === null) buffer.delete({ at, codec: textCodec });
            else buffer.put({ at, codec: textCodec }, value);
          }
          const span = { from, to, codec: textCodec };
          expect(await buffer.rows(span, limit)).toEqual([...merged.entries(from, to)].slice(0, limit));
          expect(await buffer.all(span)).toEqual([...merged.entries(from, to)].map(([, value]) => value));
          expect(await buffer.get({ at: from, codec: textCodec })).toBe(merged.get(from));
          await buffer.flush();
          expect(await tx.range("", "z", 99)).toEqual([...merged.entries()]);
        });
      },
    ),
  );
});

test("an operation that is rolled back leaves what was written before it", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(write), fc.array(write), fc.array(write), async (stored, kept, discarded) => {
      const store = createMemoryStore();
      const merged = new SortedMap<string>();
      for (const [at, value] of [...stored, ...kept]) value === null ? merged.delete(at) : merged.set(at, value);
      await store.transact(async (tx) => {
        await tx.write(stored);
        const buffer = new WriteBuffer(0, { offerTtl: 1, quarantine: 1 }, tx);
        for (const [at, value] of kept) buffer.set(at, value);
        buffer.savepoint();
        for (const [at, value] of discarded) buffer.set(at, value);
        buffer.rollback();
        await buffer.flush();
        expect(await tx.range("", "z", 99)).toEqual([...merged.entries()]);
      });
    }),
  );
});

test("rows that are in the store already are not written again", async () => {
  const written: unknown[] = [];
  const tx = { now: () => 0, get: () => "1", range: () => [], write: (writes: unknown) => void written.push(writes) };
  const buffer = new WriteBuffer(0, { offerTtl: 1, quarantine: 1 }, tx);
  const row = { at: "k/a", codec: textCodec };
  await buffer.get(row);
  buffer.put(row, "1");
  await buffer.flush();
  expect(written).toEqual([]);
  buffer.put(row, "2");
  buffer.put(row, "1");
  await buffer.flush();
  expect(written).toEqual([[["k/a", "1"]]]);
});
