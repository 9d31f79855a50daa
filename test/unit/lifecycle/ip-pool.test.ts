import { beforeEach, describe, expect, test } from "vitest";
import { findSpec, findUsage, listSpecs } from "../../../provider/ipam/interface";
import { UNKNOWN, type Values } from "../../../provider/lifecycle/values";
import { ownerOf, Stage } from "./stage";

let stage: Stage;
beforeEach(async () => {
  stage = await Stage.up();
});

const lb = (more: Values = {}): Values => ({ ranges: ["203.0.113.10-203.0.113.19"], type: "loadBalancer", ...more });
/** A reference to a pool, as the SDK passes it. */
const settings = ({ poolName, addressSpace, type, ranges, tenant, quota }: Values): Values => ({
  poolName,
  addressSpace,
  type,
  ranges,
  ...(tenant ? { tenant } : {}),
  ...(quota ? { quota } : {}),
});
const ipIn = (pool: Values, more: Values = {}): Values => ({ pool: settings(pool), ...more });

test("the first preview shows a pool and an address in it; up gives the same and contacts no host", async () => {
  const pool = await stage.preview("IPPool", "lb", lb());
  expect(pool).toMatchObject({ poolName: "lb", ranges: ["203.0.113.10-203.0.113.19"], allocation: "hashed" });
  const ip = await stage.preview("IPReservation", "web", ipIn(pool));
  expect(ip.ip).toMatch(/^203\.0\.113\.1\d$/);
  expect(ip.cidr).toBe(`${ip.ip}/32`);
  const made = await stage.make("IPPool", "lb", lb());
  expect(made).toMatchObject({ capacity: 10, allocated: 1, available: 9, utilizationPercent: 10, warnings: [] });
  expect(await stage.make("IPReservation", "web", ipIn(made))).toMatchObject({
    ip: ip.ip,
    state: "reserved",
    drift: [],
  });
  expect(stage.fleet.contacted).toEqual([]);
});

describe("inputs that do not fit together", () => {
  test.each([
    [{}, /^INPUT_INVALID: ranges is missing/],
    [{ labels: UNKNOWN }, /^INPUT_INVALID: ranges is missing/],
    [{ ranges: ["10.0.0.1/24"] }, /^INPUT_INVALID: ranges\[0\] must be a CIDR without host bits/],
    [{ ranges: ["10.0.0.9-10.0.0.1"] }, /^INPUT_INVALID: ranges\[0\]/],
    [{ ranges: ["10.0.0.0-fd00::1"] }, /^INPUT_INVALID: ranges\[0\]/],
    [{ ranges: ["10.0.0.0/24"], prefixLength: 28 }, /^INPUT_INVALID: prefixLength does not go with type container/],
    [{ ranges: ["10.0.0.0/24"], type: "nodePort" }, /^INPUT_INVALID: ranges does not go with type nodePort/],
    [{ type: "nodePort", portRange: "0-99" }, /^INPUT_INVALID: portRange must be FIRST-LAST/],
    [{ ranges: ["10.0.0.0/24"], reserved: ["10.0.1.1"] }, /^INPUT_INVALID: reserved has 10\.0\.1\.1, which is not/],
    [{ ranges: ["10.0.0.0/24"], staticOnly: ["10.0.0.0/23"] }, /^INPUT_INVALID: staticOnly has 10\.0\.0\.0\/23/],
    [{ ranges: ["10.0.0.0/24"], reserved: ["30080"] }, /^INPUT_INVALID: reserved has 30080, which is not in the pool/],
    [{ type: "nodePort", reserved: ["80"] }, /^INPUT_INVALID: reserved has 80, which is not in the pool/],
    [{ type: "nodePort", staticOnly: ["10.0.0.1"] }, /^INPUT_INVALID: staticOnly has 10\.0\.0\.1, which is not in the/],
    [{ ranges: ["10.0.0.0/08"] }, /^INPUT_INVALID: ranges\[0\] must be a CIDR/],
    [
      { ranges: ["10.0.0.0/24"], reserved: ["10.0.0.0/28"], staticOnly: ["10.0.0.64/28", "10.0.0.8/30"] },
      /^INPUT_INVALID: staticOnly has 10\.0\.0\.8\/30, which is in reserved and so is never given out/,
    ],
    [
      { parent: { poolName: "big", ranges: ["10.0.0.0/24", "10.0.2.0/24"] }, prefixLength: 23 },
      /^INPUT_INVALID: prefixLength is 23: a block of 512 addresses is larger than its parent big, which has 256 in a row/,
    ],
    [
      { parent: { poolName: "big", ranges: ["10.0.0.0/24"] }, prefixLength: 64 },
      /^INPUT_INVALID: prefixLength is 64, and addresses of big have 32 bits/,
    ],
    [{ ranges: ["10.0.0.0/24"], warnAtPercent: 101 }, /^INPUT_INVALID: warnAtPercent/],
    [{ ranges: ["10.0.0.0/24"], colour: "red" }, /^INPUT_INVALID/],
  ])("%j is refused", async (news, reason) => {
    expect(await stage.refusal("IPPool", "p", news)).toMatch(reason);
  });
});

test("no two pools or networks of one address space overlap; in another space they may", async () => {
  await stage.network();
  await stage.make("IPPool", "a", { ranges: ["10.0.0.0/24"] });
  expect(await stage.refusal("IPPool", "b", { ranges: ["10.0.0.128/25"] })).toMatch(
    /^POOL_OVERLAP: 10\.0\.0\.128\/25 overlaps 10\.0\.0\.0\/24, which is held by .*::a for IPPool a\./,
  );
  expect(await stage.refusal("IPPool", "b", { ranges: ["10.130.0.0/24"] })).toMatch(
    /^POOL_OVERLAP: .*network training/,
  );
  await stage.make("IPPool", "b", { ranges: ["10.0.0.0/24"], addressSpace: "site-b" });
});

test("a pool that is renamed and grows in one up keeps its lease", async () => {
  const pool = await stage.make("IPPool", "lb", lb());
  const wider = ["203.0.113.10-203.0.113.29"];
  const renamed = await stage.change("IPPool", "public", pool, lb({ ranges: wider }));
  expect(renamed).toMatchObject({ leaseId: pool.leaseId, poolName: "lb", ranges: wider });
  expect(renamed.owner).toMatch(/::public$/);
});

test("a pool that is renamed and replaced in one up gets its own range again", async () => {
  const pool = await stage.make("IPPool", "lb", lb());
  const lifecycle = stage.of("IPPool");
  const caller = { owner: ownerOf("IPPool", "public"), dryRun: false };
  const { inputs } = await lifecycle.check(caller, pool, lb({ poolName: "public" }));
  expect(await lifecycle.diff(pool, inputs)).toMatchObject({ replaces: ["poolName"], deleteBeforeReplace: true });
  const recreated = await lifecycle.check(caller, undefined, lb({ poolName: "public" }));
  expect(recreated.failures).toEqual([]);
  await lifecycle.delete(pool);
  expect((await lifecycle.create(recreated.inputs)).props).toMatchObject({ poolName: "public", owner: caller.owner });
  expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
});

test("growing is an update that keeps the lease; shrinking below a lease is refused with that lease", async () => {
  const pool = await stage.make("IPPool", "lb", lb());
  const ip = await stage.make("IPReservation", "web", ipIn(pool, { ip: "203.0.113.19" }));
  const grown = await stage.change("IPPool", "lb", pool, lb({ ranges: ["203.0.113.10-203.0.113.29"] }));
  expect(grown).toMatchObject({ leaseId: pool.leaseId, capacity: 20, allocated: 1 });
  await stage.make("IPReservation", "new", ipIn(grown, { ip: "203.0.113.29" }));
  const lost = /^POOL_IN_USE: IPPool lb cannot lose values that are held: .*203\.0\.113\.19 [^;]*::web/;
  const shorter = ["203.0.113.10-203.0.113.15"];
  expect(await stage.refusal("IPPool", "lb", lb({ ranges: shorter }), grown)).toMatch(lost);
  expect(await stage.refusal("IPPool", "lb", lb({ ranges: grown.ranges, reserved: ["203.0.113.19"] }), grown)).toMatch(
    lost,
  );
  await expect(stage.of("IPPool").update("lb", grown, { ...grown, ranges: shorter })).rejects.toThrow(lost);
  expect(await findUsage(stage.pool.ipam, "pool/lb")).toMatchObject({ capacity: 20n });
  expect(await stage.of("IPReservation").diff(ip, ip)).toMatchObject({ changes: false });
});

test("an address in a range that the same preview adds is shown", async () => {
  const pool = await stage.make("IPPool", "lb", lb());
  const grown = await stage.preview("IPPool", "lb", lb({ ranges: ["203.0.113.10-203.0.113.29"] }), pool);
  const shown = await stage.preview("IPReservation", "new", ipIn(grown, { ip: "203.0.113.29" }));
  expect(shown.ip).toBe("203.0.113.29");
});

test("a pool with leases cannot be deleted; the error names their owners", async () => {
  const pool = await stage.make("IPPool", "lb", lb());
  const ip = await stage.make("IPReservation", "web", ipIn(pool));
  await expect(stage.of("IPPool").delete(pool)).rejects.toThrow(/^POOL_IN_USE: IPPool lb still has leases: .*::web/);
  await stage.of("IPReservation").delete(ip);
  await stage.of("IPPool").delete(pool);
  expect(await findSpec(stage.pool.ipam, "pool/lb")).toBeUndefined();
  expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
});

test("an address whose pool is gone can still be deleted", async () => {
  const pool = await stage.make("IPPool", "lb", lb());
  const ip = await stage.make("IPReservation", "web", ipIn(pool));
  await stage.pool.release("pool/lb", String(ip.leaseId));
  await stage.of("IPPool").delete(pool);
  await stage.make("IPPool", "other", { ranges: ["10.1.0.0/24"] });
  await stage.of("IPReservation").delete(ip);
});

test("preview finds exhaustion and quotas, counts its own requests, and names the holders", async () => {
  const pool = await stage.make("IPPool", "lb", lb({ ranges: ["203.0.113.10-203.0.113.11"] }));
  await stage.make("IPReservation", "a", ipIn(pool));
  await stage.preview("IPReservation", "b", ipIn(pool));
  expect(await stage.refusal("IPReservation", "c", ipIn(pool))).toMatch(
    /^POOL_EXHAUSTED: No address is free in IPPool lb \(203\.0\.113\.10\/31\)\. Holders, longest unseen first: 203\.0\.113\.1[01] \S*::a \(last seen [^;]*; \S* \S*::b \(promised in a preview\)/,
  );
  const limited = await stage.make("IPPool", "few", { ranges: ["10.0.0.0/24"], quota: { maxReservations: 1 } });
  await stage.preview("IPReservation", "d", ipIn(limited));
  expect(await stage.refusal("IPReservation", "e", ipIn(limited))).toMatch(
    /^POOL_QUOTA: IPPool few would have 2 leases/,
  );
});

test("a quota that changes in the same run counts in preview as it will in up", async () => {
  const few = { ranges: ["10.0.0.0/24"], quota: { maxReservations: 1 } };
  const more = { ...few, quota: { maxReservations: 2 } };
  const before = await stage.make("IPPool", "few", few);
  await stage.make("IPReservation", "a", ipIn(before));
  expect(await stage.refusal("IPReservation", "b", ipIn(before))).toMatch(
    /^POOL_QUOTA: IPPool few would have 2 leases/,
  );
  const raised = await stage.preview("IPPool", "few", more, before);
  const shown = await stage.preview("IPReservation", "b", ipIn(raised));
  const pool = await stage.change("IPPool", "few", before, more);
  expect(await stage.make("IPReservation", "b", ipIn(pool))).toMatchObject({ ip: shown.ip });
  const lowered = await stage.preview("IPPool", "few", { ...few, ranges: ["10.0.0.0/23"] }, pool);
  expect(await stage.refusal("IPReservation", "c", ipIn(lowered))).toMatch(
    /^POOL_QUOTA: IPPool few would have 3 leases/,
  );
  const removed = await stage.preview("IPPool", "few", { ranges: few.ranges }, pool);
  const third = await stage.preview("IPReservation", "c", ipIn(removed));
  const open = await stage.change("IPPool", "few", pool, { ranges: few.ranges });
  expect(await stage.make("IPReservation", "c", ipIn(open))).toMatchObject({ ip: third.ip });
  expect(stage.warnings).toEqual([]);
});

test("a pool with a quota that is given by name keeps it", async () => {
  await stage.make("IPPool", "few", { ranges: ["10.0.0.0/24"], quota: { maxReservations: 1 } });
  await stage.make("IPReservation", "a", { pool: "few" });
  expect(await stage.refusal("IPReservation", "b", { pool: "few" })).toMatch(/^POOL_QUOTA: /);
});

test("a pool that is 80 % full: preview warns for new and unchanged resources, and the pool has it as output after a refresh", async () => {
  const pool = await stage.make("IPPool", "lb", lb());
  for (let i = 0; i < 7; i++) await stage.preview("IPReservation", `r${i}`, ipIn(pool));
  expect(stage.warnings).toEqual([]);
  await stage.preview("IPReservation", "r7", ipIn(pool));
  const warnings = ["80 % or more of the 10 addresses of IPPool lb are held or promised."];
  expect(stage.warnings.splice(0)).toEqual(warnings);
  await stage.preview("IPPool", "lb", lb(), pool);
  expect(stage.warnings).toEqual(warnings);
  const { props } = await stage.of("IPPool").read("lb", pool);
  expect(props).toMatchObject({ utilizationPercent: 80, warnings });
});

test("a vip pool, and one with autoAssign false, serve only requests by value; reserved values are never given", async () => {
  const vip = await stage.make("IPPool", "vip", { ranges: ["10.0.0.0/28"], type: "vip", reserved: ["10.0.0.1"] });
  expect(await stage.refusal("IPReservation", "a", ipIn(vip))).toMatch(/^IP_NOT_REQUESTED/);
  expect(await stage.refusal("IPReservation", "a", ipIn(vip, { ip: "10.0.0.1" }))).toMatch(/^IP_RESERVED/);
  expect(await stage.refusal("IPReservation", "a", ipIn(vip, { ip: "10.0.1.1" }))).toMatch(/^IP_OUTSIDE_POOL/);
  expect(await stage.preview("IPReservation", "a", ipIn(vip, { ip: "10.0.0.2" }))).toMatchObject({ ip: "10.0.0.2" });
});

test("a block of a parent has its size in the parent's family, and the parent cannot be deleted before it", async () => {
  const parent = await stage.make("IPPool", "all", { ranges: ["10.96.0.0/12"], allocation: "lowest" });
  const news = (more: Values = {}): Values => ({ parent: settings(parent), prefixLength: 20, ...more });
  const first = await stage.preview("IPPool", "a", news());
  const second = await stage.preview("IPPool", "b", news());
  expect([first.ranges, second.ranges]).toEqual([["10.96.0.0/20"], ["10.96.16.0/20"]]);
  const tenant = { org: "acme", project: "web" };
  const made = await stage.make("IPPool", "b", news({ tenant }));
  expect(made).toMatchObject({ ranges: ["10.96.16.0/20"], capacity: 4096 });
  expect((await stage.make("IPReservation", "ip", ipIn(made, { tenant }))).ip).toMatch(/^10\.96\.(1[6-9]|2\d|3[01])\./);
  await expect(stage.of("IPPool").delete(parent)).rejects.toThrow(/^POOL_IN_USE: .*10\.96\.16\.0\/20 .*::b/);
  expect(await stage.of("IPPool").diff(made, made)).toMatchObject({ changes: false });
});

test("a nodePort pool allocates ports", async () => {
  const ports = await stage.make("IPPool", "np", { type: "nodePort" });
  expect(ports).toMatchObject({ ranges: ["30000-32767"], capacity: 2768 });
  const port = await stage.make("IPReservation", "web", ipIn(ports, { port: 30080 }));
  expect(port).toMatchObject({ port: 30080, ip: "30080" });
  stage.newRun();
  expect(await stage.refusal("IPReservation", "b", ipIn(ports, { port: 30080 }))).toBe(""); // the other resource may release it in this run
  expect(await stage.refusal("IPReservation", "b", ipIn(ports, { port: 80 }))).toMatch(/is not in IPPool np/);
  expect(await stage.refusal("IPReservation", "b", ipIn(ports, { ip: "10.0.0.1" }))).toMatch(
    /^INPUT_INVALID: ip cannot/,
  );
});

test("a nodePort pool never gives reserved ports, gives static ports only by value, and has no blocks", async () => {
  const given = { type: "nodePort", portRange: "30000-30003", reserved: ["30001", "30000"], staticOnly: ["30003"] };
  const ports = await stage.make("IPPool", "np", given);
  expect(ports).toMatchObject({ reserved: ["30000-30001"], staticOnly: ["30003"] });
  expect(await stage.make("IPReservation", "a", ipIn(ports))).toMatchObject({ port: 30002 });
  expect(await stage.refusal("IPReservation", "b", ipIn(ports))).toMatch(/^POOL_EXHAUSTED/);
  expect(await stage.refusal("IPReservation", "b", ipIn(ports, { port: 30000 }))).toMatch(/^IP_RESERVED: Port 30000/);
  expect(await stage.make("IPReservation", "b", ipIn(ports, { port: 30003 }))).toMatchObject({ port: 30003 });
  expect(await stage.refusal("IPPool", "block", { parent: "np", prefixLength: 30 })).toMatch(
    /^INPUT_INVALID: parent has ports/,
  );
});

describe("tenants without a pool", () => {
  const acme = { org: "acme", project: "web" };

  test("get a block at first use, which preview shows, and no two blocks overlap", async () => {
    const ask = (org: string, type = "clusterIP"): Values => ({ tenant: { org, project: "web" }, type });
    const shown = await stage.preview("IPReservation", "a", ask("acme"));
    expect(shown).toMatchObject({ pool: { poolName: "tenant/acme/web/clusterIP", ranges: ["10.96.0.0/20"] } });
    const a = await stage.make("IPReservation", "a", ask("acme"));
    const b = await stage.make("IPReservation", "b", ask("other"));
    const lb = await stage.make("IPReservation", "c", ask("acme", "loadBalancer"));
    expect(a.ip).toBe(shown.ip);
    expect([b, lb].map(({ pool }) => (pool as Values).ranges)).toEqual([["10.96.16.0/20"], ["192.168.0.0/24"]]);
    const again = await stage.make("IPReservation", "d", ask("acme"));
    expect((again.pool as Values).ranges).toEqual(["10.96.0.0/20"]);
    expect(await stage.of("IPReservation").diff(a, a)).toMatchObject({ changes: false });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  describe("that have pools of their own", () => {
    const ask = (more: Values = {}): Values => ({ tenant: acme, type: "loadBalancer", ...more });
    const own = (name: string, range: string, more: Values = {}): Promise<Values> =>
      stage.make("IPPool", name, lb({ ranges: [range], tenant: acme, ...more }));
    const placeOf = ({ pool }: Values): unknown => (pool as Values).poolName;

    test("get their addresses there, in preview and up, and no block is allocated", async () => {
      await own("acme-lb", "203.0.113.10-203.0.113.19");
      await own("acme-cluster", "203.0.114.0/24", { type: "clusterIP" });
      await stage.make("IPPool", "a-others", lb({ ranges: ["203.0.115.0/24"], tenant: { org: "x", project: "web" } }));
      await stage.make("IPPool", "a-shared", lb({ ranges: ["203.0.116.0/24"] }));
      const shown = await stage.preview("IPReservation", "a", ask());
      expect(placeOf(shown)).toBe("acme-lb");
      const made = await stage.make("IPReservation", "a", ask());
      expect(made).toMatchObject({ ip: shown.ip, pool: shown.pool });
      expect((await listSpecs(stage.pool.ipam)).filter(({ name }) => name.startsWith("pool/tenant"))).toEqual([]);
      expect(await stage.of("IPReservation").diff(made, made)).toMatchObject({ changes: false });
    });

    test("get them from the first of their pools by name that has room, and keep them", async () => {
      await own("b", "203.0.113.10");
      await own("a", "203.0.113.20-203.0.113.21", { quota: { maxReservations: 1 } });
      await own("c", "203.0.113.30", { autoAssign: false });
      const first = await stage.preview("IPReservation", "one", ask());
      expect(placeOf(first)).toBe("a");
      expect(placeOf(await stage.preview("IPReservation", "two", ask()))).toBe("b");
      const one = await stage.make("IPReservation", "one", ask());
      const two = await stage.make("IPReservation", "two", ask());
      expect([one, two].map(placeOf)).toEqual(["a", "b"]);
      expect(one.ip).toBe(first.ip);
      expect(await stage.refusal("IPReservation", "three", ask())).toMatch(/^POOL_QUOTA: IPPool a /);
      const named = await stage.make("IPReservation", "three", ask({ ip: "203.0.113.30" }));
      expect(placeOf(named)).toBe("c");
      await own("0", "203.0.113.40");
      const { inputs } = await stage.check("IPReservation", "two", ask(), two);
      expect(await stage.of("IPReservation").diff(two, inputs)).toMatchObject({ changes: false });
    });

    test("get none in a pool that only a preview of another program has shown", async () => {
      const shop = lb({ ranges: ["203.0.113.10-203.0.113.19"], tenant: acme });
      await stage.preview("IPPool", "acme-lb", shop);
      expect(placeOf(await stage.preview("IPReservation", "a", ask()))).toBe("acme-lb"); // by the program that creates it
      stage.newRun();
      const shown = await stage.preview("IPReservation", "a", ask());
      expect(placeOf(shown)).toBe("tenant/acme/web/loadBalancer");
      stage.newRun();
      expect(await stage.make("IPReservation", "a", ask())).toMatchObject({ ip: shown.ip, pool: shown.pool });
      stage.newRun();
      expect(placeOf(await stage.make("IPReservation", "b", ask()))).toBe("tenant/acme/web/loadBalancer");
      expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
    });

    test("keep the addresses of their block when they get a pool later", async () => {
      const before = await stage.make("IPReservation", "a", ask());
      expect(placeOf(before)).toBe("tenant/acme/web/loadBalancer");
      await own("acme-lb", "203.0.113.10-203.0.113.19");
      expect(placeOf(await stage.make("IPReservation", "b", ask()))).toBe("acme-lb");
      const { inputs } = await stage.check("IPReservation", "a", ask(), before);
      expect(await stage.of("IPReservation").diff(before, inputs)).toMatchObject({ changes: false });
      expect(placeOf((await stage.check("IPReservation", "a", ask())).inputs)).toBe("tenant/acme/web/loadBalancer");
    });

    test("get ports from their own pool of ports", async () => {
      await stage.make("IPPool", "np", { type: "nodePort", portRange: "30000-30009", tenant: acme });
      const made = await stage.make("IPReservation", "a", ask({ type: "nodePort", port: 30003 }));
      expect(made).toMatchObject({ port: 30003, pool: { poolName: "np" } });
    });
  });

  test("a name cannot imitate another tenant's", async () => {
    const one = await stage.make("IPReservation", "a", { tenant: { org: "a.b", project: "c" }, type: "clusterIP" });
    const two = await stage.make("IPReservation", "b", { tenant: { org: "a", project: "b.c" }, type: "clusterIP" });
    expect((one.pool as Values).ranges).not.toEqual((two.pool as Values).ranges);
  });

  test.each([
    [{ tenant: acme, type: "vip" }, /^INPUT_INVALID: Tenants get pools of type clusterIP and loadBalancer/],
    [{ type: "clusterIP" }, /^INPUT_INVALID: tenant is missing/],
    [{ tenant: acme }, /^INPUT_INVALID: runner is missing/],
  ])("%j is refused", async (news, reason) => {
    expect(await stage.refusal("IPReservation", "a", news)).toMatch(reason);
  });

  test("if the tenants' range is taken, the error names the overlap", async () => {
    await stage.make("IPPool", "mine", { ranges: ["192.168.7.0/24"] });
    expect(await stage.refusal("IPReservation", "a", { tenant: acme, type: "loadBalancer" })).toMatch(
      /^POOL_OVERLAP: The range that tenants share for loadBalancer: 192\.168\.0\.0\/16 overlaps 192\.168\.7\.0\/24/,
    );
  });

  test("a tenant's pool is for that tenant: addresses in it, and pools carved from it", async () => {
    const pool = await stage.make("IPPool", "lb", lb({ tenant: acme }));
    const refused =
      /^TENANT_MISMATCH: IPPool lb belongs to tenant acme\/web; this request comes from (no tenant|tenant other\/web)\./;
    const carve = (tenant?: Values): Values => ({
      parent: settings(pool),
      prefixLength: 31,
      ...(tenant && { tenant }),
    });
    for (const tenant of [undefined, { org: "other", project: "web" }]) {
      expect(await stage.refusal("IPReservation", "a", ipIn(pool, tenant && { tenant }))).toMatch(refused);
      expect(await stage.refusal("IPPool", "carved", carve(tenant))).toMatch(refused);
    }
    await stage.make("IPReservation", "a", ipIn(pool, { tenant: acme }));
    await stage.make("IPPool", "carved", carve(acme));
  });

  test("the provider's setting is the tenant of every resource without one", async () => {
    stage.deps = { ...stage.deps, tenant: acme };
    const made = await stage.make("IPReservation", "a", { type: "clusterIP" });
    expect(made).toMatchObject({ tenant: acme, pool: { poolName: "tenant/acme/web/clusterIP" } });
    const other = { org: "other", project: "web" };
    expect(await stage.make("IPPool", "lb", lb({ tenant: other }))).toMatchObject({ tenant: other });
    expect(await stage.refusal("IPReservation", "b", { pool: "lb" })).toMatch(/^TENANT_MISMATCH/);
  });
});
