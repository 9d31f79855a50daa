import { createServer, type Server } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { afterEach, expect, test, vi } from "vitest";
import { limitConnections } from "../../../service/connections";

/** A real server with a low limit, and clients that keep their connections open. */
let server: Server;
const sockets: Socket[] = [];
afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy();
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

/** Answers at once, `/slow` never. */
async function start(most: number): Promise<void> {
  server = createServer((request, response) => {
    if (request.url !== "/slow") response.end("ok");
  });
  limitConnections(server, most);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
}

class Client {
  text = "";
  isClosed = false;
  readonly #socket = connect((server.address() as AddressInfo).port, "127.0.0.1");

  constructor() {
    sockets.push(this.#socket);
    this.#socket.on("data", (chunk) => (this.text += chunk)).on("error", () => {});
    this.#socket.on("close", () => (this.isClosed = true));
  }

  async ask(path: string): Promise<this> {
    this.text = "";
    this.#socket.write(`GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`);
    if (path !== "/slow") await vi.waitFor(() => expect(this.text).toContain("200 OK"));
    return this;
  }
}

test("when there are nearly too many connections, the longest idle one is closed", async () => {
  await start(10);
  const clients: Client[] = [];
  for (let i = 0; i < 9; i++) clients.push(await new Client().ask("/"));
  await clients[0]!.ask("/"); // is no longer the longest idle one
  await new Client().ask("/");
  await vi.waitFor(() =>
    expect(clients.map(({ isClosed }) => isClosed)).toEqual([false, true, ...Array(7).fill(false)]),
  );
});

test("connections that never send a request are closed, too", async () => {
  await start(10);
  const silent = Array.from({ length: 50 }, () => new Client());
  await new Client().ask("/");
  await vi.waitFor(() => expect(silent.filter(({ isClosed }) => !isClosed).length).toBeLessThan(10));
});

test("a connection with a request under way is never closed", async () => {
  await start(10);
  const busy = await new Client().ask("/slow");
  for (let i = 0; i < 30; i++) await new Client().ask("/");
  expect(busy.isClosed).toBe(false);
});
