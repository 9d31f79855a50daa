import { expect, test } from "vitest";
import { SETTINGS } from "../../../bench/pool/adapter";
import { casesWith, openCase, roomIn, rowsFor } from "../../../bench/pool/cases";
import { createMemoryStore } from "../../../provider/pool/engines/memory/store";
import { StoredPool } from "../../../provider/pool/pool";

test.each(casesWith(500))(
  "$name is filled as if by claims, and the rest can be claimed",
  { timeout: 30_000 },
  async (one) => {
    const store = createMemoryStore();
    const pool = new StoredPool(store, SETTINGS);
    await openCase(pool, one);
    await store.transact(async (tx) => {
      await tx.write(rowsFor(one));
    });
    expect(await pool.fsck()).toEqual([]);
    expect((await pool.usage(one.spec.name))!.held).toBe(BigInt(one.leases));
    const more = Math.min(roomIn(one), 20);
    const claim = (_: unknown, i: number) =>
      pool.claim({ pool: one.spec.name, owner: `owner ${i}`, type: "IPReservation" });
    const leases = await Promise.all(Array.from({ length: more }, claim));
    expect(new Set(leases.map(({ extents }) => extents[0]!.first)).size).toBe(more);
    expect(await pool.fsck()).toEqual([]);
  },
);
