import { connect, type Socket } from "node:net";
import { afterEach, expect, test, vi } from "vitest";
import { revokeAccessToken } from "../../provider/access/access-tokens";
import { openIpam } from "../../provider/ipam";
import type { EventPage, LoggedEvent } from "../../provider/ipam/types";
import { EventFeed } from "../../service/events/feed";
import { EventClient } from "../unit/service/event-client";
import { TestService } from "../unit/service/service";

/** What takes longer: clients that do not read, and tokens that end. */
const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

/** More events than fit into the buffers of a connection: 40 MB. */
const EVENTS = 100_000;

const eventAt = (id: number): LoggedEvent => ({
  id,
  at: 0,
  what: "claimed",
  pool: "pool/p",
  owner: `o${id}`.padEnd(200, "x"),
  uid: "u",
  leaseId: "l",
  ranges: [{ first: 1n, last: 1n }],
});

const longLog = {
  events: async ({ after = EVENTS, limit = 1000 }: { after?: number; limit?: number }): Promise<EventPage> => ({
    events: Array.from({ length: Math.min(limit, EVENTS - after) }, (_, i) => eventAt(after + 1 + i)),
    last: EVENTS,
  }),
};

async function start(feed?: EventFeed): Promise<{ service: TestService; url: string; token: string }> {
  const pool = await openIpam("memory:", { offerTtl: 60, quarantine: 0 });
  const service = await TestService.on(pool, feed ? { feed } : {});
  const url = await service.app.listen({ port: 0, host: "127.0.0.1" });
  ends.push(async () => {
    service.stop.abort();
    const closed = service.app.close();
    service.app.server.closeAllConnections();
    await closed;
  });
  return { service, url, token: await service.token("all", ["read"]) };
}

const streamsOf = async (service: TestService, token: string): Promise<number> =>
  Number(/^overlay_event_streams (\d+)$/m.exec((await service.send("GET /metrics", token)).body)![1]);

function openSilently(url: string, token: string): Socket {
  const { hostname, port } = new URL(url);
  const socket = connect({ host: hostname, port: Number(port) });
  socket.pause();
  socket.on("error", () => {});
  socket.write(`GET /api/overlay/events?after=0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n\r\n`);
  ends.push(() => socket.destroy());
  return socket;
}

test("a client that does not read is disconnected, and delays no other", async () => {
  const { service, url, token } = await start(new EventFeed(longLog));
  openSilently(url, token);
  const reader = new EventClient(`${url}/api/overlay/events?after=0`, token);
  await vi.waitFor(() => expect(reader.events).toHaveLength(EVENTS), { timeout: 120_000, interval: 100 });
  expect(await streamsOf(service, token)).toBe(2);
  await vi.waitFor(async () => expect(await streamsOf(service, token)).toBe(1), { timeout: 60_000, interval: 500 });
  expect(reader.connections).toBe(1);
  await reader.stop();
});

test("a stream ends when its token is revoked, and cannot be opened again", async () => {
  const { service, url, token } = await start();
  const client = new EventClient(`${url}/api/overlay/events`, token);
  await vi.waitFor(() => expect(client.text).toContain("id:"));
  await revokeAccessToken(service.pool, "all");
  const began = Date.now();
  expect(await client.ended).toBe("401");
  expect(Date.now() - began).toBeLessThan(15_000);
});
