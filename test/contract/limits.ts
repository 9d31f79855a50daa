import { expect, test } from "vitest";
import { listUsages } from "../../provider/ipam/interface";
import type { Changes } from "../../provider/ipam/types";
import {
  address,
  by,
  createFixture,
  createPool,
  type Engine,
  existingLease,
  network,
  ranges,
  requestFor,
  runner,
} from "./fixture";
import { refusal } from "./refusal";

/** Usage, quotas, warnings and tenants of pools. */
export function limitContract(engine: Engine): void {
  test("usages returns all pools with a prefix, with offers and without expired leases", async () => {
    const { pool, pass } = await createFixture(engine);
    await pool.claim(network("n", "10.0.0.0/8"));
    for (const name of ["a", "b"]) await pool.claim({ ...runner("n", name), owner: name });
    await pool.claim({ ...address("n", "a", "x"), ttl: 60 });
    await pool.offer(address("n", "a", "y"));
    const held = async () => [...(await listUsages(pool, "runner/n/"))].map(([name, usage]) => `${name} ${usage.held}`);
    expect(await held()).toEqual(["runner/n/a 2", "runner/n/b 0"]);
    pass(61);
    expect(await held()).toEqual(["runner/n/a 1", "runner/n/b 0"]);
    expect(await listUsages(pool, "runner/m/")).toEqual(new Map());
  });

  test("a tenant's pool serves that tenant only, in preview, up, change and import", async () => {
    const { pool } = await createFixture(engine);
    const [ours, theirs] = [
      { org: "a", project: "p" },
      { org: "b", project: "p" },
    ];
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9"), tenant: ours });
    const lease = await pool.claim(by("x", { tenant: ours }));
    const refused = (who: string) => refusal("TENANT_MISMATCH", "tenant a/p", who);
    for (const request of [by("y", { tenant: theirs }), requestFor("y", "10.0.0.1"), by("y")]) {
      const who = request.tenant ? "tenant b/p" : "no tenant";
      await expect(pool.offer(request)).rejects.toMatchObject(refused(who));
      await expect(pool.claim(request)).rejects.toMatchObject(refused(who));
      await expect(pool.claim({ ...request, evictSameTenant: true })).rejects.toMatchObject(refused(who));
    }
    const change = (changes: Changes) => pool.change("pool/p", lease.leaseId, changes);
    await expect(change({ tenant: theirs })).rejects.toMatchObject(refused("tenant b/p"));
    await expect(change({ tenant: null })).rejects.toMatchObject(refused("no tenant"));
    expect(await change({ labels: { a: "b" } })).toMatchObject({ tenant: ours });
    const { conflicts } = await pool.importLeases([existingLease(by("y", { tenant: theirs }), "10.0.0.7")]);
    expect(conflicts.map(({ error }) => error)).toMatchObject([refused("tenant b/p")]);
    // Such leases exist in stores of an earlier release, which took the tenant from the pool.
    expect((await pool.importLeases([existingLease(by("y"), "10.0.0.7")])).added).toMatchObject([{ tenant: ours }]);
  });

  test("a lease in a pool without a tenant can change or lose its tenant", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.9") });
    const { leaseId } = await pool.claim(by("x", { tenant: { org: "a", project: "p" } }));
    const other = { org: "b", project: "p" };
    expect(await pool.change("pool/p", leaseId, { tenant: other })).toMatchObject({ tenant: other });
    expect(await pool.change("pool/p", leaseId, { tenant: null })).not.toHaveProperty("tenant");
  });

  test("from warnAtPercent on, every request is warned, and offers count", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.1-10.0.0.5"), warnAtPercent: 80 });
    const warnings = [];
    for (const owner of ["a", "b", "c", "d"]) warnings.push((await pool.offer(by(owner))).warnings);
    expect(warnings).toEqual([
      undefined,
      undefined,
      undefined,
      ["80 % or more of the 5 addresses of IPPool p are held or promised."],
    ]);
  });

  test("with a full quota an owner is offered another value, and can claim it once the old one is released", async () => {
    const { pool } = await createFixture(engine);
    await createPool(pool, { ranges: ranges("10.0.0.0/28"), quota: { maxIps: 1 } });
    const old = await pool.claim(requestFor("a", "10.0.0.1"));
    expect(await pool.offer(requestFor("a", "10.0.0.2"))).toMatchObject({ state: "offered" });
    await expect(pool.offer(by("b"))).rejects.toMatchObject({ code: "POOL_QUOTA" });
    await expect(pool.claim(requestFor("a", "10.0.0.2"))).rejects.toMatchObject({ code: "POOL_QUOTA" });
    await pool.release("pool/p", old.leaseId);
    expect(await pool.claim(requestFor("a", "10.0.0.2"))).toMatchObject({ state: "reserved" });
  });

  test.each([{ maxReservations: 3 }, { maxIps: 3 }])(
    "an offer that was made within %o can be claimed",
    async (quota) => {
      const { pool } = await createFixture(engine);
      await createPool(pool, { ranges: ranges("10.0.0.0/28"), quota });
      await pool.claim(requestFor("a", "10.0.0.1"));
      await pool.claim(requestFor("b", "10.0.0.2"));
      const promised = await pool.offer(by("c"));
      await pool.offer(requestFor("a", "10.0.0.9"));
      expect(await pool.offer(by("c"))).toMatchObject({ ranges: promised.ranges });
      expect(await pool.claim(by("c"))).toMatchObject({ state: "reserved", ranges: promised.ranges });
      await expect(pool.offer(by("d"))).rejects.toMatchObject({ code: "POOL_QUOTA" });
    },
  );

  test("offers that share an address count once when an offer is claimed", async () => {
    const { pool } = await createFixture(engine);
    const opening = { ranges: ranges("10.0.0.0/28") };
    await createPool(pool, { ...opening, quota: { maxIps: 4 } });
    await pool.claim(requestFor("a", "10.0.0.1"));
    await pool.claim(requestFor("b", "10.0.0.2"));
    await pool.offer(by("c"));
    for (const port of [80, 81])
      await pool.offer(by(`web ${port}`, { sharingKey: "web", ports: [{ protocol: "tcp", port }] }));
    await createPool(pool, { ...opening, quota: { maxIps: 2 } });
    await expect(pool.claim(by("c"))).rejects.toMatchObject({ code: "POOL_QUOTA" });
    await createPool(pool, { ...opening, quota: { maxIps: 3 } });
    expect(await pool.claim(by("c"))).toMatchObject({ state: "reserved" });
  });

  test("an offer that shares a held address frees nothing when an offer is claimed", async () => {
    const { pool } = await createFixture(engine);
    const opening = { ranges: ranges("10.0.0.0/28") };
    const shared = (owner: string, port: number) =>
      by(owner, { sharingKey: "web", ports: [{ protocol: "tcp", port }] });
    await createPool(pool, { ...opening, quota: { maxIps: 2 } });
    await pool.claim(shared("a", 80));
    await pool.offer(by("c"));
    await pool.offer(shared("b", 81));
    await createPool(pool, { ...opening, quota: { maxIps: 1 } });
    await expect(pool.claim(by("c"))).rejects.toMatchObject({ code: "POOL_QUOTA" });
  });
}
