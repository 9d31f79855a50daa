import { once } from "node:events";
import { connect, type Socket } from "node:net";

export interface HttpAnswer {
  status: number;
  body: string;
}

/** Milliseconds without a byte after which a request fails. */
const TIMEOUT_MS = 30_000;

const EMPTY = Buffer.alloc(0);

/**
 * A keep-alive connection with one request at a time. It reads answers with a Content-Length only, which leaves most of the CPU to the
 * measured process: Node's own client needs as much as a server.
 */
export class Connection {
  readonly #headers: string;
  #received: Buffer = EMPTY;
  #pending: { resolve(answer: HttpAnswer): void; reject(error: Error): void } | undefined;
  #failure: Error | undefined;

  private constructor(
    private readonly socket: Socket,
    host: string,
    token: string | undefined,
  ) {
    const authorization = token === undefined ? "" : `Authorization: Bearer ${token}\r\n`;
    this.#headers = `Host: ${host}\r\n${authorization}Content-Length: 0\r\n\r\n`;
    socket.setNoDelay(true);
    socket.setTimeout(TIMEOUT_MS, () => socket.destroy(new Error(`no answer within ${TIMEOUT_MS} ms`)));
    socket.on("data", (data) => this.#receive(data));
    socket.on("error", (error) => this.#fail(error));
    socket.on("close", () => this.#fail(new Error("the connection was closed")));
  }

  static async open(url: string, token?: string): Promise<Connection> {
    const { hostname, port, host } = new URL(url);
    const socket = connect(Number(port), hostname);
    await once(socket, "connect");
    return new Connection(socket, host, token);
  }

  post(path: string): Promise<HttpAnswer> {
    return new Promise((resolve, reject) => {
      if (this.#failure) return reject(this.#failure);
      this.#pending = { resolve, reject };
      this.socket.write(`POST ${path} HTTP/1.1\r\n${this.#headers}`);
    });
  }

  close(): void {
    this.socket.destroy();
  }

  #receive(data: Buffer): void {
    this.#received = this.#received.length === 0 ? data : Buffer.concat([this.#received, data]);
    const answer = parseAnswer(this.#received);
    if (answer === undefined) return;
    this.#received = EMPTY;
    if (answer instanceof Error) this.#fail(answer);
    else this.#pending?.resolve(answer);
  }

  #fail(error: Error): void {
    this.#failure ??= error;
    this.#pending?.reject(this.#failure);
  }
}

/** undefined: it is not complete. */
export function parseAnswer(received: Buffer): HttpAnswer | Error | undefined {
  const end = received.indexOf("\r\n\r\n");
  if (end < 0) return undefined;
  const head = received.toString("latin1", 0, end);
  const [, length] = /\r\ncontent-length: (\d+)/i.exec(head) ?? [];
  if (length === undefined) return new Error(`an answer without Content-Length: ${head}`);
  const from = end + 4;
  if (received.length < from + Number(length)) return undefined;
  return { status: Number(head.slice(9, 12)), body: received.toString("utf8", from, from + Number(length)) };
}
