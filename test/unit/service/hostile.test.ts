import { afterAll, beforeAll, expect, test } from "vitest";
import { openIpam, type Store } from "../../../provider/ipam";
import { describeExcess } from "../../../service/json-body";
import { deploy } from "../cli/ctl";
import { hostileBodies } from "./hostile-bodies";
import { fillStore, hostileRequests, sentAgain } from "./hostile-requests";
import { longestTurn } from "./longest-turn";
import { type Answer, TestService } from "./service";

let pool: Store;
let service: TestService;
let token: string;

beforeAll(async () => {
  pool = await openIpam("memory:", { offerTtl: 60, quarantine: 0, actor: "test" });
  await deploy(pool, ["node1"]);
  service = await TestService.on(pool);
  token = await service.token("scheduler", ["admin", "preview"]);
});
afterAll(async () => {
  await service.close();
  await pool.end();
});

const post = (path: string, payload: string) =>
  service.send(`POST ${path}`, token, { headers: { "content-type": "application/json" }, payload });

/** Milliseconds of CPU time in which a request is answered. */
async function cpuTimeOf(path: string, body: string): Promise<number> {
  const before = process.cpuUsage();
  await post(path, body);
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000;
}

const manyKeys = (count: number) =>
  JSON.stringify(Object.fromEntries(Array.from({ length: count }, (_, i) => [`k${i}`, 1])));

test("a body with thousands of errors is answered at once, with at most 20 errors in at most 8 KB", async () => {
  const { statusCode, body } = await post("/api/overlay/ip/reserve", manyKeys(2000));
  const { what, property } = JSON.parse(body);
  expect([statusCode, property]).toEqual([400, "k0"]);
  expect(what.match(/Unknown property/g).length).toBeLessThanOrEqual(20);
  expect(what).toMatch(/ Only the first \d+ errors are shown\.$/);
  expect(Buffer.byteLength(body)).toBeLessThanOrEqual(8192);
  expect(await cpuTimeOf("/api/overlay/ip/reserve", manyKeys(2000))).toBeLessThan(200);
});

test.each([
  ["more values than one for 32 bytes of the limit", `[${"0,".repeat(3000)}0]`, "has more than 2048 values"],
  ["more than 32 levels", "[".repeat(33) + "]".repeat(33), "has more than 32 levels"],
])("a body with %s is not parsed", async (_, body, what) => {
  expect((await post("/api/overlay/ip/reserve", body)).json()).toMatchObject({
    code: "BODY_TOO_LARGE",
    what: `The body of the request ${what}.`,
  });
});

test.each([
  ['{"a":[1,2]}', 3, "has more than 3 values"],
  ['{"a":[1,2]}', 4, undefined],
  ['{"a,b":"[[[,,,\\\\\\",{{"}', 2, undefined],
  ['"not ended', 1, undefined],
])("values are counted outside of strings: %s, at most %s", (text, most, excess) => {
  expect(describeExcess(text, most)).toBe(excess);
});

test("a problem has at most 8 KB, whatever characters it names", async () => {
  const names = Array.from({ length: 200 }, (_, i) => [`\u0001\u{1f600}${i}`.repeat(30), 1]);
  const { body } = await post(
    "/api/overlay/ip/reserve",
    JSON.stringify({ ttl: "\u{1f600}\u0002".repeat(5000), ...Object.fromEntries(names) }),
  );
  expect(Buffer.byteLength(body)).toBeLessThanOrEqual(8192);
});

test("hostile bodies of every route are refused, each with at most 8 KB", async () => {
  const answers: { name: string; status: number; bytes: number }[] = [];
  for (const { name, path, body } of hostileBodies(250)) {
    const { statusCode, body: answer } = await post(path, body);
    answers.push({ name: `${path}: ${name}`, status: statusCode, bytes: Buffer.byteLength(answer) });
  }
  expect(answers.filter(({ status, bytes }) => ![400, 413].includes(status) || bytes > 8192)).toEqual([]);
});

/** Milliseconds. `bench -- service --part hostile` has the aim of 50; a machine that runs other tests has a slower CPU. */
const MOST_HELD = 150;

test("valid requests with as much in them as there may be: every route has one, none fails or holds the event loop", async () => {
  await fillStore(pool, 3000);
  const all = await service.token("all", ["admin", "preview", "deploy"]);
  const requests = hostileRequests();
  const routes = service.app.allRoutes.filter(({ config }) => config?.scope !== "public");
  const asked = new Set(requests.map(({ route }) => route));
  const missing = routes.flatMap(({ method, url }) => [method].flat().map((each) => `${each} ${url}`));
  expect(missing.filter((route) => !asked.has(route) && !STREAMED.test(route))).toEqual([]);
  const faults: string[] = [];
  for (const { route, name, url, body } of requests) {
    const [method] = route.split(" ");
    let held = Number.POSITIVE_INFINITY;
    for (let round = 0; round < 3 && held > MOST_HELD; round++) {
      const payload = sentAgain(body, round);
      const options = payload === undefined ? {} : { payload, headers: { "content-type": "application/json" } };
      let answer: Answer | undefined;
      held = await longestTurn(async () => (answer = await service.send(`${method} ${url}`, all, options)));
      const { statusCode, body: text } = answer!;
      const code = statusCode < 300 ? "" : JSON.parse(text).code;
      if (statusCode >= 500 || ["INPUT_INVALID", "BODY_TOO_LARGE"].includes(code))
        faults.push(`${route}, ${name}: ${code} ${text}`);
    }
    if (held > MOST_HELD) faults.push(`${route}, ${name}: the event loop was held for ${held} ms`);
  }
  expect(faults).toEqual([]);
}, 120_000);

/** Streams and metrics take nothing that grows. `HEAD` is as `GET`. */
const STREAMED = /^HEAD |\/events$|\/metrics$/;
