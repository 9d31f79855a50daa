import { once } from "node:events";
import { connect, createServer, type Server, type Socket } from "node:net";

/**
 * `forward`: all data is passed on. `dropAnswers`: answers of the servers are lost. `holdRequests`: requests are held back until
 * `deliver`. `down`: new connections are closed at once.
 */
export type ProxyState = "forward" | "dropAnswers" | "holdRequests" | "down";

interface Connection {
  client: Socket;
  server: Socket;
  held: Buffer[];
}

/** A TCP proxy between a client and its servers, which can fail at a chosen moment. */
export class FaultyProxy {
  state: ProxyState = "forward";
  /** With the next request that contains these bytes the state changes. */
  changeAt: { bytes: string; state: ProxyState } | undefined;
  readonly ports: number[] = [];
  /** The port behind each of these; another one counts for new connections. */
  readonly targets: number[] = [];
  readonly #listeners: Server[] = [];
  #connections: Connection[] = [];

  static async to(ports: number[]): Promise<FaultyProxy> {
    const proxy = new FaultyProxy();
    proxy.targets.push(...ports);
    for (const i of ports.keys()) {
      const listener = createServer((client) => proxy.#connect(client, proxy.targets[i]!)).listen(0, "127.0.0.1");
      await once(listener, "listening");
      proxy.#listeners.push(listener);
      proxy.ports.push((listener.address() as { port: number }).port);
    }
    return proxy;
  }

  /** Ends all connections. The returned `deliver` still sends held requests: a server does not notice at once that a client is gone. */
  disconnect(): () => void {
    const connections = this.#connections;
    this.#connections = [];
    for (const { client, server, held } of connections) {
      client.destroy();
      if (held.length === 0) server.destroy();
    }
    return () => {
      for (const { server, held } of connections) for (const data of held) server.write(data);
    };
  }

  get holdsRequests(): boolean {
    return this.#connections.some(({ held }) => held.length > 0);
  }

  /** Sends held requests to servers, for clients that still wait, and passes on all data again. */
  deliver(): void {
    this.state = "forward";
    for (const { server, held } of this.#connections) for (const data of held.splice(0)) server.write(data);
  }

  async end(): Promise<void> {
    this.disconnect();
    for (const listener of this.#listeners) listener.close();
  }

  #connect(client: Socket, port: number): void {
    if (this.state === "down") return void client.destroy();
    const connection: Connection = { client, server: connect(port, "127.0.0.1"), held: [] };
    this.#connections.push(connection);
    client.on("data", (data) => {
      if (this.changeAt && data.includes(this.changeAt.bytes)) {
        this.state = this.changeAt.state;
        this.changeAt = undefined;
      }
      return this.state === "holdRequests" ? connection.held.push(data) : connection.server.write(data);
    });
    connection.server.on("data", (data) => this.state !== "dropAnswers" && client.write(data));
    for (const socket of [client, connection.server]) {
      socket.on("error", () => {});
      socket.on("close", () => connection.held.length === 0 && [client, connection.server].map((end) => end.destroy()));
    }
  }
}
