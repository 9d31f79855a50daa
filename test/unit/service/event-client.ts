import { setTimeout as sleep } from "node:timers/promises";

export interface ReceivedEvent {
  id: number;
  event: string;
  data: string;
}

/** Follows a stream of events as a browser does: it connects again, and sends the id of the last event that it has. */
export class EventClient {
  readonly events: ReceivedEvent[] = [];
  text = "";
  lastId: string | undefined;
  contentType: string | null = null;
  connections = 0;
  /** How it ended: `ended` by the server, a status, or the message of an error. */
  readonly ended: Promise<string>;
  readonly #stop = new AbortController();

  constructor(
    /** Of the present instance. */
    public url: string | (() => string),
    private readonly token: string,
    private readonly options: { reconnect?: boolean } = {},
  ) {
    // After the constructor: a test may set the last id.
    this.ended = Promise.resolve().then(() => this.#run());
  }

  get ids(): number[] {
    return this.events.map(({ id }) => id);
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    await this.ended;
  }

  /** Ends the connection, as a network does. */
  cut = (): void => {};

  async #run(): Promise<string> {
    for (;;) {
      const end = await this.#connect().catch((error: Error) => error.message);
      if (this.#stop.signal.aborted || this.options.reconnect === false || /^4\d\d$/.test(end)) return end;
      await sleep(50);
    }
  }

  async #connect(): Promise<string> {
    const cut = new AbortController();
    this.cut = () => cut.abort();
    const headers = {
      authorization: `Bearer ${this.token}`,
      ...(this.lastId !== undefined && { "last-event-id": this.lastId }),
    };
    const url = typeof this.url === "string" ? this.url : this.url();
    const signal = AbortSignal.any([this.#stop.signal, cut.signal]);
    const answer = await fetch(url, { headers, signal });
    this.contentType = answer.headers.get("content-type");
    if (answer.status !== 200) return String(answer.status);
    this.connections++;
    let rest = "";
    for await (const chunk of answer.body!.pipeThrough(new TextDecoderStream())) {
      this.text += chunk;
      const blocks = `${rest}${chunk}`.split("\n\n");
      rest = blocks.pop()!;
      for (const block of blocks) this.#take(block);
    }
    return "ended";
  }

  /** A block without data is no event, but its id counts. */
  #take(block: string): void {
    const fields = new Map(block.split("\n").map((line) => line.split(/: (.*)/s, 2) as [string, string]));
    this.lastId = fields.get("id") ?? this.lastId;
    const data = fields.get("data");
    if (data !== undefined)
      this.events.push({ id: Number.parseInt(fields.get("id")!, 10), event: fields.get("event") ?? "message", data });
  }
}
