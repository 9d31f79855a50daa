import { expect, test } from "vitest";
import { findUsage } from "../../provider/ipam/interface";
import { by, createFixture, createPool, type Engine, ranges, requestFor } from "./fixture";

/** Which store it is, and whether it has lost commits. */
export function identityContract(engine: Engine): void {
  test("a store keeps its id, and its version grows with every commit and with nothing else", async () => {
    const { pool, another } = await createFixture(engine);
    const { id } = await pool.describe();
    await createPool(pool, { ranges: ranges("10.0.0.0/29") });
    const before = await pool.describe();
    await findUsage(pool, "pool/p");
    await expect(pool.claim(requestFor("other", "10.9.9.9"))).rejects.toThrow(/^IP_OUTSIDE_POOL/);
    expect(await another().describe()).toEqual({ ...before, id });
    for (const owner of ["a", "b"]) await another().claim(by(owner));
    expect(await pool.describe()).toEqual({ ...before, version: before.version + 2 });
    await another().mustInclude(before);
  });

  test("claim and change return the version that their own commit made, whatever is committed at the same time", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/29") });
    const { id } = await pool.describe();
    const { version } = await pool.describe();
    const [a, b] = await Promise.all([pool.claim(by("a")), pool.claim(by("b"))]);
    const { version: claimed, epoch } = await pool.describe();
    const commits = [a, b].map((lease) => lease.version!);
    expect(Math.max(...commits.map((commit) => commit.version))).toBe(claimed);
    for (const commit of commits) expect(commit).toEqual({ version: expect.toSatisfy((v) => v > version), epoch });
    await another().offer(by("c"));
    const used = await pool.change("pool/p", a.leaseId, { state: "used" });
    await another().offer(by("d"));
    expect(used.version).toEqual({ version: claimed + 1, epoch });
    await another().mustInclude({ id, ...used.version! });
  });

  test("a store with another id is refused until the stack's leases are recovered into it", async () => {
    const { pool, another } = await createFixture(engine);
    const seen = { id: "lost", version: 40, epoch: "00000000" };
    await expect(pool.mustInclude(seen)).rejects.toThrow(/^STORE_LOST: The store at .* is new, but .* store lost\./);
    await createPool(pool, { ranges: ranges("10.0.0.0/29") });
    const own = await pool.describe();
    await expect(pool.mustInclude(seen)).rejects.toThrow(/^STORE_LOST: The store at .* is store [0-9a-f-]{32,36}, but/);
    await pool.adoptIdentity(["lost"], 40);
    await another().mustInclude(seen);
    await another().mustInclude(own);
    await expect(another().mustInclude({ ...seen, version: 50 })).rejects.toThrow(/version 50 of it was seen/);
    await pool.adoptIdentity(["lost"], 7);
    expect(await pool.describe()).toMatchObject({ id: own.id, version: 40 });
  });

  test("an unused store becomes the store that is recovered into it", async () => {
    const { pool } = await createFixture(engine);
    await pool.adoptIdentity(["lost", "also-lost"], 40);
    expect(await pool.describe()).toMatchObject({ id: "lost", version: 40 });
    await pool.mustInclude({ id: "also-lost", version: 39, epoch: "12345678" });
  });
}
