import { beforeEach, describe, expect, test } from "vitest";

import { parseIp, parseRange } from "../../../provider/addressing/ip";
import { findSpec } from "../../../provider/ipam/interface";

import {
  allocate,
  allocateInput,
  allocationInput,
  type Context,
  createPool,
  createPoolInput,
  deallocate,
  deletePool,
  findAllocations,
  ipOf,
  reserve,
  reserveInput,
  reserveMany,
  showPool,
} from "../../../provider/reservations";
import { Stage } from "../lifecycle/stage";
import { codeOf, messageOf } from "./answers";

/** Pools and addresses that services ask for at run time. */
const [acme, globex] = ["acme", "globex"].map((org) => ({ org, project: "shop" })) as [Tenant, Tenant];
interface Tenant {
  org: string;
  project: string;
}
let stage: Stage;
let context: Context;
beforeEach(async () => {
  stage = await Stage.up({ quarantine: 0 });
  context = { pool: stage.pool.ipam, tenantDefaults: stage.deps.tenantDefaults };
});

const create = (input: object, as: Context = context) => createPool(as, createPoolInput.parse(input));
const take = (input: object, as: Context = context) => allocate(as, allocateInput.parse(input));
const web = { poolName: "web", ranges: ["172.20.7.0/28"], allocation: "lowest" };

describe("a pool made at run time", () => {
  test("is what the resource would make, belongs to the service, and serves stacks by its name", async () => {
    const made = await create({ ...web, reserved: ["172.20.7.0"], quota: { maxIps: 3 } });
    const twin = await Stage.up();
    await twin.make("IPPool", "web", { ...web, reserved: ["172.20.7.0"], quota: { maxIps: 3 } });
    expect(made).toEqual(await findSpec(twin.pool.ipam, "pool/web"));
    expect(await stage.pool.ipam.find({ name: "pool/web" })).toMatchObject({ owner: "service/web", type: "IPPool" });
    expect(await stage.make("IPReservation", "job", { pool: "web" })).toMatchObject({ ip: "172.20.7.1" });
    expect(await showPool(context, "web")).toMatchObject({ capacity: 15, allocated: 1 });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("may be asked for again, at the same moment too, but not with other settings", async () => {
    const [first, second] = await Promise.all([create(web), create(web)]);
    expect(second).toEqual(first);
    expect(await create(web)).toEqual(first);
    expect(await messageOf(create({ ...web, ranges: ["172.20.8.0/28"] }))).toBe(
      "POOL_OVERLAP: There is IPPool web with other settings, which belongs to service/web. Choose another name, or delete that pool first.",
    );
    await stage.make("IPPool", "stacks", { ranges: ["172.20.9.0/28"] });
    expect(await codeOf(create({ poolName: "stacks", ranges: ["172.20.9.0/28"] }))).toBe("POOL_OVERLAP");
  });

  test("is refused where it overlaps", async () => {
    await stage.make("IPPool", "other", { ranges: ["172.20.0.0/16"] });
    expect(await messageOf(create(web))).toBe(
      "POOL_OVERLAP: 172.20.7.0/28 overlaps 172.20.0.0/16, which is held by org/urn:pulumi:dev::p::overlay:index:IPPool::other for IPPool other. Request another range, or release that one first.",
    );
    expect(await codeOf(create({ ...web, addressSpace: "lab" }))).toBe("done");
  });

  test("can be carved from another, and have ports", async () => {
    await stage.make("IPPool", "big", { ranges: ["10.40.0.0/16"], allocation: "lowest" });
    const block = await create({ poolName: "small", parent: "big", prefixLength: 24 });
    expect(block).toMatchObject({ name: "pool/small", kind: "address" });
    expect(await create({ poolName: "small", parent: "big", prefixLength: 24 })).toEqual(block);
    await create({ poolName: "ports", type: "nodePort", portRange: "30000-30009", allocation: "lowest" });
    expect(ipOf(await take({ uid: "u1", pool: "ports" }))).toBe("30000");
  });

  test.each([
    [{ poolName: "x" }, "ranges is missing: a pool has either ranges, or a parent and a prefixLength"],
    [{ poolName: "x", parent: "nosuch", prefixLength: 24 }, "There is no pool 'pool/nosuch'"],
    [{ ...web, staticOnly: ["10.0.0.1"] }, "staticOnly has 10.0.0.1, which is not in the pool"],
  ])("%j is refused", async (input, text) => {
    expect(await messageOf(create(input))).toContain(text);
  });

  test("is deleted when it is empty, and only by the service", async () => {
    await create(web);
    const lease = await take({ uid: "u1", pool: "web" });
    expect(await codeOf(deletePool(context, "web"))).toBe("POOL_IN_USE");
    await deallocate(context, { uid: "u1" });
    expect(await deletePool(context, "web")).toMatchObject({ name: "pool/web" });
    expect(await codeOf(deletePool(context, "web"))).toBe("POOL_NOT_FOUND");
    expect(lease.pool).toBe("pool/web");
    await stage.make("IPPool", "other", web);
    await stage.network();
    for (const name of ["web", "network/training"])
      expect(await messageOf(deletePool(context, name))).toMatch(/^POOL_IN_USE: .* belongs to org\/urn:pulumi:/);
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("is of the caller's tenant", async () => {
    const as = { ...context, tenant: acme };
    expect(await create(web, as)).toMatchObject({ tenant: acme });
    expect(await codeOf(create({ poolName: "x", ranges: ["10.1.0.0/28"], tenant: globex }, as))).toBe(
      "TENANT_MISMATCH",
    );
    expect(await codeOf(deletePool({ ...context, tenant: globex }, "web"))).toBe("TENANT_MISMATCH");
  });
});

describe("the address of a service", () => {
  beforeEach(() => create(web));

  test("is held until it is released, and given again for the same uid", async () => {
    const lease = await take({ uid: "u1", pool: "web", labels: { app: "shop" } });
    expect(lease).toMatchObject({ owner: "service/u1", state: "reserved", labels: { app: "shop" } });
    expect(lease).not.toHaveProperty("expiresAt");
    expect((await take({ uid: "u1", pool: "web" })).leaseId).toBe(lease.leaseId);
    expect(await codeOf(take({ uid: "u1", pool: "web", ip: "172.20.7.9" }))).toBe("RESERVATION_EXISTS");
    expect(await codeOf(take({ uid: "u2", pool: "web", ip: ipOf(lease) }))).toBe("IP_IN_USE");
    expect((await findAllocations(context, { uid: "u1" })).map(ipOf)).toEqual([ipOf(lease)]);
    expect((await deallocate(context, { uid: "u1", pool: "web" })).map(ipOf)).toEqual([ipOf(lease)]);
    expect(await deallocate(context, { uid: "u1", pool: "web" })).toEqual([]);
    expect(await findAllocations(context, { uid: "u1" })).toEqual([]);
  });

  test("by tenant and type comes from the tenant's block, which is made at first use as for a resource", async () => {
    const input = { uid: "u1", tenant: "acme/shop", type: "clusterIP" };
    const lease = await take(input);
    expect(lease).toMatchObject({ pool: "pool/tenant/acme/shop/clusterIP", tenant: acme });
    expect((await take(input)).leaseId).toBe(lease.leaseId);
    const stacks = await stage.make("IPReservation", "job", { tenant: acme, type: "clusterIP" });
    expect((stacks.pool as { poolName: string }).poolName).toBe("tenant/acme/shop/clusterIP");
    expect((await take({ ...input, tenant: "globex/shop" })).pool).toBe("pool/tenant/globex/shop/clusterIP");
    expect((await findAllocations(context, { uid: "u1", tenant: acme, type: "clusterIP" })).map(ipOf)).toEqual([
      ipOf(lease),
    ]);
    const as = { ...context, tenant: acme };
    expect((await take({ uid: "u1", type: "clusterIP" }, as)).leaseId).toBe(lease.leaseId);
    expect((await take({ uid: "u1", type: "loadBalancer" }, as)).pool).toBe("pool/tenant/acme/shop/loadBalancer");
    expect(await findAllocations(as, { uid: "u1" })).toHaveLength(2);
    expect((await deallocate(as, { uid: "u1" })).map(({ pool }) => pool)).toEqual([
      "pool/tenant/acme/shop/clusterIP",
      "pool/tenant/acme/shop/loadBalancer",
    ]);
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("comes from the tenant's own pool, where it has one", async () => {
    await create({ poolName: "acme-ips", ranges: ["10.30.0.0/28"], type: "clusterIP" }, { ...context, tenant: acme });
    expect((await take({ uid: "u1", type: "clusterIP" }, { ...context, tenant: acme })).pool).toBe("pool/acme-ips");
  });

  test("of another tenant is not found by its uid, not even in a pool of all", async () => {
    const [a, b] = [
      { ...context, tenant: acme },
      { ...context, tenant: globex },
    ];
    const mine = await take({ uid: "u1", pool: "web" }, a);
    const theirs = await take({ uid: "u1", pool: "web" }, b);
    expect(theirs.leaseId).not.toBe(mine.leaseId);
    expect((await findAllocations(a, { uid: "u1" })).map(ipOf)).toEqual([ipOf(mine)]);
    expect((await deallocate(b, { uid: "u1" })).map(ipOf)).toEqual([ipOf(theirs)]);
  });

  test.each([
    [{ uid: "u1" }, "Neither pool nor type was given, or both."],
    [{ uid: "u1", pool: "web", type: "clusterIP" }, "Neither pool nor type was given, or both."],
    [{ uid: "u1", type: "clusterIP" }, "type names a pool of a tenant, and no tenant is given."],
    [
      { uid: "u1", type: "vip", tenant: "acme/shop" },
      "Tenants get pools of type clusterIP and loadBalancer by default",
    ],
    [{ uid: "u1", pool: "web", port: 80 }, "IPPool web has addresses, and a port was given."],
  ])("%j is refused", async (input, text) => {
    expect(await messageOf(take(input))).toContain(`INPUT_INVALID: ${text}`);
  });

  test.each(["", "a/b", "-x", "two words"])("%j is no uid", (uid) => {
    expect(allocateInput.safeParse({ uid, pool: "web" }).success).toBe(false);
  });
});

test("an address that is asked for by value is in the right one of a tenant's pools", async () => {
  const as = { ...context, tenant: acme };
  await create({ poolName: "one", ranges: ["10.30.0.0/28"], type: "clusterIP" }, as);
  await create({ poolName: "two", ranges: ["10.31.0.0/28"], type: "clusterIP" }, as);
  const lease = await allocate(as, { uid: "u1", type: "clusterIP", ip: parseIp("10.31.0.4") });
  expect(lease.pool).toBe("pool/two");
});

describe("a reservation by type", () => {
  const ask = (input: object, as: Context = context) =>
    reserve(as, reserveInput.parse({ type: "clusterIP", ...input }));

  test("is in the tenant's own pool, which is made at first use, as for resources", async () => {
    const { lease } = await ask({}, { ...context, tenant: acme, caller: "ci" });
    expect(lease).toMatchObject({ pool: "pool/tenant/acme/shop/clusterIP", tenant: acme, state: "reserved" });
    const made = await stage.make("IPReservation", "web", { tenant: acme, type: "clusterIP" });
    expect(made).toMatchObject({ pool: { poolName: "tenant/acme/shop/clusterIP" } });
    expect((await ask({ tenant: "globex/shop" })).lease.pool).toBe("pool/tenant/globex/shop/clusterIP");
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test.each([[{ by: "web" }], [{ owner: "web" }], [{ key: "k" }]])(
    "of the same %o is the same again, also from another pool",
    async (name) => {
      await create({ ...web, poolName: "a", ranges: ["172.20.7.0/31"], type: "clusterIP", tenant: acme });
      await create({ ...web, poolName: "b", ranges: ["172.20.8.0/31"], type: "clusterIP", tenant: acme });
      const tenant = "acme/shop";
      const input = { tenant, ...name };
      const first = (await ask(input)).lease;
      expect(first.pool).toBe("pool/a");
      await ask({ tenant }); // fills it
      expect((await ask({ tenant })).lease.pool).toBe("pool/b");
      expect((await ask(input)).lease.leaseId).toBe(first.leaseId);
    },
  );

  test("of several is all or none", async () => {
    const leases = await reserveMany(context, { type: "clusterIP", tenant: acme, count: 3, key: "job" });
    expect(new Set(leases.map(({ lease }) => ipOf(lease))).size).toBe(3);
    expect(leases).toMatchObject(await reserveMany(context, { type: "clusterIP", tenant: acme, count: 3, key: "job" }));
  });

  test.each([
    [{}, undefined, "INPUT_INVALID"],
    [{ tenant: "globex/shop" }, acme, "TENANT_MISMATCH"],
    [{ pool: "web" }, acme, "INPUT_INVALID"],
    [{ type: undefined, tenant: "acme/shop", pool: "web" }, undefined, "INPUT_INVALID"],
    [{ type: "nosuch" }, acme, "INPUT_INVALID"],
  ])("with %o by a caller of %o is refused", async (input, tenant, code) => {
    expect(await codeOf(ask(input, { ...context, tenant }))).toBe(code);
  });
});

describe("the block of a tenant", () => {
  const BLOCK = "pool/tenant/acme/shop/clusterIP";
  const of = (tenant: string, uid = "a") => ({ uid, tenant: `${tenant}/shop`, type: "clusterIP" });

  test("is not made by a caller that is neither an admin nor of the tenant, but used by it", async () => {
    const scheduler = { ...context, mayOpenBlocks: false };
    expect(await codeOf(take(of("acme"), scheduler))).toBe("ACCESS_DENIED");
    const asked = { ...of("acme"), ttl: 60, uid: undefined };
    expect(await codeOf(reserve(scheduler, reserveInput.parse(asked)))).toBe("ACCESS_DENIED");
    expect(await stage.pool.ipam.pools({ prefix: "pool/tenant" })).toEqual([]);
    await take(of("acme"), { ...scheduler, tenant: acme });
    expect(await take(of("acme", "b"), scheduler)).toMatchObject({ pool: BLOCK });
  });

  test("is deleted once it is empty", async () => {
    await take(of("acme"));
    expect(await codeOf(deletePool(context, BLOCK))).toBe("POOL_IN_USE");
    expect(await deallocate(context, allocationInput.parse(of("acme")))).toHaveLength(1);
    await deletePool(context, BLOCK);
    expect(await findSpec(stage.pool.ipam, BLOCK)).toBeUndefined();
    expect(await take(of("acme"))).toMatchObject({ pool: BLOCK });
  });

  test("is given to another tenant if the range is full, it is empty, and a day old", async () => {
    context.tenantDefaults = { clusterIP: { range: parseRange("10.96.0.0/28")!, prefixLength: 29 } };
    for (const tenant of ["acme", "globex"]) await take(of(tenant));
    await deallocate(context, allocationInput.parse(of("acme")));
    expect(await codeOf(take(of("initech")))).toBe("POOL_EXHAUSTED");
    stage.pass(86_400);
    expect(await take(of("initech"))).toMatchObject({ pool: "pool/tenant/initech/shop/clusterIP" });
    expect(await findSpec(stage.pool.ipam, BLOCK)).toBeUndefined();
    expect(await codeOf(take(of("umbrella")))).toBe("POOL_EXHAUSTED");
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });
});

test("an address of a service whose uid looks like that of a stack's resource is released", async () => {
  await create(web);
  const service = { uid: "urn:pulumi:prod::shop::Service::web", pool: "web" };
  await take(service);
  expect(await deallocate(context, allocationInput.parse(service))).toHaveLength(1);
  expect(await findAllocations(context, allocationInput.parse(service))).toEqual([]);
});
