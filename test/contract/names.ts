import { expect, test } from "vitest";
import { asStored, by, createFixture, createPool, type Engine, ranges } from "./fixture";
import { refusal } from "./refusal";

/** Names of leases, which are unique in the whole store. */
export function nameContract(engine: Engine): void {
  test.each([
    ["network/n", "NETWORK_EXISTS", "name n"],
    ["runner/n/r", "RUNNER_NAME_TAKEN", "name r of network n"],
    ["user/n/c1", "RESERVATION_EXISTS", "c1 on network n"],
    ["host/10.0.0.9/link/br0", "DEVICE_FOREIGN", "br0 on host 10.0.0.9"],
    ["host/10.0.0.9/devices/vx", "DEVICE_FOREIGN", "vx on host 10.0.0.9"],
    ["pool/lb", "POOL_OVERLAP", "name lb"],
  ] as const)("the name %s is unique in the whole store: %s", async (name, code, what) => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    await createPool(pool, { ranges: ranges("1-9"), kind: "port", name: "pool/other" });
    const holder = await pool.claim(by("a", { names: ["user/a", name] }));
    const conflicting = { ...by("b"), pool: "pool/other", names: [name] };
    await expect(pool.offer(conflicting)).rejects.toMatchObject(refusal(code, what, "a", "IPReservation"));
    await expect(pool.claim(conflicting)).rejects.toMatchObject({ code });
    await pool.release("pool/p", holder.leaseId);
    await pool.offer(conflicting);
    pass(3601);
    expect(await pool.claim(by("c", { names: [name] }))).toMatchObject({ names: [name] });
    expect(await pool.fsck()).toEqual([]);
  });

  test("a change can replace names, and names that it leaves out are free", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("1-9"), kind: "id" });
    const lease = await pool.claim(by("a", { names: ["host/h1/x", "runner/n/a"] }));
    expect(await pool.change("pool/p", lease.leaseId, { names: ["runner/n/a", "host/h2/x"] })).toMatchObject({
      names: ["runner/n/a", "host/h2/x"],
    });
    expect(await pool.claim(by("b", { names: ["host/h1/x"] }))).toMatchObject({ owner: "b" });
    await expect(pool.change("pool/p", lease.leaseId, { names: ["host/h1/x"] })).rejects.toMatchObject({
      code: "DEVICE_FOREIGN",
    });
    expect(await pool.find({ pool: "pool/p", owner: "a" })).toMatchObject({ names: ["runner/n/a", "host/h2/x"] });
  });

  test("a lease is found by its name in any pool until it ends", async () => {
    const { pool, pass } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/28") });
    const lease = await pool.claim(by("a", { names: ["user/n/box"], ttl: 60 }));
    expect(await pool.find({ name: "user/n/box" })).toEqual(asStored(lease));
    expect(await pool.find({ name: "user/n/other" })).toBeUndefined();
    pass(61);
    expect(await pool.find({ name: "user/n/box" })).toBeUndefined();
  });

  test("a used lease keeps its user's name when it is claimed again", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/28") });
    const { leaseId } = await pool.claim(by("a"));
    await pool.change("pool/p", leaseId, { state: "used", usedBy: "box", names: ["user/n/box"] });
    const renewed = await pool.claim(by("a"));
    expect(renewed).toMatchObject({ state: "used", usedBy: "box" });
    expect(await pool.find({ name: "user/n/box" })).toMatchObject({ leaseId: renewed.leaseId });
  });
}
