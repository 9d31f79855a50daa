import { expect, test } from "vitest";
import { createMemoryStore } from "../../../provider/pool/engines/memory/store";
import { StoredPool } from "../../../provider/pool/pool";
import type { Store } from "../../../provider/pool/storage/store";
import { by, createPool, extents, requestFor } from "../../contract/fixture";

test("a transaction ends a bounded number of expired leases, however many there are and however many claims share it", async () => {
  let [now, largest] = [1_000_000, 0];
  const store = createMemoryStore(() => now);
  const transact: Store["transact"] = (work) =>
    store.transact((tx) =>
      work({
        ...tx,
        write: (writes) => {
          largest = Math.max(largest, writes.length);
          return tx.write(writes);
        },
      }),
    );
  const pool = new StoredPool({ ...store, transact }, { offerTtl: 60, quarantine: 0 });
  await createPool(pool, { extents: extents("10.0.0.0/16") });
  await Promise.all(Array.from({ length: 3000 }, (_, i) => pool.offer(by(`offered ${i}`))));
  now += 61_000;
  largest = 0;
  for (let wave = 0; wave < 20; wave++) {
    await Promise.all(Array.from({ length: 64 }, (_, i) => pool.claim(by(`claimed ${wave} ${i}`))));
  }
  // 200 ended leases with four rows each, 64 new ones with five.
  expect(largest).toBeLessThan(1200);
  expect(await pool.usage("pool/p")).toMatchObject({ offered: 0, reserved: 1280 });
  expect(await waiting(store)).toBe(0);
  expect(await pool.fsck()).toEqual([]);
});

test("expired leases that a refused operation would have ended are ended by the next one in its transaction", async () => {
  let now = 1_000_000;
  const store = createMemoryStore(() => now);
  const pool = new StoredPool(store, { offerTtl: 60, quarantine: 0 });
  await createPool(pool, { extents: extents("10.0.0.0/16") });
  await Promise.all(Array.from({ length: 250 }, (_, i) => pool.offer(by(`offered ${i}`))));
  now += 61_000;
  const claims = [pool.claim(requestFor("refused", "10.1.0.1")), pool.claim(by("claimed"))];
  expect((await Promise.allSettled(claims)).map(({ status }) => status)).toEqual(["rejected", "fulfilled"]);
  expect(await waiting(store)).toBe(50);
});

/** How many leases are in the expiry index. */
const waiting = (store: Store): Promise<number> => store.read(async (tx) => (await tx.range("x/", "x0", 1000)).length);
