import { request } from "node:http";
import { connect } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Ctl, deploy, objects } from "../unit/cli/ctl";
import { type ServiceProcess, startService, waitFor } from "./service-process";

/** The real process on a SQLite file, over loopback. */
const ctl = new Ctl();
let service: ServiceProcess;
let token: string;

beforeAll(async () => {
  await ctl.withPool((pool) => deploy(pool, ["node1", "node2"]));
  token = await accessToken("scheduler", "reserve", "read");
  service = await startService(ctl, ["--request-timeout", "2"]);
});
afterAll(async () => {
  await service.stop();
  ctl.remove();
});

async function accessToken(name: string, ...scopes: string[]): Promise<string> {
  const [made] = await ctl.must("access", "create", name, ...scopes.flatMap((scope) => ["--scope", scope]));
  return String(made!.token);
}

const send = (path: string, { bearer = token, ...options }: RequestInit & { bearer?: string } = {}) =>
  fetch(`${service.url}${path}`, { ...options, headers: { authorization: `Bearer ${bearer}`, ...options.headers } });
const post = (path: string) => send(`/api/overlay/ip/${path}`, { method: "POST" });

describe.sequential("overlayctl serve", { timeout: 120_000 }, () => {
  test("reserve, use and release; the command line sees the same, and the history names the access token", async () => {
    const given = (await (await post("reserve?runner=node1&ttl=300")).json()) as Record<string, string>;
    expect(given).toMatchObject({
      network: "training",
      runner: "node1",
      gateway: "10.128.64.1",
      createdBy: "scheduler",
    });
    expect(await ctl.must("ip", "validate", given.token!)).toMatchObject([{ ip: given.ip, state: "reserved" }]);
    expect(await (await post(`use?token=${given.token}&container=web`)).json()).toMatchObject({ usedBy: "web" });
    expect(await ctl.must("ip", "list", "--by", "web")).toMatchObject([{ ip: given.ip, state: "used" }]);
    expect(await (await post("release?container=web")).json()).toMatchObject({ released: [{ ip: given.ip }] });
    const history = await ctl.must("history", "runner/training/node1");
    expect(history.filter(({ value }) => value === given.ip)).toMatchObject([
      { what: "claimed", by: "scheduler" },
      { what: "used", by: "scheduler" },
      { what: "released", by: "scheduler" },
    ]);
  });

  test("clients at the same time get different addresses", async () => {
    const answers = await Promise.all(Array.from({ length: 100 }, () => post("reserve?runner=node2&ttl=60")));
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200]));
    const ips = await Promise.all(answers.map(async (answer) => ((await answer.json()) as { ip: string }).ip));
    expect(new Set(ips).size).toBe(100);
  });

  test("two instances serve one store", async () => {
    const other = await startService(ctl);
    const reserveAt = async (url: string): Promise<string> => {
      const headers = { authorization: `Bearer ${token}` };
      const answer = await fetch(`${url}/api/overlay/ip/reserve?runner=node1&ttl=60`, { method: "POST", headers });
      return ((await answer.json()) as { ip: string }).ip;
    };
    const urls = Array.from({ length: 60 }, (_, i) => (i % 2 ? service.url : other.url));
    expect(new Set(await Promise.all(urls.map(reserveAt))).size).toBe(60);
    await other.stop();
  });

  test("a token is refused within a second of its revocation by another process", async () => {
    const bearer = await accessToken("short", "read");
    expect((await send("/api/overlay/ip/reservations", { bearer })).status).toBe(200);
    expect(await ctl.must("access", "revoke", "short")).toMatchObject([{ name: "short" }]);
    await sleep(1000);
    expect((await send("/api/overlay/ip/reservations", { bearer })).status).toBe(401);
    expect((await ctl.must("access", "list")).map(({ name }) => name)).toEqual(["scheduler"]);
    expect((await ctl.must("access", "list", "--all")).map(({ name }) => name)).toEqual(["scheduler", "short"]);
  });

  test("health, readiness, OpenAPI and its page need no token", async () => {
    const get = async (path: string) => (await fetch(`${service.url}${path}`)).text();
    expect(await get("/healthz")).toBe('{"status":"ok"}');
    expect(await get("/readyz")).toBe('{"status":"ready"}');
    expect(JSON.parse(await get("/openapi.json"))).toMatchObject({ openapi: "3.1.0" });
    const page = await get("/docs");
    expect(page).toContain("swagger-ui");
    const assets = [...page.matchAll(/(?:src|href)="\.?(\/[^"]+)"/g)].map(([, asset]) => asset);
    expect(assets.length).toBeGreaterThan(3);
    for (const asset of assets) expect((await fetch(`${service.url}${asset}`)).status).toBe(200);
  });

  test.each([
    ["garbage", "nonsense\r\n\r\n", "400", "INPUT_INVALID"],
    ["headers that are too large", `GET / HTTP/1.1\r\nX: ${"a".repeat(20_000)}\r\n\r\n`, "400", "INPUT_INVALID"],
    ["headers that do not end", "GET /healthz HTTP/1.1\r\nHost: x\r\n", "408", "REQUEST_TIMEOUT"],
    [
      "a body that does not end",
      "POST /api/overlay/ip/reserve HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
      "408",
      "REQUEST_TIMEOUT",
    ],
  ])("%s: a problem, and the connection is closed", async (_, text, status, code) => {
    const answer = await sendRaw(text.replace("TOKEN", token));
    expect(answer).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
    expect(answer).toContain("application/problem+json");
    expect(answer).toContain(`"code":"${code}"`);
  });

  test("its log has a line for each request, and no secret", async () => {
    const { token: reservation } = (await (await post("reserve?runner=node1")).json()) as { token: string };
    await post(`validate?token=${reservation}`);
    await send("/api/overlay/ip/validate", {
      method: "POST",
      body: JSON.stringify({ token: reservation, nonsense: token }),
      headers: { "content-type": "application/json" },
    });
    await fetch(`${service.url}/api/overlay/nothing?token=${token}`);
    await waitFor(() => (service.log().includes('"status":404') ? true : undefined));
    expect(service.log()).not.toMatch(/ovl_|ipr1|[?&]token=/);
    for (const secret of [token.slice(13), reservation.split(".")[2]!]) expect(service.log()).not.toContain(secret);
    for (const line of service.log().trim().split("\n"))
      expect(JSON.parse(line)).toMatchObject({ time: expect.any(String) });
    expect(objects(service.log()).find(({ route }) => route === "/api/overlay/ip/validate")).toMatchObject({
      method: "POST",
      status: 200,
      token: "scheduler",
    });
  });
});

/** All that the server answers to this text until it closes the connection. */
function sendRaw(text: string): Promise<string> {
  const { hostname, port } = new URL(service.url);
  return new Promise((resolve, reject) => {
    const socket = connect(Number(port), hostname, () => socket.write(text));
    let answer = "";
    socket.on("data", (data) => (answer += data));
    socket.on("close", () => resolve(answer));
    socket.on("error", reject);
  });
}

describe.sequential("its end", { timeout: 120_000 }, () => {
  /** A request whose body is sent later. */
  function beginRequest(url: string) {
    const { port } = new URL(url);
    const body = JSON.stringify({ runner: "node1" });
    const headers = {
      authorization: `Bearer ${token}`,
      "content-type": "application/json",
      "content-length": body.length,
    };
    const outgoing = request({ port, host: "127.0.0.1", path: "/api/overlay/ip/reserve", method: "POST", headers });
    const status = new Promise<number>((resolve, reject) => {
      outgoing.once("response", (answer) => {
        answer.resume();
        resolve(answer.statusCode!);
      });
      outgoing.once("error", reject);
    });
    outgoing.flushHeaders();
    return { status, finish: () => outgoing.end(body) };
  }

  test("a request that is under way is answered, new ones are refused, and the exit code is 0", async () => {
    const own = await startService(ctl);
    const slow = beginRequest(own.url);
    await sleep(300);
    const ended = own.stop();
    await waitFor(() => (own.log().includes('"stopping"') ? true : undefined));
    await expect(fetch(`${own.url}/readyz`)).rejects.toThrow();
    const began = Date.now();
    slow.finish();
    expect(await slow.status).toBe(200);
    expect(await ended).toMatchObject({ code: 0, stderr: "" });
    expect(own.log()).toContain('"stopped"');
    expect(Date.now() - began).toBeLessThan(5000); // the connection does not stay open
  });

  test("a request that never ends delays it by ten seconds at most", async () => {
    const own = await startService(ctl, ["--request-timeout", "600"]);
    const stuck = beginRequest(own.url);
    stuck.status.catch(() => {});
    await sleep(300);
    const began = Date.now();
    expect(await own.stop()).toMatchObject({ code: 0 });
    expect(Date.now() - began).toBeGreaterThan(8000);
    expect(Date.now() - began).toBeLessThan(12_000);
  });

  test("a second signal ends it at once, also if it is another one", async () => {
    const own = await startService(ctl, ["--request-timeout", "600"]);
    const stuck = beginRequest(own.url);
    stuck.status.catch(() => {});
    await sleep(300);
    const ended = own.stop();
    await waitFor(() => (own.log().includes('"stopping"') ? true : undefined));
    const began = Date.now();
    process.kill(own.pid, "SIGINT");
    expect((await ended).code).not.toBe(0);
    expect(Date.now() - began).toBeLessThan(5000);
  });
});

describe("its start is refused", { timeout: 120_000 }, () => {
  test.each([
    [["--listen", "0.0.0.0:0"], "Without TLS the service listens on loopback addresses only"],
    [["--listen", ":0"], "Without TLS the service listens on loopback addresses only"],
    [["--listen", "[::]:0", "--no-auth"], "Without TLS"],
    [["--listen", "nonsense"], "Setting listen must be HOST:PORT"],
    [["--tls-cert", "/nonexistent"], "must be given together with tlsKey"],
    [["--tls-cert", "/nonexistent", "--tls-key", "/nonexistent"], "/nonexistent cannot be read (ENOENT)"],
    [["--rate-limit", "many"], "Setting rateLimit must be"],
  ])("%o", async (args, text) => {
    const { code, stderr } = await ctl.run("serve", ...args);
    expect(code).toBe(1);
    expect(stderr).toContain(`SETTING_INVALID: `);
    expect(stderr).toContain(text);
  });

  test("on a port that is taken", async () => {
    const { code, stderr } = await ctl.run("serve", "--listen", new URL(service.url).host);
    expect([code, stderr.split(":")[0]]).toEqual([1, "SETTING_INVALID"]);
    expect(stderr).toContain("EADDRINUSE");
  });
});

test("without authentication it serves local clients, says so, and refuses web pages", {
  timeout: 60_000,
}, async () => {
  const own = await startService(ctl, ["--no-auth"]);
  const path = `${own.url}/api/overlay/ip/reservations`;
  expect((await fetch(path)).status).toBe(200);
  expect((await fetch(path, { headers: { origin: "https://attacker.example" } })).status).toBe(403);
  expect(own.log()).toContain("no authentication");
  await own.stop();
});
