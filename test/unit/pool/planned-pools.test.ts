import fc from "fast-check";
import { expect, test } from "vitest";
import { commonSpec, freeIn, intersect, mergeExtents, zonesOf } from "../../../provider/pool/extents";
import type { Extent, PoolSpec } from "../../../provider/pool/types";
import { createFixture, createPool, extents, memoryEngine, requestFor } from "../../contract/fixture";

/** Pools that a run changes in place. */

const engine = memoryEngine();
const BASE = 0xffff_0a3d_00f0n; // 10.61.0.240: the addresses after it include .255 and .0

const somewhere = fc
  .tuple(fc.integer({ min: 0, max: 32 }), fc.integer({ min: 0, max: 20 }))
  .map(([first, more]): Extent => ({ first: BASE + BigInt(first), last: BASE + BigInt(first + more) }));
const spec = fc
  .record({
    extents: fc.array(somewhere, { minLength: 1, maxLength: 3 }),
    reserved: fc.array(somewhere, { maxLength: 2 }),
    staticOnly: fc.array(somewhere, { maxLength: 2 }),
    allocation: fc.constantFrom("lowest" as const, "hashed" as const, "random" as const),
    avoidBoundaryIps: fc.constantFrom(true, false, false, false),
  })
  .map((drawn): PoolSpec => {
    const whole = mergeExtents(drawn.extents);
    const [reserved, staticOnly] = [drawn.reserved, drawn.staticOnly].map((parts) => intersect(whole, parts));
    return { ...drawn, name: "pool/p", kind: "address", extents: whole, reserved: reserved!, staticOnly: staticOnly! };
  });

const from = (first: bigint, last: bigint): Extent => ({ first: BASE + first, last: BASE + last });
const LOWEST = { name: "pool/p", kind: "address" as const, allocation: "lowest" as const };

/** One free extent in the store, of which the change makes two, and only the second has room for the block. */
const FREE_ON_BOTH_SIDES_OF_A_GAP: [PoolSpec, PoolSpec, number[], bigint] = [
  { ...LOWEST, extents: [from(0n, 11n)] },
  { ...LOWEST, extents: [from(5n, 11n)], staticOnly: [from(8n, 8n)] },
  [6],
  2n,
];

test("an offer in a pool that changes is a free value before and after the change, if there is one", async () => {
  await fc.assert(
    fc.asyncProperty(
      spec,
      spec,
      fc.array(fc.integer({ min: 0, max: 52 }), { maxLength: 8 }),
      fc.constantFrom(1n, 2n, 4n),
      async (before, after, used, size) => {
        const { pool } = await createFixture(engine);
        await createPool(pool, before);
        for (const value of used) {
          const want = [{ first: BASE + BigInt(value), last: BASE + BigInt(value) }];
          await pool.claim({ ...requestFor(`u${value}`), want }).catch(() => {});
        }
        const held = (await pool.leases("pool/p")).flatMap((lease) => lease.extents);
        const common = commonSpec(before, after);
        pool.planChange(after);
        const mayHaveBlocks = size === 1n || !common.avoidBoundaryIps;
        const free = freeIn(common, zonesOf(common).automatic, held).filter(
          ({ first, last }) => mayHaveBlocks && ((first + size - 1n) / size) * size + size - 1n <= last,
        );
        const offered = await pool
          .offer({ pool: "pool/p", owner: "new", type: "T", program: "main", size })
          .catch(() => undefined);
        expect(offered === undefined).toBe(free.length === 0);
        for (const { first, last } of offered?.extents ?? []) {
          expect(free.some((extent) => extent.first <= first && last <= extent.last)).toBe(true);
          expect(first % size).toBe(0n);
        }
        expect(await pool.fsck()).toEqual([]);
      },
    ),
    { numRuns: 500, examples: [FREE_ON_BOTH_SIDES_OF_A_GAP] },
  );
});

test("only values, rules, quota and tenant of a pool follow the planned change", () => {
  const before: PoolSpec = {
    name: "pool/a",
    kind: "address",
    extents: extents("1-9"),
    allocation: "lowest",
    data: "mine",
  };
  const after: PoolSpec = {
    name: "pool/b",
    kind: "id",
    extents: extents("5-20"),
    allocation: "hashed",
    quota: { maxIps: 3 },
    reclaimAfter: 1,
    data: "theirs",
  };
  expect(commonSpec(before, after)).toEqual({
    name: "pool/a",
    kind: "address",
    extents: extents("5-9"),
    allocation: "hashed",
    quota: { maxIps: 3 },
    data: "mine",
  });
  expect(commonSpec({ ...before, reclaimAfter: 60 }, after)).toMatchObject({ reclaimAfter: 60 });
  expect(commonSpec({ ...before, autoAssign: false, avoidBoundaryIps: true }, after)).toMatchObject({
    autoAssign: false,
    avoidBoundaryIps: true,
  });
});
