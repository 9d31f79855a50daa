import { type AddressInfo, connect } from "node:net";
import { afterAll, beforeAll, expect, test } from "vitest";
import { openIpam, type Store } from "../../../provider/ipam";
import { deploy } from "../cli/ctl";
import { TestService } from "./service";

/** Requests that a proxy in front of the service may read otherwise than the service does, as bytes on a socket. */
let pool: Store;
let service: TestService;
let token: string;

beforeAll(async () => {
  pool = await openIpam("memory:", { offerTtl: 60, quarantine: 0, actor: "test" });
  await deploy(pool, ["node1"]);
  service = await TestService.on(pool);
  token = await service.token("tenant", ["reserve", "read"], { tenant: { org: "acme", project: "shop" } });
  await service.app.listen({ host: "127.0.0.1", port: 0 });
});
afterAll(async () => {
  await service.app.close();
  await pool.end();
});

/** The statuses of all answers to what is sent. */
function statusesOf(head: string, body: string): Promise<number[]> {
  const { port } = service.app.server.address() as AddressInfo;
  return new Promise((resolve, reject) => {
    const socket = connect(port, "127.0.0.1", () =>
      socket.write(
        `${head.replaceAll("\n", "\r\n")}\r\nAuthorization: Bearer ${token}\r\nConnection: close\r\n\r\n${body}`,
      ),
    );
    let answer = "";
    socket.on("data", (data) => (answer += data));
    socket.on("close", () => resolve([...answer.matchAll(/^HTTP\/1\.1 (\d+)/gm)].map(([, status]) => Number(status))));
    socket.on("error", reject);
  });
}

const RELEASE = "POST /api/overlay/ip/release HTTP/1.1\nHost: a\nContent-Type: application/json";
const POOLS = "GET /api/overlay/pools HTTP/1.1\nHost: a";
const SECOND = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";

test.each([
  ["a length and chunks", `${RELEASE}\nContent-Length: 4\nTransfer-Encoding: chunked`, `0\r\n\r\n${SECOND}`, [400]],
  ["two lengths", `${RELEASE}\nContent-Length: 2\nContent-Length: 3`, "{} ", [400]],
  ["chunks that are not last", `${RELEASE}\nTransfer-Encoding: chunked, identity`, "0\r\n\r\n", [400]],
  ["an unknown encoding", `${RELEASE}\nTransfer-Encoding: xchunked`, "0\r\n\r\n", [400]],
  ["a blank before the colon", `${POOLS}\nX-Any : 1`, "", [400]],
  ["a header on two lines", `${POOLS}\nX-Request-Id: a\n b`, "", [400]],
  ["two tokens", `${POOLS}\nAuthorization: Bearer ovl_00000000_${"A".repeat(43)}`, "", [401]],
  [
    "another method and path in headers",
    `${POOLS.replace("pools", "webhooks")}\nX-HTTP-Method-Override: POST\nX-Original-URL: /healthz`,
    "",
    [403],
  ],
  ["a path that is encoded", POOLS.replace("pools", "%77ebhooks"), "", [403]],
  ["a path with dots", POOLS.replace("pools", "pools/../webhooks"), "", [404]],
  ["a path with an encoded slash", POOLS.replace("pools", "pools/..%2fwebhooks"), "", [404]],
  ["a path with two slashes", POOLS.replace("/api", "//api"), "", [404]],
  ["none of these", POOLS, "", [200]],
] as [string, string, string, number[]][])("a request with %s", async (_, head, body, statuses) => {
  expect(await statusesOf(head, body)).toEqual(statuses);
});

test.each(["__proto__", "constructor"])("a body with the key %s is not parsed", async (key) => {
  const payload = `{"runner":"node1","${key}":{"prototype":{"count":2}}}`;
  const headers = { "content-type": "application/json" };
  expect(await service.outcome("POST /api/overlay/ip/reserve", token, { headers, payload })).toBe("400 INPUT_INVALID");
});

test("requests at once exceed neither a quota nor what one token permits", async () => {
  const admin = await service.token("admin", ["admin"]);
  const outcomes = (all: Promise<string>[]) =>
    Promise.all(all).then((each) => each.filter((it) => it === "200").length);
  const send = (route: string, payload: object, as = token) =>
    service.outcome(`POST /api/overlay/${route}`, as, { payload });
  const quota = { maxReservations: 5, maxIps: 5 };
  expect(await send("pools", { poolName: "q", ranges: ["192.168.77.0/24"], quota }, admin)).toBe("200");
  const count = 2;
  const many = Array.from({ length: 40 }, (_, i) => send("ip/reserve", { pool: "q", count, owner: `o${i}` }));
  expect(await outcomes(many)).toBe(2);
  const { json } = await service.send("POST /api/overlay/ip/reserve", token, { payload: { runner: "node1" } });
  const used = Array.from({ length: 6 }, (_, i) => send("ip/use", { token: json().token, container: `c${i}` }));
  expect(await outcomes(used)).toBe(1);
});
