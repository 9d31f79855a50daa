import { beforeEach, describe, expect, test } from "vitest";
import { parseIp } from "../../../provider/addressing/ip";
import { claimOne } from "../../../provider/ipam/interface";
import type { Values } from "../../../provider/lifecycle/values";
import {
  type Context,
  describeLease,
  findLeases,
  free,
  holdAddress,
  importAddresses,
  ipOf,
  release,
  reserve,
  searchInput,
  showAddress,
  useAddress,
  validateToken,
} from "../../../provider/reservations";
import { Stage } from "../lifecycle/stage";

/** The same functions on every pool: a runner's subnet, an IPPool, a pool of ports, a tenant's block. */
const tenant = { org: "acme", project: "shop" };
let stage: Stage;
let context: Context;
beforeEach(async () => {
  stage = await Stage.up();
  context = { pool: stage.pool.ipam };
  await stage.network();
  await stage.runner("node1", "192.0.2.11");
  await stage.make("IPPool", "web", { ranges: ["192.168.7.0/28"], allocation: "lowest" });
  await stage.make("IPPool", "ports", { type: "nodePort", portRange: "30000-30009", allocation: "lowest" });
  await stage.make("IPReservation", "first", { tenant, type: "clusterIP" });
});

const codeOf = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => "done",
    (error: { code?: string }) => error.code ?? String(error),
  );

describe.each([
  ["a runner's subnet", { network: "training", runner: "node1" }],
  ["an IPPool", { pool: "web" }],
  ["an IPPool by the name that `pool list` shows", { pool: "pool/web" }],
  ["a pool of ports", { pool: "ports" }],
  ["a tenant's block", { pool: "tenant/acme/shop/clusterIP" }],
])("%s", (_, where) => {
  test("reserve, validate, use, list, release by container", async () => {
    const { lease, token } = await reserve(context, { ...where, ttl: 60 });
    expect(await validateToken(context, { token })).toMatchObject({ leaseId: lease.leaseId, state: "reserved" });
    expect(await useAddress(context, { token, by: "c1" })).toMatchObject({ state: "used", usedBy: "c1" });
    expect((await findLeases(context, { by: "c1" })).map(ipOf)).toEqual([ipOf(lease)]);
    expect(await findLeases(context, { ...where, by: "c1" })).toHaveLength(1);
    const { leases, kept } = await release(context, { by: "c1" });
    expect([leases.map(ipOf), kept]).toEqual([[ipOf(lease)], []]);
    expect(await findLeases(context, { by: "c1" })).toEqual([]);
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("used again by the same container: the same answer; by another one: TOKEN_USED", async () => {
    const { token } = await reserve(context, where);
    const first = await useAddress(context, { token, by: "c1" });
    expect(first).toMatchObject(await useAddress(context, { token, by: "c1" }));
    expect(await codeOf(useAddress(context, { token, by: "c2" }))).toBe("TOKEN_USED");
    expect(await codeOf(release(context, { token }))).toBe("TOKEN_USED");
    const value = first.ranges[0]!.first;
    const at = value < 65_536n ? { port: Number(value) } : { ip: value };
    expect(await free(context, { ...where, ...at })).toMatchObject({ leaseId: first.leaseId });
    expect(await codeOf(useAddress(context, { token, by: "c1" }))).toBe("TOKEN_USED");
  });

  test("two reservations for one container at once give two tokens that both work", async () => {
    const both = await Promise.all([1, 2].map(() => reserve(context, { ...where, by: "c1" })));
    expect(new Set(both.map(({ lease }) => lease.leaseId)).size).toBe(1);
    for (const { token } of both)
      expect(await useAddress(context, { token, by: "c1" })).toMatchObject({ usedBy: "c1" });
    expect(await codeOf(reserve(context, { ...where, by: "c1" }))).toBe("RESERVATION_EXISTS");
  });
});

test("an address can be used and freed without its pool, if one pool has it", async () => {
  const ip = parseIp("192.168.7.9");
  expect(await useAddress(context, { ip, by: "c1" })).toMatchObject({ pool: "pool/web", usedBy: "c1" });
  expect(await useAddress(context, { ip, by: "c1" })).toMatchObject({ usedBy: "c1" });
  expect(await codeOf(useAddress(context, { ip, by: "c2" }))).toBe("IP_IN_USE");
  expect(await free(context, { ip })).toMatchObject({ usedBy: "c1" });
  expect(await codeOf(free(context, { ip }))).toBe("LEASE_NOT_FOUND");
  expect(await codeOf(free(context, { ip: parseIp("8.8.8.8") }))).toBe("IP_OUTSIDE_POOL");
  await stage.make("IPPool", "other", { ranges: ["192.168.7.0/28"], addressSpace: "lab" });
  await expect(free(context, { ip })).rejects.toThrow(
    /^INPUT_INVALID: 192\.168\.7\.9 is in IPPool other and IPPool web/,
  );
  expect(await codeOf(reserve(context, {}))).toBe("INPUT_INVALID");
  expect(await codeOf(reserve(context, { network: "training" }))).toBe("INPUT_INVALID");
  expect(await codeOf(reserve(context, { pool: "ports", ip }))).toBe("INPUT_INVALID");
});

test("a stack's lease that a container used is returned to the stack, and its ttl restarts", async () => {
  const made = await stage.make("IPReservation", "job", { pool: "web", ttl: 60 });
  await useAddress(context, { token: String(made.token), by: "c1" });
  stage.pass(3600);
  const { kept } = await release(context, { by: "c1" });
  expect(kept.map(ipOf)).toEqual([made.ip]);
  const [lease] = await findLeases(context, { ip: parseIp(String(made.ip)) });
  expect(lease).toMatchObject({ state: "reserved", expiresAt: stage.now + 60_000 });
  expect(await useAddress(context, { token: String(made.token), by: "c2" })).toMatchObject({ usedBy: "c2" });
  await release(context, { by: "c2" });
  stage.pass(61);
  expect(await findLeases(context, { ip: parseIp(String(made.ip)) })).toEqual([]);
  await stage.of("IPReservation").delete(made as Values);
});

test("import adds addresses of networks and of pools, and names those that are in no pool", async () => {
  const rows = [
    { ip: parseIp("10.128.64.20"), by: "a" },
    { ip: parseIp("192.168.7.3"), by: "b" },
    { ip: 30_004n, pool: "ports" },
  ];
  const { result, problems } = await importAddresses(context, rows);
  expect(problems).toEqual([]);
  expect(result.added.map(({ pool }) => pool)).toEqual(["runner/training/node1", "pool/web", "pool/ports"]);
  expect((await importAddresses(context, rows)).result.added).toEqual([]);
  const wrong = [
    { ip: parseIp("192.168.7.3"), network: "training" },
    { ip: parseIp("9.9.9.9") },
    { ip: 5n, pool: "nosuch" },
  ];
  expect((await importAddresses(context, wrong)).problems.map(({ message }) => message)).toEqual([
    "it is in IPPool web, not in network training",
    "it is in no network and no pool of this store",
    expect.stringMatching(/^POOL_NOT_FOUND: There is no pool 'nosuch'/),
  ]);
});

test.each([
  [{ ip: "192.168.7.1" }, ["192.168.7.1"]],
  [{ owner: "::second" }, ["192.168.7.2"]],
  [{ labels: ["team=red"] }, ["192.168.7.1"]],
  [{ labels: ["team=red", "tier=db"] }, []],
  [{ tenant: "acme/shop", pool: "web" }, []],
  [{ pool: "web", state: "used" }, ["192.168.7.2"]],
  [{ pool: "web", state: "reserved" }, ["192.168.7.1"]],
  [{ by: "c2" }, ["192.168.7.2"]],
])("a search for %j finds %j", async (search, expected) => {
  await stage.make("IPReservation", "one", { pool: "web", ip: "192.168.7.1", labels: { team: "red" } });
  await stage.make("IPReservation", "second", { pool: "web", ip: "192.168.7.2", usedBy: "c2" });
  expect((await findLeases(context, searchInput.parse(search))).map(ipOf)).toEqual(expected);
});

test("a tenant's leases are found by the tenant, and shown with it", async () => {
  const [lease, ...others] = await findLeases(context, searchInput.parse({ tenant: "acme/shop" }));
  expect([describeLease(lease!), others]).toMatchObject([
    { pool: "pool/tenant/acme/shop/clusterIP", tenant: "acme/shop", createdAt: "2030-01-01T00:00:00Z" },
    [],
  ]);
});

test("an address that no lease holds shows its offer or its quarantine, and one in no pool is refused", async () => {
  const [offered, released] = [parseIp("192.168.7.6"), parseIp("192.168.7.7")];
  const value = (ip: bigint) => [{ first: ip, last: ip }];
  await stage.pool.ipam.offer({
    pool: "pool/web",
    owner: "preview",
    type: "IPReservation",
    program: "main",
    values: value(offered),
  });
  const lease = await claimOne(stage.pool.ipam, {
    pool: "pool/web",
    owner: "job",
    type: "IPReservation",
    values: value(released),
  });
  await stage.pool.ipam.release("pool/web", lease.leaseId);
  expect((await showAddress(context, { ip: offered })).holders).toMatchObject([{ state: "offered" }]);
  expect((await showAddress(context, { ip: released })).holders).toMatchObject([{ state: "quarantined" }]);
  await expect(showAddress(context, { ip: parseIp("8.8.8.8") })).rejects.toMatchObject({ code: "IP_OUTSIDE_POOL" });
});

test("an address shows its holder and its earlier holders", async () => {
  const ip = parseIp("192.168.7.5");
  await useAddress(context, { ip, by: "c1" });
  stage.pass(10);
  await release(context, { by: "c1" });
  stage.pass(400);
  await reserve(context, { pool: "web", ip, ttl: 20 });
  stage.pass(500);
  await useAddress(context, { ip, by: "c2" });
  const { holders, before } = await showAddress(context, { ip });
  expect(holders).toMatchObject([{ usedBy: "c2", createdAt: stage.now }]);
  expect(before).toMatchObject([
    { since: "2030-01-01T00:06:50Z", end: "expired" },
    { since: "2030-01-01T00:00:00Z", until: "2030-01-01T00:00:10Z", usedBy: "c1", end: "released" },
  ]);
});

describe("a caller with a tenant", () => {
  const block = { pool: "tenant/acme/shop/clusterIP" };
  const other = () => ({ ...context, tenant: { org: "globex", project: "shop" } });

  test("is refused in a pool of another tenant, and accepted in its own and in pools without a tenant", async () => {
    const { lease } = await reserve({ ...context, tenant }, { ...block, by: "c1" });
    const ip = lease.ranges[0]!.first;
    expect(await codeOf(reserve(other(), block))).toBe("TENANT_MISMATCH");
    expect(await codeOf(holdAddress(other(), { ...block, ttl: 30 }))).toBe("TENANT_MISMATCH");
    expect(await codeOf(useAddress(other(), { ip, by: "c1" }))).toBe("TENANT_MISMATCH");
    expect(await codeOf(free(other(), { ip, force: true }))).toBe("TENANT_MISMATCH");
    expect(await codeOf(importAddresses(other(), [{ ip: ip + 1n }]))).toBe("TENANT_MISMATCH");
    expect((await release(other(), { by: "c1" })).leases).toEqual([]);
    expect((await release({ ...context, tenant }, { by: "c1" })).leases.map(ipOf)).toEqual([ipOf(lease)]);
    expect((await reserve(other(), { pool: "web" })).lease.state).toBe("reserved");
  });
});
