import { expect, test } from "vitest";
import type { PoolSpec, Request } from "../../provider/pool/types";
import { by, createFixture, type Engine, extents, network, opened, runner, wants } from "./fixture";

/** Pools and blocks that get other bounds. */
export function resizingContract(engine: Engine): void {
  test("a pool grows and shrinks, but never below a lease", async () => {
    const { pool } = await createFixture(engine);
    const spec = { extents: extents("10.0.0.0-10.0.0.9") };
    const opener = await opened(pool, spec);
    for (const value of ["10.0.0.2", "10.0.0.8"]) await pool.claim(wants(`holder of ${value}`, value));
    await pool.offer(wants("somebody", "10.0.0.9"));
    const reshape = (...ranges: string[]) =>
      pool.amend("space/address", opener.leaseId, {
        extents: extents(...ranges),
        childPool: { name: "pool/p", kind: "address", allocation: "lowest", extents: extents(...ranges) },
      });
    await reshape("10.0.0.0-10.0.0.8", "10.0.1.0-10.0.1.9");
    expect(await pool.find("pool/p", { owner: "somebody" })).toBeUndefined();
    expect(await pool.claim(wants("somebody", "10.0.1.9"))).toMatchObject({ state: "reserved" });
    await expect(reshape("10.0.0.0-10.0.0.7", "10.0.1.9")).rejects.toMatchObject({
      message:
        "POOL_IN_USE: IPPool p cannot lose values that are held: 10.0.0.8 holder of 10.0.0.8 (last seen 2030-01-01T00:00:00Z). Delete what holds them first. What no stack has any more (retainOnDelete, a lost state) is freed by `overlayctl ip free --ip ADDRESS --force`.",
    });
    expect(await pool.usage("pool/p")).toMatchObject({ capacity: 19n, held: 3n });
    expect(await pool.find("space/address", { leaseId: opener.leaseId })).toMatchObject({
      extents: extents("10.0.0.0-10.0.0.8", "10.0.1.0-10.0.1.9"),
    });
    await opened(pool, { name: "pool/q", extents: extents("10.0.0.9") });
    await expect(reshape("10.0.0.0-10.0.0.9")).rejects.toMatchObject({ code: "POOL_OVERLAP" });
    expect(await pool.fsck()).toEqual([]);
  });

  test("what is reserved or static may change under a living pool", async () => {
    const { pool } = await createFixture(engine);
    const opener = await opened(pool, { extents: extents("10.0.0.0/28") });
    await pool.claim(wants("a", "10.0.0.5"));
    const respec = (more: Partial<PoolSpec>) =>
      pool.amend("space/address", opener.leaseId, {
        childPool: { name: "pool/p", kind: "address", allocation: "lowest", extents: extents("10.0.0.0/28"), ...more },
      });
    await respec({ reserved: extents("10.0.0.0-10.0.0.1"), staticOnly: extents("10.0.0.2-10.0.0.7") });
    expect((await pool.claim(by("b"))).extents).toEqual(extents("10.0.0.8"));
    await expect(respec({ reserved: extents("10.0.0.4-10.0.0.6") })).rejects.toMatchObject({ code: "POOL_IN_USE" });
    await respec({ avoidBoundaryIps: true });
    expect((await pool.claim(by("c"))).extents).toEqual(extents("10.0.0.1"));
    expect(await pool.fsck()).toEqual([]);
  });

  test("a block is carved from a parent pool and is a pool itself", async () => {
    const { pool } = await createFixture(engine);
    await opened(pool, { extents: extents("10.96.0.0/12") });
    const carve = (owner: string): Request => by(owner, { size: 1n << 12n });
    const [a, b] = [await pool.claim(carve("a")), await pool.claim(carve("b"))];
    expect([a.extents, b.extents]).toEqual([extents("10.96.0.0/20"), extents("10.96.16.0/20")]);
    await pool.amend("pool/p", a.leaseId, {
      childPool: { name: "pool/a", kind: "address", extents: a.extents, allocation: "lowest" },
    });
    expect((await pool.claim({ ...by("x"), pool: "pool/a" })).extents).toEqual(extents("10.96.0.0"));
    await expect(pool.release("pool/p", a.leaseId)).rejects.toMatchObject({ code: "POOL_IN_USE" });
  });

  test("a network whose layout changes is previewed over its own block, and nothing moves", async () => {
    const { pool } = await createFixture(engine);
    const old = await pool.claim(network("n", "10.0.0.0/8"));
    await pool.claim(runner("n", "r"));
    expect(await pool.offer(network("n", "10.0.0.0/9"))).toMatchObject({
      state: "offered",
      extents: extents("10.0.0.0/9"),
    });
    expect(await pool.find("space/default", { owner: "network n" })).toEqual(old);
    expect(await pool.claim(network("n", "10.0.0.0/9"))).toMatchObject({
      uid: old.uid,
      extents: extents("10.0.0.0/9"),
    });
    expect(await pool.fsck()).toEqual([]);
  });

  test("a network that moves to another block keeps its pool until its claim, and takes it along", async () => {
    const { pool } = await createFixture(engine);
    await pool.claim(network("n", "10.0.0.0/8"));
    await pool.claim(runner("n", "r"));
    const offer = await pool.offer(network("n", "11.0.0.0/8"));
    expect(offer).not.toHaveProperty("childPool");
    await pool.release("space/default", offer.leaseId);
    expect(await pool.leases("network/n")).toHaveLength(1);
    const moved = await pool.claim(network("n", "11.0.0.0/8"));
    expect(moved).toMatchObject({ childPool: "network/n", names: ["network/n"] });
    const old = await pool.find("space/default", { value: extents("10.0.0.0")[0]!.first });
    expect(await pool.release("space/default", old!.leaseId)).toBe(true);
    expect(await pool.leases("network/n")).toHaveLength(1);
    expect(await pool.fsck()).toEqual([]);
  });

  test("a block that was previewed larger can be previewed smaller by the same process", async () => {
    const { pool } = await createFixture(engine);
    await pool.claim(network("n", "10.0.0.0/9"));
    await pool.claim(runner("n", "r"));
    expect(await pool.offer(network("n", "10.0.0.0/8"))).toMatchObject({ extents: extents("10.0.0.0/8") });
    expect(await pool.offer(network("n", "10.0.0.0/10"))).toMatchObject({ extents: extents("10.0.0.0/10") });
    expect((await pool.leases("space/default"))[0]?.extents).toEqual(extents("10.0.0.0/9"));
  });
}
