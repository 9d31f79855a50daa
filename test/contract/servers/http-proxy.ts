import { once } from "node:events";
import { createServer, type IncomingMessage, request, type Server, type ServerResponse } from "node:http";
import { buffer } from "node:stream/consumers";

/** A reverse proxy before instances of a service. Requests go to them in turn; one that is down is left out. */
export class HttpProxy {
  /** The names of the calls that were forwarded. */
  readonly calls: string[] = [];
  #next = 0;
  /** For each name of a call, whether the next answers get lost. */
  readonly #fates = new Map<string, boolean[]>();
  #server!: Server;

  static async before(ports: number[]): Promise<HttpProxy> {
    const proxy = new HttpProxy(ports);
    proxy.#server = createServer((incoming, outgoing) => void proxy.#forward(incoming, outgoing)).listen(
      0,
      "127.0.0.1",
    );
    await once(proxy.#server, "listening");
    return proxy;
  }

  private constructor(private readonly ports: number[]) {}

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as { port: number }).port}`;
  }

  /** The service does the next `times` calls of this name, but their answers get lost: the connection is cut. `after`: so many that arrive. */
  loseAnswers(name: string, times = 1, { after = 0 } = {}): void {
    this.#fates.set(name, [...Array(after).fill(false), ...Array(times).fill(true)]);
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  async #forward(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    const body = await buffer(incoming);
    const name = incoming.url!.split("/").at(-1)!;
    this.calls.push(name);
    const answer = await this.#ask(incoming, body).catch(() => undefined);
    const isLost = this.#fates.get(name)?.shift() ?? false;
    if (!answer || isLost) return void incoming.socket.destroy();
    outgoing.writeHead(answer.status, answer.headers).end(answer.body);
  }

  async #ask(incoming: IncomingMessage, body: Buffer) {
    for (let tries = 0; ; tries++) {
      const port = this.ports[this.#next++ % this.ports.length]!;
      try {
        return await forwardTo(port, incoming, body);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "ECONNREFUSED" || tries >= this.ports.length) throw error;
      }
    }
  }
}

async function forwardTo(port: number, { method, url, headers }: IncomingMessage, body: Buffer) {
  const forwarded = request({ host: "127.0.0.1", port, method, path: url, headers, agent: false });
  forwarded.end(body);
  const [answer] = (await once(forwarded, "response")) as [IncomingMessage];
  return { status: answer.statusCode!, headers: answer.headers, body: await buffer(answer) };
}
