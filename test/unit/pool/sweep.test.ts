import { expect, test } from "vitest";
import { LivePool } from "../../../provider/pool/pool";
import type { Store } from "../../../provider/pool/store";
import { memoryStore } from "../../../provider/pool/stores/memory";
import { by, extents, opened } from "../../contract/world";

test("however many leases are over, and however many claims come together, a transaction cleans up only some", async () => {
  let [now, largest] = [1_000_000, 0];
  const store = memoryStore(() => now);
  const transact: Store["transact"] = (pool, work) =>
    store.transact(pool, (tx) =>
      work({
        ...tx,
        write: (writes) => {
          largest = Math.max(largest, writes.length);
          return tx.write(writes);
        },
      }),
    );
  const pool = new LivePool({ ...store, transact }, { offerTtl: 60, quarantine: 0 });
  await opened(pool, { extents: extents("10.0.0.0/16") });
  await Promise.all(Array.from({ length: 3000 }, (_, i) => pool.offer(by(`offered ${i}`))));
  now += 61_000;
  largest = 0;
  for (let wave = 0; wave < 20; wave++) {
    await Promise.all(Array.from({ length: 64 }, (_, i) => pool.claim(by(`claimed ${wave} ${i}`))));
  }
  // 200 that go with four rows each, 64 that come with five.
  expect(largest).toBeLessThan(1200);
  expect(await pool.usage("pool/p")).toMatchObject({ offered: 0, reserved: 1280 });
  expect(
    await store.read((tx) =>
      (function* () {
        return (yield tx.range("x/", "x0", 9)) as unknown[];
      })(),
    ),
  ).toEqual([]);
  expect(await pool.fsck()).toEqual([]);
});
