import { beforeEach, describe, expect, test } from "vitest";
import type { Bounds } from "../../../provider/access/caller";
import { openAsOperator, openSession } from "../../../provider/access/tenant-ipam";
import { parseIp } from "../../../provider/addressing/ip";
import { claimOne, findSpec, findUsage, historyOf, listSpecs, listUsages } from "../../../provider/ipam/interface";
import type { Ipam, Lease, Request } from "../../../provider/ipam/types";
import { Stage } from "../lifecycle/stage";

/** Two networks, a shared pool and the block of a tenant, as callers with bounds see them. */
const ACME = { org: "acme", project: "shop" };
const OTHER = { org: "other", project: "web" };
const BLOCK = "pool/tenant/acme/shop/clusterIP";
let stage: Stage;

beforeEach(async () => {
  stage = await Stage.up();
  await stage.network();
  await stage.make("OverlayNetwork", "staging", {
    hubConnection: { host: "192.0.2.9" },
    subnets: "10.64.0.0/12/6/14",
    vniBase: 500,
  });
  await stage.runner("node1", "192.0.2.11");
  await stage.runner("node2", "192.0.2.12");
  await stage.make("IPPool", "web", { ranges: ["192.168.7.0/28"], allocation: "lowest" });
  await stage.make("IPReservation", "first", { tenant: ACME, type: "clusterIP" });
});

const bounded = (bounds: Bounds): Ipam => openSession(stage.pool.ipam, { name: "t", scopes: ["admin"], ...bounds });
const request = (pool: string, owner: string, more: Partial<Request> = {}): Request => ({
  pool,
  owner,
  type: "IPReservation",
  program: "main",
  idempotent: true,
  ...more,
});
const outcomeOf = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => "done",
    (error: { code?: string }) => error.code ?? String(error),
  );
const namesOf = async (pool: Ipam): Promise<string[]> => (await listSpecs(pool)).map(({ name }) => name);

describe("a caller that is bound to", () => {
  test.each<[string, Bounds, string[]]>([
    ["a network", { network: "training" }, ["network/training", "runner/training/node1", "runner/training/node2"]],
    ["a pool", { pool: "pool/web" }, ["pool/web"]],
    ["the subnet of a runner", { pool: "runner/training/node1" }, ["network/training", "runner/training/node1"]],
  ])("%s sees its pools only", async (_, bounds, expected) => {
    const pool = bounded(bounds);
    expect(await namesOf(pool)).toEqual(expected);
    expect([...(await listUsages(pool, "")).keys()].sort()).toEqual(expected);
    for (const hidden of ["network/staging", "network/none"]) {
      expect(await findSpec(pool, hidden)).toBeUndefined();
      expect(await findUsage(pool, hidden)).toBeUndefined();
      expect(await pool.leases(hidden)).toEqual([]);
      expect(await historyOf(pool, hidden)).toEqual([]);
    }
  });

  test("a tenant sees pools of its own and those that all share", async () => {
    expect(await namesOf(bounded({ tenant: ACME }))).toEqual(expect.arrayContaining([BLOCK, "pool/web"]));
    const others = await namesOf(bounded({ tenant: OTHER }));
    expect(others).not.toContain(BLOCK);
    expect(others).toContain("runner/training/node1");
    expect(await findSpec(bounded({ tenant: OTHER }), BLOCK)).toBeUndefined();
  });

  test("the subnet of a runner reads its own runner, not others, and may say that it lives", async () => {
    const pool = bounded({ pool: "runner/training/node1" });
    const own = await pool.find({ pool: "network/training", name: "runner/training/node1" });
    expect(own).toMatchObject({ childPool: "runner/training/node1" });
    expect(await pool.find({ pool: "network/training", name: "runner/training/node2" })).toBeUndefined();
    expect(await pool.leases("network/training")).toHaveLength(1);
    expect(await outcomeOf(pool.touch("network/training", own!.leaseId))).toBe("done");
    const rename = { owner: "mine" };
    expect(await outcomeOf(pool.change("network/training", own!.leaseId, rename))).toBe("ACCESS_DENIED");
    expect(await outcomeOf(pool.release("network/training", own!.leaseId))).toBe("ACCESS_DENIED");
    const other = await stage.pool.ipam.find({ pool: "network/training", name: "runner/training/node2" });
    expect(await outcomeOf(pool.touch("network/training", other!.leaseId))).toBe("ACCESS_DENIED");
    expect(await outcomeOf(claimOne(pool, request("network/training", "x")))).toBe("ACCESS_DENIED");
  });
});

describe("claims", () => {
  test("get the tenant of the caller, not that of the request", async () => {
    const lease = await claimOne(bounded({ tenant: ACME }), request("pool/web", "a", { tenant: OTHER }));
    expect(lease.tenant).toEqual(ACME);
    const [second] = await bounded({ tenant: ACME }).claim([request("pool/web", "b", { tenant: OTHER })]);
    expect(second!.tenant).toEqual(ACME);
  });

  test.each<[string, Bounds]>([
    ["another tenant's pool", { tenant: OTHER }],
    ["a pool of no network", { network: "training" }],
    ["another pool", { pool: "pool/web" }],
  ])("in %s are refused", async (_, bounds) => {
    const pool = bounded(bounds);
    const refusal = bounds.tenant ? "POOL_NOT_FOUND" : "ACCESS_DENIED";
    expect(await outcomeOf(claimOne(pool, request(BLOCK, "a")))).toBe(refusal);
    expect(await outcomeOf(pool.claim([request(BLOCK, "a")]))).toBe(refusal);
    expect(await outcomeOf(pool.offer(request(BLOCK, "a")))).toBe(refusal);
    const values = [{ first: parseIp("10.96.0.7"), last: parseIp("10.96.0.7") }];
    const imported = await outcomeOf(pool.importLeases([{ pool: BLOCK, owner: "a", type: "IPReservation", values }]));
    expect(imported).toBe(bounds.tenant ? "done" : "ACCESS_DENIED"); // a conflict of this lease, if there is no such pool
  });

  test("of an owner whose lease belongs to another tenant, or to the operator, are refused", async () => {
    await bounded({ tenant: ACME }).claim([request("pool/web", "a")]);
    await stage.pool.ipam.claim([request("pool/web", "b")]);
    for (const owner of ["a", "b"])
      expect(await outcomeOf(claimOne(bounded({ tenant: OTHER }), request("pool/web", owner)))).toBe("ACCESS_DENIED");
  });
});

describe("in a pool that tenants share", () => {
  let lease: Lease;
  beforeEach(async () => {
    lease = await claimOne(bounded({ tenant: ACME }), request("pool/web", "a", { names: ["request/t/a"] }));
    await stage.pool.ipam.claim([request("pool/web", "operator")]);
  });

  test("a tenant sees its leases and changes only", async () => {
    const [own, other] = [bounded({ tenant: ACME }), bounded({ tenant: OTHER })];
    expect((await own.leases("pool/web")).map(({ owner }) => owner)).toEqual(["a"]);
    expect(await other.leases("pool/web")).toEqual([]);
    expect((await historyOf(own, "pool/web")).map(({ owner }) => owner)).toEqual(["a"]);
    expect(await historyOf(other, "pool/web")).toEqual([]);
    expect((await own.events({ after: 0 })).events.map(({ owner }) => owner)).toContain("a");
    expect((await other.events({ after: 0 })).events).toEqual([]);
    expect(await own.find({ name: "request/t/a" })).toMatchObject({ owner: "a" });
    expect(await other.find({ name: "request/t/a" })).toBeUndefined();
  });

  test.each<[string, (pool: Ipam) => Promise<unknown>]>([
    ["found", (pool) => pool.find({ pool: "pool/web", leaseId: lease.leaseId })],
    ["amended", (pool) => pool.change("pool/web", lease.leaseId, { labels: { x: "y" } })],
    ["touched", (pool) => pool.touch("pool/web", lease.leaseId)],
    ["closed", (pool) => pool.close("pool/web", lease.leaseId)],
    ["released", (pool) => pool.release("pool/web", lease.leaseId)],
  ])("the lease of one tenant is not %s by another", async (_, work) => {
    expect(await outcomeOf(work(bounded({ tenant: OTHER })))).toBe("ACCESS_DENIED");
    expect(await outcomeOf(work(bounded({ tenant: ACME })))).toBe("done");
  });

  test.each([
    ["request/t/owner/job-1/0", "done"],
    ["request/scheduler/owner/job-1/0", "ACCESS_DENIED"],
    ["placed/tenant/acme/shop/clusterIP/x", "done"],
    ["placed/tenant/other/web/clusterIP/x", "ACCESS_DENIED"],
  ])("a tenant names its lease %s: %s", async (name, outcome) => {
    const claim = claimOne(bounded({ tenant: ACME }), request("pool/web", "x", { names: [name] }));
    expect(await outcomeOf(claim)).toBe(outcome);
  });

  test("a repeated claim does not get the lease of another tenant", async () => {
    expect(await outcomeOf(claimOne(stage.pool.ipam, request("pool/web", "a")))).toBe("RESERVATION_EXISTS");
    expect(await outcomeOf(claimOne(bounded({ tenant: ACME }), request("pool/web", "a")))).toBe("done");
  });

  test("a page is filled, so that a short one is the last", async () => {
    for (const owner of ["c", "d", "e"]) await stage.pool.ipam.claim([request("pool/web", owner)]);
    await bounded({ tenant: ACME }).claim([request("pool/web", "z")]);
    const page = await bounded({ tenant: ACME }).leases("pool/web", { limit: 2 });
    expect(page.map(({ owner }) => owner)).toEqual(["a", "z"]);
  });

  test("a page goes on after hundreds of leases of others, and after a given one", async () => {
    await stage.make("IPPool", "large", { ranges: ["192.168.8.0/21"], allocation: "lowest" });
    const own = bounded({ tenant: ACME });
    const first = await claimOne(own, request("pool/large", "first"));
    await stage.pool.ipam.claim(Array.from({ length: 1200 }, (_, i) => request("pool/large", `other${i}`)));
    await own.claim([request("pool/large", "last")]);
    const ownersOf = (leases: Lease[]) => leases.map(({ owner }) => owner);
    expect(ownersOf(await own.leases("pool/large", { limit: 2 }))).toEqual(["first", "last"]);
    const after = first.ranges[0]!.last;
    expect(ownersOf(await own.leases("pool/large", { limit: 1, after }))).toEqual(["last"]);
    expect(ownersOf(await own.leases("pool/large", { limit: 1, owner: "last" }))).toEqual(["last"]);
  });
});

test("the store as a whole is for callers without bounds", () => {
  const caller = { name: "t", scopes: ["admin" as const] };
  expect(openAsOperator(stage.pool.ipam, caller, "webhooks").admin).toBeDefined();
  expect(() => openAsOperator(stage.pool.ipam, { ...caller, network: "training" }, "webhooks")).toThrow(
    /^ACCESS_DENIED: .*network training.*webhooks/,
  );
});
