import { once } from "node:events";
import { createServer, type RequestListener, type Server } from "node:http";
import { afterEach, describe, expect, test } from "vitest";
import { hex } from "../../../provider/ipam/store/columns";
import { openPool, type Pool } from "../../contract/fixture";

/** What a server may answer that is not the service, or is hostile. */
const SETTINGS = { offerTtl: 3600, quarantine: 300, storeToken: "ovl_0_x", actor: "ann@host" };
const STORE = { id: "s", version: 0, epoch: "e" };
let server: Server;

async function listen(listener: RequestListener): Promise<string> {
  server = createServer(listener).listen(0, "127.0.0.1");
  await once(server, "listening");
  return `http://127.0.0.1:${(server.address() as { port: number }).port}?timeout=0`;
}

afterEach(() => {
  server.closeAllConnections();
  server.close();
});

/** A pool on a server that answers every call but the first with this. */
async function poolOn(answer: (call: string) => unknown, status = 200): Promise<Pool> {
  const url = await listen((request, response) => {
    const name = request.url!.split("/").at(-1)!;
    request.resume().once("end", () => {
      const json = name === "describe" ? { result: STORE } : answer(name);
      response.writeHead(name === "describe" ? 200 : status, { "content-type": "application/json" });
      response.end(typeof json === "string" ? json : JSON.stringify(json));
    });
  });
  return openPool(url, SETTINGS);
}

const RANGE = `${hex(1n)}-${hex(1n)}`;
const LEASE = {
  pool: "pool/p",
  owner: "o",
  type: "IPReservation",
  ranges: [RANGE],
  state: "offered",
  leaseId: "u.1",
  uid: "u",
  createdAt: 1,
  updatedAt: 1,
  lastSeen: 1,
};
const REQUEST = { pool: "pool/p", owner: "o", type: "IPReservation" };

describe("an answer that is not that of the service", () => {
  test.each<[string, number, string, RegExp]>([
    ["a page", 200, "<html>", /answered 200 with something that is not JSON/],
    ["nothing", 200, "", /answered 200 with something that is not JSON/],
    ["an error of another program", 404, "not here", /answered 404 with something that is not JSON/],
    [
      "JSON of another program",
      404,
      '{"message":"no"}',
      /answered 404 with JSON that is not an answer of this service/,
    ],
    ["an answer with an error's status", 500, "{}", /answered 500 with JSON/],
    ["a redirect", 302, "", /answered 302/],
  ])("%s at the start: STORE_UNAVAILABLE, and what to set", async (_, status, body, what) => {
    const url = await listen((_request, response) => response.writeHead(status, { location: "http://x/" }).end(body));
    const error = await openPool(url, SETTINGS).catch((reason: unknown) => reason);
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", message: expect.stringMatching(what) });
    expect(String(error)).toContain("overlay:store");
    expect(String(error)).not.toContain(SETTINGS.storeToken);
  });

  test.each<[string, unknown]>([
    ["no object", [1, 2]],
    ["a lease without an owner", { result: { ...LEASE, owner: undefined } }],
    ["a range that ends before it begins", { result: { ...LEASE, ranges: [`${hex(5n)}-${hex(1n)}`] } }],
    ["a range that is a number", { result: { ...LEASE, ranges: [5] } }],
    ["a lease without ranges", { result: { ...LEASE, ranges: [] } }],
    ["a pool name with a shell command", { result: { ...LEASE, pool: "pool/$(x)" } }],
    ["an owner with control characters", { result: { ...LEASE, owner: "\u001b[2J" } }],
    ["an unknown state", { result: { ...LEASE, state: "mine" } }],
    ["a time that is a text", { result: { ...LEASE, createdAt: "now" } }],
    ["data with control characters", { result: { ...LEASE, data: { x: "\u0007" } } }],
  ])("%s is refused", async (_, answer) => {
    const pool = await poolOn(() => answer);
    await expect(pool.find({ pool: "pool/p", owner: "o" })).rejects.toThrow(
      /^STORE_UNAVAILABLE: The answer of the service at http/,
    );
  });

  test("what only a newer service knows is dropped, also in nested objects", async () => {
    const pool = await poolOn(() => ({
      result: { ...LEASE, mood: "good", tenant: { org: "a", project: "b", x: 1 } },
      y: 2,
    }));
    const lease = await pool.find({ pool: "pool/p", owner: "o" });
    expect(lease).toEqual({ ...LEASE, ranges: [{ first: 1n, last: 1n }], tenant: { org: "a", project: "b" } });
  });

  test("__proto__ in data or labels changes no object", async () => {
    const text = JSON.stringify({ result: { ...LEASE, labels: { a: "b" } } }).replace('"a":"b"', '"__proto__":"b"');
    const pool = await poolOn(() => text);
    await pool.find({ pool: "pool/p", owner: "o" }).catch(() => {});
    expect(({} as Record<string, unknown>).b).toBeUndefined();
  });

  test("one that has no end is cut off", { timeout: 60_000 }, async () => {
    let sent = 0;
    const url = await listen((_request, response) => {
      const chunk = Buffer.alloc(1024 * 1024, " ");
      const more = (): void => {
        sent += chunk.length;
        if (!response.destroyed) response.write(chunk, (error) => error ?? setImmediate(more));
      };
      more();
    });
    await expect(openPool(url, SETTINGS)).rejects.toThrow(
      /^STORE_UNAVAILABLE: The service answered with more than 64 MiB/,
    );
    expect(sent).toBeLessThan(100 * 1024 * 1024);
  });

  test("one that is cut off in the middle is not taken for a shorter one", async () => {
    const url = await listen((_request, response) => {
      response.writeHead(200, { "content-length": 100 }).write("{}");
      setTimeout(() => response.destroy(), 20);
    });
    await expect(openPool(url, SETTINGS)).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
  });
});

describe("errors of the service", () => {
  const problem = { code: "IP_IN_USE", what: "10.0.0.1 is used.", fix: "Request another.", property: "ip" };

  test("have the same code, text, property and holder here", async () => {
    const holder = { pool: "pool/p", owner: "other", uid: "u", ranges: [RANGE] };
    const answer = { type: "urn:x", title: "Conflict", status: 409, detail: "", ...problem, holder };
    const pool = await poolOn(() => answer, 409);
    const error = await pool.claim(REQUEST).catch((reason: unknown) => reason);
    expect(error).toMatchObject({ ...problem, message: "IP_IN_USE: 10.0.0.1 is used. Request another." });
    expect(error).toMatchObject({ holder: { ...holder, ranges: [{ first: 1n, last: 1n }] } });
  });

  test("with a code that only a newer service knows, or with control characters, are shown as plain text", async () => {
    const pool = await poolOn(() => ({ ...problem, code: "NEW_THING", what: "a\u001b[2Jb." }), 409);
    const error = await pool.claim(REQUEST).catch((reason: unknown) => reason);
    expect(error).toMatchObject({ code: "INTERNAL", message: "INTERNAL: a\\u001b[2Jb. Request another." });
  });
});

test("a service that does not run is asked again for the time in the URL", async () => {
  const url = await listen(() => {});
  server.close();
  await once(server, "close");
  const started = Date.now();
  await expect(openPool(url.replace("timeout=0", "timeout=1"), SETTINGS)).rejects.toThrow(
    /^STORE_UNAVAILABLE: The service at http:\/\/127.0.0.1:\d+ cannot be used: connect ECONNREFUSED/,
  );
  expect(Date.now() - started).toBeGreaterThan(400);
  expect(Date.now() - started).toBeLessThan(10_000);
});

test("a busy service is asked again", async () => {
  let calls = 0;
  const url = await listen((request, response) => {
    request.resume().once("end", () => {
      const isBusy = ++calls < 4;
      const body = isBusy ? { code: "RATE_LIMITED", what: "Too many.", fix: "Wait." } : { result: STORE };
      response
        .writeHead(isBusy ? [429, 503, 502][calls - 1]! : 200)
        .end(calls === 3 ? "bad gateway" : JSON.stringify(calls === 2 ? { ...body, code: "SERVICE_STOPPING" } : body));
    });
  });
  const pool = await openPool(url.replace("timeout=0", "timeout=10"), SETTINGS);
  expect(calls).toBe(4);
  await pool.end();
});
