import { connect } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { openIpam } from "../../../provider/ipam";
import type { LoggedEvent, Store } from "../../../provider/ipam/types";
import { EventFeed } from "../../../service/events/feed";
import { renderStream } from "../../../service/events/stream";
import { by, createFixture, createPool, createPoolOn, memoryEngine, ranges } from "../../contract/fixture";
import { EventClient } from "./event-client";
import { TestService } from "./service";

const ACME = { org: "acme", project: "web" };

let pool: Store;
let service: TestService;
let [url, token, acme] = ["", "", ""];

beforeAll(async () => {
  pool = await openIpam("memory:", { offerTtl: 60, quarantine: 0 });
  await createPoolOn(pool, { ranges: ranges("10.0.0.0/20") });
  await createPoolOn(pool, { name: "pool/q", ranges: ranges("10.9.0.0/20") });
  service = await TestService.on(pool);
  url = `${await service.app.listen({ port: 0, host: "127.0.0.1" })}/api/overlay/events`;
  [token, acme] = [await service.token("all", ["read"]), await service.token("acme", ["read"], { tenant: ACME })];
});
afterAll(async () => {
  service.stop.abort();
  const closed = service.app.close();
  service.app.server.closeAllConnections(); // `fetch` opens some that it never uses
  await closed;
});

const follow = (query = "", bearer = token): EventClient => new EventClient(`${url}${query}`, bearer);

/** Claims in both pools for acme and for no tenant; the ids of the events. */
async function change(names: string[]): Promise<number[]> {
  const { last } = await pool.events({});
  for (const [i, name] of names.entries())
    await pool.claim([by(name, { pool: i % 2 === 0 ? "pool/p" : "pool/q", ...(i % 4 < 2 && { tenant: ACME }) })]);
  return names.map((_, i) => last + 1 + i);
}

test("a stream begins with its position, and has an event for each change from now on", async () => {
  await change(["early"]);
  const client = follow();
  const { last } = await pool.events({});
  await vi.waitFor(() => expect(client.text).toMatch(new RegExp(`^retry: 1000\nid: ${last}\\.[0-9a-f]{8}\n\n$`)));
  const [first] = await change(["one"]);
  await vi.waitFor(() => expect(client.ids).toEqual([first]));
  const { event, data } = client.events[0]!;
  expect(event).toBe("claimed");
  expect(JSON.parse(data)).toMatchObject({ id: first, what: "claimed", pool: "pool/p", owner: "one" });
  expect(client.contentType).toBe("text/event-stream; charset=utf-8");
  await client.stop();
});

test("a stream resumes behind an id, that of the header before that of the query", async () => {
  const ids = await change(["r1", "r2", "r3", "r4"]);
  const clients = [follow(`?after=${ids[1]}`), follow(`?after=${ids[0]}`)];
  clients[1]!.lastId = String(ids[2]);
  await vi.waitFor(() => expect(clients.map((client) => client.ids)).toEqual([ids.slice(2), ids.slice(3)]));
  await Promise.all(clients.map((client) => client.stop()));
});

test("filters by pool and tenant never show more than the bounds of the caller", async () => {
  const ids = await change(Array.from({ length: 8 }, (_, i) => `f${i}`));
  const after = ids[0]! - 1;
  const at = (...places: number[]) => places.map((i) => ids[i]);
  const cases: [query: string, bearer: string, expected: (number | undefined)[]][] = [
    ["", token, ids],
    ["&pool=q", token, at(1, 3, 5, 7)],
    ["&pool=pool/p&tenant=acme/web", token, at(0, 4)],
    ["&tenant=acme/other", token, []],
    ["", acme, at(0, 1, 4, 5)],
    ["&pool=q", acme, at(1, 5)],
    ["&tenant=acme/other", acme, []],
  ];
  const clients = cases.map(([query, bearer]) => follow(`?after=${after}${query}`, bearer));
  const isComplete = () => cases.every(([, , expected], i) => clients[i]!.ids.length >= expected.length);
  await vi.waitFor(() => expect(isComplete()).toBe(true), { timeout: 10_000 });
  await sleep(300); // for events that must not come
  expect(clients.map((client) => client.ids)).toEqual(cases.map(([, , expected]) => expected));
  await Promise.all(clients.map((client) => client.stop()));
});

test.each([
  ["?after=99999", 410, "EVENTS_LOST"],
  ["?after=1.00000000", 410, "EVENTS_LOST"],
  ["?after=-1", 400, "INPUT_INVALID"],
  ["?tenant=acme", 400, "INPUT_INVALID"],
  ["?unknown=1", 400, "INPUT_INVALID"],
])("%s is refused with %i before the stream begins", async (query, status, code) => {
  const answer = await fetch(`${url}${query}`, { headers: { authorization: `Bearer ${token}` } });
  expect([answer.status, answer.headers.get("content-type")]).toEqual([
    status,
    "application/problem+json; charset=utf-8",
  ]);
  expect(await answer.json()).toMatchObject({ code });
});

test("a stream does not go on with events of a store that was restored from an older backup", async () => {
  const start = async (owners: string[]) => {
    const { pool } = await createFixture(memoryEngine());
    await createPool(pool, { ranges: ranges("10.0.0.0/20") });
    for (const name of owners) await pool.claim(by(name));
    return pool;
  };
  const [lost, restored] = [await start(["a", "b"]), await start(["a", "c", "d"])];
  const { last } = await lost.events({});
  const seen = await new EventFeed(lost).newestPosition();
  await new EventFeed(lost).mustHave(seen);
  await new EventFeed(restored).mustHave({ id: last }); // by the id alone, nothing can be told
  await expect(new EventFeed(restored).mustHave(seen)).rejects.toThrow(
    /^EVENTS_LOST: Event \d+ of the store is another one: an older backup of it was restored\. List all leases again, and follow the events after \d+\.$/,
  );
});

test("a client that connects again sends the position of its last event", async () => {
  const client = follow();
  await vi.waitFor(() => expect(client.text).toContain("id:"));
  const [first] = await change(["position 1"]);
  await vi.waitFor(() => expect(client.ids).toEqual([first]));
  expect(client.lastId).toMatch(new RegExp(`^${first}\\.[0-9a-f]{8}$`));
  client.cut();
  const [second] = await change(["position 2"]);
  await vi.waitFor(() => expect(client.ids).toEqual([first, second]));
  await client.stop();
});

test("open streams are counted, and the count goes down when clients leave", async () => {
  const streams = async () =>
    /^overlay_event_streams (\d+)$/m.exec((await service.send("GET /metrics", token)).body)?.[1];
  const clients = [follow(), follow()];
  await vi.waitFor(async () => expect(await streams()).toBe("2"));
  await Promise.all(clients.map((client) => client.stop()));
  await vi.waitFor(async () => expect(await streams()).toBe("0"));
  await vi.waitFor(() => expect(service.context.feed.followers).toBe(0));
});

test("a client that goes before the stream begins leaves nothing behind", async () => {
  const slow = {
    events: async (options: { after?: number; limit?: number }) => {
      await sleep(50);
      return pool.events(options);
    },
  };
  const early = await TestService.on(pool, { feed: new EventFeed(slow) });
  const { host } = new URL(await early.app.listen({ port: 0, host: "127.0.0.1" }));
  const timersBefore = countTimers();
  for (let i = 0; i < 5; i++) {
    const socket = connect(Number(host.split(":")[1]), "127.0.0.1");
    socket.write(`GET /api/overlay/events HTTP/1.1\r\nHost: ${host}\r\nAuthorization: Bearer ${token}\r\n\r\n`);
    await sleep(30);
    socket.destroy();
  }
  await sleep(500);
  expect(await early.context.metrics.render(pool)).toMatch(/^overlay_event_streams 0$/m);
  expect(early.context.feed.followers).toBe(0);
  expect(countTimers()).toBeLessThanOrEqual(timersBefore);
  await early.app.close();
});

/** Timers that keep the process alive. */
const countTimers = (): number => process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;

/** The whole text of a stream. */
async function render(feed: EventFeed, after: number, heartbeatMs: number, until: (text: string) => boolean) {
  const stop = new AbortController();
  const select = (events: LoggedEvent[]) => events.filter(({ owner }) => !owner.startsWith("other"));
  let text = "";
  for await (const part of renderStream(feed, { after: { id: after }, select, signal: stop.signal, heartbeatMs })) {
    text += part;
    if (until(text)) stop.abort();
  }
  return text;
}

test("heartbeats have the newest id, also if no event was for the client", async () => {
  const feed = new EventFeed(pool, { pollMs: 5 });
  const { last } = await pool.events({});
  const text = render(feed, last, 50, (so) => so.includes(`id: ${last + 2}.`));
  await change(["other 1", "other 2"]);
  expect(await text).toMatch(new RegExp(`^retry: 1000\nid: ${last}\n\n(: heartbeat\nid: \\d+(\\.[0-9a-f]{8})?\n\n)+$`));
});

test("a stream whose next events are lost says so, and ends", async () => {
  const { pool, pass } = await createFixture(memoryEngine());
  await createPool(pool, { ranges: ranges("10.0.0.0/20") });
  for (const name of ["a", "b", "c"]) await pool.claim(by(name));
  const { last } = await pool.events({});
  pass(31 * 86_400);
  const isLost = () =>
    pool.events({ after: last - 3 }).then(
      () => false,
      () => true,
    );
  for (let i = 0; i < 20_000 && !(await isLost()); i++) await pool.claim(by("d")); // one in some hundred commits deletes old events
  const feed = new EventFeed(pool, { pollMs: 5 });
  const text = render(feed, last - 3, 60_000, () => false);
  expect(await text).toMatch(
    /\n\nevent: lost\ndata: \{"code":"EVENTS_LOST","what":"[^"]+","fix":"List all leases again, and follow the events after \d+\."\}\n\n$/,
  );
});

test("the end of the process ends streams in order", async () => {
  const ending = await TestService.on(pool);
  const address = await ending.app.listen({ port: 0, host: "127.0.0.1" });
  const client = new EventClient(`${address}/api/overlay/events`, token, { reconnect: false });
  await vi.waitFor(() => expect(client.text).toContain("id:"));
  ending.stop.abort();
  await ending.app.close();
  expect(await client.ended).toBe("ended");
});

test("an access token has at most 64 streams at a time, and another one when one of them ends", async () => {
  const bearer = await service.token("many", ["read"]);
  const clients = Array.from({ length: 64 }, () => follow("", bearer));
  await vi.waitFor(() => expect(clients.every(({ text }) => text.startsWith("retry"))).toBe(true), 10_000);
  expect((await service.outcome("GET /api/overlay/events", bearer)).split("\n")[0]).toBe("429 RATE_LIMITED");
  await clients.pop()!.stop();
  const next = follow("", bearer);
  await vi.waitFor(() => expect(next.text).toMatch(/^retry/), 10_000);
  await Promise.all([next, ...clients].map((client) => client.stop()));
});
