import { expect, test } from "vitest";
import { historyOf } from "../../provider/ipam/interface";
import { asStored, by, createFixture, createPool, type Engine, firstOf, ranges, requestFor, START } from "./fixture";

/** Offers and claims: which values an owner gets and keeps. */
export function leaseContract(engine: Engine): void {
  test("a recent offer is not rewritten; an older one is", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const offer = await pool.offer(by("a"));
    pass(59);
    expect(await pool.offer(by("a"))).toEqual(offer);
    expect(await pool.offer(by("a", { labels: { x: "1" } }))).toEqual({ ...offer, labels: { x: "1" } });
    pass(2);
    expect(await pool.offer(by("a"))).toMatchObject({ uid: offer.uid, expiresAt: offer.expiresAt! + 61_000 });
  });

  test("an offer with a short ttl is renewed before and after it expires", async () => {
    const { pool, pass } = await createFixture(engine, { offerTtl: 30 });
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const { expiresAt } = await pool.offer(by("a"));
    for (const seconds of [25, 40]) {
      pass(seconds);
      const again = await pool.offer(by("a"));
      expect(again.expiresAt! - again.updatedAt).toBe(30_000);
      expect(again.updatedAt).toBeGreaterThanOrEqual(expiresAt! - 30_000 + seconds * 1000);
    }
    expect(firstOf(await pool.offer(by("b")))).toBe(2n);
  });

  test("an offer gives the same value at every preview, to the claim, and to every retry of it", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const offers = [await pool.offer(by("a")), await pool.offer(by("b")), await another().offer(by("a"))];
    expect(offers.map(firstOf)).toEqual([1n, 2n, 1n]);
    const claimed = await another().claim(requestFor("b", "2"));
    expect(claimed).toMatchObject({ state: "reserved", ranges: ranges("2"), uid: offers[1]!.uid });
    expect(firstOf(await pool.claim(by("b")))).toBe(2n);
  });

  test("every claim renews the lease id, keeps the uid, and fences the old id", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const first = await pool.claim(by("a"));
    const second = await pool.claim(requestFor("a", "1"));
    expect(second.leaseId).not.toBe(first.leaseId);
    expect(second.uid).toBe(first.uid);
    expect(await pool.release("pool/p", first.leaseId)).toBe(false);
    await expect(pool.change("pool/p", first.leaseId, { usedBy: "c" })).rejects.toMatchObject({ code: "LEASE_FENCED" });
    expect(await pool.find({ pool: "pool/p", leaseId: first.leaseId })).toBeUndefined();
    expect(await pool.find({ pool: "pool/p", leaseId: second.leaseId })).toEqual(asStored(second));
    expect(await pool.release("pool/p", second.leaseId)).toBe(true);
    expect(await pool.release("pool/p", second.leaseId)).toBe(false);
  });

  test("a lease has all fields of its request, and the store's time", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/24") });
    const details = {
      tenant: { org: "o", project: "p" },
      labels: { team: "red" },
      data: { nested: [1, null, "x"] },
      by: "ci, commit 1234",
      names: ["user/x"],
      ttl: 60,
    };
    const lease = await pool.claim(by("a", details));
    expect(await pool.find({ pool: "pool/p", value: firstOf(lease) })).toEqual({
      ...details,
      by: engine.actorName?.("unknown") ?? details.by,
      pool: "pool/p",
      owner: "a",
      type: "IPReservation",
      ranges: ranges("10.0.0.0"),
      state: "reserved",
      uid: lease.uid,
      leaseId: lease.leaseId,
      createdAt: START,
      updatedAt: START,
      lastSeen: START,
      expiresAt: START + 60_000,
    });
  });

  test("a preview does not change a committed lease", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const firm = await pool.claim(by("a", { labels: { x: "1" }, names: ["runner/n/a"] }));
    pass(10);
    expect(await pool.offer(by("a", { labels: { x: "2" }, names: ["runner/n/b"] }))).toEqual(asStored(firm));
    expect(await pool.find({ pool: "pool/p", owner: "a" })).toEqual(asStored(firm));
    const other = await pool.offer(by("b", { names: ["runner/n/b"] }));
    await expect(pool.offer(by("a", { names: ["runner/n/b"] }))).rejects.toMatchObject({ code: "RUNNER_NAME_TAKEN" });
    expect(await pool.find({ pool: "pool/p", owner: "b" })).toEqual(other);
  });

  test("a value that another owner holds is refused in check, and PLAN_STALE in create; both name the holder", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/24") });
    await pool.claim(requestFor("a", "10.0.0.5"));
    await expect(pool.offer(requestFor("b", "10.0.0.5"))).rejects.toMatchObject({
      message:
        "IP_IN_USE: Address 10.0.0.5 of IPPool p is reserved by a. Request another value, or release that one first.",
    });
    await expect(pool.claim(requestFor("b", "10.0.0.5"))).rejects.toMatchObject({
      message:
        "PLAN_STALE: Address 10.0.0.5 of IPPool p is reserved by a now. Run up again: it will plan with what is free now.",
    });
  });

  test("an owner holds two leases while it is replaced, and each is found by its value", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const old = await pool.claim(by("a", { names: ["runner/n/a"] }));
    pass(1);
    const next = await pool.claim(by("a", { names: ["runner/n/a"], values: ranges("7") }));
    expect((await pool.leases("pool/p")).map(firstOf)).toEqual([1n, 7n]);
    expect(await pool.find({ pool: "pool/p", owner: "a" })).toEqual(asStored(next));
    expect(await pool.find({ pool: "pool/p", value: 1n })).toMatchObject({ uid: old.uid, names: [] });
    await pool.release("pool/p", old.leaseId);
    expect((await pool.leases("pool/p")).map(({ state }) => state)).toEqual(["quarantined", "reserved"]);
    await expect(pool.claim(by("b", { names: ["runner/n/a"] }))).rejects.toMatchObject({ code: "RUNNER_NAME_TAKEN" });
  });

  test("a preview of another value that is not merged does not change the owner's lease", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const names = ["runner/n/a"];
    const firm = await pool.claim(by("a", { names }));
    pass(1);
    const offer = await pool.offer(by("a", { names, values: ranges("5") }));
    expect(offer).toMatchObject({ state: "offered", ranges: ranges("5") });
    expect(await pool.find({ pool: "pool/p", owner: "a" })).toEqual(asStored(firm));
    const renewed = await pool.claim(by("a", { names }));
    expect(asStored(renewed)).toEqual({
      ...asStored(firm),
      leaseId: renewed.leaseId,
      updatedAt: START + 1000,
      lastSeen: START + 1000,
    });
    expect((await pool.leases("pool/p")).map(({ state }) => state)).toEqual(["reserved"]);
  });

  test("a rename moves the lease to its new owner under the same id", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const lease = await pool.claim(by("old", { names: ["runner/n/a"] }));
    const moved = await pool.change("pool/p", lease.leaseId, { owner: "new" });
    expect(asStored(moved)).toEqual({ ...asStored(lease), owner: "new" });
    expect(await pool.find({ pool: "pool/p", owner: "old" })).toBeUndefined();
    expect(firstOf(await pool.claim(by("new", { names: ["runner/n/a"] })))).toBe(1n);
    expect(firstOf(await pool.claim(by("old")))).toBe(2n);
  });

  test("an offer cannot be changed, only claimed", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const { leaseId } = await pool.offer(by("a"));
    await expect(pool.change("pool/p", leaseId, { state: "used" })).rejects.toMatchObject({ code: "INPUT_INVALID" });
    expect(await pool.release("pool/p", leaseId)).toBe(false);
    expect(await pool.leases("pool/p")).toMatchObject([{ owner: "a", state: "offered" }]);
  });

  test("history has the owner and values of each lease, and no offers", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    await pool.offer(by("a"));
    const lease = await pool.claim(by("a", { by: "commit 1" }));
    pass(1);
    await pool.change("pool/p", lease.leaseId, { state: "used", usedBy: "c1" });
    pass(1);
    await pool.change("pool/p", lease.leaseId, { owner: "b" });
    pass(1);
    await pool.release("pool/p", lease.leaseId);
    const events = await historyOf(pool, "pool/p");
    const user = engine.actorName?.("unknown") ?? "commit 1";
    expect(events.map(({ at, what, owner, by, formerOwner }) => [at - START, what, owner, by, formerOwner])).toEqual([
      [0, "claimed", "a", user, undefined],
      [1000, "used", "a", user, undefined],
      [2000, "renamed", "b", user, "a"],
      [3000, "released", "b", user, undefined],
    ]);
    expect(await historyOf(pool, "pool/p", START + 1001)).toEqual(events.slice(2));
    const [first] = (await pool.events({ pool: "pool/p", limit: 1 })).events;
    expect((await pool.events({ pool: "pool/p", after: first!.id, limit: 2 })).events).toEqual(events.slice(1, 3));
  });

  test("leases are listed in the order of their values, page by page", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-99"), kind: "id" });
    for (const value of ["40", "7", "99", "12"]) await pool.claim(requestFor(`owner of ${value}`, value));
    expect((await pool.leases("pool/p")).map(firstOf)).toEqual([7n, 12n, 40n, 99n]);
    expect((await pool.leases("pool/p", { after: 7n, limit: 2 })).map(firstOf)).toEqual([12n, 40n]);
    expect(await pool.leases("pool/none")).toEqual([]);
  });

  test("operations that wait together share a commit, and an error fails only its own operation", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-200"), kind: "id" });
    const requests = Array.from({ length: 150 }, (_, i) => (i % 10 === 3 ? requestFor(`x${i}`, "500") : by(`o${i}`)));
    const results = await Promise.allSettled(requests.map((request) => pool.claim(request)));
    const values = results.flatMap((result) => (result.status === "fulfilled" ? [firstOf(result.value)] : []));
    expect(new Set(values).size).toBe(135);
    expect(results.filter(({ status }) => status === "rejected")).toHaveLength(15);
    expect(await pool.fsck()).toEqual([]);
  });
}
