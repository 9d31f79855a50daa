import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { findSpec, historyOf } from "../../provider/ipam/interface";
import { Stage } from "../unit/lifecycle/stage";
import { type Answer, type CallError, type Connection, GrpcService } from "./grpc-service";

/** The methods of both services, with a real client. The stage's clock is at 2030-01-01. */
const ACME = { org: "acme", project: "shop" };
const NEW_YEAR = { seconds: "1893456000", nanos: 0 };

let stage: Stage;
let service: GrpcService;
let client: Connection;
let admin: string;

beforeEach(async () => {
  stage = await Stage.up({ quarantine: 0 });
  service = await GrpcService.on(stage.pool.ipam, { tenantDefaults: stage.deps.tenantDefaults });
  client = service.connect();
  admin = await service.token("ops", ["admin"]);
});
afterEach(() => service.stop());

const call = (name: string, request: object, token = admin): Promise<Answer> => client.call(name, request, token);
const errorOf = (name: string, request: object, token = admin): Promise<CallError> =>
  call(name, request, token).then(
    () => expect.fail("no error"),
    (error: CallError) => error,
  );

describe("Ipam", () => {
  const web = { name: "web", ranges: ["172.20.7.0/28"], allocation: "ALLOCATION_POLICY_LOWEST" };

  test("a pool is created, shown, listed and deleted", async () => {
    const pool = {
      name: "pool/web",
      kind: "address",
      type: "POOL_TYPE_CONTAINER",
      ranges: ["172.20.7.0/28"],
      allocation: "ALLOCATION_POLICY_LOWEST",
      capacity: "16",
      allocated: "0",
      available: "16",
      utilizationPercent: 0,
      offered: 0,
      reserved: 0,
      used: 0,
      quarantined: 0,
    };
    const growth = { growthLastHour: "0", growthLastDay: "0" };
    expect(await call("Ipam.CreatePool", web)).toEqual({ ...pool, ...growth });
    expect(await call("Ipam.GetPool", { name: "web" })).toEqual({ ...pool, ...growth });
    expect(await call("Ipam.ListPools", { prefix: "pool/" })).toEqual({ pools: [pool] });
    expect(await call("Ipam.DeletePool", { name: "web" })).toEqual({});
    expect(await call("Ipam.ListPools", { prefix: "pool/" })).toEqual({});
    expect((await errorOf("Ipam.GetPool", { name: "web" })).outcome).toBe("NOT_FOUND POOL_NOT_FOUND");
  });

  test("all settings of a pool reach it, and a client may send fields that are not set", async () => {
    await call("Ipam.CreatePool", {
      name: "lb",
      addressSpace: "lab",
      type: "POOL_TYPE_LOAD_BALANCER",
      ranges: ["10.9.0.0/24", "fd00::/120"],
      parent: "",
      prefixLength: 0,
      portRange: "",
      reserved: ["10.9.0.0"],
      staticOnly: ["10.9.0.128/25"],
      tenant: ACME,
      quota: { maxIps: 0, maxReservations: 5 },
      allocation: "ALLOCATION_POLICY_RANDOM",
      autoAssign: false,
      avoidBoundaryIps: true,
      warnAtPercent: 50,
      labels: { team: "net" },
    });
    expect(await findSpec(stage.pool.ipam, "pool/lb")).toMatchObject({
      kind: "address",
      allocation: "random",
      autoAssign: false,
      avoidBoundaryIps: true,
      quota: { maxIps: 0, maxReservations: 5 },
      tenant: ACME,
      warnAtPercent: 50,
      data: { settings: { addressSpace: "lab", type: "loadBalancer", ranges: ["10.9.0.0/24", "fd00::/120"] } },
    });
    const lease = await stage.pool.ipam.find({ name: "pool/lb" });
    expect(lease).toMatchObject({ owner: "service/lb", labels: { team: "net" }, pool: "space/lab", by: "ops" });
    expect(await call("Ipam.GetPool", { name: "lb" })).toMatchObject({ capacity: "510", tenant: ACME });
  });

  test("a pool of ports, and a block of another pool", async () => {
    await call("Ipam.CreatePool", { ...web, name: "big", ranges: ["10.40.0.0/16"] });
    const block = await call("Ipam.CreatePool", { name: "small", parent: "big", prefixLength: 24 });
    expect(block).toMatchObject({ name: "pool/small", ranges: ["10.40.0.0/24"], capacity: "256" });
    const ports = { name: "ports", type: "POOL_TYPE_NODE_PORT", portRange: "30000-30009", allocation: web.allocation };
    expect(await call("Ipam.CreatePool", ports)).toMatchObject({ kind: "port", ranges: ["30000-30009"] });
    const { lease } = await call("Ipam.AllocateIP", { serviceUid: "u1", pool: "ports", requestedPort: 30005 });
    expect(lease).toMatchObject({ ip: "30005", port: 30005 });
  });

  test("a pool that overlaps that of a stack is refused, and the stack's that overlaps a service's", async () => {
    await stage.make("IPPool", "stacks", { ranges: ["172.20.0.0/16"] });
    const error = await errorOf("Ipam.CreatePool", web);
    const what =
      "172.20.7.0/28 overlaps 172.20.0.0/16, which is held by org/urn:pulumi:dev::p::overlay:index:IPPool::stacks for IPPool stacks.";
    const fix = "Request another range, or release that one first.";
    expect(error.message).toBe(`POOL_OVERLAP: ${what} ${fix}`);
    expect(error.status).toBe("FAILED_PRECONDITION");
    expect(error.info).toEqual({ reason: "POOL_OVERLAP", domain: "overlay", metadata: { what, fix } });

    await call("Ipam.CreatePool", { ...web, ranges: ["10.50.0.0/24"] });
    const refusal = await stage.refusal("IPPool", "late", { ranges: ["10.50.0.0/16"] });
    expect(refusal).toContain("POOL_OVERLAP: 10.50.0.0/16 overlaps 10.50.0.0/24, which is held by service/web");
  });

  test("stacks use the pool by its name, and it is not deleted meanwhile", async () => {
    await call("Ipam.CreatePool", web);
    expect(await stage.make("IPReservation", "job", { pool: "web" })).toMatchObject({ ip: "172.20.7.0" });
    expect((await errorOf("Ipam.DeletePool", { name: "web" })).outcome).toBe("FAILED_PRECONDITION POOL_IN_USE");
    await stage.make("IPPool", "stacks", { ranges: ["10.60.0.0/24"] });
    expect((await errorOf("Ipam.DeletePool", { name: "stacks" })).outcome).toBe("FAILED_PRECONDITION POOL_IN_USE");
  });

  test("pools come in pages", async () => {
    for (const [i, name] of ["a", "b", "c"].entries())
      await call("Ipam.CreatePool", { ...web, name, ranges: [`10.0.${i}.0/24`] });
    const page = async (request: object) => {
      const { pools = [], nextPageToken } = await call("Ipam.ListPools", { prefix: "pool/", pageSize: 2, ...request });
      return [pools.map(({ name }: { name: string }) => name), nextPageToken];
    };
    expect(await page({})).toEqual([["pool/a", "pool/b"], "pool/b"]);
    expect(await page({ pageToken: "pool/b" })).toEqual([["pool/c"], undefined]);
    expect(await page({ pageSize: 3 })).toEqual([["pool/a", "pool/b", "pool/c"], undefined]);
  });

  test("a service gets one address in a pool, again and again", async () => {
    await call("Ipam.CreatePool", web);
    const request = { serviceUid: "uid-1", pool: "web", labels: { app: "shop" } };
    const first = await call("Ipam.AllocateIP", request);
    expect(first).toEqual({
      serviceUid: "uid-1",
      lease: {
        ip: "172.20.7.0",
        pool: "pool/web",
        state: "LEASE_STATE_RESERVED",
        createdAt: NEW_YEAR,
        createdBy: "ops",
        labels: { app: "shop" },
        owner: "service/uid-1",
        leaseId: expect.any(String),
      },
    });
    const again = await Promise.all([1, 2, 3].map(() => call("Ipam.AllocateIP", request)));
    expect(again).toEqual([first, first, first]);
    expect(await call("Ipam.GetAllocation", { serviceUid: "uid-1" })).toEqual({ allocations: [first] });
    const other = await errorOf("Ipam.AllocateIP", { ...request, requestedIp: "172.20.7.9" });
    expect(other.outcome).toBe("FAILED_PRECONDITION RESERVATION_EXISTS");
    expect(
      await call("Ipam.AllocateIP", { serviceUid: "uid-2", pool: "web", requestedIp: "172.20.7.9" }),
    ).toMatchObject({
      lease: { ip: "172.20.7.9" },
    });

    expect(await call("Ipam.ReleaseIP", { serviceUid: "uid-1", pool: "web" })).toEqual({ released: [first.lease] });
    expect(await call("Ipam.ReleaseIP", { serviceUid: "uid-1", pool: "web" })).toEqual({});
    const missing = await errorOf("Ipam.GetAllocation", { serviceUid: "uid-1", pool: "web" });
    expect(missing.outcome).toBe("NOT_FOUND NOT_FOUND");
  });

  test("a tenant's first request makes its pool of a type", async () => {
    const request = { serviceUid: "uid-1", poolType: "POOL_TYPE_CLUSTER_IP" };
    const acme = await service.token("acme", ["reserve", "read"], { tenant: ACME });
    const first = await call("Ipam.AllocateIP", request, acme);
    expect(first.lease).toMatchObject({ pool: "pool/tenant/acme/shop/clusterIP", tenant: ACME, createdBy: "acme" });
    expect(await call("Ipam.AllocateIP", { ...request, tenant: ACME })).toMatchObject({
      lease: { ip: first.lease.ip },
    });
    expect(await call("Ipam.GetAllocation", request, acme)).toEqual({ allocations: [first] });
    const other = await service.token("other", ["reserve"], { tenant: { org: "other", project: "web" } });
    const second = await call("Ipam.AllocateIP", request, other);
    expect(second.lease.pool).toBe("pool/tenant/other/web/clusterIP");
    expect(await call("Ipam.ReleaseIP", request, acme)).toMatchObject({ released: [{ ip: first.lease.ip }] });
    expect(await stage.pool.ipam.admin.fsck()).toEqual([]);
  });

  test("what a pool refuses is refused with its code", async () => {
    await call("Ipam.CreatePool", { ...web, ranges: ["172.20.7.0/31"], quota: { maxIps: 2 } });
    const outcome = async (request: object) =>
      (await errorOf("Ipam.AllocateIP", { serviceUid: "x", ...request })).outcome;
    await call("Ipam.AllocateIP", { serviceUid: "a", pool: "web" });
    expect(await outcome({ pool: "web", requestedIp: "172.20.7.0" })).toBe("FAILED_PRECONDITION IP_IN_USE");
    expect(await outcome({ pool: "web", requestedIp: "10.0.0.1" })).toBe("INVALID_ARGUMENT IP_OUTSIDE_POOL");
    await call("Ipam.AllocateIP", { serviceUid: "b", pool: "web" });
    expect(await outcome({ pool: "web" })).toBe("RESOURCE_EXHAUSTED POOL_EXHAUSTED");
    expect(await outcome({ pool: "nosuch" })).toBe("NOT_FOUND POOL_NOT_FOUND");
    expect(await outcome({})).toBe("INVALID_ARGUMENT INPUT_INVALID");
    expect(await outcome({ poolType: "POOL_TYPE_CLUSTER_IP" })).toBe("INVALID_ARGUMENT INPUT_INVALID");
  });

  test("requests are parsed: all that is wrong is named as in the .proto file", async () => {
    const error = await errorOf("Ipam.AllocateIP", {
      serviceUid: "a b",
      requestedIp: "10.01.0.1",
      requestedPort: 70_000,
    });
    expect(error.outcome).toBe("INVALID_ARGUMENT INPUT_INVALID");
    for (const field of ["service_uid must be", "requested_ip must be", "requested_port must be"])
      expect(error.message).toContain(field);
    expect(error.info!.metadata).toMatchObject({ property: "service_uid", fix: "See overlay.proto." });
    const missing = await errorOf("Ipam.CreatePool", { ranges: ["10.0.0.0/8"], quota: { maxIps: 1 } });
    expect(missing.message).toContain("name is missing");
  });
});

describe("Reservations", () => {
  beforeEach(async () => {
    await stage.network();
    await stage.runner("node1", "192.0.2.11");
    await stage.runner("node2", "192.0.2.12");
  });

  test("an address is reserved, validated, used and released", async () => {
    const { reservations } = await call("Reservations.Reserve", { runner: "node1", ttlSeconds: 60 });
    expect(reservations).toEqual([
      {
        lease: {
          ip: expect.stringMatching(/^10\.128\./),
          pool: "runner/training/node1",
          network: "training",
          runner: "node1",
          state: "LEASE_STATE_RESERVED",
          createdAt: NEW_YEAR,
          createdBy: "ops",
          expiresAt: { seconds: "1893456060", nanos: 0 },
          owner: expect.stringMatching(/^service\/ops\/training\/node1\//),
          leaseId: expect.any(String),
        },
        token: expect.stringMatching(/^ipr1\./),
        gateways: ["10.128.64.1"],
      },
    ]);
    const [{ lease, token }] = reservations;
    expect(await call("Reservations.Validate", { token, runner: "node1" })).toEqual({
      lease,
      checked: "TOKEN_CHECK_STORE",
    });
    const wrong = await errorOf("Reservations.Validate", { token, runner: "node2" });
    expect(wrong.outcome).toBe("PERMISSION_DENIED TOKEN_RUNNER");

    const used = await call("Reservations.Use", { token, container: "job-1" });
    expect(used).toMatchObject({ ip: lease.ip, state: "LEASE_STATE_USED", usedBy: "job-1" });
    expect(used.expiresAt).toBeUndefined();
    const taken = await errorOf("Reservations.Use", { token, container: "job-2" });
    expect(taken.outcome).toBe("FAILED_PRECONDITION TOKEN_USED");
    expect(await call("Reservations.Release", { container: "job-1" })).toEqual({ released: [{ ...used }] });
    expect(await call("Reservations.Release", { container: "job-1" })).toEqual({});
  });

  test("addresses on any runner: all or none, placed as it is asked, once for a key", async () => {
    const request = { network: "training", placement: "PLACEMENT_SPREAD", count: 4, idempotencyKey: "job-7" };
    const { reservations } = await call("Reservations.Reserve", request);
    const runners = reservations.map(({ lease }: Answer) => lease.runner).sort();
    expect(runners).toEqual(["node1", "node1", "node2", "node2"]);
    const again = await call("Reservations.Reserve", request);
    expect(again.reservations.map(({ lease }: Answer) => lease.ip)).toEqual(
      reservations.map(({ lease }: Answer) => lease.ip),
    );
    const other = await errorOf("Reservations.Reserve", { ...request, count: 2 });
    expect(other.outcome).toBe("FAILED_PRECONDITION RESERVATION_EXISTS");
    const unplaced = await call("Reservations.Reserve", { network: "training" });
    expect(unplaced.reservations).toHaveLength(1);
  });

  test("an address is used without a token, and freed by an admin", async () => {
    const used = await call("Reservations.Use", { runner: "node1", ip: "10.128.64.9", container: "vm-1", vm: true });
    expect(used).toMatchObject({ ip: "10.128.64.9", usedBy: "vm-1", labels: { vm: "true" } });
    expect(await call("Reservations.Free", { ip: "10.128.64.9" })).toMatchObject({ ip: "10.128.64.9", usedBy: "vm-1" });
    const held = await stage.make("IPReservation", "own", { runner: "training/node1" });
    expect((await errorOf("Reservations.Free", { ip: held.ip })).outcome).toBe("FAILED_PRECONDITION IP_IN_USE");
    expect(await call("Reservations.Free", { ip: held.ip, force: true })).toMatchObject({ ip: held.ip });
  });

  test("a token is checked without the store where the keys of tokens are known", async () => {
    const { reservations } = await call("Reservations.Reserve", { runner: "node1" });
    const [{ token }] = reservations;
    const error = await errorOf("Reservations.Validate", { token, offline: true });
    expect(error.outcome).toBe("INVALID_ARGUMENT TOKEN_KEYS_MISSING");
  });

  test("Release needs a token or a container", async () => {
    for (const request of [{}, { token: "x", container: "y" }])
      expect((await errorOf("Reservations.Release", request)).outcome).toBe("INVALID_ARGUMENT INPUT_INVALID");
  });

  test("the history names the access token", async () => {
    const { reservations } = await call("Reservations.Reserve", { runner: "node1", container: "c1" });
    const [{ lease, token }] = reservations;
    const runner = await service.token("runner-1", ["reserve"]);
    stage.pass(1);
    await call("Reservations.Use", { token, container: "c1" }, runner);
    stage.pass(1);
    await call("Reservations.Release", { container: "c1" });
    const history = await historyOf(stage.pool.ipam, lease.pool);
    expect(history.map(({ what, by }) => [what, by])).toEqual([
      ["claimed", "ops"],
      ["used", "runner-1"],
      ["released", "ops"],
    ]);
  });
});
