import { createHmac } from "node:crypto";
import { createServer, type IncomingHttpHeaders, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";

export interface Received {
  headers: IncomingHttpHeaders;
  body: string;
  ids: number[];
  lost?: { code: string };
}

/** A receiver of webhooks on loopback. */
export class Receiver {
  readonly received: Received[] = [];
  /** Answers instead of 204, one after another; `hang`: none. */
  readonly answers: (number | "hang")[] = [];
  #server!: Server;

  static async start(): Promise<Receiver> {
    const receiver = new Receiver();
    receiver.#server = createServer(async (request, response) => {
      const body = await text(request);
      const answer = receiver.answers.shift() ?? 204;
      if (answer === "hang") return;
      if (answer < 300) receiver.received.push({ headers: request.headers, body, ...parse(body) });
      response.writeHead(answer, answer >= 300 && answer < 400 ? { location: `${receiver.url}moved` } : {}).end();
    });
    await new Promise<void>((resolve) => receiver.#server.listen(0, "127.0.0.1", resolve));
    return receiver;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/`;
  }

  /** Ids of all accepted events, in the order of their arrival. */
  get ids(): number[] {
    return this.received.flatMap(({ ids }) => ids);
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

function parse(body: string): Pick<Received, "ids" | "lost"> {
  const { events, lost } = JSON.parse(body) as { events: { id: number }[]; lost?: { code: string } };
  return { ids: events.map(({ id }) => id), ...(lost && { lost }) };
}

/** As a receiver computes it. */
export const hmacOf = (secret: string, text: string): string => createHmac("sha256", secret).update(text).digest("hex");
