import fc from "fast-check";
import { expect, test } from "vitest";
import type { OverlayError } from "../../../provider/errors";
import type { Lease, PoolSpec, Request } from "../../../provider/ipam/types";
import { createFixture, createPool, type Fixture, memoryEngine, ranges } from "../../contract/fixture";

const engine = memoryEngine();

/** Random operations on a pool and its child pools: the store stays sound and no committed lease changes. */
const text = fc.constantFrom("a", "b", "c", "d");
const anything = fc.record({
  op: fc.constantFrom("offer", "claim", "claim", "claim", "release", "close", "change", "pass", "touch"),
  pool: fc.constantFrom("pool/p", "pool/p", "pool/q", "space/default"),
  owner: text,
  pick: fc.constantFrom(
    {},
    {},
    { size: 2n },
    { size: 4n },
    { values: ranges("5") },
    { values: ranges("8-11") },
    { values: ranges("16-23") },
  ),
  name: fc.option(text),
  key: fc.option(fc.constantFrom("k", "l")),
  port: fc.integer({ min: 1, max: 3 }),
  another: fc.boolean(),
  childPool: fc.boolean(),
  ttl: fc.option(fc.constant(100)),
  grow: fc.integer({ min: 12, max: 40 }),
  seconds: fc.constantFrom(1, 200, 650, 4000),
});
type Anything = typeof anything extends fc.Arbitrary<infer T> ? T : never;

test("any sequence of operations leaves a sound store, and a committed lease keeps its value until its own end", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(anything, { maxLength: 50 }), async (steps) => {
      const made = await createFixture(engine);
      await createPool(made.pool, {
        kind: "id",
        ranges: ranges("1-40"),
        reserved: ranges("6", "30-31"),
        staticOnly: ranges("7-9"),
      });
      for (const one of steps) {
        const before = await committedLeases(made);
        const touched = await act(made, one).catch((error: OverlayError) => {
          if (!error.code) throw error;
          return undefined;
        });
        expect(await made.pool.fsck()).toEqual([]);
        const after = new Map((await committedLeases(made)).map((lease) => [lease.uid, lease]));
        for (const lease of before) {
          if (lease.uid === touched || one.op === "pass") continue;
          expect(after.get(lease.uid)?.ranges).toEqual(lease.ranges);
        }
      }
    }),
    { numRuns: 200 },
  );
});

async function committedLeases({ pool }: Fixture): Promise<Lease[]> {
  const lists = await Promise.all(["pool/p", "pool/q", "space/default"].map((name) => pool.leases(name)));
  return lists
    .flat()
    .filter(({ state, expiresAt }) => (state === "reserved" || state === "used") && expiresAt === undefined);
}

function requestOf({
  pool,
  owner,
  pick,
  name,
  key,
  port,
  another,
  childPool,
  ttl,
  grow,
}: Anything): Request & { childPool?: PoolSpec } {
  const inside = { name: "pool/q", kind: "id" as const, allocation: "lowest" as const, ranges: ranges(`1-${grow}`) };
  return {
    pool,
    owner,
    type: "T",
    program: "main",
    ...pick,
    ...(name !== null && { names: [`user/${name}`] }),
    ...(key !== null && { sharingKey: key, ports: [{ protocol: "tcp", port }] }),
    ...(another && { onPortConflict: "anotherAddress" as const }),
    ...(childPool && pool !== "pool/q" && { childPool: inside }),
    ...(ttl !== null && { ttl }),
  };
}

/** Runs one operation, and returns the uid of its lease. */
async function act({ pool, pass }: Fixture, one: Anything): Promise<string | undefined> {
  if (one.op === "pass") {
    pass(one.seconds);
    return undefined;
  }
  if (one.op === "offer" || one.op === "claim") return (await pool[one.op](requestOf(one))).uid;
  const lease = await pool.find({ pool: one.pool, owner: one.owner });
  if (!lease) return undefined;
  const { names, childPool, ports } = requestOf(one);
  if (one.op === "release") await pool.release(one.pool, lease.leaseId);
  if (one.op === "close") await pool.close(one.pool, lease.leaseId);
  if (one.op === "touch") await pool.touch(one.pool, lease.leaseId);
  if (one.op === "change") {
    const range = one.pick.values && { ranges: one.pick.values };
    await pool.change(one.pool, lease.leaseId, {
      sharingKey: one.key,
      ...range,
      ...(names && { names }),
      ...(childPool && { childPool }),
      ...(ports && { ports }),
    });
  }
  return lease.uid;
}

const sharing = fc.record({
  owner: fc.constantFrom("a", "b", "c", "d", "e", "f", "g", "h"),
  key: fc.constantFrom("k", "l"),
  ports: fc.uniqueArray(fc.integer({ min: 1, max: 3 }), { minLength: 1, maxLength: 2 }),
  release: fc.boolean(),
});

test("with anotherAddress a request gets the lowest address of its key where its ports are free, else the lowest free one", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(sharing, { maxLength: 40 }), async (steps) => {
      const { pool } = await createFixture(engine, { quarantine: 0 });
      await createPool(pool, { kind: "id", ranges: ranges("1-4") });
      const held = new Map<string, { value: bigint; key: string; ports: number[]; leaseId: string }>();
      for (const { owner, key, ports, release } of steps) {
        const own = held.get(owner);
        if (own) {
          if (!release) continue;
          await pool.release("pool/p", own.leaseId);
          held.delete(owner);
          continue;
        }
        const on = (value: bigint) => [...held.values()].filter((one) => one.value === value);
        const fits = (value: bigint) =>
          on(value).length > 0 &&
          on(value).every((one) => one.key === key && !one.ports.some((p) => ports.includes(p)));
        const values = [1n, 2n, 3n, 4n];
        const expected = values.find(fits) ?? values.find((value) => on(value).length === 0);
        const request: Request = {
          ...{ pool: "pool/p", owner, type: "T", program: "main", sharingKey: key, onPortConflict: "anotherAddress" },
          ports: ports.map((port) => ({ protocol: "tcp", port })),
        };
        const previewed = await pool.offer(request).catch(({ code }: OverlayError) => code);
        const lease = await pool.claim(request).catch(({ code }: OverlayError) => code);
        if (typeof lease === "string") {
          expect([previewed, lease, expected]).toEqual(["RUNNER_IDS_EXHAUSTED", "RUNNER_IDS_EXHAUSTED", undefined]);
          continue;
        }
        expect((previewed as Lease).ranges).toEqual(lease.ranges);
        expect(lease.ranges[0]!.first).toBe(expected);
        held.set(owner, { value: lease.ranges[0]!.first, key, ports, leaseId: lease.leaseId });
      }
      expect(await pool.fsck()).toEqual([]);
    }),
    { numRuns: 200 },
  );
});
