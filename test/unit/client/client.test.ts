import { createServer } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type CallOptions, OverlayClient, OverlayServiceError } from "../../../client";
import { parseRetryAfter, retryDelay } from "../../../client/retry";
import { cut, cutInBody, json, problem, type Reply, ScriptedServer, silence } from "./scripted-server";

/** The client against a server on loopback that answers as a test says, without delays between retries where no delay is tested. */
let server: ScriptedServer;
let client: OverlayClient;

beforeAll(async () => {
  server = await ScriptedServer.start();
  client = new OverlayClient({ baseUrl: `${server.url}/`, token: "ovl_secret", retries: 2, timeout: 10_000 });
});
afterAll(() => server.stop());

const LEASE = {
  ip: "10.128.64.5",
  pool: "runner/training/node1",
  state: "reserved",
  createdAt: "2026-11-17T20:00:00Z",
  owner: "overlayctl/training/node1/web",
  leaseId: "1",
};
const RESERVATION = { ...LEASE, token: "ipr1.x", gateway: "10.128.64.1" };
const RELEASED = { released: [LEASE], kept: [] };

const failureOf = async (call: Promise<unknown>): Promise<OverlayServiceError> => {
  const error = await call.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(OverlayServiceError);
  return error as OverlayServiceError;
};

describe("requests", () => {
  test("a POST has its inputs as JSON, the access token and an idempotency key", async () => {
    server.script(json(RESERVATION));
    await client.reserve({ runner: "node1", ttl: 60 });
    await client.reserve({ runner: "node1" }, { idempotencyKey: "job-1" });
    const [first, second] = server.received;
    expect(first).toMatchObject({
      method: "POST",
      url: "/api/overlay/ip/reserve",
      headers: {
        authorization: "Bearer ovl_secret",
        "content-type": "application/json",
        "idempotency-key": expect.stringMatching(/^[0-9a-f-]{36}$/),
      },
      body: '{"runner":"node1","ttl":60}',
    });
    expect(second!.headers["idempotency-key"]).toBe("job-1");
  });

  test("a GET has them in its query, and no body", async () => {
    server.script(json({ reservations: [] }));
    await client.reservations({ container: "web & co", label: ["a=1", "b=2"], limit: 10, state: undefined });
    expect(server.received[0]).toMatchObject({
      method: "GET",
      url: "/api/overlay/ip/reservations?container=web+%26+co&label=a%3D1&label=b%3D2&limit=10",
      body: "",
    });
    expect(server.received[0]!.headers).not.toHaveProperty("content-type");
  });

  test("a function gives the token of each attempt", async () => {
    let made = 0;
    const rotating = new OverlayClient({ baseUrl: server.url, token: async () => `t${++made}` });
    server.script(cut, json({ status: "ok" }));
    await rotating.health();
    expect(server.received.map(({ headers }) => headers.authorization)).toEqual(["Bearer t1", "Bearer t2"]);
  });

  test("without a token there is no such header", async () => {
    server.script(json({ status: "ready" }));
    await new OverlayClient({ baseUrl: server.url }).readiness();
    expect(server.received[0]!.headers).not.toHaveProperty("authorization");
  });

  test("pages are read one after the other, until the last", async () => {
    server.script(json({ reservations: [LEASE, LEASE], next: "c1" }), json({ reservations: [LEASE] }));
    const all = [];
    for await (const lease of client.allReservations({ runner: "node1" })) all.push(lease);
    expect(all).toHaveLength(3);
    expect(server.received.map(({ url }) => url.split("?")[1])).toEqual(["runner=node1", "runner=node1&cursor=c1"]);
  });
});

describe("answers", () => {
  test("a problem becomes an error with its code, what, fix and status", async () => {
    server.script(problem(409, "POOL_EXHAUSTED"));
    const error = await failureOf(client.reserve({ runner: "node1" }));
    expect(error).toMatchObject({
      name: "OverlayServiceError",
      message: "POOL_EXHAUSTED: What. Fix.",
      code: "POOL_EXHAUSTED",
      what: "What.",
      fix: "Fix.",
      status: 409,
      requestId: "job-17",
    });
  });

  test.each<[string, Reply]>([
    ["text", (response) => response.end("<html>")],
    ["JSON with other fields", json({ address: "10.0.0.1" })],
    ["a field of another type", json({ ...RESERVATION, ip: 5 })],
    ["an error page of another program", (response) => response.writeHead(404).end("<html>not here</html>")],
  ])("%s is ANSWER_INVALID", async (_, reply) => {
    server.script(reply);
    const error = await failureOf(client.reserve({ runner: "node1" }));
    expect(error.code).toBe("ANSWER_INVALID");
    expect(server.received).toHaveLength(1);
  });

  test("fields that this version does not know are left out", async () => {
    server.script(json({ ...RESERVATION, later: true }));
    expect(await client.reserve({ runner: "node1" })).toEqual(RESERVATION);
  });

  test("no error text has the access token or the token of a reservation", async () => {
    server.script(json({}));
    const error = await failureOf(client.validate({ token: "ipr1.secret" }));
    expect(`${error.message} ${JSON.stringify(error)}`).not.toMatch(/secret/);
  });

  test("a redirection is not followed: it may lead the token elsewhere", async () => {
    server.script((response) => response.writeHead(307, { location: "http://127.0.0.1:9/" }).end());
    const error = await failureOf(client.health({ retries: 0 }));
    expect(error.code).toBe("SERVICE_UNREACHABLE");
    expect(server.received).toHaveLength(1);
  });
});

describe("retries", () => {
  type Request = (options?: CallOptions) => Promise<unknown>;
  const reserve: Request = (options) => client.reserve({ runner: "node1" }, options);
  const use: Request = (options) => client.use({ token: "t", container: "web" }, options);
  const releaseContainer: Request = (options) => client.release({ container: "web" }, options);
  const releaseToken: Request = (options) => client.release({ token: "t" }, options);
  const free: Request = (options) => client.free({ ip: "10.128.64.5" }, options);

  test.each<[string, Request, string, Reply, unknown]>([
    ["reserve", reserve, "cut connection", cut, RESERVATION],
    ["reserve", reserve, "cut answer", cutInBody, RESERVATION],
    ["reserve", reserve, "502 of a proxy", (response) => response.writeHead(502).end("<html>"), RESERVATION],
    ["reserve", reserve, "503", problem(503, "STORE_UNAVAILABLE"), RESERVATION],
    ["reserve", reserve, "504", (response) => response.writeHead(504).end(), RESERVATION],
    ["use", use, "cut connection", cut, LEASE],
    ["release by container", releaseContainer, "cut connection", cut, RELEASED],
    ["release by token", releaseToken, "cut connection", cut, RELEASED],
    ["release by token", releaseToken, "503 of the store", problem(503, "STORE_UNAVAILABLE"), RELEASED],
    ["free", free, "429", problem(429, "RATE_LIMITED"), LEASE],
    ["free", free, "503 while it stops", problem(503, "SERVICE_STOPPING"), LEASE],
  ])("%s is repeated after: %s", async (_, request, __, failure, answer) => {
    server.script(failure, json(answer));
    expect(await request()).toEqual(answer);
    expect(server.received).toHaveLength(2);
    const keys = server.received.map(({ headers }) => headers["idempotency-key"]);
    expect(keys[1]).toBe(keys[0]);
  });

  test.each<[string, Request, string, Reply, string]>([
    ["reserve", reserve, "a refusal", problem(409, "POOL_EXHAUSTED"), "POOL_EXHAUSTED"],
    ["reserve", reserve, "an internal error", problem(500, "INTERNAL"), "INTERNAL"],
    ["free", free, "cut connection", cut, "SERVICE_UNREACHABLE"],
    ["free", free, "503 of the store", problem(503, "STORE_UNAVAILABLE"), "STORE_UNAVAILABLE"],
    ["free", free, "502 of a proxy", (response) => response.writeHead(502).end(), "ANSWER_INVALID"],
  ])("%s is not repeated after: %s", async (_, request, __, failure, code) => {
    server.script(failure, json({}));
    expect((await failureOf(request())).code).toBe(code);
    expect(server.received).toHaveLength(1);
  });

  test("a refused connection has had no effect: every request is repeated", async () => {
    const listener = createServer();
    const port = await new Promise<number>((resolve) =>
      listener.listen(0, "127.0.0.1", () => resolve((listener.address() as { port: number }).port)),
    );
    await new Promise((resolve) => listener.close(resolve));
    let attempts = 0;
    const counting: typeof fetch = (...args) => {
      attempts++;
      return fetch(...args);
    };
    const lonely = new OverlayClient({ baseUrl: `http://127.0.0.1:${port}`, retries: 2, fetch: counting });
    const error = await failureOf(lonely.free({ ip: "10.128.64.5" }));
    expect([error.code, attempts]).toEqual(["SERVICE_UNREACHABLE", 3]);
    expect(error.what).toContain("ECONNREFUSED");
  });

  test("they end after the number that was given, with the last error", async () => {
    server.script(problem(503, "STORE_UNAVAILABLE"));
    expect((await failureOf(reserve())).code).toBe("STORE_UNAVAILABLE");
    expect(server.received).toHaveLength(3);
    server.script(cut);
    expect((await failureOf(reserve({ retries: 0 }))).code).toBe("SERVICE_UNREACHABLE");
    expect(server.received).toHaveLength(1);
  });

  test("a server that does not answer in time", async () => {
    server.script(silence, json(RESERVATION));
    expect(await reserve({ timeout: 300 })).toEqual(RESERVATION);
    server.script(silence);
    expect((await failureOf(reserve({ timeout: 300, retries: 0 }))).code).toBe("SERVICE_TIMEOUT");
    expect((await failureOf(free({ timeout: 300 }))).code).toBe("SERVICE_TIMEOUT");
    expect(server.received).toHaveLength(2);
  });

  test("Retry-After is waited for", async () => {
    server.script(problem(429, "RATE_LIMITED", { "retry-after": "1" }), json(RESERVATION));
    const started = performance.now();
    await reserve();
    expect(performance.now() - started).toBeGreaterThanOrEqual(1000);
  });

  test("delays double, have jitter and a bound", () => {
    const delays = [1, 2, 3, 4, 20].map((retry) => [retryDelay(retry, 0, () => 0), retryDelay(retry, 0, () => 1)]);
    expect(delays).toEqual([
      [50, 100],
      [100, 200],
      [200, 400],
      [400, 800],
      [2500, 5000],
    ]);
    expect(retryDelay(1, 2000, () => 0)).toBe(2050);
  });

  test.each([
    ["2", 2000],
    ["Thu, 01 Jan 1970 00:00:05 GMT", 4000],
    ["Thu, 01 Jan 1970 00:00:00 GMT", 0],
    ["86400", 30_000],
    ["soon", undefined],
    [null, undefined],
  ])("Retry-After %s: %s ms", (text, expected) => {
    expect(parseRetryAfter(text, 1000)).toBe(expected);
  });
});

describe("abort", () => {
  test("ends a request that waits for its answer, with the reason of the signal", async () => {
    server.script(silence);
    const controller = new AbortController();
    const call = client.reserve({ runner: "node1" }, { signal: controller.signal });
    setTimeout(() => controller.abort(new Error("job cancelled")), 100);
    await expect(call).rejects.toThrow("job cancelled");
  });

  test("ends the wait before a retry", async () => {
    server.script(problem(503, "STORE_UNAVAILABLE", { "retry-after": "30" }));
    const call = client.reserve({ runner: "node1" }, { signal: AbortSignal.timeout(200) });
    await expect(call).rejects.toMatchObject({ name: "TimeoutError" });
    expect(server.received).toHaveLength(1);
  });

  test("before the call: nothing is sent", async () => {
    server.script(json(RESERVATION));
    const call = client.reserve({ runner: "node1" }, { signal: AbortSignal.abort(new Error("never")) });
    await expect(call).rejects.toThrow("never");
    expect(server.received).toHaveLength(0);
  });
});

describe("withAddress", () => {
  const used = json({ ...LEASE, state: "used", usedBy: "web" });
  const paths = () => server.received.map(({ url }) => url.replace("/api/overlay/ip/", ""));

  test("reserves, uses, runs and releases", async () => {
    server.script(json(RESERVATION), used, json(RELEASED));
    const result = await client.withAddress("node1", async (ip, { gateway }) => `${ip} via ${gateway}`, {
      container: "web",
    });
    expect(result).toBe("10.128.64.5 via 10.128.64.1");
    expect(paths()).toEqual(["reserve", "use", "release"]);
    expect(server.received.map(({ body }) => JSON.parse(body))).toEqual([
      { runner: "node1" },
      { token: "ipr1.x", container: "web" },
      { runner: "node1", container: "web" },
    ]);
  });

  test("releases when the function throws, and throws its error, even if the release fails", async () => {
    const fail = () => Promise.reject(new Error("job failed"));
    server.script(json(RESERVATION), used, json(RELEASED));
    await expect(client.withAddress("node1", fail)).rejects.toThrow("job failed");
    expect(paths()).toEqual(["reserve", "use", "release"]);
    server.script(json(RESERVATION), used, problem(500, "INTERNAL"));
    await expect(client.withAddress("node1", fail)).rejects.toThrow("job failed");
  });

  test("releases when the function throws before it returns a promise, and when it returns none", async () => {
    server.script(json(RESERVATION), used, json(RELEASED), json(RESERVATION), used, json(RELEASED));
    const failAtOnce = () => {
      throw new Error("job failed");
    };
    await expect(client.withAddress("node1", failAtOnce)).rejects.toThrow("job failed");
    const plain = ((ip: string) => ip) as unknown as (ip: string) => Promise<string>;
    expect(await client.withAddress("node1", plain)).toBe("10.128.64.5");
    expect(paths()).toEqual(["reserve", "use", "release", "reserve", "use", "release"]);
  });

  test("releases when it is aborted meanwhile", async () => {
    server.script(json(RESERVATION), used, json(RELEASED));
    const controller = new AbortController();
    const run = async () => {
      controller.abort(new Error("cancelled"));
      controller.signal.throwIfAborted();
    };
    await expect(client.withAddress("node1", run, { signal: controller.signal })).rejects.toThrow("cancelled");
    expect(paths()).toEqual(["reserve", "use", "release"]);
  });

  test("each call has a container of its own", async () => {
    server.script(json(RESERVATION), used, json(RELEASED), json(RESERVATION), used, json(RELEASED));
    await client.withAddress("node1", async () => {});
    await client.withAddress("node1", async () => {});
    const names = server.received.map(({ body }) => JSON.parse(body).container);
    expect(names[2]).toBe(names[1]);
    expect(names[4]).not.toBe(names[1]);
  });

  test.each<[string, Reply, Reply[], string, string[]]>([
    [
      "its container has an address",
      problem(409, "RESERVATION_EXISTS"),
      [json(RELEASED)],
      "RESERVATION_EXISTS",
      ["token"],
    ],
    ["it cannot be used", problem(500, "INTERNAL"), [problem(500, "INTERNAL")], "INTERNAL", ["token"]],
    [
      "the answer of its use was lost",
      problem(500, "INTERNAL"),
      [problem(409, "TOKEN_USED"), json(RELEASED)],
      "INTERNAL",
      ["token", "runner,container"],
    ],
  ])("releases only what it has reserved itself if %s", async (_, failure, releases, code, given) => {
    server.script(json(RESERVATION), failure, ...releases);
    const run = () => Promise.reject(new Error("not called"));
    await expect(client.withAddress("node1", run, { container: "web" })).rejects.toMatchObject({ code });
    expect(paths()).toEqual(["reserve", "use", ...given.map(() => "release")]);
    expect(server.received.slice(2).map(({ body }) => Object.keys(JSON.parse(body)).join())).toEqual(given);
  });

  test("releases nothing if there is no reservation", async () => {
    server.script(problem(409, "POOL_EXHAUSTED"));
    await expect(client.withAddress("node1", async () => {})).rejects.toMatchObject({ code: "POOL_EXHAUSTED" });
    expect(paths()).toEqual(["reserve"]);
  });
});
