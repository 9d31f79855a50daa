import type { InjectOptions } from "fastify";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type AccessTokenInput, createAccessToken, revokeAccessToken } from "../../../provider/access";
import { buildServer } from "../../../provider/service/server";
import { Stage } from "../lifecycle/stage";
import { TestService } from "./service";

/** Every route of the server, found in the server itself: a route without a sample here fails. */

const ACME = { org: "acme", project: "shop" };
const OTHER = { org: "other", project: "web" };

/** A reservation of tenant acme/shop on node1, which the samples name. */
interface Held {
  ip: string;
  token: string;
  container: string;
}

interface Sample {
  /** A request that succeeds for the tenant's own token. */
  request(held: Held): string;
  /** How the route keeps other tenants out: it refuses them, or its answer leaves out what is not theirs. */
  others: "refused" | "filtered";
  scope: "read" | "reserve" | "admin";
  body?: InjectOptions["payload"];
}

const SAMPLES: Record<string, Sample> = {
  "POST /api/overlay/ip/reserve": {
    request: () => "POST /api/overlay/ip/reserve?pool=tenant/acme/shop/clusterIP",
    others: "refused",
    scope: "reserve",
  },
  "POST /api/overlay/ip/validate": {
    request: ({ token }) => `POST /api/overlay/ip/validate?token=${token}`,
    others: "refused",
    scope: "reserve",
  },
  "POST /api/overlay/ip/use": {
    request: ({ token, container }) => `POST /api/overlay/ip/use?token=${token}&container=${container}`,
    others: "refused",
    scope: "reserve",
  },
  "POST /api/overlay/ip/release": {
    request: ({ token }) => `POST /api/overlay/ip/release?token=${token}`,
    others: "refused",
    scope: "reserve",
  },
  "POST /api/overlay/ip/free": {
    request: ({ ip }) => `POST /api/overlay/ip/free?ip=${ip}`,
    others: "refused",
    scope: "admin",
  },
  "GET /api/overlay/ip/reservations": {
    request: ({ container }) => `GET /api/overlay/ip/reservations?container=${container}`,
    others: "filtered",
    scope: "read",
  },
};

/** Routes that need no access token. */
const PUBLIC = [
  "GET /docs/",
  "GET /docs/json",
  "GET /docs/static/*",
  "GET /docs/static/index.html",
  "GET /docs/static/swagger-initializer.js",
  "GET /docs/yaml",
  "GET /healthz",
  "GET /openapi.json",
  "GET /readyz",
];

let stage: Stage;
let service: TestService;

beforeAll(async () => {
  stage = await Stage.up();
  await stage.network();
  await stage.runner("node1", "192.0.2.11");
  await stage.make("OverlayNetwork", "staging", {
    hubConnection: { host: "192.0.2.9" },
    subnets: "10.64.0.0/12/6/14",
    vniBase: 500,
  });
  await stage.make("IPPool", "web", { ranges: ["192.168.7.0/28"] });
  await stage.make("IPReservation", "first", { tenant: ACME, type: "clusterIP" });
  service = await TestService.on(stage.pool);
});
afterAll(() => service.app.close());

let made = 0;
const newName = (): string => `n${++made}`;
const tokenWith = (scopes: AccessTokenInput["scopes"], bounds: Partial<AccessTokenInput> = {}): Promise<string> =>
  service.token(newName(), scopes, bounds);

async function reserveForAcme(): Promise<Held> {
  const container = newName();
  const token = await tokenWith(["reserve"], { tenant: ACME });
  const answer = await service.send(`POST /api/overlay/ip/reserve?runner=node1&container=${container}`, token);
  return { ...answer.json(), container };
}

/** HEAD routes are those of GET. */
const routesOf = (): { name: string; scope: string | undefined }[] =>
  service.app.allRoutes.flatMap(({ method, url, config }) =>
    [method]
      .flat()
      .filter((each) => each !== "HEAD")
      .map((each) => ({ name: `${each} ${url}`, scope: config?.scope })),
  );

describe("the list of routes", () => {
  test("every route declares its scope, and has a sample in this file", () => {
    const declared = routesOf()
      .map(({ name, scope }) => `${name} ${scope}`)
      .sort();
    const expected = [
      ...PUBLIC.map((name) => `${name} public`),
      ...Object.entries(SAMPLES).map(([name, { scope }]) => `${name} ${scope}`),
    ];
    expect(declared).toEqual(expected.sort());
  });

  test("a server with a route that declares no scope does not start", async () => {
    const { log } = service.app;
    const context = { pool: stage.pool, operator: { name: "x", scopes: [] }, stopping: new AbortController().signal };
    const limits = { bodyLimit: 1, pageLimit: 1, rateLimit: 1, requestTimeout: 1 };
    const app = await buildServer({ ...context, limits }, { log: log as never, version: "0" });
    expect(() => app.get("/forgotten", async () => "")).toThrow("declares no scope");
    await app.close();
  });

  test.each(["/healthz", "/readyz", "/openapi.json", "/docs", "/docs/"])("%s needs no access token", async (path) => {
    expect((await service.send(`GET ${path}`)).statusCode).toBeLessThan(400);
  });
});

describe.each(Object.entries(SAMPLES))("%s", (_, { request, others, scope }) => {
  let held: Held;
  beforeEach(async () => {
    held = await reserveForAcme();
  });

  test.each([
    ["of the tenant", { tenant: ACME }],
    ["of the operator", {}],
  ])("accepts a token %s that has its scope", async (_, bounds) => {
    expect(await service.outcome(request(held), await tokenWith([scope], bounds))).toBe("200");
  });

  test("needs an access token", async () => {
    expect(await service.outcome(request(held))).toBe("401 ACCESS_TOKEN_MISSING");
    for (const authorization of ["", "Bearer", "Basic b3Zs", "ovl_00000000_x"])
      expect(await service.outcome(request(held), undefined, { headers: { authorization } })).toBe(
        "401 ACCESS_TOKEN_MISSING",
      );
    for (const unknown of ["nonsense", `ovl_00000000_${"A".repeat(43)}`])
      expect(await service.outcome(request(held), unknown)).toBe("401 ACCESS_TOKEN_INVALID");
  });

  test("refuses the right id with another secret", async () => {
    const text = await tokenWith([scope]);
    const forged = text.slice(0, -1) + (text.endsWith("A") ? "B" : "A");
    expect(await service.outcome(request(held), forged)).toBe("401 ACCESS_TOKEN_INVALID");
  });

  test("refuses a token without its scope", async () => {
    const scopes = (["read", "reserve", "preview", "deploy"] as const).filter((each) => each !== scope);
    expect(await service.outcome(request(held), await tokenWith(scopes))).toBe("403 ACCESS_DENIED");
  });

  test("refuses an expired token", async () => {
    const input = { name: newName(), scopes: ["admin" as const], expiresIn: 60 };
    const { text } = await createAccessToken({ pool: stage.pool, createdBy: "test" }, input, Date.now() - 61_000);
    expect(await service.outcome(request(held), text)).toBe("401 ACCESS_TOKEN_INVALID");
  });

  test("refuses a revoked token", async () => {
    const text = await tokenWith(["admin"]);
    await revokeAccessToken(stage.pool, `n${made}`);
    expect(await service.outcome(request(held), text)).toBe("401 ACCESS_TOKEN_INVALID");
  });

  test.each([
    ["another tenant", { tenant: OTHER }],
    ["another network", { network: "staging" }],
    ["another pool", { pool: "web" }],
  ])("keeps out a token of %s", async (_, bounds) => {
    const answer = await service.send(request(held), await tokenWith(["admin"], bounds));
    if (others === "filtered") expect(answer.statusCode).toBe(200);
    else expect(REFUSALS).toContain(`${answer.statusCode} ${answer.json().code}`);
    expect(answer.body).not.toContain(others === "filtered" ? held.ip : "ipr1.");
    const kept = await service.send(`POST /api/overlay/ip/validate?token=${held.token}`, await tokenWith(["reserve"]));
    expect(kept.json()).toMatchObject({ valid: true, ip: held.ip });
  });
});

/** What is outside of the bounds of a caller is refused, or does not exist for it. */
const REFUSALS = ["403 ACCESS_DENIED", "403 TENANT_MISMATCH", "400 IP_OUTSIDE_POOL"];
