import { expect, test } from "vitest";
import { SETTINGS } from "../../../bench/pool/adapter";
import { casesWith, openCase, roomIn, rowsFor } from "../../../bench/pool/cases";
import { createMemoryStore } from "../../../provider/pool/engines/memory/store";
import { StoredPool } from "../../../provider/pool/pool";
import type { PoolSpec } from "../../../provider/ipam/types";

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

test("a runner's subnet, which has several extents, is filled in the largest", async () => {
  const store = createMemoryStore();
  const pool = new StoredPool(store, SETTINGS);
  const [small, large] = [
    { first: 0xffff_0a00_0002n, last: 0xffff_0a00_00fdn },
    { first: 0xffff_0a00_00ffn, last: 0xffff_0a00_3ffen },
  ];
  const spec: PoolSpec = { name: "pool/two", kind: "address", extents: [small, large], allocation: "random" };
  const one = { name: "two extents", cidr: "", spec, leases: 1000, filled: "at random" } as const;
  await openCase(pool, one);
  await store.transact(async (tx) => {
    await tx.write(rowsFor(one));
  });
  expect(await pool.fsck()).toEqual([]);
  expect((await pool.usage(spec.name))!.held).toBe(1000n);
});
