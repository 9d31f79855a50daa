import { describe, expect, test } from "vitest";
import { findUsage, historyOf } from "../../provider/ipam/interface";
import { asStored, by, createFixture, createPool, type Engine, firstOf, ranges, requestFor, START } from "./fixture";

/** Expiry, quarantine and preemption. */
export function timeContract(engine: Engine): void {
  const small = { ranges: ranges("1-2"), kind: "id" as const };

  test("no reader sees an expired lease as held, whether or not its row is deleted", async () => {
    const { pool, pass } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, small);
    const lease = await pool.claim(by("a", { ttl: 60 }));
    pass(60);
    expect(await pool.find({ pool: "pool/p", owner: "a" })).toEqual(asStored(lease));
    pass(0.001);
    expect(await pool.find({ pool: "pool/p", owner: "a" })).toBeUndefined();
    expect(await pool.find({ pool: "pool/p", value: 1n })).toBeUndefined();
    expect(await pool.find({ pool: "pool/p", leaseId: lease.leaseId })).toBeUndefined();
    expect(await pool.leases("pool/p")).toEqual([]);
    expect(await findUsage(pool, "pool/p")).toMatchObject({ held: 0n, reserved: 0 });
    await expect(pool.change("pool/p", lease.leaseId, { ttl: 60 })).rejects.toMatchObject({ code: "LEASE_EXPIRED" });
    expect(await pool.release("pool/p", lease.leaseId)).toBe(false);
    expect(firstOf(await pool.claim(by("b")))).toBe(1n);
  });

  test("a used lease never expires; when it is reserved again, it expires after its ttl", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, small);
    const lease = await pool.claim(by("a", { ttl: 60 }));
    const used = await pool.change("pool/p", lease.leaseId, { state: "used", usedBy: "c1" });
    expect(used).toMatchObject({ state: "used", usedBy: "c1" });
    expect(used.expiresAt).toBeUndefined();
    pass(86400);
    expect(await pool.find({ pool: "pool/p", owner: "a" })).toMatchObject({ state: "used" });
    const unused = await pool.change("pool/p", lease.leaseId, { state: "reserved", ttl: 60 });
    expect(unused).toMatchObject({ state: "reserved", expiresAt: START + 86_460_000 });
    expect(unused.usedBy).toBeUndefined();
    const kept = await pool.change("pool/p", lease.leaseId, { ttl: null });
    expect(kept.expiresAt).toBeUndefined();
  });

  test("a released value is quarantined: its previous holder gets it at once, other owners do not", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ...small, ranges: ranges("1-9") });
    const lease = await pool.claim(by("a"));
    await pool.release("pool/p", lease.leaseId);
    expect(firstOf(await pool.claim(by("b")))).toBe(2n);
    pass(299);
    expect(firstOf(await pool.claim(by("c")))).toBe(3n);
    const back = await pool.claim(by("a"));
    expect(firstOf(back)).toBe(1n);
    expect(back.leaseId).not.toBe(lease.leaseId);
    expect(await pool.release("pool/p", lease.leaseId)).toBe(false);
  });

  test("after its quarantine a value is free for all owners", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ...small, ranges: ranges("1-9") });
    await pool.release("pool/p", (await pool.claim(by("a"))).leaseId);
    pass(300.001);
    expect(firstOf(await pool.claim(by("b")))).toBe(1n);
  });

  test("an expired reservation is quarantined from its end on, and its owner gets it again", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ...small, ranges: ranges("1-9") });
    await pool.claim(by("a", { ttl: 60 }));
    pass(61);
    expect(firstOf(await pool.claim(by("b")))).toBe(2n);
    expect(await pool.leases("pool/p")).toMatchObject([
      { owner: "a", state: "quarantined", expiresAt: START + 360_000 },
      { owner: "b" },
    ]);
    expect(firstOf(await pool.offer(by("a")))).toBe(1n);
  });

  test("a preview of an expired reservation offers its value again", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ...small, ranges: ranges("1-9") });
    await pool.claim(by("a", { ttl: 60 }));
    pass(61);
    expect(await pool.offer(by("a"))).toMatchObject({ state: "offered", ranges: ranges("1") });
    expect(await findUsage(pool, "pool/p")).toMatchObject({ offered: 1, reserved: 0 });
  });

  describe("a quarantine ends at its time, whatever its previous holder previews", () => {
    const offerQuarantined = async () => {
      const fixture = await createFixture(engine, { offerTtl: 60 });
      await createPool(fixture.pool, { ...small, ranges: ranges("1-9") });
      await fixture.pool.release("pool/p", (await fixture.pool.claim(by("a"))).leaseId);
      return { ...fixture, offer: await fixture.pool.offer(by("a")) };
    };
    const quarantined = { owner: "a", state: "quarantined", ranges: ranges("1"), expiresAt: START + 300_000 };

    test("when the preview's offer expires", async () => {
      const { pool, pass } = await offerQuarantined();
      pass(61);
      expect(firstOf(await pool.claim(by("b")))).toBe(2n);
      expect(await pool.leases("pool/p")).toMatchObject([quarantined, { owner: "b" }]);
      pass(240);
      expect(firstOf(await pool.claim(by("c")))).toBe(1n);
      expect(await pool.fsck()).toEqual([]);
    });

    test("when its owner previews again", async () => {
      const { pool, pass } = await offerQuarantined();
      pass(30);
      await pool.offer(by("a"));
      pass(61);
      expect(firstOf(await pool.claim(by("b")))).toBe(2n);
      expect(await pool.leases("pool/p")).toMatchObject([quarantined, { owner: "b" }]);
    });

    test("but its owner can claim it at once", async () => {
      const { pool } = await offerQuarantined();
      const lease = await pool.claim(by("a"));
      expect(lease).toMatchObject({ state: "reserved", ranges: ranges("1") });
      expect(lease).not.toHaveProperty("expiresAt");
      await pool.offer(by("b"));
      expect(firstOf(await pool.claim(requestFor("b", "3")))).toBe(3n);
    });
  });

  test("a quarantined value may be requested by value, with a warning", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/24") });
    await pool.release("pool/p", (await pool.claim(requestFor("a", "10.0.0.7"))).leaseId);
    const offer = await pool.offer(requestFor("b", "10.0.0.7"));
    expect(offer.warnings).toEqual([expect.stringMatching(/10\.0\.0\.7 .* a /)]);
    expect(await pool.find({ pool: "pool/p", owner: "b" })).not.toHaveProperty("warnings");
  });

  test("a preview of a quarantined value by another owner only interrupts the quarantine", async () => {
    const { pool, pass } = await createFixture(engine, { offerTtl: 60 });
    await createPool(pool, { ...small, ranges: ranges("1-9") });
    const { leaseId } = await pool.claim(by("a"));
    await pool.release("pool/p", leaseId);
    expect(await pool.offer(requestFor("b", "1"))).toMatchObject({ state: "offered", ranges: ranges("1") });
    pass(61);
    expect(firstOf(await pool.claim(by("c")))).toBe(2n);
    expect(await pool.leases("pool/p")).toMatchObject([
      { owner: "a", state: "quarantined", leaseId, expiresAt: START + 300_000 },
      { owner: "c" },
    ]);
    await pool.offer(requestFor("b", "1"));
    expect(await pool.claim(requestFor("b", "1"))).toMatchObject({ owner: "b", state: "reserved" });
    expect(firstOf(await pool.claim(by("a")))).toBe(3n);
    expect(await pool.fsck()).toEqual([]);
  });

  test("when nothing else is free, the value that is quarantined longest is given", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, small);
    const leases = [await pool.claim(by("a")), await pool.claim(by("b"))];
    await pool.release("pool/p", leases[1]!.leaseId);
    pass(5);
    await pool.release("pool/p", leases[0]!.leaseId);
    const given = [await pool.claim(by("c")), await pool.claim(by("d"))];
    expect(given.map(firstOf)).toEqual([2n, 1n]);
    expect(given[0]!.warnings).toHaveLength(1);
  });

  test("offers are kept until they expire, also if nothing else is free", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, small);
    await pool.offer(requestFor("a", "2"));
    pass(60);
    await pool.offer(requestFor("b", "1"));
    pass(3539);
    await expect(pool.claim(by("c"))).rejects.toMatchObject({ code: "RUNNER_IDS_EXHAUSTED" });
    pass(2);
    expect(firstOf(await pool.claim(by("c")))).toBe(2n);
    await expect(pool.claim(by("d"))).rejects.toMatchObject({ code: "RUNNER_IDS_EXHAUSTED" });
    await expect(pool.claim(requestFor("a", "2"))).rejects.toMatchObject({ code: "PLAN_STALE" });
  });

  test("a quarantined value is given if all others are held or offered", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, small);
    await pool.offer(requestFor("a", "1"));
    const held = await pool.claim(requestFor("b", "2"));
    pass(600);
    await pool.release("pool/p", held.leaseId);
    expect(firstOf(await pool.claim(by("c")))).toBe(2n);
    await expect(pool.claim(by("d"))).rejects.toMatchObject({ code: "RUNNER_IDS_EXHAUSTED" });
  });

  test("a repeated preview renews its offers", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, small);
    const offer = await pool.offer(requestFor("a", "2"));
    pass(3000);
    expect(await pool.offer(requestFor("a", "2"))).toMatchObject({
      leaseId: offer.leaseId,
      expiresAt: START + 6_600_000,
    });
    pass(3590);
    await expect(pool.offer(requestFor("b", "2"))).rejects.toMatchObject({ code: "RUNNER_ID_TAKEN" });
    pass(11);
    expect(await pool.offer(requestFor("b", "2"))).toMatchObject({ owner: "b" });
  });

  test("an expired offer is free for other owners, and its owner still gets it until then", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, small);
    const offer = await pool.offer(requestFor("a", "2"));
    pass(3601);
    expect(await pool.find({ pool: "pool/p", owner: "a" })).toBeUndefined();
    expect(await pool.offer(requestFor("a", "2"))).toMatchObject({ uid: offer.uid, ranges: ranges("2") });
    pass(3601);
    expect(firstOf(await pool.claim(requestFor("b", "2")))).toBe(2n);
    expect(await pool.fsck()).toEqual([]);
  });

  test("ids of runners not seen for too long are reclaimed when nothing is free, the least recently seen first", async () => {
    const { pool, pass } = await createFixture(engine, { quarantine: 0 });
    await createPool(pool, { ...small, ranges: ranges("1-3"), reclaimAfter: 3600 });
    const [a] = [await pool.claim(by("a")), await pool.claim(by("b")), await pool.claim(by("c"))];
    pass(3000);
    await pool.touch("pool/p", a.leaseId);
    pass(599);
    await expect(pool.offer(by("d"))).rejects.toMatchObject({ code: "RUNNER_IDS_EXHAUSTED" });
    pass(1);
    const offers = [await pool.offer(by("d")), await pool.offer(by("e"))];
    expect(offers.map(firstOf).sort()).toEqual([2n, 3n]);
    expect((await pool.leases("pool/p")).map(({ owner }) => owner)).toEqual(["a", "b", "c"]);
    await expect(pool.offer(by("f"))).rejects.toMatchObject({ code: "RUNNER_IDS_EXHAUSTED" });
    const claimed = await pool.claim(by("d", { values: offers[0]!.ranges }));
    expect(claimed).toMatchObject({ owner: "d", ranges: offers[0]!.ranges });
    expect((await historyOf(pool, "pool/p")).filter(({ what }) => what === "reclaimed")).toMatchObject([
      { takenBy: "d" },
    ]);
    await expect(pool.claim(requestFor("e", "1"))).rejects.toMatchObject({ code: "PLAN_STALE" });
  });

  test("a pool that gets reclaimAfter knows which leases were not seen before; one that loses it reclaims nothing", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ...small, ranges: ranges("1-2") });
    await pool.claim(by("a"));
    pass(60);
    await pool.claim(by("b"));
    pass(3600);
    await createPool(pool, { ...small, ranges: ranges("1-2"), reclaimAfter: 3600 });
    expect(firstOf(await pool.claim(by("c")))).toBe(1n);
    pass(3600);
    await createPool(pool, { ...small, ranges: ranges("1-2") });
    await expect(pool.claim(by("d"))).rejects.toMatchObject({ code: "RUNNER_IDS_EXHAUSTED" });
    expect(await pool.fsck()).toEqual([]);
  });

  test("an inactive runner keeps its id while another id is free", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ...small, reclaimAfter: 3600 });
    await pool.claim(requestFor("a", "1"));
    pass(3600);
    await expect(pool.claim(requestFor("b", "1"))).rejects.toMatchObject({ code: "PLAN_STALE" });
    expect(firstOf(await pool.claim(by("b")))).toBe(2n);
    expect(firstOf(await pool.claim(requestFor("c", "1")))).toBe(1n);
  });

  test("a runner with reservations on it is not reclaimed, however long it was not seen", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ...small, reclaimAfter: 3600 });
    const inside = { kind: "id" as const, allocation: "lowest" as const, ranges: ranges("1-9") };
    await pool.claim(by("a", { childPool: { ...inside, name: "runner/n/a" } }));
    await pool.claim(by("b", { childPool: { ...inside, name: "runner/n/b" } }));
    await pool.claim({ pool: "runner/n/a", owner: "ip", type: "IPReservation" });
    pass(3600);
    expect(firstOf(await pool.claim(by("c")))).toBe(2n);
    await expect(pool.claim(by("d"))).rejects.toMatchObject({ code: "RUNNER_IDS_EXHAUSTED" });
  });

  test("a request by value gets the value of an expired lease, however many others are overdue", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ...small, ranges: ranges("1-300") });
    await Promise.all(Array.from({ length: 300 }, (_, i) => pool.claim(by(`o${i}`, { ttl: 60 + i }))));
    pass(400);
    expect(await pool.claim(requestFor("x", "300"))).toMatchObject({ owner: "x", ranges: ranges("300") });
    expect(await findUsage(pool, "pool/p")).toMatchObject({ reserved: 1, quarantined: 258 });
    expect(await pool.fsck()).toEqual([]);
  });

  test("thousands of expired offers are deleted in batches, and block no request", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ...small, ranges: ranges("1-1000") });
    await Promise.all(Array.from({ length: 1000 }, (_, i) => pool.offer(by(`o${i}`))));
    pass(3601);
    expect(firstOf(await pool.claim(requestFor("x", "777")))).toBe(777n);
    await Promise.all(Array.from({ length: 999 }, (_, i) => pool.claim(by(`n${i}`))));
    expect(await findUsage(pool, "pool/p")).toEqual({
      capacity: 1000n,
      held: 1000n,
      offered: 0,
      reserved: 1000,
      used: 0,
      quarantined: 0,
    });
    expect(await pool.fsck()).toEqual([]);
  });
}
