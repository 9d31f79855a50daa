import { expect, test } from "vitest";
import { findSpec, historyOf, listSpecs } from "../../provider/ipam/interface";
import type { PlannedRequest } from "../../provider/ipam/run-plan";
import type { PoolSpec } from "../../provider/ipam/types";
import {
  address,
  asStored,
  by,
  createFixture,
  createPool,
  type Engine,
  firstOf,
  network,
  ranges,
  runner,
} from "./fixture";
import { refusal } from "./refusal";

/** Child pools of leases: a network has the pool of its runners, a runner that of its addresses. */
export function poolContract(engine: Engine): void {
  test("a preview with child pools consists of offers, and its up gets the same values", async () => {
    const { pool, another } = await createFixture(engine);
    await pool.offer(network("n", "10.0.0.0/8", { data: { vni: 100 } }));
    expect(firstOf(await pool.offer(runner("n", "r")))).toBe(1n);
    const promised = await pool.offer(address("n", "r", "ip"));
    const up = another();
    expect(await findSpec(up, "network/n")).toEqual({ ...network("n", "10.0.0.0/8").childPool, data: { vni: 100 } });
    await up.claim(network("n", "10.0.0.0/8"));
    await up.claim({ ...runner("n", "r"), values: ranges("1") });
    expect((await up.claim(address("n", "r", "ip"))).ranges).toEqual(promised.ranges);
    expect((await listSpecs(up, { prefix: "network/" })).map(({ name }) => name)).toEqual(["network/n"]);
    expect(await up.fsck()).toEqual([]);
  });

  test("no lease can be claimed in the child pool of an offer", async () => {
    const { pool } = await createFixture(engine);
    await pool.offer(network("n", "10.0.0.0/8"));
    await expect(pool.claim(runner("n", "r"))).rejects.toMatchObject(refusal("POOL_NOT_FOUND", "Network n"));
  });

  test("the child pool of an expired offer does not exist until the owner's next request", async () => {
    const { pool, pass } = await createFixture(engine);
    await pool.offer(network("n", "10.0.0.0/8"));
    await pool.offer({ ...runner("n", "r"), values: ranges("7") });
    await pool.offer(address("n", "r", "ip"));
    pass(3601);
    expect(await findSpec(pool, "network/n")).toBeUndefined();
    expect(await findSpec(pool, "runner/n/r")).toBeUndefined();
    expect(await listSpecs(pool, { prefix: "network/" })).toEqual([]);
    expect(await pool.find({ pool: "network/n", value: 1n })).toBeUndefined();
    const seventh = { ...runner("n", "r"), values: ranges("7") };
    await expect(pool.offer(seventh)).rejects.toMatchObject({ code: "POOL_NOT_FOUND" });
    await pool.offer(network("n", "10.0.0.0/8"));
    expect(firstOf(await pool.offer(seventh))).toBe(7n);
    pass(3601);
    await pool.claim({ ...network("m", "10.0.0.0/9"), owner: "other" });
    expect(await findSpec(pool, "network/n")).toBeUndefined();
    expect(await pool.fsck()).toEqual([]);
  });

  test("the child pool of an offer in an offered pool ends no later than that pool", async () => {
    const { pool, pass } = await createFixture(engine);
    await pool.offer(network("n", "10.0.0.0/8"));
    pass(3000);
    await pool.offer(runner("n", "r"));
    pass(601);
    expect(await findSpec(pool, "runner/n/r")).toBeUndefined();
  });

  test("networks of one address space do not overlap; those of another may", async () => {
    const { pool } = await createFixture(engine);
    await pool.claim({ ...network("a", "10.128.0.0/12"), values: ranges("10.128.0.0/12", "fd00::/48") });
    await expect(pool.offer(network("b", "10.0.0.0/8"))).rejects.toMatchObject(
      refusal("POOL_OVERLAP", "10.0.0.0/8", "10.128.0.0/12", "fd00::/48", "network a"),
    );
    await expect(pool.offer(network("b", "fd00:0:0:8000::/49"))).rejects.toMatchObject({ code: "POOL_OVERLAP" });
    await expect(pool.offer(network("b", "10.143.255.255"))).rejects.toMatchObject({ code: "POOL_OVERLAP" });
    expect(await pool.offer(network("b", "10.144.0.0/12"))).toMatchObject({ state: "offered" });
    await expect(pool.offer(network("d", "10.144.0.0/12"))).rejects.toMatchObject(
      refusal("POOL_OVERLAP", "10.144.0.0/12", "network b", "2030-01-01T01:00:00Z"),
    );
    expect(await pool.claim({ ...network("c", "10.128.0.0/12"), pool: "space/other" })).toMatchObject({
      owner: "network c",
    });
    expect(await pool.fsck()).toEqual([]);
  });

  test("close refuses claims in the pool, fails while it has leases, and is undone by a claim of its owner", async () => {
    const { pool } = await createFixture(engine);
    const net = await pool.claim(network("n", "10.0.0.0/8"));
    const held = await pool.claim(runner("n", "r"));
    await expect(pool.close("space/default", net.leaseId)).rejects.toMatchObject(
      refusal("POOL_IN_USE", "Network n", "1 runner r"),
    );
    await expect(pool.release("space/default", net.leaseId)).rejects.toMatchObject({ code: "POOL_IN_USE" });
    await pool.release("network/n", held.leaseId);
    await pool.offer(runner("n", "s"));
    await pool.close("space/default", net.leaseId);
    expect(await pool.leases("network/n")).toMatchObject([
      { owner: "runner r", state: "quarantined" },
      { owner: "runner s", state: "offered" },
    ]);
    expect(await pool.offer(runner("n", "r"))).toMatchObject({ state: "offered" });
    await expect(pool.claim(runner("n", "r"))).rejects.toMatchObject(refusal("POOL_NOT_FOUND", "Network n"));
    const again = await pool.claim(network("n", "10.0.0.0/8"));
    expect(firstOf(await pool.claim(runner("n", "r")))).toBe(1n);
    await expect(pool.close("space/default", net.leaseId)).rejects.toMatchObject({ code: "LEASE_FENCED" });
    expect(await pool.find({ pool: "space/default", owner: "network n" })).toEqual(asStored(again));
    expect(await pool.fsck()).toEqual([]);
  });

  test("one lease keeps its pool, however many others have expired", async () => {
    const { pool, pass } = await createFixture(engine);
    const net = await pool.claim(network("n", "10.0.0.0/8"));
    const reserve = (i: number, ttl: number) => pool.claim({ pool: "network/n", owner: `o${i}`, type: "T", ttl });
    for (let i = 0; i < 20; i++) await reserve(i, 60);
    await reserve(20, 600);
    pass(61);
    await expect(pool.close("space/default", net.leaseId)).rejects.toMatchObject({ code: "POOL_IN_USE" });
    pass(600);
    await pool.close("space/default", net.leaseId);
  });

  test("the history of deleted pools is kept", async () => {
    const { pool, pass } = await createFixture(engine, { quarantine: 0 });
    const opener = (i: number) => ({
      ...by(`opener ${i}`, { pool: "space/default", type: "IPPool", values: ranges(`10.0.${i}.0/24`) }),
      childPool: {
        name: `pool/${i}`,
        kind: "address" as const,
        ranges: ranges(`10.0.${i}.0/24`),
        allocation: "lowest" as const,
      },
    });
    const createAndDelete = async (i: number) => {
      const parent = await pool.claim(opener(i));
      const held = await pool.claim({ ...by("a"), pool: `pool/${i}` });
      await pool.release(`pool/${i}`, held.leaseId);
      await pool.close("space/default", parent.leaseId);
      await pool.release("space/default", parent.leaseId);
      pass(1);
    };
    const lines = async (i: number) => (await historyOf(pool, `pool/${i}`)).length;
    for (const i of [0, 1, 2]) await createAndDelete(i);
    await pool.claim(opener(1));
    await createAndDelete(3);
    expect([await lines(0), await lines(1), await lines(2), await lines(3)]).toEqual([2, 2, 2, 2]);
    expect(await pool.fsck()).toEqual([]);
  });

  test("a child pool is deleted with its lease, and with all offers in it", async () => {
    const { pool, pass } = await createFixture(engine);
    const net = await pool.claim(network("n", "10.0.0.0/8"));
    const gone = await pool.claim(runner("n", "r"));
    await pool.offer(address("n", "r", "ip"));
    await pool.offer(runner("n", "s"));
    pass(1);
    await pool.release("network/n", gone.leaseId);
    pass(1);
    expect(await pool.release("space/default", net.leaseId)).toBe(true);
    expect(await listSpecs(pool)).toMatchObject([{ name: "space/default" }]);
    expect(await findSpec(pool, "runner/n/s")).toBeUndefined();
    expect(await pool.release("network/n", gone.leaseId)).toBe(false);
    expect(await pool.claim({ ...network("n", "10.0.0.0/8"), owner: "a new one" })).toMatchObject({
      owner: "a new one",
    });
    expect(firstOf(await pool.claim(runner("n", "s")))).toBe(2n); // as its preview has shown
    expect((await historyOf(pool, "network/n")).map(({ what }) => what)).toEqual(["claimed", "released", "claimed"]);
    expect(await pool.fsck()).toEqual([]);
  });

  test("a lease can replace its child pool if the old one is unused", async () => {
    const { pool } = await createFixture(engine);
    const net = await pool.claim(network("n", "10.0.0.0/8"));
    const held = await pool.claim(runner("n", "r"));
    const { childPool } = network("m", "10.0.0.0/8");
    await expect(pool.change("space/default", net.leaseId, { childPool })).rejects.toMatchObject({
      code: "POOL_IN_USE",
    });
    await pool.release("network/n", held.leaseId);
    expect(await pool.change("space/default", net.leaseId, { childPool })).toMatchObject({ childPool: "network/m" });
    expect((await listSpecs(pool, { prefix: "network/" })).map(({ name }) => name)).toEqual(["network/m"]);
    expect(await pool.fsck()).toEqual([]);
  });

  test("a lease with a child pool cannot have a ttl", async () => {
    const { pool } = await createFixture(engine);
    await expect(pool.claim({ ...network("n", "10.0.0.0/8"), ttl: 60 })).rejects.toMatchObject({
      code: "INPUT_INVALID",
    });
  });

  test("a second pool of the same name is refused, also without names", async () => {
    const { pool } = await createFixture(engine);
    const { names: _, ...plain } = network("n", "10.0.0.0/8");
    await pool.claim(plain);
    const conflicting = { ...plain, owner: "other", values: ranges("11.0.0.0/8") };
    await expect(pool.claim(conflicting)).rejects.toMatchObject({ code: "NETWORK_EXISTS" });
    expect(await pool.find({ pool: "space/default", owner: "other" })).toBeUndefined();
  });

  test("an expired offer is ended for another request, with its names and its child pool", async () => {
    const { pool, pass } = await createFixture(engine);
    const { names: _, ...unnamed } = network("n", "10.0.0.0/8");
    await pool.offer(unnamed);
    const conflicting = { ...network("n", "11.0.0.0/8"), owner: "other" };
    await expect(pool.claim(conflicting)).rejects.toMatchObject({ code: "NETWORK_EXISTS" });
    pass(3601);
    expect(await pool.claim(conflicting)).toMatchObject({ owner: "other", childPool: "network/n" });
    expect(await pool.find({ pool: "space/default", owner: "network n" })).toBeUndefined();
    expect(await pool.fsck()).toEqual([]);
  });

  test("the child pool of a lease can depend on the lease's values, in preview and up", async () => {
    const { pool } = await createFixture(engine);
    await pool.claim(network("n", "10.0.0.0/8"));
    const named = ({ first }: { first: bigint }): PoolSpec => ({
      name: "runner/n/r",
      kind: "address",
      ranges: ranges(`10.0.${first}.2-10.0.${first}.9`),
      allocation: "lowest",
    });
    const request: PlannedRequest = {
      pool: "network/n",
      owner: "r",
      type: "RunnerSubnet",
      childPool: ([id]) => named(id!),
    };
    await pool.claim({ ...request, owner: "first", childPool: ([id]) => ({ ...named(id!), name: "runner/n/first" }) });
    await pool.offer(request);
    expect(firstOf(await pool.offer(address("n", "r", "ip")))).toBe(ranges("10.0.2.2")[0]!.first);
    await pool.claim(request);
    expect(firstOf(await pool.claim(address("n", "r", "ip")))).toBe(ranges("10.0.2.2")[0]!.first);
  });

  test("pools are read page by page, without those whose offer has expired", async () => {
    const { pool, pass } = await createFixture(engine);
    for (const name of ["a", "b-1", "b", "c", "d"])
      await createPool(pool, { name: `pool/${name}`, ranges: ranges(RANGES[name]!) });
    await pool.offer(network("z", "10.9.0.0/16"));
    await pool.offer({
      ...network("bb", "10.8.0.0/16"),
      childPool: { ...network("bb", "10.8.0.0/16").childPool, name: "pool/bb" },
    });
    const read = async (prefix: string, page: { after?: string; limit?: number }) =>
      (await listSpecs(pool, { prefix, ...page })).map(({ name }) => name);
    expect(await read("pool/", { limit: 3 })).toEqual(["pool/a", "pool/b", "pool/b-1"]);
    expect(await read("pool/", { after: "pool/b-1", limit: 2 })).toEqual(["pool/bb", "pool/c"]);
    pass(3601);
    expect(await read("pool/", { after: "pool/b", limit: 2 })).toEqual(["pool/b-1", "pool/c"]);
    expect(await read("pool/", { after: "pool/d" })).toEqual([]);
    expect(await read("pool/", { after: "aaa", limit: 1 })).toEqual(["pool/a"]);
    expect(await read("pool/", { after: "zzz", limit: 1 })).toEqual([]);
  });

  test("free ranges are those that a request without values can get, also after leases have expired", async () => {
    const { pool, pass } = await createFixture(engine);
    const spec = {
      ranges: ranges("10.0.0.0/28", "fd00::/120"),
      reserved: ranges("10.0.0.0"),
      staticOnly: ranges("10.0.0.15"),
    };
    await createPool(pool, spec);
    await pool.claim(by("a", { values: ranges("10.0.0.3") }));
    await pool.claim(by("b", { values: ranges("10.0.0.6"), ttl: 60 }));
    expect(await pool.freeRanges("pool/p")).toEqual(
      ranges("10.0.0.1-10.0.0.2", "10.0.0.4-10.0.0.5", "10.0.0.7-10.0.0.14", "fd00::-fd00::ff"),
    );
    expect(await pool.freeRanges("pool/p", { limit: 2 })).toEqual(ranges("10.0.0.1-10.0.0.2", "10.0.0.4-10.0.0.5"));
    const range = ranges("10.0.0.5-10.0.0.8")[0]!;
    expect(await pool.freeRanges("pool/p", { range })).toEqual(ranges("10.0.0.5", "10.0.0.7-10.0.0.8"));
    pass(361);
    expect(await pool.freeRanges("pool/p", { range })).toEqual([range]);
    expect(await pool.freeRanges("pool/nosuch")).toEqual([]);
  });

  test("the leases of an owner are found without reading the others, a moved one and a quarantined one, too", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/28") });
    const values = (owner: string, value: string) => by(owner, { values: ranges(value) });
    await pool.claim(values("a", "10.0.0.9"));
    await pool.claim(values("other", "10.0.0.2"));
    const moved = await pool.claim(values("b", "10.0.0.4"));
    await pool.change("pool/p", moved.leaseId, { owner: "a" });
    const ended = await pool.claim(values("a", "10.0.0.6"));
    await pool.release("pool/p", ended.leaseId);
    const found = await pool.leases("pool/p", { owner: "a" });
    expect(found.map((lease) => [firstOf(lease), lease.state])).toEqual([
      [ranges("10.0.0.4")[0]!.first, "reserved"],
      [ranges("10.0.0.6")[0]!.first, "quarantined"],
      [ranges("10.0.0.9")[0]!.first, "reserved"],
    ]);
  });
}

const RANGES: Record<string, string> = {
  a: "10.0.1.0/24",
  b: "10.0.2.0/24",
  "b-1": "10.0.3.0/24",
  c: "10.0.4.0/24",
  d: "10.0.5.0/24",
};
