import { afterAll, beforeAll, expect, test } from "vitest";
import { OverlayClient } from "../../../client";
import { cut, problem, type Reply, ScriptedServer } from "./scripted-server";

/** Streams of events over connections that end in all ways. */
let server: ScriptedServer;
let client: OverlayClient;

beforeAll(async () => {
  server = await ScriptedServer.start();
  client = new OverlayClient({ baseUrl: server.url, retries: 2 });
});
afterAll(() => server.stop());

const CHANGE = {
  at: "2026-11-17T20:00:00Z",
  what: "claimed",
  value: "10.128.64.5",
  pool: "runner/training/node1",
  owner: "service/x",
  leaseId: "1",
};
const eventText = (id: number) => `id: ${id}\nevent: claimed\ndata: ${JSON.stringify({ id, ...CHANGE })}\n\n`;

/** Connections begin with the time before the next one; here it is short. */
const stream =
  (text: string, end: "close" | "cut" | "open" = "close"): Reply =>
  (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(`retry: 1\nid: 0\n\n${text}`, () => {
      if (end === "close") response.end();
      if (end === "cut") response.destroy();
    });
  };

async function take(count: number, options: Parameters<OverlayClient["events"]> = []): Promise<number[]> {
  const ids: number[] = [];
  for await (const { id } of client.events(...options)) {
    ids.push(id);
    if (ids.length === count) break;
  }
  return ids;
}
const resumedAt = () => server.received.map(({ headers }) => headers["last-event-id"]);

test("a connection that ends is replaced by one that goes on after the last event", async () => {
  server.script(stream(eventText(1) + eventText(2)), stream(eventText(3), "cut"), stream(eventText(4), "open"));
  expect(await take(4, [{ after: 0, pool: "web" }])).toEqual([1, 2, 3, 4]);
  expect(resumedAt()).toEqual([undefined, "2", "3"]);
  expect(server.received[0]!.url).toBe("/api/overlay/events?after=0&pool=web");
});

test("a heartbeat has the id to go on after, also if no event was for this client", async () => {
  server.script(stream(": heartbeat\nid: 77\n\n"), stream(eventText(78), "open"));
  expect(await take(1)).toEqual([78]);
  expect(resumedAt()).toEqual([undefined, "77"]);
});

test("an event that is cut in the middle is read from the next connection", async () => {
  server.script(stream(eventText(1) + eventText(2).slice(0, 30), "cut"), stream(eventText(2), "open"));
  expect(await take(2)).toEqual([1, 2]);
  expect(resumedAt()).toEqual([undefined, "1"]);
});

test("failures in a row are bounded, and counted anew after each answer", async () => {
  server.script(cut, cut, stream(eventText(1)), cut, problem(503, "SERVICE_STOPPING"), stream(eventText(2), "open"));
  expect(await take(2)).toEqual([1, 2]);
  server.script(cut);
  await expect(take(1)).rejects.toMatchObject({ code: "SERVICE_UNREACHABLE" });
  expect(server.received).toHaveLength(3);
});

test.each<[string, Reply, string]>([
  [
    "events that are lost",
    stream('event: lost\ndata: {"code":"EVENTS_LOST","what":"W.","fix":"F."}\n\n'),
    "EVENTS_LOST",
  ],
  ["events that were lost before the connection", problem(410, "EVENTS_LOST"), "EVENTS_LOST"],
  ["a token that is no longer valid", problem(401, "ACCESS_TOKEN_INVALID"), "ACCESS_TOKEN_INVALID"],
  ["an event that is not as documented", stream('id: 1\ndata: {"id":"one"}\n\n'), "ANSWER_INVALID"],
  ["an event without an end", stream(`data: ${"x".repeat(2 ** 20)}`, "open"), "ANSWER_INVALID"],
])("%s end it", async (_, reply, code) => {
  server.script(reply);
  await expect(take(1)).rejects.toMatchObject({ code });
  expect(server.received).toHaveLength(1);
});

test("the signal ends it, also while nothing happens", async () => {
  server.script(stream("", "open"));
  await expect(take(1, [{}, { signal: AbortSignal.timeout(200) }])).rejects.toMatchObject({ name: "TimeoutError" });
});

test("the end of the loop closes the connection", async () => {
  const closed = new Promise<void>((resolve) =>
    server.script((response, received) => {
      response.once("close", resolve);
      stream(eventText(1), "open")(response, received);
    }),
  );
  expect(await take(1)).toEqual([1]);
  await closed;
});
