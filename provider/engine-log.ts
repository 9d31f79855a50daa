import type { Client } from "@grpc/grpc-js";
import type { Phase } from "./host/connection";

/**
 * Messages to Pulumi's engine (`pulumirpc.Engine/Log`), which shows each at the resource that it is about. The request is encoded here: five
 * fields, without a dependency on Pulumi's package.
 */
export interface LogMessage {
  severity: "info" | "warning";
  text: string;
  /** The resource; empty: the stack. */
  urn: string;
  /** Shown while the resource is worked on, and not listed at the end. */
  isEphemeral?: boolean;
}

/** A phase that is shorter is not shown, so that the log of a pipeline has no line for each. */
const SHOWN_AFTER_MS = 1000;

export class EngineLog {
  #client: Promise<Client> | undefined;
  #last: Promise<unknown> = Promise.resolve();

  /** `address`: `HOST:PORT` of the engine. */
  constructor(private readonly address: string) {}

  /** In the order of the calls. An engine that does not answer is one that has ended. */
  send(message: LogMessage): void {
    this.#last = this.#last.then(() => this.#send(message)).catch(() => {});
  }

  /** What is being done for the resource, shown if it takes long. */
  openPhase(urn: string): Phase {
    let timer: NodeJS.Timeout | undefined;
    return {
      report: (text) => {
        clearTimeout(timer);
        const send = (): void => this.send({ severity: "info", text, urn, isEphemeral: true });
        timer = setTimeout(send, SHOWN_AFTER_MS).unref();
      },
      end: () => clearTimeout(timer),
    };
  }

  /** Waits until all messages have arrived: the engine ends the process once it has its last answer. */
  async flush(): Promise<void> {
    await this.#last;
  }

  async #send(message: LogMessage): Promise<void> {
    this.#client ??= connect(this.address);
    const client = await this.#client;
    const [deadline, path] = [Date.now() + 5000, "/pulumirpc.Engine/Log"];
    await new Promise<void>((resolve, reject) =>
      client.makeUnaryRequest(
        path,
        encodeLog,
        () => undefined,
        message,
        { deadline },
        (error) => (error ? reject(error) : resolve()),
      ),
    );
  }
}

async function connect(address: string): Promise<Client> {
  const { Client, credentials } = await import("@grpc/grpc-js");
  return new Client(address, credentials.createInsecure());
}

const SEVERITIES = { info: 1, warning: 2 };

/** In protobuf: severity = 1, message = 2, urn = 3, ephemeral = 5. */
export const encodeLog = ({ severity, text, urn, isEphemeral = false }: LogMessage): Buffer =>
  Buffer.concat([
    Buffer.from([tag(1, VARINT), SEVERITIES[severity]]),
    encodeText(2, text),
    encodeText(3, urn),
    Buffer.from([tag(5, VARINT), Number(isEphemeral)]),
  ]);

const VARINT = 0;
const BYTES = 2;
const tag = (field: number, wireType: number): number => field * 8 + wireType;

function encodeText(field: number, text: string): Buffer {
  const bytes = Buffer.from(text, "utf8");
  return Buffer.concat([Buffer.from([tag(field, BYTES), ...varint(bytes.length)]), bytes]);
}

const varint = (value: number): number[] =>
  value < 128 ? [value] : [(value % 128) + 128, ...varint(Math.floor(value / 128))];
