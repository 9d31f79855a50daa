import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { buffer } from "node:stream/consumers";
import { afterEach, expect, test } from "vitest";
import { openLink } from "../../../bench/pool/link";

const opened: { close(): void }[] = [];
afterEach(() => {
  for (const one of opened.splice(0)) one.close();
});

/** A connection over a link of so many milliseconds to a server. */
async function connectOver(roundTripMs: number, serve: (socket: Socket) => void): Promise<Socket> {
  const server: Server = createServer({ allowHalfOpen: true }, serve).listen(0, "127.0.0.1");
  await once(server, "listening");
  const link = await openLink([(server.address() as AddressInfo).port], roundTripMs);
  opened.push(server, link);
  return connect({ port: link.ports[0]!, host: "127.0.0.1", allowHalfOpen: true });
}

const echo = (socket: Socket) => void socket.pipe(socket);

test.each([1, 20])("each answer takes at least the round trip of %i ms", async (roundTripMs) => {
  const client = await connectOver(roundTripMs, echo);
  for (let i = 0; i < 5; i++) {
    const from = performance.now();
    client.write(`question ${i}`);
    const [answer] = await once(client, "data");
    expect(String(answer)).toBe(`question ${i}`);
    expect(performance.now() - from).toBeGreaterThanOrEqual(roundTripMs);
  }
  client.destroy();
});

test("one direction takes half the round trip", async () => {
  let arrived = 0;
  const client = await connectOver(20, (socket) =>
    socket.once("data", () => {
      arrived = performance.now();
      socket.end("seen");
    }),
  );
  const from = performance.now();
  client.write("now");
  await once(client, "data");
  expect(arrived - from).toBeGreaterThanOrEqual(10);
  expect(performance.now() - arrived).toBeGreaterThanOrEqual(10);
  client.destroy();
});

test("many messages arrive whole and in order", async () => {
  const client = await connectOver(20, echo);
  const answer = buffer(client);
  const sent = Array.from({ length: 2000 }, (_, i) => Buffer.alloc(1 + ((i * 7919) % 5000), i % 251));
  for (const message of sent) client.write(message);
  client.end();
  expect((await answer).equals(Buffer.concat(sent))).toBe(true);
});

test("a connection that the server ends is ended for the client, after all data", async () => {
  const client = await connectOver(1, (socket) => socket.end("goodbye"));
  const answer = buffer(client);
  expect(String(await answer)).toBe("goodbye");
  client.end();
});

test("a link that is closed ends its connections", async () => {
  const client = await connectOver(1, echo);
  client.write("question");
  await once(client, "data");
  opened.at(-1)!.close();
  await once(client, "end");
  client.destroy();
});
