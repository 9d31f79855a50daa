import { beforeEach, expect, test } from "vitest";
import type { Bounds } from "../../../provider/access/caller";
import { openSession } from "../../../provider/access/tenant-ipam";
import {
  allocate,
  availableAddresses,
  type Context,
  createPool,
  createPoolInput,
  describeRunnerConfig,
  findLeases,
  heartbeatRunner,
  ipOf,
  poolUsages,
  release,
  reportInput,
  reportRunner,
  reserve,
  reserveMany,
  validateToken,
} from "../../../provider/reservations";
import { Stage } from "../lifecycle/stage";
import { codeOf } from "./answers";

/** The same functions for callers of the service, whose access token is bound to a tenant, a network or a pool. */
const ACME = { org: "acme", project: "shop" };
let stage: Stage;
async function setUp(settings: { tokenKeys?: string } = {}): Promise<void> {
  stage = await Stage.up(settings);
  await stage.network("training", { subnets: "10.10.0.0/16/8/8" });
  for (const [i, name] of ["a", "b"].entries()) await stage.runner(name, `192.0.2.${11 + i}`);
  await stage.make("IPPool", "web", { ranges: ["172.20.7.0/28"], allocation: "lowest" });
}
beforeEach(() => setUp());

const as = (caller: string, bounds: Bounds): Context => ({
  pool: openSession(stage.pool.ipam, { name: caller, scopes: ["admin"], ...bounds }, stage.deps),
  tenant: bounds.tenant,
  caller,
  tenantDefaults: stage.deps.tenantDefaults,
});

test("a tenant reserves on any runner, repeats its requests, and sees its own leases", async () => {
  const context = as("ci", { tenant: ACME });
  await reserve({ pool: stage.pool.ipam }, { runner: "a" });
  const input = { network: "training", placement: "spread", count: 2, key: "k" } as const;
  const first = await reserveMany(context, input);
  const again = await reserveMany(context, input);
  expect(again.map(({ lease }) => lease.leaseId)).toEqual(first.map(({ lease }) => lease.leaseId));
  expect((await findLeases(context)).map(ipOf).sort()).toEqual(first.map(({ lease }) => ipOf(lease)).sort());
  expect(first.every(({ lease }) => lease.tenant?.org === "acme")).toBe(true);
  for (const { token } of first) await release(context, { token });
  expect(await release(context, { token: first[0]!.token })).toEqual({ leases: [], kept: [] });
});

test("a runner reports with a token for its network or its pool, and not with one for a tenant", async () => {
  const input = reportInput.parse({ runner: "a", containers: [{ name: "web", ip: "10.10.1.8" }] });
  expect(await codeOf(reportRunner(as("node", { tenant: ACME }), input))).toBe("ACCESS_DENIED");
  expect((await reportRunner(as("node", { network: "training" }), input)).used).toMatchObject([{ usedBy: "web" }]);
  expect(await reportRunner(as("node", { pool: "runner/training/a" }), input)).toMatchObject({ unchanged: 1 });
  expect(await codeOf(reportRunner(as("node", { pool: "runner/training/b" }), input))).toBe("POOL_NOT_FOUND");
});

test("a tenant makes pools and gets addresses in them, and in its own block", async () => {
  const context = as("ci", { tenant: ACME });
  await createPool(context, createPoolInput.parse({ poolName: "mine", ranges: ["10.30.0.0/28"] }));
  expect(await allocate(context, { uid: "u1", pool: "mine" })).toMatchObject({ tenant: ACME });
  expect(await allocate(context, { uid: "u1", type: "clusterIP" })).toMatchObject({
    pool: "pool/tenant/acme/shop/clusterIP",
  });
});

test("offline, a token is validated only for a caller that its pool shows to be allowed", async () => {
  const keys = { tokenKeys: "k1:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff" };
  await setUp(keys);
  const outcome = (bounds: Bounds, token: string) =>
    codeOf(validateToken({ ...as("ci", bounds), ...keys }, { token, offline: true }));
  const block = await reserve(as("ci", { tenant: ACME }), { type: "clusterIP" });
  expect(await outcome({ tenant: ACME }, block.token)).toBe("done");
  expect(await outcome({ tenant: { org: "other", project: "web" } }, block.token)).toBe("ACCESS_DENIED");
  const shared = await reserve(as("ci", {}), { network: "training", runner: "a" });
  expect(await outcome({}, shared.token)).toBe("done");
  expect(await outcome({ network: "training" }, shared.token)).toBe("done");
  expect(await outcome({ pool: "runner/training/b" }, shared.token)).toBe("ACCESS_DENIED");
  expect(await outcome({ tenant: ACME }, shared.token)).toBe("ACCESS_DENIED"); // the token does not say of which tenant it is
});

test("in a tenant's block, an owner and a key of the same text are two requests", async () => {
  const context = as("ci", { tenant: ACME });
  const byOwner = await reserve(context, { type: "clusterIP", owner: "job1" });
  const byKey = await reserve(context, { type: "clusterIP", key: "job1" });
  expect(byKey.lease.leaseId).not.toBe(byOwner.lease.leaseId);
  expect((await reserve(context, { type: "clusterIP", key: "job1" })).lease.leaseId).toBe(byKey.lease.leaseId);
});

test("a caller of one network reaches its runners and nothing else", async () => {
  const context = as("node", { network: "training" });
  expect(await describeRunnerConfig(context, { runner: "a" })).toMatchObject({ subnet: "10.10.1.0/24" });
  expect(await heartbeatRunner(context, { runner: "a" })).toMatchObject({ runnerId: 1 });
  const { pools } = await availableAddresses(context, { limit: 1 });
  expect(pools.map(({ pool }) => pool)).toEqual(["runner/training/a", "runner/training/b"]);
  expect((await poolUsages(context, { limit: 2 })).map(({ pool }) => pool)).toEqual([
    "network/training",
    "runner/training/a",
  ]);
  expect(await codeOf(reserve(context, { pool: "web" }))).toBe("POOL_NOT_FOUND");
});

test("a caller of one runner's pool reserves there, and on any runner only there", async () => {
  const context = as("node", { pool: "runner/training/b" });
  const anywhere = { network: "training", anyRunner: true, count: 3 };
  const given = await reserveMany(context, anywhere);
  expect(new Set(given.map(({ lease }) => lease.pool))).toEqual(new Set(["runner/training/b"]));
  expect(await codeOf(reserve(context, { runner: "a" }))).toBe("POOL_NOT_FOUND");
});
