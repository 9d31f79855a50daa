import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createAccessToken, revokeAccessToken } from "../../provider/access/access-tokens";
import type { Scope } from "../../provider/access/caller";
import { SERVICE_NAMES, serviceDefinition } from "../../service/grpc/api";
import { Stage } from "../unit/lifecycle/stage";
import { type Connection, GrpcService } from "./grpc-service";

/** Which callers may call which method: each method of the .proto file has a sample here. */
const ACME = { org: "acme", project: "shop" };
const OTHER = { org: "other", project: "web" };

/** A reservation, and a service's address, of tenant acme/shop. */
interface Held {
  ip: string;
  token: string;
  container: string;
  serviceUid: string;
}

interface Sample {
  scope: Scope;
  /** A request that succeeds for the tenant's own token. */
  request(held: Held): object;
  /** What happens to other tenants: they are refused, see nothing, or get what is theirs. */
  others: "refused" | "empty" | "theirs";
}

const POOL = "pool/tenant/acme/shop/clusterIP";
let pools = 0;

const SAMPLES: Record<string, Sample> = {
  "Ipam.CreatePool": {
    scope: "admin",
    request: () => ({ name: `p${++pools}`, ranges: [`10.200.${pools}.0/24`] }),
    others: "theirs",
  },
  "Ipam.GetPool": { scope: "read", request: () => ({ name: POOL }), others: "refused" },
  "Ipam.ListPools": { scope: "read", request: () => ({ prefix: POOL }), others: "empty" },
  "Ipam.DeletePool": { scope: "admin", request: () => ({ name: "acmes" }), others: "refused" },
  "Ipam.AllocateIP": { scope: "reserve", request: ({ serviceUid }) => ({ serviceUid, pool: POOL }), others: "refused" },
  "Ipam.ReleaseIP": { scope: "reserve", request: ({ serviceUid }) => ({ serviceUid, pool: POOL }), others: "refused" },
  "Ipam.GetAllocation": { scope: "read", request: ({ serviceUid }) => ({ serviceUid, pool: POOL }), others: "refused" },
  "Reservations.Reserve": { scope: "reserve", request: () => ({ pool: POOL }), others: "refused" },
  "Reservations.Validate": { scope: "reserve", request: ({ token }) => ({ token }), others: "refused" },
  "Reservations.Use": {
    scope: "reserve",
    request: ({ token, container }) => ({ token, container }),
    others: "refused",
  },
  "Reservations.Release": { scope: "reserve", request: ({ token }) => ({ token }), others: "refused" },
  "Reservations.Free": { scope: "admin", request: ({ ip }) => ({ ip }), others: "refused" },
  "Reservations.Watch": { scope: "read", request: () => ({}), others: "theirs" },
};

let stage: Stage;
let service: GrpcService;
let client: Connection;

beforeAll(async () => {
  stage = await Stage.up({ quarantine: 0 });
  await stage.make("IPReservation", "first", { tenant: ACME, type: "clusterIP" });
  service = await GrpcService.on(stage.pool.ipam, { tenantDefaults: stage.deps.tenantDefaults });
  client = service.connect();
});
afterAll(() => service.stop());

let made = 0;
const newName = (): string => `n${++made}`;
const tokenWith = (scopes: Scope[], bounds: object = {}): Promise<string> => service.token(newName(), scopes, bounds);

async function holdForAcme(): Promise<Held> {
  const [container, serviceUid] = [newName(), newName()];
  const token = await tokenWith(["admin"], { tenant: ACME });
  await client.call("Ipam.CreatePool", { name: "acmes", ranges: ["10.199.0.0/24"] }, token);
  const { reservations } = await client.call("Reservations.Reserve", { pool: POOL, container }, token);
  await client.call("Ipam.AllocateIP", { serviceUid, pool: POOL }, token);
  return { ip: reservations[0].lease.ip, token: reservations[0].token, container, serviceUid };
}

test("every method has a sample, and no sample is of another method", () => {
  const methods = SERVICE_NAMES.flatMap((name) => Object.keys(serviceDefinition(name)).map((key) => `${name}.${key}`));
  expect(Object.keys(SAMPLES).sort()).toEqual(methods.sort());
});

describe.each(Object.entries(SAMPLES))("%s", (name, { scope, request, others }) => {
  test.each([
    ["of the tenant", { tenant: ACME }],
    ["of the operator", {}],
  ])("accepts a token %s that has its scope", async (_, bounds) => {
    const held = await holdForAcme();
    expect(await client.outcome(name, request(held), await tokenWith([scope], bounds))).toBe("OK");
  });

  test("refuses a call without a token, and with one that is malformed, unknown or of another scope", async () => {
    const input = request(await holdForAcme());
    expect(await client.outcome(name, input)).toBe("UNAUTHENTICATED ACCESS_TOKEN_MISSING");
    for (const authorization of ["Bearer", "Basic b3Zs"])
      expect(await client.outcome(name, input, undefined, { metadata: { authorization } })).toBe(
        "UNAUTHENTICATED ACCESS_TOKEN_MISSING",
      );
    for (const unknown of ["nonsense", `ovl_00000000_${"A".repeat(43)}`])
      expect(await client.outcome(name, input, unknown)).toBe("UNAUTHENTICATED ACCESS_TOKEN_INVALID");
    const scopes = (["read", "reserve", "preview", "deploy"] as const).filter((each) => each !== scope);
    expect(await client.outcome(name, input, await tokenWith(scopes))).toBe("PERMISSION_DENIED ACCESS_DENIED");
  });

  test("refuses an expired token and a revoked one", async () => {
    const input = request(await holdForAcme());
    const expired = { name: newName(), scopes: ["admin" as const], expiresIn: 60 };
    const { text } = await createAccessToken(
      { pool: stage.pool.ipam, createdBy: "test" },
      expired,
      Date.now() - 61_000,
    );
    expect(await client.outcome(name, input, text)).toBe("UNAUTHENTICATED ACCESS_TOKEN_INVALID");
    const revoked = await tokenWith(["admin"]);
    await revokeAccessToken(stage.pool.ipam, `n${made}`);
    expect(await client.outcome(name, input, revoked)).toBe("UNAUTHENTICATED ACCESS_TOKEN_INVALID");
  });

  test("keeps out a token of another tenant", async () => {
    const held = await holdForAcme();
    const other = await tokenWith(["admin"], { tenant: OTHER });
    const outcome = await client.outcome(name, request(held), other);
    expect(others === "refused" ? REFUSALS : ["OK"]).toContain(outcome);
    if (others === "empty") expect(await client.call(name, request(held), other)).toEqual({});
    const kept = await client.call("Reservations.Validate", { token: held.token }, await tokenWith(["reserve"]));
    expect(kept).toMatchObject({ lease: { ip: held.ip } });
  });
});

/** What is outside of the bounds of a caller is refused, or does not exist for it. */
const REFUSALS = [
  "PERMISSION_DENIED ACCESS_DENIED",
  "PERMISSION_DENIED TENANT_MISMATCH",
  "INVALID_ARGUMENT IP_OUTSIDE_POOL",
  "NOT_FOUND POOL_NOT_FOUND",
  "NOT_FOUND LEASE_NOT_FOUND",
];

test("the tenant comes from the token: a request for another one is refused", async () => {
  const acme = await tokenWith(["admin"], { tenant: ACME });
  const request = { serviceUid: "u1", poolType: "POOL_TYPE_CLUSTER_IP", tenant: OTHER };
  expect(await client.outcome("Ipam.AllocateIP", request, acme)).toBe("PERMISSION_DENIED TENANT_MISMATCH");
  const pool = { name: "stolen", ranges: ["10.198.0.0/24"], tenant: OTHER };
  expect(await client.outcome("Ipam.CreatePool", pool, acme)).toBe("PERMISSION_DENIED TENANT_MISMATCH");
});

test("an error does not name the owner of another tenant's lease", async () => {
  await stage.make("IPPool", "shared", { ranges: ["10.201.0.0/30"], allocation: "lowest" });
  const request = { serviceUid: "secret", pool: "shared", requestedIp: "10.201.0.1" };
  await client.call("Ipam.AllocateIP", request, await tokenWith(["reserve"], { tenant: ACME }));
  const other = client.call(
    "Ipam.AllocateIP",
    { ...request, serviceUid: "u2" },
    await tokenWith(["reserve"], { tenant: OTHER }),
  );
  await expect(other).rejects.toThrow(
    /IP_IN_USE: Address 10\.201\.0\.1 of IPPool shared is reserved by another tenant\. Request another value/,
  );
});

test("a call counts against the rate limit of its token", async () => {
  const limited = await GrpcService.on(stage.pool.ipam, { limits: { rateLimit: 3 } });
  const connection = limited.connect();
  const token = await tokenWith(["read"]);
  const outcomes = await Promise.all(
    [1, 2, 3, 4, 5].map(() => connection.outcome("Ipam.ListPools", { pageSize: 1 }, token)),
  );
  expect(outcomes.filter((each) => each === "RESOURCE_EXHAUSTED RATE_LIMITED")).toHaveLength(2);
  await limited.stop();
});

test("without authentication, callers are the operator, and browsers' pages are refused", async () => {
  const open = await GrpcService.on(stage.pool.ipam, { noAuth: true });
  const connection = open.connect();
  expect(await connection.outcome("Ipam.ListPools", {})).toBe("OK");
  const metadata = { origin: "https://evil.example" };
  expect(await connection.outcome("Ipam.ListPools", {}, undefined, { metadata })).toBe(
    "PERMISSION_DENIED ACCESS_DENIED",
  );
  await open.stop();
});

test("each call has a line in the log, without a token", async () => {
  const { token } = await holdForAcme();
  const access = await tokenWith(["reserve"]);
  const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const metadata = { "x-request-id": "request-7", traceparent };
  await client.call("Reservations.Validate", { token }, access, { metadata });
  const line = JSON.parse(service.lines.find((each) => each.includes("request-7"))!);
  expect(line).toMatchObject({
    level: "info",
    requestId: "request-7",
    method: "/overlay.ipam.v1.Reservations/Validate",
    status: "OK",
    token: `n${made}`,
    traceId: "0af7651916cd43dd8448eb211c80319c",
    ms: expect.any(Number),
  });
  const text = service.lines.join("");
  expect([text.includes(token), text.includes(access)]).toEqual([false, false]);
});
