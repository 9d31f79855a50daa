import { once } from "node:events";
import { connect, createServer, type Server, type Socket } from "node:net";

/**
 * What lies between a client and its servers, and can fail at the worst moment.
 * `through`: all is well; `mute`: answers do not come back; `late`: questions are kept until `deliver`; `down`: nobody is there.
 */
export type State = "through" | "mute" | "late" | "down";

interface Line {
  client: Socket;
  server: Socket;
  kept: Buffer[];
}

export class Cables {
  state: State = "through";
  /** With the next question that contains these bytes the cables become mute. */
  muteFrom: string | undefined;
  readonly ports: number[] = [];
  readonly #listeners: Server[] = [];
  #lines: Line[] = [];

  static async to(ports: number[]): Promise<Cables> {
    const cables = new Cables();
    for (const port of ports) {
      const listener = createServer((client) => cables.#join(client, port)).listen(0, "127.0.0.1");
      await once(listener, "listening");
      cables.#listeners.push(listener);
      cables.ports.push((listener.address() as { port: number }).port);
    }
    return cables;
  }

  /** Cuts what is connected now. What was kept can still be delivered: servers do not notice at once that a client is gone. */
  cut(): () => void {
    const lines = this.#lines;
    this.#lines = [];
    for (const { client, server, kept } of lines) {
      client.destroy();
      if (kept.length === 0) server.destroy();
    }
    return () => {
      for (const { server, kept } of lines) for (const data of kept) server.write(data);
    };
  }

  async end(): Promise<void> {
    this.cut();
    for (const listener of this.#listeners) listener.close();
  }

  #join(client: Socket, port: number): void {
    if (this.state === "down") return void client.destroy();
    const line: Line = { client, server: connect(port, "127.0.0.1"), kept: [] };
    this.#lines.push(line);
    client.on("data", (data) => {
      if (this.muteFrom !== undefined && data.includes(this.muteFrom)) {
        this.state = "mute";
        this.muteFrom = undefined;
      }
      return this.state === "late" ? line.kept.push(data) : line.server.write(data);
    });
    line.server.on("data", (data) => this.state !== "mute" && client.write(data));
    for (const socket of [client, line.server]) {
      socket.on("error", () => {});
      socket.on("close", () => line.kept.length === 0 && [client, line.server].map((end) => end.destroy()));
    }
  }
}
