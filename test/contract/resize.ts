import { expect, test } from "vitest";
import { findUsage } from "../../provider/ipam/interface";
import type { PoolSpec, Request } from "../../provider/ipam/types";
import { asStored, by, createFixture, createPool, type Engine, network, ranges, requestFor, runner } from "./fixture";
import { refusal } from "./refusal";

/** Changes of the ranges of pools and blocks. */
export function resizeContract(engine: Engine): void {
  test("a pool can grow, and shrink unless a lease is outside its new ranges", async () => {
    const { pool } = await createFixture(engine);
    const spec = { ranges: ranges("10.0.0.0-10.0.0.9") };
    const opener = await createPool(pool, spec);
    for (const value of ["10.0.0.2", "10.0.0.8"]) await pool.claim(requestFor(`holder of ${value}`, value));
    await pool.offer(requestFor("other", "10.0.0.9"));
    const reshape = (...texts: string[]) =>
      pool.change("space/address", opener.leaseId, {
        ranges: ranges(...texts),
        childPool: { name: "pool/p", kind: "address", allocation: "lowest", ranges: ranges(...texts) },
      });
    await reshape("10.0.0.0-10.0.0.8", "10.0.1.0-10.0.1.9");
    expect(await pool.find({ pool: "pool/p", owner: "other" })).toBeUndefined();
    expect(await pool.claim(requestFor("other", "10.0.1.9"))).toMatchObject({ state: "reserved" });
    await expect(reshape("10.0.0.0-10.0.0.7", "10.0.1.9")).rejects.toMatchObject(
      refusal("POOL_IN_USE", "IPPool p", "10.0.0.8 holder of 10.0.0.8"),
    );
    expect(await findUsage(pool, "pool/p")).toMatchObject({ capacity: 19n, held: 3n });
    expect(await pool.find({ pool: "space/address", leaseId: opener.leaseId })).toMatchObject({
      ranges: ranges("10.0.0.0-10.0.0.8", "10.0.1.0-10.0.1.9"),
    });
    await createPool(pool, { name: "pool/q", ranges: ranges("10.0.0.9") });
    await expect(reshape("10.0.0.0-10.0.0.9")).rejects.toMatchObject({ code: "POOL_OVERLAP" });
    expect(await pool.fsck()).toEqual([]);
  });

  test("reserved and static values of a pool in use can change", async () => {
    const { pool } = await createFixture(engine);
    const opener = await createPool(pool, { ranges: ranges("10.0.0.0/28") });
    await pool.claim(requestFor("a", "10.0.0.5"));
    const respec = (more: Partial<PoolSpec>) =>
      pool.change("space/address", opener.leaseId, {
        childPool: { name: "pool/p", kind: "address", allocation: "lowest", ranges: ranges("10.0.0.0/28"), ...more },
      });
    await respec({ reserved: ranges("10.0.0.0-10.0.0.1"), staticOnly: ranges("10.0.0.2-10.0.0.7") });
    expect((await pool.claim(by("b"))).ranges).toEqual(ranges("10.0.0.8"));
    await expect(respec({ reserved: ranges("10.0.0.4-10.0.0.6") })).rejects.toMatchObject({ code: "POOL_IN_USE" });
    await respec({ avoidBoundaryIps: true });
    expect((await pool.claim(by("c"))).ranges).toEqual(ranges("10.0.0.1"));
    expect(await pool.fsck()).toEqual([]);
  });

  test("a block of a parent pool is a pool itself", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.96.0.0/12") });
    const carve = (owner: string): Request => by(owner, { size: 1n << 12n });
    const [a, b] = [await pool.claim(carve("a")), await pool.claim(carve("b"))];
    expect([a.ranges, b.ranges]).toEqual([ranges("10.96.0.0/20"), ranges("10.96.16.0/20")]);
    await pool.change("pool/p", a.leaseId, {
      childPool: { name: "pool/a", kind: "address", ranges: a.ranges, allocation: "lowest" },
    });
    expect((await pool.claim({ ...by("x"), pool: "pool/a" })).ranges).toEqual(ranges("10.96.0.0"));
    await expect(pool.release("pool/p", a.leaseId)).rejects.toMatchObject({ code: "POOL_IN_USE" });
  });

  test("a preview of another layout of a network uses its own block, and changes nothing", async () => {
    const { pool } = await createFixture(engine);
    const old = await pool.claim(network("n", "10.0.0.0/8"));
    await pool.claim(runner("n", "r"));
    expect(await pool.offer(network("n", "10.0.0.0/9"))).toMatchObject({
      state: "offered",
      ranges: ranges("10.0.0.0/9"),
    });
    expect(await pool.find({ pool: "space/default", owner: "network n" })).toEqual(asStored(old));
    expect(await pool.claim(network("n", "10.0.0.0/9"))).toMatchObject({
      uid: old.uid,
      ranges: ranges("10.0.0.0/9"),
    });
    expect(await pool.fsck()).toEqual([]);
  });

  test("a network that moves to another block keeps its child pool until its claim, and after it", async () => {
    const { pool } = await createFixture(engine);
    await pool.claim(network("n", "10.0.0.0/8"));
    await pool.claim(runner("n", "r"));
    await pool.offer(network("n", "11.0.0.0/8"));
    expect(await pool.leases("network/n")).toHaveLength(1);
    const moved = await pool.claim(network("n", "11.0.0.0/8"));
    expect(moved).toMatchObject({ childPool: "network/n", names: ["network/n"] });
    const old = await pool.find({ pool: "space/default", value: ranges("10.0.0.0")[0]!.first });
    expect(await pool.release("space/default", old!.leaseId)).toBe(true);
    expect(await pool.leases("network/n")).toHaveLength(1);
    expect(await pool.fsck()).toEqual([]);
  });

  test("after the preview of a larger block, the same process can preview a smaller one", async () => {
    const { pool } = await createFixture(engine);
    await pool.claim(network("n", "10.0.0.0/9"));
    await pool.claim(runner("n", "r"));
    expect(await pool.offer(network("n", "10.0.0.0/8"))).toMatchObject({ ranges: ranges("10.0.0.0/8") });
    expect(await pool.offer(network("n", "10.0.0.0/10"))).toMatchObject({ ranges: ranges("10.0.0.0/10") });
    expect((await pool.leases("space/default"))[0]?.ranges).toEqual(ranges("10.0.0.0/9"));
  });
}
