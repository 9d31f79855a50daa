import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { historyOf } from "../../../provider/ipam/interface";
import { STORED_KEYS } from "../../../provider/ipam/token";
import { Stage } from "../lifecycle/stage";
import { TestService } from "./service";

/** The routes on a pool in memory. */
const API = "/api/overlay";
let stage: Stage;
let service: TestService;
let token: string;

beforeEach(async () => {
  stage = await Stage.up();
  await stage.network();
  await stage.runner("node1", "192.0.2.11");
  await stage.make("IPPool", "web", { ranges: ["192.168.7.0/30"], allocation: "lowest" });
  await stage.make("IPPool", "ports", { type: "nodePort", portRange: "30000-30009", allocation: "lowest" });
  service = await TestService.on(stage.pool.ipam);
  token = await service.token("scheduler", ["read", "reserve", "admin"]);
});
afterEach(() => service.close());

const post = async (path: string, payload?: object) =>
  service.send(`POST ${API}/ip/${path}`, token, { ...(payload && { payload }) });
const outcome = async (request: string, options = {}) => service.outcome(request, token, options);

describe("a reservation", () => {
  test("by query: address, token, gateway and end; the history names the access token", async () => {
    const answer = await post("reserve?runner=node1&ttl=300");
    expect(answer.statusCode).toBe(200);
    expect(answer.json()).toMatchObject({
      ip: expect.stringMatching(/^10\.128\./),
      network: "training",
      runner: "node1",
      pool: "runner/training/node1",
      state: "reserved",
      gateway: "10.128.64.1",
      expiresAt: "2030-01-01T00:05:00Z",
      createdBy: "scheduler",
      token: expect.stringMatching(/^ipr1\./),
    });
    expect(await historyOf(stage.pool.ipam, "runner/training/node1")).toMatchObject([
      { what: "claimed", by: "scheduler" },
    ]);
  });

  test.each([
    ["a runner by its name", { runner: "node1" }],
    ["a runner with its network before it", { runner: "training/node1" }],
    ["a runner and its network", { runner: "node1", network: "training" }],
    ["a pool", { pool: "web" }],
    ["a pool by its whole name", { pool: "runner/training/node1" }],
    ["a pool of ports", { pool: "ports" }],
  ])("by JSON: %s, then validated, used and released", async (_, where) => {
    const given = (await post("reserve", { ...where, ttl: 60, vm: true })).json();
    expect((await post("validate", { token: given.token })).json()).toMatchObject({ valid: true, ip: given.ip });
    expect((await post("use", { token: given.token, container: "c1" })).json()).toMatchObject({
      ip: given.ip,
      state: "used",
      usedBy: "c1",
    });
    expect(await outcome(`POST ${API}/ip/validate?token=${given.token}`)).toBe("409 TOKEN_USED");
    expect((await post("release?container=c1")).json()).toMatchObject({ released: [{ ip: given.ip }], kept: [] });
    expect((await post("release?container=c1")).json()).toEqual({ released: [], kept: [] });
  });

  test("an address that is asked for, its use without a token, and its release by the operator", async () => {
    expect((await post("use?ip=10.128.64.77&container=c1")).json()).toMatchObject({ ip: "10.128.64.77", usedBy: "c1" });
    expect(await outcome(`POST ${API}/ip/reserve?runner=node1&ip=10.128.64.77`)).toBe("409 IP_IN_USE");
    expect(await outcome(`POST ${API}/ip/use?ip=10.128.64.77&container=c2`)).toBe("409 IP_IN_USE");
    expect((await post("free?ip=10.128.64.77")).json()).toMatchObject({ ip: "10.128.64.77" });
  });

  test("in a tenant's own pool of a type, which is made at first use", async () => {
    service.context.tenantDefaults = stage.deps.tenantDefaults;
    const bound = await service.token("acme", ["reserve"], { tenant: { org: "acme", project: "shop" } });
    const scheduler = await service.token("unbounded", ["reserve"]);
    const first = `POST ${API}/ip/reserve?type=clusterIP&tenant=acme/shop`;
    expect(await service.outcome(first, scheduler)).toBe("403 ACCESS_DENIED");
    const answer = await service.send(`POST ${API}/ip/reserve?type=clusterIP`, bound);
    expect([answer.statusCode, answer.json()]).toEqual([
      200,
      expect.objectContaining({ pool: "pool/tenant/acme/shop/clusterIP", tenant: "acme/shop", state: "reserved" }),
    ]);
    expect(await outcome(`POST ${API}/ip/reserve?type=clusterIP&tenant=acme/shop`)).toBe("200");
    expect(await service.outcome(first, scheduler)).toBe("200");
    expect(await outcome(`POST ${API}/ip/reserve?type=clusterIP`)).toBe("400 INPUT_INVALID");
    expect(await service.outcome(`POST ${API}/ip/reserve?type=clusterIP&tenant=globex/shop`, bound)).toBe(
      "403 TENANT_MISMATCH",
    );
  });

  test("the same container gets the same reservation again", async () => {
    const [first, again] = [
      await post("reserve?runner=node1&container=api"),
      await post("reserve?runner=node1&container=api"),
    ];
    expect(again.json()).toMatchObject({ ip: first.json().ip, leaseId: first.json().leaseId });
  });

  test("a full pool", async () => {
    for (const status of [200, 200, 200, 200, 409]) expect((await post("reserve?pool=web")).statusCode).toBe(status);
    expect((await post("reserve?pool=web")).json()).toMatchObject({ code: "POOL_EXHAUSTED", title: "Conflict" });
  });

  test("expired: gone", async () => {
    const { token: given } = (await post("reserve?pool=web&ttl=1")).json();
    stage.pass(2);
    expect(await outcome(`POST ${API}/ip/use?token=${given}&container=c1`)).toMatch(
      /^(410 TOKEN_EXPIRED|409 TOKEN_USED)$/,
    );
  });
});

describe("several reservations", () => {
  test("in one request: all, as a list, or none", async () => {
    const { reservations } = (await post("reserve?pool=web&count=3")).json();
    expect(reservations.map(({ ip }: { ip: string }) => ip)).toEqual(["192.168.7.0", "192.168.7.1", "192.168.7.2"]);
    expect(reservations[0].token).toMatch(/^ipr1\./);
    expect((await post("reserve?pool=web&count=2")).json()).toMatchObject({ code: "POOL_EXHAUSTED" });
    expect((await post("reserve?pool=web&count=1")).json()).toMatchObject({ reservations: [{ ip: "192.168.7.3" }] });
  });

  test("on any runner", async () => {
    await stage.runner("node2", "192.0.2.12");
    const given = (await post("reserve?network=training&placement=mostFree&count=4")).json();
    expect(given.reservations).toHaveLength(4);
    for (const each of given.reservations)
      expect(each).toMatchObject({ network: "training", gateway: expect.any(String) });
  });

  test("a repeated request with the same key, or the same owner, gets the same reservation", async () => {
    const headers = { "idempotency-key": "job-17" };
    const send = async (query: string, options = {}) =>
      (await service.send(`POST ${API}/ip/reserve?${query}`, token, options)).json();
    const first = await send("pool=web", { headers });
    expect(await send("pool=web", { headers })).toMatchObject({ ip: first.ip, leaseId: first.leaseId });
    expect(await send("pool=web&ip=192.168.7.3", { headers })).toMatchObject({ code: "RESERVATION_EXISTS" });
    const owned = await send("pool=web&owner=job-18");
    expect(owned.ip).not.toBe(first.ip);
    expect(await send("pool=web&owner=job-18")).toMatchObject({ ip: owned.ip });
  });

  test("keys of other callers are other keys", async () => {
    const other = await service.token("other", ["reserve"]);
    const headers = { "idempotency-key": "job-17" };
    const [a, b] = [
      await service.send(`POST ${API}/ip/reserve?pool=web`, token, { headers }),
      await service.send(`POST ${API}/ip/reserve?pool=web`, other, { headers }),
    ];
    expect(a.json().ip).not.toBe(b.json().ip);
  });
});

describe("what is free and who holds it", () => {
  const get = async (path: string) => (await service.send(`GET ${API}${path}`, token)).json();

  test("available addresses", async () => {
    await post("reserve?pool=web");
    expect(await get("/ip/available?pool=web&limit=2")).toEqual({
      pools: [{ pool: "pool/web", capacity: 4, held: 1, available: 3, addresses: ["192.168.7.1", "192.168.7.2"] }],
    });
    const { pools } = await get("/ip/available?network=training&limit=0");
    expect(pools).toMatchObject([
      { pool: "runner/training/node1", network: "training", runner: "node1", addresses: [] },
    ]);
    expect((await get("/ip/available")).pools.map(({ pool }: { pool: string }) => pool)).toEqual([
      "pool/ports",
      "pool/web",
      "runner/training/node1",
    ]);
  });

  test("totals", async () => {
    await post("reserve?pool=web");
    await post("use?pool=ports&port=30001&container=c1");
    expect(await get("/ip/stats")).toMatchObject({ pools: 3, allocated: 2, reserved: 1, used: 1 });
  });

  test("an address: its holder, its former holders, its changes", async () => {
    await post("use?ip=192.168.7.1&container=old");
    stage.pass(1);
    await post("release?container=old");
    stage.pass(1);
    await post("use?ip=192.168.7.1&container=new");
    expect(await get("/addresses/192.168.7.1")).toMatchObject({
      holders: [{ usedBy: "new" }],
      before: [{ usedBy: "old", end: "released" }],
    });
    const { changes } = await get("/addresses/192.168.7.1/history");
    expect(changes.map(({ what }: { what: string }) => what)).toEqual(["claimed", "released", "claimed"]);
    expect((await get("/addresses/192.168.7.1/history?limit=1")).changes).toMatchObject([
      { what: "claimed", by: "scheduler" },
    ]);
    expect(await get("/addresses/10.250.0.1")).toMatchObject({ code: "IP_OUTSIDE_POOL" });
    expect(await get("/addresses/nonsense")).toMatchObject({ code: "INPUT_INVALID", property: "ip" });
  });
});

describe("pools", () => {
  const send = (request: string, payload?: object) =>
    service.send(request.replace(" ", ` ${API}`), token, { ...(payload && { payload }) });

  test("are listed in pages, and shown with their growth and history", async () => {
    const first = (await send("GET /pools?prefix=pool/&limit=1")).json();
    expect(first).toMatchObject({ pools: [{ pool: "pool/ports", kind: "port", capacity: 10 }], next: "pool/ports" });
    expect((await send("GET /pools?prefix=pool/&limit=1&cursor=pool/ports")).json().pools).toMatchObject([
      { pool: "pool/web" },
    ]);
    await post("reserve?pool=web");
    expect((await send("GET /pools/web")).json()).toMatchObject({ pool: "pool/web", allocated: 1, utilization: 25 });
    expect((await send("GET /pools/runner%2Ftraining%2Fnode1")).json()).toMatchObject({ kind: "address" });
    expect((await send("GET /pools/web/history")).json()).toMatchObject({
      changes: [{ what: "claimed", by: "scheduler" }],
    });
    expect((await send("GET /pools/none")).json()).toMatchObject({ status: 404, code: "POOL_NOT_FOUND" });
  });

  test("are created, created again, refused where they overlap, and deleted when they are empty", async () => {
    const pool = { poolName: "extra", ranges: ["172.16.5.0/30"] };
    expect((await send("POST /pools", pool)).json()).toMatchObject({
      pool: "pool/extra",
      capacity: 4,
      range: "172.16.5.0/30",
    });
    expect((await send("POST /pools", pool)).statusCode).toBe(200);
    expect((await send("POST /pools", { ...pool, poolName: "other" })).json()).toMatchObject({ code: "POOL_OVERLAP" });
    expect((await send("POST /pools", { poolName: "bad", range: [] })).json()).toMatchObject({ code: "INPUT_INVALID" });
    await post("use?pool=extra&ip=172.16.5.1&container=c1");
    expect((await send("DELETE /pools/extra")).json()).toMatchObject({ code: "POOL_IN_USE" });
    await post("release?container=c1");
    expect((await send("DELETE /pools/extra")).json()).toEqual({ deleted: "pool/extra" });
    expect((await send("DELETE /pools/web")).json()).toMatchObject({ code: "POOL_IN_USE" });
  });
});

describe("runners", () => {
  const send = (request: string, payload?: object) =>
    service.send(request.replace(" ", ` ${API}`), token, { ...(payload && { payload }) });

  test.each(["node1", "training%2Fnode1", "node1?network=training"])("%s gets its configuration", async (runner) => {
    expect((await send(`GET /runners/${runner}`)).json()).toMatchObject({
      networkName: "training",
      runnerName: "node1",
      runnerId: 1,
      gateway: "10.128.64.1",
      tunnel: "vxlan",
      vni: 101,
      vxlanPort: 4789,
      hub: "192.0.2.1",
    });
    expect((await send(`GET /ip/info/${runner}`)).json()).toMatchObject({
      runnerId: 1,
      held: 0,
      available: expect.any(Number),
    });
  });

  test("says that it lives", async () => {
    stage.pass(60);
    expect((await send("POST /runners/node1/heartbeat")).json()).toEqual({
      network: "training",
      runner: "node1",
      runnerId: 1,
      lastSeen: "2030-01-01T00:01:00Z",
    });
  });

  test("a token that is bound to its subnet is enough for a runner, and no more", async () => {
    await stage.runner("node2", "192.0.2.12");
    const own = await service.token("node1", ["read", "reserve"], { pool: "runner/training/node1" });
    const outcomes = async (name: string) => [
      await service.outcome(`GET ${API}/runners/${name}`, own),
      await service.outcome(`POST ${API}/runners/${name}/heartbeat`, own),
      await service.outcome(`POST ${API}/runners/${name}/report`, own, { payload: { containers: [] } }),
      await service.outcome(`POST ${API}/ip/reserve?runner=${name}`, own),
    ];
    expect(await outcomes("training%2Fnode1")).toEqual(["200", "200", "200", "200"]);
    expect(new Set(await outcomes("training%2Fnode2"))).toEqual(new Set(["404 POOL_NOT_FOUND"]));
    expect(await outcomes("training%2Fnone")).toEqual(await outcomes("training%2Fnode2"));
  });

  test("reports what runs: used, gone, and contradictions", async () => {
    await post("use?ip=10.128.64.50&container=gone");
    stage.pass(120);
    const body = {
      containers: [
        { name: "c1", ip: "10.128.64.51" },
        { name: "c2", ip: "8.8.8.8" },
      ],
      complete: true,
      free: true,
    };
    expect((await send("POST /runners/node1/report", body)).json()).toMatchObject({
      runner: "node1",
      used: [{ ip: "10.128.64.51", usedBy: "c1" }],
      released: [{ ip: "10.128.64.50" }],
      conflicts: [{ name: "c2", code: "IP_OUTSIDE_POOL" }],
    });
    const many = { containers: Array.from({ length: 3000 }, (_, i) => ({ name: `container-${i}`, ip: "8.8.8.8" })) };
    expect(JSON.stringify(many).length).toBeGreaterThan(65_536);
    expect((await send("POST /runners/node1/report", many)).json().conflicts).toHaveLength(3000);
    expect((await send("POST /runners/node1/report", { container: [] })).json()).toMatchObject({
      code: "INPUT_INVALID",
    });
  });
});

describe("the list of reservations", () => {
  test("is paged, and every entry is on one page", async () => {
    for (const container of ["a", "b", "c"]) await post(`reserve?pool=web&container=${container}`);
    const seen: string[] = [];
    let pages = 0;
    for (let cursor = ""; pages < 5; pages++) {
      const answer = (await service.send(`GET ${API}/ip/reservations?limit=2${cursor}`, token)).json();
      seen.push(...answer.reservations.map(({ ip }: { ip: string }) => ip));
      if (answer.next === undefined) break;
      cursor = `&cursor=${encodeURIComponent(answer.next)}`;
    }
    expect(seen).toEqual(["192.168.7.0", "192.168.7.1", "192.168.7.2"]);
    expect(pages).toBe(1);
  });

  test.each([
    ["runner=node1", ["c1"]],
    ["pool=web", ["c2", "c3"]],
    ["container=c2", ["c2"]],
    ["owner=/c3", ["c3"]],
    ["state=used", ["c3"]],
    ["label=vm=true", ["c2"]],
    ["label=vm=true&label=x=y", []],
    ["ip=192.168.7.1", ["c3"]],
  ])("with %s", async (query, expected) => {
    await post("reserve?runner=node1&container=c1");
    await post("reserve?pool=web&container=c2&vm=true");
    await post("use?pool=web&ip=192.168.7.1&container=c3");
    const { reservations } = (await service.send(`GET ${API}/ip/reservations?${query}`, token)).json();
    expect(reservations.map(({ owner }: { owner: string }) => owner.split("/").at(-1))).toEqual(expected);
  });
});

describe("a request that is wrong", () => {
  test.each([
    [`GET /nothing`, {}, "404 NOT_FOUND"],
    [`GET ${API}/ip/reserve`, {}, "405 METHOD_NOT_ALLOWED"],
    [`DELETE ${API}/ip/reservations`, {}, "405 METHOD_NOT_ALLOWED"],
    [`QUERY ${API}/ip/reservations`, {}, "405 METHOD_NOT_ALLOWED"],
    [`PUT ${API}/ip/reserve`, { payload: "x", headers: { "content-type": "text/xml" } }, "405 METHOD_NOT_ALLOWED"],
    [`POST ${API}/ip/reserve`, {}, "400 INPUT_INVALID"],
    [`POST ${API}/ip/reserve?runner=node9`, {}, "404 POOL_NOT_FOUND"],
    [`POST ${API}/ip/reserve?runner=other/node1`, {}, "404 POOL_NOT_FOUND"],
    [`POST ${API}/ip/reserve?runner=other/node1&network=training`, {}, "400 INPUT_INVALID"],
    [`POST ${API}/ip/reserve?pool=nope`, {}, "404 POOL_NOT_FOUND"],
    [`POST ${API}/ip/reserve?pool=web&ttl=x`, {}, "400 INPUT_INVALID"],
    [`POST ${API}/ip/reserve?pool=web&vm=maybe`, {}, "400 INPUT_INVALID"],
    [`POST ${API}/ip/reserve?pool=web&ip=10.0.0.1`, {}, "400 IP_OUTSIDE_POOL"],
    [`POST ${API}/ip/reserve?pool=web`, { payload: { pool: "web" } }, "400 INPUT_INVALID"],
    [`POST ${API}/ip/reserve`, { payload: ["web"] }, "400 INPUT_INVALID"],
    [`POST ${API}/ip/reserve`, { payload: "{", headers: { "content-type": "application/json" } }, "400 INPUT_INVALID"],
    [`POST ${API}/ip/reserve`, { payload: "", headers: { "content-type": "application/json" } }, "400 INPUT_INVALID"],
    [
      `POST ${API}/ip/reserve`,
      { payload: '{"__proto__":{"pool":"web"}}', headers: { "content-type": "application/json" } },
      "400 INPUT_INVALID",
    ],
    [`POST ${API}/ip/reserve`, { payload: "pool=web", headers: { "content-type": "text/plain" } }, "415 BODY_TYPE"],
    [`POST ${API}/ip/reserve`, { payload: "<a/>", headers: { "content-type": "text/xml" } }, "415 BODY_TYPE"],
    [`POST ${API}/ip/reserve`, { payload: { pool: "x".repeat(70_000) } }, "413 BODY_TOO_LARGE"],
    [`POST ${API}/ip/validate`, {}, "400 INPUT_INVALID"],
    [`POST ${API}/ip/validate?token=nonsense`, {}, "400 TOKEN_FORMAT"],
    [`POST ${API}/ip/use?ip=192.168.7.1`, {}, "400 INPUT_INVALID"],
    [`POST ${API}/ip/release`, {}, "400 INPUT_INVALID"],
    [`GET ${API}/ip/reservations?cursor=x`, {}, "400 INPUT_INVALID"],
    [`GET ${API}/ip/reservations?limit=0`, {}, "400 INPUT_INVALID"],
    [`GET ${API}/ip/reservations?state=lost`, {}, "400 INPUT_INVALID"],
    [`GET /%E0%A4%A`, {}, "400 INPUT_INVALID"],
  ])("%s %o: %s", async (request, options, expected) => {
    const answer = await service.send(request, token, options);
    expect(answer.headers["content-type"]).toMatch(/^application\/problem\+json/);
    expect(`${answer.statusCode} ${answer.json().code}`).toBe(expected);
  });

  test("names all that is wrong, and what would be right", async () => {
    const answer = await post("reserve", { runner: "node1", ttll: 5, ip: "x" });
    expect(answer.json()).toMatchObject({
      property: "ip",
      what: 'ip must be an IP address in its usual form, like 10.128.64.5 or fd00::5; it is "x". Unknown property `ttll`: did you mean `ttl`?',
    });
  });

  test("does not repeat a token", async () => {
    const answer = await post("validate", { token: ["hunter2"] });
    expect([answer.statusCode, answer.body.includes("hunter2")]).toEqual([400, false]);
  });

  test("names the allowed methods", async () => {
    expect((await service.send(`GET ${API}/ip/reserve`, token)).headers.allow).toBe("POST");
  });
});

describe("a failure of the service", () => {
  test("is a problem without its text; the log has it, under the request's id", async () => {
    await service.close();
    service = await TestService.on(
      new Proxy(stage.pool.ipam, {
        get: (ipam, name, proxy) => {
          const value = Reflect.get(ipam, name);
          if (name === "session") return () => proxy;
          if (name === "pools") return () => Promise.reject(new TypeError("internal detail"));
          return typeof value === "function" ? value.bind(ipam) : value;
        },
      }),
    );
    const answer = await service.send(`GET ${API}/ip/reservations`, token, { headers: { "x-request-id": "job-17" } });
    expect([answer.statusCode, answer.json().code]).toEqual([500, "INTERNAL"]);
    expect(answer.body).not.toMatch(/internal detail|at .*\.ts|node_modules/);
    const line = service.lines.find((each) => each.includes("internal detail"));
    expect(JSON.parse(line!)).toMatchObject({ level: "error", requestId: "job-17", code: "INTERNAL" });
  });

  test("a store that does not answer: ready no more, alive still", async () => {
    const pool = Object.assign(Object.create(stage.pool.ipam), { pools: () => new Promise(() => {}) });
    const slow = await TestService.on(pool);
    expect(await slow.outcome("GET /healthz")).toBe("200");
    expect(await slow.outcome("GET /readyz")).toBe("503 STORE_UNAVAILABLE");
    await slow.close();
  });

  test("while it ends: not ready; other requests on open connections are answered, and the connection is closed", async () => {
    service.stop.abort();
    expect(await outcome("GET /readyz")).toBe("503 SERVICE_STOPPING");
    const answer = await service.send(`POST ${API}/ip/reserve?pool=web`, token);
    expect([answer.statusCode, answer.headers.connection]).toEqual([200, "close"]);
    expect(await outcome("GET /healthz")).toBe("200");
  });
});

test("a request that is under way when the process ends is answered, and its connection is closed", async () => {
  const url = await service.app.listen({ port: 0, host: "127.0.0.1" });
  const { admin } = stage.pool.ipam;
  const find = admin.findAccessToken.bind(admin);
  const underWay = new Promise<void>((resolve) => {
    admin.findAccessToken = async (id) => {
      resolve();
      await sleep(300);
      return find(id);
    };
  });
  const answer = fetch(`${url}${API}/ip/stats`, { headers: { authorization: `Bearer ${token}` } });
  await underWay;
  service.stop.abort();
  const { status, headers } = await answer;
  expect([status, headers.get("connection")]).toEqual([200, "close"]);
});

test("while the store does not answer, known callers validate tokens offline, and read metrics", async () => {
  const { token: given, ip } = (await post("reserve?pool=web")).json();
  service.context.tokenKeys = await stage.pool.ipam.admin.findSecret(STORED_KEYS);
  const unused = await service.token("unused", ["reserve"]);
  const never = () => new Promise<never>(() => {});
  Object.assign(stage.pool.ipam, { pools: never, events: never });
  stage.pool.ipam.admin.findAccessToken = never;
  await sleep(1100); // the access token is read again
  const started = performance.now();
  const answer = await post(`validate?offline=true&token=${given}`);
  expect([answer.statusCode, answer.json()]).toEqual([200, expect.objectContaining({ ip, checked: "signature" })]);
  const metrics = await service.send("GET /metrics", token);
  expect(metrics.body).toMatch(/^overlay_store_up 0$/m);
  expect(performance.now() - started).toBeLessThan(8000);
  expect(await service.outcome(`POST ${API}/ip/validate?offline=true&token=${given}`, unused)).toBe(
    "503 STORE_UNAVAILABLE",
  );
});

describe("limits", () => {
  test("requests for each access token", async () => {
    const limited = await TestService.on(stage.pool.ipam, { limits: { rateLimit: 3 } });
    const other = await limited.token("other", ["read"]);
    const outcomes = [];
    for (let i = 0; i < 5; i++) outcomes.push(await limited.outcome(`GET ${API}/ip/reservations`, token));
    expect(outcomes.slice(0, 3)).toEqual(["200", "200", "200"]);
    expect(outcomes).toContain("429 RATE_LIMITED");
    expect(await limited.outcome(`GET ${API}/ip/reservations`, other)).toBe("200");
    await limited.close();
  });

  test("unknown access tokens, which do not lock out valid ones", async () => {
    const unused = await service.token("unused", ["read"]);
    const outcomes = new Set<string>();
    for (let i = 0; i < 200; i++) {
      const unknown = `ovl_${i.toString(16).padStart(8, "0")}_${"A".repeat(43)}`;
      outcomes.add(await service.outcome(`GET ${API}/ip/reservations`, unknown));
    }
    expect([...outcomes]).toEqual(["401 ACCESS_TOKEN_INVALID", "429 RATE_LIMITED"]);
    expect(await service.outcome(`GET ${API}/ip/reservations`, unused)).toBe("200");
  });

  test("entries of a page", async () => {
    const limited = await TestService.on(stage.pool.ipam, { limits: { pageLimit: 1 } });
    for (const container of ["a", "b"]) await post(`reserve?pool=web&container=${container}`);
    const answer = await limited.send(`GET ${API}/ip/reservations?limit=50`, token);
    expect(answer.json()).toMatchObject({ reservations: [{ ip: "192.168.7.0" }], next: expect.any(String) });
    await limited.close();
  });
});

describe("without authentication", () => {
  test.each([
    [{ host: "127.0.0.1:7447" }, "200"],
    [{ host: "localhost:7447", origin: "http://localhost:7447" }, "200"],
    [{ host: "localhost:7447", origin: "http://localhost:3000" }, "403 ACCESS_DENIED"],
    [{ host: "[::1]:7447" }, "200"],
    [{ host: "attacker.example:7447" }, "403 ACCESS_DENIED"],
    [{ host: "127.0.0.1:7447", origin: "https://attacker.example" }, "403 ACCESS_DENIED"],
    [{ host: "127.0.0.1:7447", origin: "null" }, "403 ACCESS_DENIED"],
    [{ host: "127.0.0.1:7447", "sec-fetch-site": "none" }, "200"],
    [{ host: "127.0.0.1:7447", "sec-fetch-site": "same-origin" }, "200"],
    [{ host: "127.0.0.1:7447", "sec-fetch-site": "same-site" }, "403 ACCESS_DENIED"],
    [{ host: "127.0.0.1:7447", "sec-fetch-site": "cross-site" }, "403 ACCESS_DENIED"],
  ])("headers %o: %s", async (headers, expected) => {
    const open = await TestService.on(stage.pool.ipam, { noAuth: true });
    expect(await open.outcome(`GET ${API}/ip/reservations`, undefined, { headers })).toBe(expected);
    await open.close();
  });

  test.each(["/healthz", "/openapi.json", "/docs"])("a public route answers localhost only: %s", async (path) => {
    const open = await TestService.on(stage.pool.ipam, { noAuth: true });
    const attacker = { headers: { host: "attacker.example:7447" } };
    expect(await open.outcome(`GET ${path}`, undefined, attacker)).toBe("403 ACCESS_DENIED");
    await open.close();
  });

  test("changes are made by the user that runs the service", async () => {
    const open = await TestService.on(stage.pool.ipam, { noAuth: true });
    const answer = await open.send(`POST ${API}/ip/reserve?pool=web`, undefined, { headers: { host: "localhost" } });
    expect(answer.json()).toMatchObject({ createdBy: "root@test" });
    await open.close();
  });
});

describe("headers and log", () => {
  test("request id and trace context are answered and logged; no line has a token", async () => {
    const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const tracestate = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE";
    const { token: given } = (await post("reserve?runner=node1")).json();
    const answer = await service.send(`POST ${API}/ip/validate?token=${given}`, token, {
      headers: { traceparent, tracestate, "x-request-id": "job-17" },
    });
    expect(answer.headers).toMatchObject({ traceparent, tracestate, "x-request-id": "job-17" });
    expect(answer.headers["cache-control"]).toBe("no-store");
    expect(JSON.parse(service.lines.at(-1)!)).toMatchObject({
      method: "POST",
      route: `${API}/ip/validate`,
      status: 200,
      ms: expect.any(Number),
      token: "scheduler",
      requestId: "job-17",
      traceId: "4bf92f3577b34da6a3ce929d0e0e4736",
      traceState: tracestate,
    });
    expect(service.lines.join("")).not.toMatch(/ovl_|ipr1|\?token/);
  });

  test("the page loads and calls nothing but the service", async () => {
    const { headers, body } = await service.send("GET /docs/");
    expect(headers["content-security-policy"]).toMatch(/^default-src 'self';/);
    expect(body).not.toMatch(/<script>|https?:\/\//);
  });

  test("a malformed traceparent is not answered, nor is the tracestate beside it", async () => {
    const headers = { traceparent: "00-zz", tracestate: "rojo=1" };
    const answer = await service.send("GET /healthz", undefined, { headers });
    expect([answer.headers.traceparent, answer.headers.tracestate]).toEqual([undefined, undefined]);
    expect(service.lines.at(-1)).not.toContain("rojo");
  });
});
