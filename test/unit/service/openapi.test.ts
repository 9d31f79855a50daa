import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { Store } from "../../../provider/ipam/types";
import { Stage } from "../lifecycle/stage";
import { TestService } from "./service";

/** The OpenAPI document: complete, and with the answers that the service really gives. */
const API = "/api/overlay";
let stage: Stage;
let service: TestService;
let token: string;

beforeEach(async () => {
  stage = await Stage.up();
  await stage.network();
  await stage.runner("node1", "192.0.2.11");
  await stage.make("IPPool", "web", { ranges: ["192.168.7.0/30"] });
  service = await TestService.on(stage.pool.ipam);
  token = await service.token("scheduler", ["admin"]);
});
afterEach(async () => {
  vi.useRealTimers();
  await service.close();
});

interface Operation {
  summary: string;
  description: string;
  operationId: string;
  tags: string[];
  security: { accessToken: string[] }[];
  parameters?: { in: string }[];
  requestBody?: { required: boolean };
  responses: Record<string, { description: string }>;
}

interface Document {
  openapi: string;
  info: { version: string; description: string };
  tags: { name: string; description: string }[];
  paths: Record<string, Record<string, Operation>>;
}

const readDocument = async (): Promise<Document> => (await service.send("GET /openapi.json")).json();

const operationsOf = ({ paths }: Document): [name: string, operation: Operation][] =>
  Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]): [string, Operation] => [
      `${method.toUpperCase()} ${path.replace(API, "")}`,
      operation,
    ]),
  );

/** Statuses of routes that read, without those that a route has of its own; `BODY`: also those of routes that may have a body. */
const READ = "200 400 401 403 429 500 503";
const BODY = "200 400 401 403 408 413 415 429 500 503";

const STATUSES: Record<string, string> = {
  "GET /healthz": "200 403 500",
  "GET /readyz": "200 403 500 503",
  "GET /metrics": "200 401 403 429 500 503",
  "POST /ip/reserve": `${BODY} 404 409`,
  "POST /ip/validate": `${BODY} 409 410`,
  "POST /ip/use": `${BODY} 404 409 410`,
  "POST /ip/release": `${BODY} 404 409`,
  "POST /ip/free": `${BODY} 404 409`,
  "GET /ip/reservations": `${READ} 404`,
  "GET /ip/available": `${READ} 404`,
  "GET /ip/stats": "200 401 403 429 500 503",
  "GET /ip/info/{runner}": `${READ} 404`,
  "GET /addresses/{ip}": `${READ} 404`,
  "GET /addresses/{ip}/history": `${READ} 404`,
  "GET /pools": READ,
  "GET /pools/{pool}": `${READ} 404`,
  "GET /pools/{pool}/history": `${READ} 404`,
  "POST /pools": `${BODY} 404 409`,
  "DELETE /pools/{pool}": `${BODY} 404 409`,
  "GET /runners/{runner}": `${READ} 404`,
  "POST /runners/{runner}/heartbeat": `${BODY} 404 409`,
  "POST /runners/{runner}/report": `${BODY} 404 409`,
  "GET /events": `${READ} 410`,
  "GET /webhooks": "200 401 403 429 500 503",
  "POST /webhooks": `${BODY} 404 409`,
  "POST /webhooks/{id}/resume": `${BODY} 404`,
  "DELETE /webhooks/{id}": `${BODY} 404`,
};

describe("the document", () => {
  test("is OpenAPI 3.1 and has every route that is not hidden", async () => {
    const document = await readDocument();
    expect(document).toMatchObject({ openapi: "3.1.0", info: { version: "1.2.3" } });
    const routes = service.app.allRoutes
      .filter(({ method, schema, url }) => method !== "HEAD" && !schema?.hide && !url.startsWith("/docs"))
      .map(({ method, url }) => `${String(method)} ${url.replace(API, "").replace(/:(\w+)/g, "{$1}")}`);
    const names = operationsOf(document).map(([name]) => name);
    expect(names.sort()).toEqual(routes.sort());
    expect(names).toEqual(Object.keys(STATUSES).sort());
    expect(document.info.description).toMatch(/405.*`\/api\/pool\/v1`\) is not described here: it is internal/s);
  });

  test("describes every operation: summary, id, area, scope and answers", async () => {
    const document = await readDocument();
    const areas = document.tags.map(({ name }) => name);
    expect(areas).toEqual(["reservations", "addresses", "pools", "runners", "events", "webhooks", "health"]);
    const operations = operationsOf(document);
    for (const [name, { summary, description, tags, security, responses }] of operations) {
      expect(summary, name).toMatch(/\.$/);
      expect([name, tags.length, areas]).toEqual([name, 1, expect.arrayContaining(tags)]);
      const [requirement] = security;
      const scope = `an access token with the scope \`${requirement?.accessToken.join()}\``;
      expect(description, name).toContain(`Needs ${requirement ? scope : "no access token"}.`);
      expect([name, Object.keys(responses)]).toEqual([name, STATUSES[name]!.split(" ").sort()]);
      for (const answer of Object.values(responses)) expect(answer.description, name).not.toBe("Default Response");
    }
    expect(new Set(operations.map(([, { operationId }]) => operationId)).size).toBe(operations.length);
  });

  test("has one form for inputs: the query of what reads, the body of what writes", async () => {
    const operations = operationsOf(await readDocument()).filter(([, { requestBody }]) => requestBody);
    for (const [name, { parameters = [] }] of operations.filter(([, { description }]) =>
      /query instead/.test(description),
    ))
      expect(
        parameters.filter((each) => each.in === "query"),
        name,
      ).toEqual([]);
    expect(operations.map(([name, { requestBody }]) => `${name} ${requestBody!.required}`).sort()).toEqual([
      "POST /ip/free true",
      "POST /ip/release true",
      "POST /ip/reserve true",
      "POST /ip/use true",
      "POST /ip/validate true",
      "POST /pools true",
      "POST /runners/{runner}/report true",
      "POST /webhooks true",
    ]);
  });

  test("has schemas of its routes only, and no reference that leads nowhere", async () => {
    const { body } = await service.send("GET /openapi.json");
    const names = Object.keys(JSON.parse(body).components.schemas);
    expect(names).toContain("Problem");
    expect(names.join(" ")).not.toMatch(/Connection|Proxy/);
    for (const [, name] of body.matchAll(/"#\/components\/schemas\/([^"]+)"/g)) expect(names).toContain(name);
  });
});

/** The token of a new reservation. */
const reserve = async (ttl: number): Promise<string> =>
  (await service.send(`POST ${API}/ip/reserve?pool=web&ttl=${ttl}`, token)).json().token;

async function reserveUsed(): Promise<string> {
  const given = await reserve(60);
  expect(await service.outcome(`POST ${API}/ip/use?container=c1&token=${given}`, token)).toBe("200");
  return given;
}

async function reserveExpired(): Promise<string> {
  const given = await reserve(1);
  stage.pass(60);
  vi.setSystemTime(stage.now);
  return given;
}

async function reserveForStack(): Promise<string> {
  const { ip } = await stage.make("IPReservation", "first", { pool: "web" });
  return String(ip);
}

async function addMostWebhooks(): Promise<void> {
  const webhook = { url: "https://example.com/", secret: "whsec_x", createdAt: 0 };
  for (let i = 0; i < 100; i++) await stage.pool.ipam.admin.webhooks.add({ ...webhook, id: `w${i}` });
}

/** The runner is released after it was read, and before its heartbeat is recorded. */
async function releaseRunnerAtHeartbeat(): Promise<void> {
  const { ipam } = stage.pool;
  const racing: Store = new Proxy(ipam, {
    get: (target, name) => {
      if (name === "session") return () => racing;
      const value = Reflect.get(target, name);
      if (name !== "touch") return typeof value === "function" ? value.bind(target) : value;
      return async (pool: string, leaseId: string) => {
        await ipam.release(pool, leaseId);
        return ipam.touch(pool, leaseId);
      };
    },
  });
  await service.close();
  service = await TestService.on(racing);
}

type Case = [route: string, status: 404 | 409 | 410, request: () => string | Promise<string>, payload?: object];

/** A request for each failure that a route declares. */
const CASES: Case[] = [
  ["POST /ip/reserve", 404, () => "/ip/reserve?pool=none"],
  ["POST /ip/reserve", 409, () => "/ip/reserve?pool=web&count=5"],
  ["POST /ip/validate", 409, async () => `/ip/validate?token=${await reserveUsed()}`],
  ["POST /ip/validate", 410, async () => `/ip/validate?token=${await reserveExpired()}`],
  ["POST /ip/use", 404, () => "/ip/use?container=c&pool=none&ip=192.168.7.1"],
  ["POST /ip/use", 409, async () => `/ip/use?container=other&token=${await reserveUsed()}`],
  ["POST /ip/use", 410, async () => `/ip/use?container=c&token=${await reserveExpired()}`],
  ["POST /ip/release", 404, () => "/ip/release?container=c&pool=none"],
  ["POST /ip/release", 409, async () => `/ip/release?token=${await reserveUsed()}`],
  ["POST /ip/free", 404, () => "/ip/free?pool=none&ip=192.168.7.1"],
  ["POST /ip/free", 409, async () => `/ip/free?ip=${await reserveForStack()}`],
  ["GET /ip/reservations", 404, () => "/ip/reservations?network=none"],
  ["GET /ip/available", 404, () => "/ip/available?pool=none"],
  ["GET /ip/info/{runner}", 404, () => "/ip/info/none"],
  ["GET /addresses/{ip}", 404, () => "/addresses/192.168.7.1?pool=none"],
  ["GET /pools/{pool}/history", 404, () => "/pools/none/history"],
  ["GET /addresses/{ip}/history", 404, () => "/addresses/192.168.7.1/history?pool=none"],
  ["GET /pools/{pool}", 404, () => "/pools/none"],
  ["POST /pools", 404, () => "/pools", { poolName: "child", parent: "none", prefixLength: 30 }],
  ["POST /pools", 409, () => "/pools", { poolName: "other", ranges: ["192.168.7.0/30"] }],
  ["DELETE /pools/{pool}", 404, () => "/pools/none"],
  ["DELETE /pools/{pool}", 409, () => "/pools/web"],
  ["GET /runners/{runner}", 404, () => "/runners/none"],
  ["POST /runners/{runner}/heartbeat", 404, () => "/runners/none/heartbeat"],
  ["POST /runners/{runner}/heartbeat", 409, () => releaseRunnerAtHeartbeat().then(() => "/runners/node1/heartbeat")],
  ["POST /runners/{runner}/report", 404, () => "/runners/none/report", { containers: [] }],
  [
    "POST /runners/{runner}/report",
    409,
    () => releaseRunnerAtHeartbeat().then(() => "/runners/node1/report"),
    { containers: [] },
  ],
  ["GET /events", 410, () => "/events?after=1000000"],
  ["POST /webhooks", 404, () => "/webhooks", { url: "https://example.com/hook", pool: "none" }],
  ["POST /webhooks", 409, () => addMostWebhooks().then(() => "/webhooks"), { url: "https://example.com/hook" }],
  ["POST /webhooks/{id}/resume", 404, () => "/webhooks/none/resume"],
  ["DELETE /webhooks/{id}", 404, () => "/webhooks/none"],
];

describe("a failure that a route declares is answered", () => {
  test.each(CASES)("%s: %i", async (route, status, request, payload) => {
    const [method] = route.split(" ");
    const path = await request(); // may replace the service
    const answer = await service.send(`${method} ${API}${path}`, token, { ...(payload && { payload }) });
    expect([answer.statusCode, answer.json().status]).toEqual([status, status]);
  });

  test("each of them", () => {
    const declared = Object.entries(STATUSES).flatMap(([route, statuses]) =>
      (statuses.match(/404|409|410/g) ?? []).map((status) => `${route} ${status}`),
    );
    expect(CASES.map(([route, status]) => `${route} ${status}`)).toEqual(expect.arrayContaining(declared));
  });
});

describe("failures that follow from the form of a request", () => {
  const withBody = Object.keys(STATUSES).filter((name) => !name.startsWith("GET"));
  const text = { payload: "x", headers: { "content-type": "text/plain" } };
  const large = { payload: `"${"x".repeat(5 * 2 ** 20)}"`, headers: { "content-type": "application/json" } };
  const pathOf = (name: string): string => name.replace(" ", ` ${API}`).replace(/\{\w+\}/, "192.168.7.1");

  test.each(withBody)("%s: 413 and 415", async (name) => {
    expect(await service.outcome(pathOf(name), token, text)).toBe("415 BODY_TYPE");
    expect(await service.outcome(pathOf(name), token, large)).toBe("413 BODY_TOO_LARGE");
  });

  test.each(["/ip/stats", "/webhooks", "/pools/web"])("GET %s reads no body", async (path) => {
    for (const options of [text, large]) expect(await service.outcome(`GET ${API}${path}`, token, options)).toBe("200");
  });

  test.each(["GET /pools/", "GET /runners/", "GET /ip/info/"])("%s: 400 for a name that is empty", async (name) => {
    expect(await service.outcome(pathOf(name), token)).toBe("400 INPUT_INVALID");
  });
});

test("an answer that is not described is found", async () => {
  const line = JSON.stringify({ method: "GET", route: `${API}/pools/:pool`, status: 409 });
  service.lines.push(line);
  expect(await service.undescribedAnswers()).toEqual([`GET ${API}/pools/{pool} 409`]);
  service.lines.splice(service.lines.indexOf(line), 1);
});
