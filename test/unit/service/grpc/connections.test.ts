import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Connections } from "../../../../service/grpc/connections";

let server: Server;
let connections: Connections;
let clients: Socket[];

beforeEach(async () => {
  clients = [];
  connections = new Connections(10);
  server = createServer((socket) => {
    connections.add(socket);
    socket.pipe(socket);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
});
afterEach(() => {
  for (const client of clients) client.destroy();
  server.close();
});

/** Returns when the server has the connection. */
async function open(): Promise<Socket> {
  const accepted = once(server, "connection");
  const client = connect((server.address() as AddressInfo).port, "127.0.0.1").on("error", () => {});
  clients.push(client);
  await accepted;
  return client;
}

/** Sends a byte, and waits for its echo or the end of the connection. */
async function isOpen(client: Socket): Promise<boolean> {
  const ended = once(client, "close").then(() => false);
  client.write("x");
  return Promise.race([once(client, "data").then(() => true), ended]);
}

const admit = ({ localAddress, localPort }: Socket) => connections.admit(`${localAddress}:${localPort}`);

test("a client connects beside admitted ones, up to the limit", async () => {
  for (let i = 0; i < 9; i++) admit(await open());
  await open();
  expect(await Promise.all(clients.map(isOpen))).toEqual(Array(10).fill(true));
});

test("beside admitted ones, the oldest of the others is closed", async () => {
  for (let i = 0; i < 9; i++) admit(await open());
  const stranger = await open();
  const newest = await open();
  expect(await Promise.all([isOpen(stranger), isOpen(newest)])).toEqual([false, true]);
});
