import { expect, test } from "vitest";
import { by, createFixture, createPool, type Engine, extents, requestFor } from "./fixture";
import { refusal } from "./refusal";

/** Which store it is, and whether it has lost commits. */
export function identityContract(engine: Engine): void {
  test("a store keeps its id, and its version grows with every commit and with nothing else", async () => {
    const { pool, another } = await createFixture(engine);
    const { id } = await pool.identity();
    await createPool(pool, { extents: extents("10.0.0.0/29") });
    const before = await pool.identity();
    await pool.usage("pool/p");
    await expect(pool.claim(requestFor("other", "10.9.9.9"))).rejects.toMatchObject({ code: "IP_OUTSIDE_POOL" });
    expect(await another().identity()).toEqual({ ...before, id });
    for (const owner of ["a", "b"]) await another().claim(by(owner));
    expect(await pool.identity()).toEqual({ ...before, version: before.version + 2 });
    await another().mustInclude(before);
  });

  test("claim and amend return the version that their own commit made, whatever is committed at the same time", async () => {
    const { pool, another } = await createFixture(engine);
    await createPool(pool, { extents: extents("10.0.0.0/29") });
    const { id } = await pool.identity();
    const { version } = await pool.identity();
    const [a, b] = await Promise.all([pool.claim(by("a")), pool.claim(by("b"))]);
    const { version: claimed, epoch } = await pool.identity();
    const commits = [a, b].map((lease) => pool.versionOf(lease)!);
    expect(Math.max(...commits.map((commit) => commit.version))).toBe(claimed);
    for (const commit of commits) expect(commit).toEqual({ version: expect.toSatisfy((v) => v > version), epoch });
    await another().offer(by("c"));
    const used = await pool.amend("pool/p", a.leaseId, { state: "used" });
    await another().offer(by("d"));
    expect(pool.versionOf(used)).toEqual({ version: claimed + 2, epoch });
    await another().mustInclude({ id, ...pool.versionOf(used)! });
  });

  test("a store with another id is refused until the stack's leases are recovered into it", async () => {
    const { pool, another } = await createFixture(engine);
    const seen = { id: "lost", version: 40, epoch: "00000000" };
    await expect(pool.mustInclude(seen)).rejects.toMatchObject(refusal("STORE_LOST", "new", "lost"));
    const own = await pool.identity();
    await expect(pool.mustInclude(seen)).rejects.toMatchObject(refusal("STORE_LOST", own.id, "lost"));
    await pool.adoptIdentity(["lost"], 40);
    await another().mustInclude(seen);
    await another().mustInclude(own);
    await expect(another().mustInclude({ ...seen, version: 50 })).rejects.toMatchObject(
      refusal("STORE_LOST", "version 50"),
    );
    await pool.adoptIdentity(["lost"], 7);
    expect(await pool.identity()).toMatchObject({ id: own.id, version: 42 });
  });

  test("an unused store becomes the store that is recovered into it", async () => {
    const { pool } = await createFixture(engine);
    await pool.adoptIdentity(["lost", "also-lost"], 40);
    expect(await pool.identity()).toMatchObject({ id: "lost", version: 41 });
    await pool.mustInclude({ id: "also-lost", version: 39, epoch: "12345678" });
  });
}
