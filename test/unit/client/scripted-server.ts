import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";

/** What a request brought. */
export interface Received {
  method: string;
  url: string;
  headers: IncomingMessage["headers"];
  body: string;
}

export type Reply = (response: ServerResponse, received: Received) => void;

/** A real HTTP server on loopback that gives the next reply of a list to each request; the last one to all further ones. */
export class ScriptedServer {
  readonly received: Received[] = [];
  replies: Reply[] = [];

  static async start(): Promise<ScriptedServer> {
    const http = createServer();
    const server = new ScriptedServer(http);
    http.on("request", async (request, response) => {
      const { method = "", url = "", headers } = request;
      const received = { method, url, headers, body: await text(request) };
      server.received.push(received);
      const reply = server.replies.length > 1 ? server.replies.shift()! : server.replies[0]!;
      reply(response, received);
    });
    await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
    return server;
  }

  private constructor(private readonly http: Server) {}

  get url(): string {
    return `http://127.0.0.1:${(this.http.address() as AddressInfo).port}`;
  }

  /** For the next test. */
  script(...replies: Reply[]): void {
    this.received.length = 0;
    this.replies = replies;
  }

  async stop(): Promise<void> {
    this.http.closeAllConnections();
    await new Promise((resolve) => this.http.close(resolve));
  }
}

export const json =
  (value: unknown, status = 200, headers: Record<string, string> = {}): Reply =>
  (response) =>
    response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(value));

/** As `toProblem` of the service writes them. */
export const problem = (status: number, code: string, headers: Record<string, string> = {}): Reply =>
  json(
    { type: `urn:pulumi-overlay:error:${code}`, title: "t", status, detail: "d", code, what: "What.", fix: "Fix." },
    status,
    { "content-type": "application/problem+json", "x-request-id": "job-17", ...headers },
  );

/** The connection is cut before anything is answered. */
export const cut: Reply = (response) => response.destroy();

/** The connection is cut in the middle of the answer. */
export const cutInBody: Reply = (response) => {
  response.writeHead(200, { "content-type": "application/json", "content-length": "1000" });
  response.write('{"released":', () => response.destroy());
};

/** Nothing is answered, and the connection stays open. */
export const silence: Reply = () => {};
