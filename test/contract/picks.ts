import { describe, expect, test } from "vitest";
import { formatRangeOf } from "../../provider/ipam/errors";
import { findUsage } from "../../provider/ipam/interface";
import { by, createFixture, createPool, type Engine, firstOf, range, ranges, requestFor } from "./fixture";
import { refusal } from "./refusal";

/** Which of several free values is chosen, and which requests are refused. */
export function pickContract(engine: Engine): void {
  const lan = { ranges: ranges("10.0.0.0/29"), reserved: ranges("10.0.0.0-10.0.0.1", "10.0.0.7") };
  const address = (lease: { ranges: { first: bigint; last: bigint }[] }) => formatRangeOf("address", lease.ranges[0]!);

  test("lowest chooses the lowest value, also between others", async () => {
    const { pool } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, lan);
    const leases = [];
    for (const owner of ["a", "b", "c"]) leases.push(await pool.claim(by(owner)));
    expect(leases.map(address)).toEqual(["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    await pool.release("pool/p", leases[1]!.leaseId);
    expect(address(await pool.claim(by("d")))).toBe("10.0.0.3");
  });

  test("lowest chooses the lowest value, however many leases expired at once", async () => {
    const { pool, pass } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ranges: ranges("10.0.0.2-10.0.1.253") });
    const held = await pool.claim(requestFor("held", "10.0.0.2"));
    await Promise.all(Array.from({ length: 480 }, (_, i) => pool.claim(by(`short ${i}`, { ttl: 60 }))));
    pass(61);
    expect(address(await pool.offer(by("previewed")))).toBe("10.0.0.3");
    const claims = await Promise.all(["a", "b", "c"].map((owner) => pool.claim(by(owner))));
    expect(claims.map(address)).toEqual(["10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    await pool.release("pool/p", held.leaseId);
    expect(address(await pool.claim(by("d")))).toBe("10.0.0.2");
    expect(await pool.fsck()).toEqual([]);
  });

  test("lowest skips the value of an expired lease that is quarantined or still shared", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.2-10.0.1.253") });
    const tcp = (port: number) => ({ sharingKey: "k", ports: [{ protocol: "tcp" as const, port }] });
    await pool.claim(by("shares", tcp(80)));
    await pool.claim(by("shared", { ...tcp(81), ttl: 200 }));
    await pool.claim(by("rests", { ttl: 350 }));
    await Promise.all(Array.from({ length: 300 }, (_, i) => pool.claim(by(`short ${i}`, { ttl: 60 }))));
    pass(361);
    expect(address(await pool.claim(by("a")))).toBe("10.0.0.4");
    expect(await pool.fsck()).toEqual([]);
  });

  test("hashed chooses the same value for an owner in any order, and fills the pool to the last value", async () => {
    const forward = (await createFixture(engine)).pool;
    const backward = (await createFixture(engine)).pool;
    const owners = Array.from({ length: 40 }, (_, i) => `owner ${i}`);
    const ask = async (pool: typeof forward, order: string[]) => {
      await createPool(pool, { ranges: ranges("10.0.0.0/8"), allocation: "hashed" });
      const found = new Map<string, string>();
      for (const owner of order) found.set(owner, address(await pool.offer(by(owner))));
      return owners.map((owner) => found.get(owner));
    };
    expect(await ask(forward, owners)).toEqual(await ask(backward, [...owners].reverse()));
    const { pool } = await createFixture(engine);
    await createPool(pool, { ...lan, allocation: "hashed" });
    const all = await Promise.all(["a", "b", "c", "d", "e"].map((owner) => pool.claim(by(owner))));
    expect(all.map(address).sort()).toEqual(["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    await expect(pool.claim(by("f"))).rejects.toMatchObject({ code: "POOL_EXHAUSTED" });
  });

  test("random stays inside the pool, in a /64 as in a /24", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("fd00:1::/64"), allocation: "random" });
    const leases = await Promise.all(Array.from({ length: 20 }, (_, i) => pool.claim(by(`o${i}`))));
    expect(new Set(leases.map(firstOf)).size).toBe(20);
    for (const { ranges } of leases) expect(formatRangeOf("address", ranges[0]!)).toMatch(/^fd00:1::/);
    expect(await findUsage(pool, "pool/p")).toMatchObject({ capacity: 1n << 64n, held: 20n });
    expect(await pool.fsck()).toEqual([]);
  });

  describe.each([
    { pool: { ...lan }, values: "10.0.0.9", code: "IP_OUTSIDE_POOL" },
    { pool: { ...lan }, values: "fd00::1", code: "IP_OUTSIDE_POOL" },
    { pool: { ...lan }, values: "10.0.0.6-10.0.0.8", code: "IP_OUTSIDE_POOL" },
    { pool: { ...lan }, values: "10.0.0.1", code: "IP_RESERVED" },
    { pool: { ...lan }, values: "10.0.0.6-10.0.0.7", code: "IP_RESERVED" },
    { pool: { ranges: ranges("10.0.0.0/24"), avoidBoundaryIps: true }, values: "10.0.0.0", code: "IP_RESERVED" },
    { pool: { ranges: ranges("10.0.0.0/24"), avoidBoundaryIps: true }, values: "10.0.0.255", code: "IP_RESERVED" },
    { pool: { ranges: ranges("1-63"), kind: "id" as const }, values: "64", code: "INPUT_INVALID" },
  ])("$values", ({ pool: spec, values, code }) => {
    test(`is refused with ${code}`, async () => {
      const { pool } = await createFixture(engine);
      await createPool(pool, spec);
      await expect(pool.offer(requestFor("a", values))).rejects.toMatchObject({ code });
      await expect(pool.claim(requestFor("a", values))).rejects.toMatchObject({ code });
    });
  });

  test("no block is carved from a pool that avoids .0 and .255, by value or not", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/28"), avoidBoundaryIps: true });
    for (const request of [by("a", { size: 4n }), requestFor("a", "10.0.0.8-10.0.0.11")]) {
      const error = refusal("IP_RESERVED", "IPPool p", "avoidBoundaryIps");
      await expect(pool.offer(request)).rejects.toMatchObject(error);
      await expect(pool.claim(request)).rejects.toMatchObject(error);
    }
    expect(await pool.fsck()).toEqual([]);
  });

  test.each([{ autoAssign: false }, { allocation: "external" as const }])(
    "a pool with %o serves only requests by value",
    async (setting) => {
      const { pool } = await createFixture(engine);
      await createPool(pool, { ...lan, ...setting });
      await expect(pool.offer(by("a"))).rejects.toMatchObject({ code: "IP_NOT_REQUESTED" });
      expect(address(await pool.claim(requestFor("a", "10.0.0.4")))).toBe("10.0.0.4");
      expect(address(await pool.offer(by("a")))).toBe("10.0.0.4");
    },
  );

  test("static values are given only to requests by value, also after their release", async () => {
    const { pool } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ...lan, staticOnly: ranges("10.0.0.2-10.0.0.4") });
    expect(address(await pool.claim(by("a")))).toBe("10.0.0.5");
    const fixed = await pool.claim(requestFor("b", "10.0.0.3"));
    expect(address(await pool.claim(by("c")))).toBe("10.0.0.6");
    await expect(pool.claim(by("d"))).rejects.toMatchObject({ code: "POOL_EXHAUSTED" });
    await pool.release("pool/p", fixed.leaseId);
    await expect(pool.claim(by("d"))).rejects.toMatchObject({ code: "POOL_EXHAUSTED" });
    expect(address(await pool.claim(requestFor("d", "10.0.0.3")))).toBe("10.0.0.3");
    expect(await pool.fsck()).toEqual([]);
  });

  test("a value that its owner requested is not chosen for the owner's next request without a value", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ...lan, staticOnly: ranges("10.0.0.4") });
    await pool.release("pool/p", (await pool.claim(requestFor("a", "10.0.0.4"))).leaseId);
    expect(address(await pool.claim(by("a")))).toBe("10.0.0.2");
    await createPool(pool, { name: "pool/vip", ranges: ranges("10.1.0.0/24"), autoAssign: false });
    const vip = { ...requestFor("a", "10.1.0.9"), pool: "pool/vip" };
    await pool.release("pool/vip", (await pool.claim(vip)).leaseId);
    await expect(pool.claim({ ...by("a"), pool: "pool/vip" })).rejects.toMatchObject({ code: "IP_NOT_REQUESTED" });
    expect((await pool.claim(vip)).ranges).toEqual(ranges("10.1.0.9"));
  });

  test("an owner's expired block is free for the owner's next request", async () => {
    const { pool, pass } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ranges: ranges("2-3"), kind: "id" });
    await pool.claim(by("a", { size: 2n, ttl: 60 }));
    pass(61);
    expect((await pool.claim(by("a"))).ranges).toEqual(ranges("2"));
    expect(await pool.fsck()).toEqual([]);
  });

  test("with avoidBoundaryIps .0 and .255 are not chosen, and a pool with nothing else left is full", async () => {
    const { pool } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ranges: ranges("10.0.0.253-10.0.1.2"), avoidBoundaryIps: true });
    const offer = await pool.offer(by("c", { range: range("10.0.0.255-10.0.1.2") }));
    expect(address(offer)).toBe("10.0.1.1");
    await pool.release("pool/p", offer.leaseId);
    const leases = [];
    for (const owner of ["a", "b", "c", "d"]) leases.push(await pool.claim(by(owner)));
    expect(leases.map(address)).toEqual(["10.0.0.253", "10.0.0.254", "10.0.1.1", "10.0.1.2"]);
    await expect(pool.claim(by("e"))).rejects.toMatchObject({ code: "POOL_EXHAUSTED" });
    for (const i of [1, 2, 0, 3]) await pool.release("pool/p", leases[i]!.leaseId);
    expect(await pool.fsck()).toEqual([]);
    expect(await findUsage(pool, "pool/p")).toMatchObject({ capacity: 4n, held: 0n });
  });

  test("blocks are aligned and do not overlap; adjacent free space is merged when they are released", async () => {
    const { pool } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ranges: ranges("10.0.0.0/16"), reserved: ranges("10.0.0.0") });
    const blocks = [];
    for (const [owner, size] of Object.entries({ a: 16n, b: 1n, c: 4n, d: 16n, e: 256n })) {
      blocks.push(await pool.claim(by(owner, { size })));
    }
    expect(blocks.map(address)).toEqual(["10.0.0.16/28", "10.0.0.1", "10.0.0.4/30", "10.0.0.32/28", "10.0.1.0/24"]);
    for (const { leaseId } of blocks) await pool.release("pool/p", leaseId);
    expect(await pool.fsck()).toEqual([]);
    expect(address(await pool.claim(by("f", { size: 1n << 15n })))).toBe("10.0.128.0/17");
    await expect(pool.claim(by("g", { size: 1n << 15n }))).rejects.toMatchObject({ code: "POOL_EXHAUSTED" });
  });

  test("the chosen value is in `within`, and dual stack takes one value of each family", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/24", "fd00::/120") });
    const v4 = range("0.0.0.0/0");
    const v6 = range("fd00::/8");
    const both = await pool.claim(by("a", { range: v4, secondRange: [v6] }));
    expect(both.ranges).toEqual(ranges("10.0.0.0", "fd00::"));
    expect((await pool.claim(by("b", { range: v6 }))).ranges).toEqual(ranges("fd00::1"));
    expect((await pool.claim(by("a", { range: v4, secondRange: [v6] }))).uid).toBe(both.uid);
    expect(await pool.find({ pool: "pool/p", value: range("fd00::").first })).toMatchObject({ owner: "a" });
    expect((await pool.leases("pool/p")).map(({ owner }) => owner)).toEqual(["a", "b"]);
    expect(await pool.fsck()).toEqual([]);
  });

  test("POOL_EXHAUSTED names the leases that were not seen for the longest time", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.2") });
    await pool.claim(by("a"));
    pass(60);
    await pool.claim(by("b"));
    await expect(pool.offer(by("c"))).rejects.toMatchObject({
      code: "POOL_EXHAUSTED",
      message: expect.stringMatching(/10\.0\.0\.1 a .*10\.0\.0\.2 b /),
    });
  });

  test("quotas count offers, count shared values once, and are checked in preview", async () => {
    const { pool, pass } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ranges: ranges("10.0.0.0/24"), quota: { maxIps: 2, maxReservations: 3 } });
    const port = (port: number) => ({ sharingKey: "k", ports: [{ protocol: "tcp" as const, port }] });
    await pool.offer(by("a", port(80)));
    await pool.offer(by("b", port(81)));
    const third = await pool.claim(by("c"));
    await expect(pool.offer(by("d"))).rejects.toMatchObject(refusal("POOL_QUOTA", "IPPool p", "4 leases on 3 values"));
    await expect(pool.offer(by("d", port(82)))).rejects.toMatchObject({ code: "POOL_QUOTA" });
    await pool.release("pool/p", third.leaseId);
    expect(await pool.offer(by("d", port(82)))).toMatchObject({ owner: "d" });
    pass(3601);
    expect(await pool.claim(by("e"))).toMatchObject({ owner: "e" });
    expect(await pool.fsck()).toEqual([]);
  });
}
