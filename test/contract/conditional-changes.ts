import { expect, test } from "vitest";
import { historyOf } from "../../provider/ipam/interface";
import { by, createFixture, createPool, type Engine, firstOf, ranges, START } from "./fixture";
import { refusal } from "./refusal";

/** Changes that compare the lease's state in their own transaction, and claims that may be retried. */
export function conditionalChangeContract(engine: Engine): void {
  test("of two concurrent uses of a reservation, or a use and a release, one succeeds", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const onlyIf = { state: "reserved" } as const;
    const use = (leaseId: string, usedBy: string) =>
      another().change("pool/p", leaseId, { state: "used", usedBy }, { onlyIf });
    const { leaseId } = await pool.claim(by("a"));
    const uses = await Promise.allSettled([use(leaseId, "x"), use(leaseId, "y")]);
    expect(uses.map(({ status }) => status).sort()).toEqual(["fulfilled", "rejected"]);
    const loser = uses.find((result) => result.status === "rejected")!;
    expect(loser.reason).toMatchObject({ code: "LEASE_CHANGED" });
    expect(await pool.release("pool/p", leaseId, { onlyIf })).toBe(false);
    expect(await pool.release("pool/p", leaseId, { onlyIf: { state: "used", usedBy: "z" } })).toBe(false);
    const { usedBy } = (await pool.find({ pool: "pool/p", leaseId }))!;
    expect(await pool.release("pool/p", leaseId, { onlyIf: { state: "used", usedBy: usedBy! } })).toBe(true);
  });

  test("of two concurrent changes of a lease as it was read one succeeds: the data is compared in the transaction", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const { leaseId } = await pool.claim(by("a", { data: { run: "r0", name: "n" } }));
    const ifRun = (run?: string) => ({ onlyIf: { data: { run } } });
    const change = (run: string) => another().change("pool/p", leaseId, { data: { run } }, ifRun("r0"));
    const changes = await Promise.allSettled([change("r1"), change("r2")]);
    expect(changes.map(({ status }) => status).sort()).toEqual(["fulfilled", "rejected"]);
    const loser = changes.find((result) => result.status === "rejected")!;
    expect(loser.reason).toMatchObject(refusal("LEASE_CHANGED", leaseId));
    await expect(pool.close("pool/p", leaseId, ifRun("r0"))).rejects.toMatchObject({ code: "LEASE_CHANGED" });
    expect(await pool.release("pool/p", leaseId, ifRun("r0"))).toBe(false);
    expect(await pool.release("pool/p", leaseId, ifRun())).toBe(false);
    await pool.change("pool/p", leaseId, { data: {} });
    expect(await pool.release("pool/p", leaseId, ifRun())).toBe(true);
  });

  test("an idempotent claim by the same owner returns the same lease id, and restarts the ttl", async () => {
    const { pool, another, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const request = by("a", { ttl: 60, idempotent: true });
    const [first, second] = await Promise.all([pool.claim(request), another().claim(request)]);
    expect(second.leaseId).toBe(first.leaseId);
    pass(50);
    const again = await pool.claim(request);
    expect(again).toMatchObject({ leaseId: first.leaseId, expiresAt: START + 110_000 });
    const other = by("a", { idempotent: true, values: ranges("7") });
    await expect(pool.claim(other)).rejects.toMatchObject({ code: "RESERVATION_EXISTS" });
    await pool.change("pool/p", first.leaseId, { state: "used", usedBy: "x" });
    await expect(pool.claim(request)).rejects.toMatchObject({ code: "RESERVATION_EXISTS" });
    expect(await pool.claim({ ...request, usedBy: "x" })).toMatchObject({ leaseId: first.leaseId, usedBy: "x" });
    expect(await pool.leases("pool/p")).toHaveLength(1);
  });

  test("a ttl restarts when a used lease is reserved again", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const { leaseId } = await pool.claim(by("a", { ttl: 60 }));
    expect(await pool.change("pool/p", leaseId, { state: "used", usedBy: "x" })).not.toHaveProperty("expiresAt");
    pass(3600);
    const reserved = await pool.change("pool/p", leaseId, { state: "reserved" });
    expect(reserved).toMatchObject({ state: "reserved", expiresAt: START + 3_660_000 });
    pass(61);
    expect(await pool.find({ pool: "pool/p", leaseId })).toBeUndefined();
    expect(firstOf(reserved)).toBe(1n);
  });

  const { actorName = (actor) => actor } = engine;
  test("the history names the user of each change; an expiry has none", async () => {
    const { another, pass } = await createFixture(engine);
    const [ann, bob] = [another({ actor: "ann@host" }), another({ actor: "bob@host" })];
    await createPool(ann, { ranges: ranges("1-9"), kind: "id" });
    const { leaseId } = await ann.claim(by("a", { ttl: 60 }));
    pass(1);
    await bob.change("pool/p", leaseId, { state: "used", usedBy: "web" });
    pass(1);
    await bob.change("pool/p", leaseId, { state: "reserved" });
    pass(61);
    await ann.claim(by("b"));
    const events = (await historyOf(ann, "pool/p")).filter(({ owner }) => owner === "a");
    expect(events.map(({ what, usedBy, by }) => [what, usedBy, by])).toEqual([
      ["claimed", undefined, actorName("ann@host")],
      ["used", "web", actorName("bob@host")],
      ["unused", undefined, actorName("bob@host")],
      ["expired", undefined, undefined],
    ]);
  });
}
