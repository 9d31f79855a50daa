import type { InjectOptions } from "fastify";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type AccessTokenInput, createAccessToken, revokeAccessToken } from "../../../provider/access/access-tokens";
import type { Bounds } from "../../../provider/access/caller";
import { OPERATIONS } from "../../../provider/ipam/remote/api";
import { buildServer } from "../../../service/server";
import { Stage } from "../lifecycle/stage";
import { type Answer, TestService } from "./service";

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
  scope: "read" | "reserve" | "admin";
  /** A request that succeeds for the tenant's own token. */
  request(held: Held): string;
  body?(): object;
  /** Makes what the request needs. */
  prepare?(): Promise<void>;
  /** Bounds of a token that succeeds; default: the tenant. Runners belong to the operator. */
  own?: Bounds;
  /** What tokens with other bounds get; `hidden`: an answer, or a refusal, that does not name the container. Default: refused. */
  others?: Partial<Record<"tenant" | "network" | "pool", "refused" | "hidden" | "allowed">>;
  /** It refuses every token with bounds. */
  isForOperators?: boolean;
}

const HIDDEN = { tenant: "hidden", network: "hidden", pool: "hidden" } as const;
const BLOCK = encodeURIComponent("tenant/acme/shop/clusterIP");

/** Metrics are where Prometheus expects them. */
const fullPath = (path: string): string => (path === "/metrics" ? path : `/api/overlay${path}`);

/** By method and path under `/api/overlay`. */
const SAMPLES: Record<string, Sample> = {
  "POST /ip/reserve": { scope: "reserve", request: () => `/ip/reserve?pool=${BLOCK}` },
  "POST /ip/validate": { scope: "reserve", request: ({ token }) => `/ip/validate?token=${token}` },
  "POST /ip/use": {
    scope: "reserve",
    request: ({ token, container }) => `/ip/use?token=${token}&container=${container}`,
  },
  "POST /ip/release": { scope: "reserve", request: ({ token }) => `/ip/release?token=${token}` },
  "POST /ip/free": { scope: "admin", request: ({ ip }) => `/ip/free?ip=${ip}` },
  "GET /ip/reservations": {
    scope: "read",
    request: ({ container }) => `/ip/reservations?container=${container}`,
    others: HIDDEN,
  },
  "GET /ip/available": { scope: "read", request: () => `/ip/available?pool=${BLOCK}` },
  "GET /ip/stats": { scope: "read", request: () => "/ip/stats", others: HIDDEN },
  "GET /ip/info/:runner": {
    scope: "read",
    request: () => "/ip/info/training%2Fnode1",
    others: { tenant: "allowed" },
  },
  "GET /addresses/:ip": { scope: "read", request: ({ ip }) => `/addresses/${ip}`, others: HIDDEN },
  "GET /addresses/:ip/history": { scope: "read", request: ({ ip }) => `/addresses/${ip}/history`, others: HIDDEN },
  "GET /pools": { scope: "read", request: () => "/pools", others: HIDDEN },
  "GET /pools/:pool": { scope: "read", request: () => `/pools/${BLOCK}` },
  "GET /pools/:pool/history": { scope: "read", request: () => `/pools/${BLOCK}/history` },
  "POST /pools": { scope: "admin", request: () => "/pools", body: newPool },
  "DELETE /pools/:pool": {
    scope: "admin",
    request: () => `/pools/p${made}`,
    prepare: async () => {
      const payload = newPool();
      const maker = await service.token(`maker-${payload.poolName}`, ["admin"], { tenant: ACME }); // A pool of the operator is ended by the operator alone.
      expect(await service.outcome("POST /api/overlay/pools", maker, { payload })).toBe("200");
      made = Number(payload.poolName.slice(1));
    },
  },
  "GET /runners/:runner": { scope: "read", request: () => "/runners/training%2Fnode1", others: { tenant: "allowed" } },
  "POST /runners/:runner/heartbeat": {
    scope: "reserve",
    request: () => "/runners/training%2Fnode1/heartbeat",
    own: { network: "training" },
  },
  "POST /runners/:runner/report": {
    scope: "reserve",
    request: () => "/runners/training%2Fnode1/report",
    body: () => ({ containers: [] }),
    own: { network: "training" },
  },
  "GET /events": { scope: "read", request: () => "/events?after=0", others: HIDDEN },
  "GET /webhooks": { scope: "admin", request: () => "/webhooks", isForOperators: true },
  "POST /webhooks": {
    scope: "admin",
    request: () => "/webhooks",
    body: () => ({ url: "https://example.com/hook" }),
    isForOperators: true,
  },
  "POST /webhooks/:id/resume": {
    scope: "admin",
    request: () => `/webhooks/${webhook}/resume`,
    prepare: addWebhook,
    isForOperators: true,
  },
  "DELETE /webhooks/:id": {
    scope: "admin",
    request: () => `/webhooks/${webhook}`,
    prepare: addWebhook,
    isForOperators: true,
  },
  "GET /metrics": { scope: "read", request: () => "/metrics", isForOperators: true },
};

let webhook = "";
async function addWebhook(): Promise<void> {
  webhook = newName();
  await stage.pool.ipam.admin.webhooks.add({
    id: webhook,
    url: "https://example.com/",
    secret: "whsec_x",
    createdAt: 0,
  });
}

function newPool(): { poolName: string; ranges: string[]; tenant: object } {
  const number = ++made;
  return { poolName: `p${number}`, ranges: [`172.16.${number % 256}.0/30`], tenant: ACME };
}

/** Routes that need no access token. */
const PUBLIC = [
  "GET /docs/",
  "GET /docs/json",
  "GET /docs/static/*",
  "GET /docs/static/index.html",
  "GET /docs/static/swagger-initializer.js",
  "GET /docs/static/theme/page.css",
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
  service = await TestService.on(stage.pool.ipam);
  operator = await tokenWith(["admin"]);
});
afterAll(() => service.close());

let made = 0;
const newName = (): string => `n${++made}`;
let operator: string;
const tokenWith = (scopes: AccessTokenInput["scopes"], bounds: Partial<AccessTokenInput> = {}): Promise<string> =>
  service.token(newName(), scopes, bounds);

async function reserveForAcme(): Promise<Held> {
  const container = `job-${newName()}-of-acme`;
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
      ...Object.entries(SAMPLES).map(
        ([name, { scope }]) => `${name.replace(/\/.*/, (path) => fullPath(path))} ${scope}`,
      ),
      ...OPERATIONS.map((name) => `POST /api/pool/v1/${name} preview`), // see pool-routes.test.ts
    ];
    expect(declared).toEqual(expected.sort());
  });

  test("a server with a route that declares no scope does not start", async () => {
    const app = await buildServer(service.context, { log: service.app.log as never, version: "0" });
    expect(() => app.get("/forgotten", async () => "")).toThrow("declares no scope");
    await app.close();
  });

  test.each(["/healthz", "/readyz", "/openapi.json", "/docs", "/docs/"])("%s needs no access token", async (path) => {
    expect((await service.send(`GET ${path}`)).statusCode).toBeLessThan(400);
  });
});

describe.each(Object.entries(SAMPLES))("%s", (name, sample) => {
  const { scope, body, prepare, own = { tenant: ACME }, others = {}, isForOperators = false } = sample;
  const [method] = name.split(" ");
  let held: Held;
  let path: string;
  beforeEach(async () => {
    held = await reserveForAcme();
    await prepare?.();
    path = fullPath(sample.request(held));
  });
  const send = (token?: string, options: InjectOptions = {}) =>
    service.send(`${method} ${path}`, token, { ...options, ...(body && { payload: body() }) });
  /** The request is logged, and no line has a secret of it. */
  const sendLogged = async (token?: string, options: InjectOptions = {}): Promise<Answer> => {
    const before = service.lines.length;
    const answer = await send(token, options);
    const lines = service.lines.slice(before);
    const line = { method, route: fullPath(name.split(" ")[1]!), status: answer.statusCode };
    if (!isStream(answer)) expect(lines.map((each) => JSON.parse(each))).toContainEqual(expect.objectContaining(line));
    for (const secret of [token, options.headers?.authorization, held.token].map(secretOf))
      if (secret !== "") expect(lines.join("")).not.toContain(secret);
    return answer;
  };
  const outcome = async (token?: string, options: InjectOptions = {}): Promise<string> => {
    const { statusCode, body } = await sendLogged(token, options);
    return statusCode === 200 ? "200" : `${statusCode} ${JSON.parse(body).code}`;
  };

  test("answers a token with its scope and the right bounds", async () => {
    expect(await outcome(await tokenWith([scope], own))).toBe(isForOperators ? "403 ACCESS_DENIED" : "200");
  });

  test("accepts a token of the operator with its scope", async () => {
    expect(await outcome(await tokenWith([scope]))).toBe("200");
  });

  test("needs an access token", async () => {
    expect(await outcome()).toBe("401 ACCESS_TOKEN_MISSING");
    for (const authorization of ["", "Bearer", "Basic b3Zs", UNKNOWN])
      expect(await outcome(undefined, { headers: { authorization } })).toBe("401 ACCESS_TOKEN_MISSING");
    for (const unknown of ["nonsense", UNKNOWN]) expect(await outcome(unknown)).toBe("401 ACCESS_TOKEN_INVALID");
  });

  test("refuses the right id with another secret", async () => {
    const text = await tokenWith([scope]);
    const forged = text.slice(0, -1) + (text.endsWith("A") ? "B" : "A");
    expect(await outcome(forged)).toBe("401 ACCESS_TOKEN_INVALID");
  });

  test("refuses a token without its scope", async () => {
    const scopes = (["read", "reserve", "preview", "deploy"] as const).filter((each) => each !== scope);
    expect(await outcome(await tokenWith(scopes))).toBe("403 ACCESS_DENIED");
  });

  test("refuses an expired token", async () => {
    const input = { name: newName(), scopes: ["admin" as const], expiresIn: 60 };
    const { text } = await createAccessToken({ pool: stage.pool.ipam, createdBy: "test" }, input, Date.now() - 61_000);
    expect(await outcome(text)).toBe("401 ACCESS_TOKEN_INVALID");
  });

  test("refuses a revoked token", async () => {
    const name = newName();
    const text = await service.token(name, ["admin"]);
    await revokeAccessToken(stage.pool.ipam, name);
    expect(await outcome(text)).toBe("401 ACCESS_TOKEN_INVALID");
  });

  test.each([
    ["tenant", { tenant: OTHER }],
    ["network", { network: "staging" }],
    ["pool", { pool: "web" }],
  ] as const)("keeps out a token of another %s", async (bound, bounds) => {
    const { statusCode, body } = await sendLogged(await tokenWith(["admin"], bounds));
    const expected = others[bound] ?? "refused";
    if (expected === "refused") expect(REFUSALS).toContain(`${statusCode} ${JSON.parse(body).code}`);
    else if (statusCode !== 200)
      expect([expected, REFUSALS]).toEqual([
        "hidden",
        expect.arrayContaining([`${statusCode} ${JSON.parse(body).code}`]),
      ]);
    expect(body).not.toContain(held.container);
    expect(body).not.toContain("ipr1.");
    const kept = await service.send(`POST /api/overlay/ip/validate?token=${held.token}`, operator);
    expect(kept.json()).toMatchObject({ valid: true, ip: held.ip });
  });
});

/** A token that was never made. */
const UNKNOWN = `ovl_00000000_${"A".repeat(43)}`;

/** The part of a token that gives access: what follows its id, or its signature. */
const secretOf = (token: unknown): string =>
  String(token ?? "")
    .replace(/^ovl_[0-9a-f]{8}_/, "")
    .split(".")
    .at(-1)!;

/** Its line is written when the client has gone, which the test without a socket does not show. */
const isStream = ({ headers }: Answer): boolean => String(headers["content-type"]).startsWith("text/event-stream");

/** What is outside of the bounds of a caller is refused, or does not exist for it. */
const REFUSALS = [
  "403 ACCESS_DENIED",
  "403 TENANT_MISMATCH",
  "400 IP_OUTSIDE_POOL",
  "404 POOL_NOT_FOUND",
  "404 LEASE_NOT_FOUND",
];
