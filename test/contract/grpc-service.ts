import {
  type ChannelCredentials,
  Client,
  type ClientReadableStream,
  credentials,
  Metadata,
  type ServiceError,
  status,
} from "@grpc/grpc-js";
import { loadSync, type MessageTypeDefinition, type ServiceDefinition } from "@grpc/proto-loader";
import { type AccessTokenInput, createAccessToken } from "../../provider/access/access-tokens";
import { Authenticator } from "../../provider/access/authenticate";
import type { Store } from "../../provider/ipam/types";
import type { TenantDefaults } from "../../provider/resource";
import { Admission } from "../../service/admission";
import type { Limits, ServiceContext } from "../../service/app";
import type { EventFeed } from "../../service/events/feed";
import type { TlsCredentials } from "../../service/grpc/credentials";
import { GrpcServer } from "../../service/grpc/server";
import { openInstance } from "../../service/instance";
import { createLog } from "../../service/log";

const folder = "service/grpc";
/** As a client has it that was made from the file. */
const overlay = loadSync(`${folder}/overlay.proto`, { longs: String, enums: String });
const google = loadSync(`${folder}/status.proto`, { longs: String });

const LIMITS: Limits = { bodyLimit: 65_536, pageLimit: 1000, rateLimit: 100_000, requestTimeout: 30 };

export interface ServiceOptions {
  limits?: Partial<Limits>;
  noAuth?: boolean;
  credentials?: TlsCredentials;
  tenantDefaults?: TenantDefaults;
  mostConnections?: number;
}

export interface CallOptions {
  /** Milliseconds. */
  deadline?: number;
  metadata?: Record<string, string>;
}

// biome-ignore lint/suspicious/noExplicitAny: answers are compared with literals
export type Answer = any;

/** A call that has failed, with the details that a client reads. */
export class CallError extends Error {
  readonly status: string;
  readonly info: { reason: string; domain: string; metadata: Record<string, string> } | undefined;

  constructor({ code, details, metadata }: ServiceError) {
    super(details);
    this.status = status[code]!;
    const [bytes] = metadata.get("grpc-status-details-bin");
    this.info = bytes === undefined ? undefined : readErrorInfo(bytes as Buffer);
  }

  /** As `NOT_FOUND POOL_NOT_FOUND`. */
  get outcome(): string {
    return [this.status, ...(this.info ? [this.info.reason] : [])].join(" ");
  }
}

function readErrorInfo(bytes: Buffer) {
  const read = <T>(name: string, from: Buffer): T =>
    (google[name] as unknown as MessageTypeDefinition<object, T & object>).deserialize(from);
  const { details } = read<{ details: { type_url: string; value: Buffer }[] }>("google.rpc.Status", bytes);
  const [{ type_url: type, value }] = details as [{ type_url: string; value: Buffer }];
  return read<NonNullable<CallError["info"]>>(type.replace("type.googleapis.com/", ""), value);
}

/** The server on a pool, and a client of it on loopback. */
export class GrpcService {
  readonly lines: string[] = [];
  readonly stopping = new AbortController();
  readonly #clients: Client[] = [];
  server!: GrpcServer;
  context!: ServiceContext;
  /** HOST:PORT. */
  address = "";
  /** How often an access token was looked up. */
  lookups = 0;
  /** How long that takes. */
  lookupMs = 0;

  static async on(pool: Store, options: ServiceOptions = {}): Promise<GrpcService> {
    const service = new GrpcService(pool);
    const { limits, noAuth = false, credentials, tenantDefaults, mostConnections } = options;
    const records = {
      findAccessToken: async (id: string) => {
        service.lookups++;
        await new Promise((resolve) => setTimeout(resolve, service.lookupMs));
        return pool.admin.findAccessToken(id);
      },
      accessTokens: () => pool.admin.accessTokens(),
    };
    const log = createLog("info", (line) => service.lines.push(line));
    const context = {
      ...(await openInstance(async () => pool, { version: "1.2.3", node: "v0", mostPools: 1000 }, log)),
      tenantDefaults,
      operator: { name: "root@test", scopes: ["admin" as const] },
      ...(!noAuth && { authenticator: new Authenticator(records) }),
      limits: { ...LIMITS, ...limits },
      metricsPublic: false,
      stopping: service.stopping.signal,
    };
    service.context = context;
    service.server = new GrpcServer(context, {
      admission: new Admission(context),
      log,
      credentials,
      ...(mostConnections && { mostConnections }),
    });
    service.address = await service.server.listen({ host: "127.0.0.1", port: 0 });
    return service;
  }

  private constructor(readonly pool: Store) {}

  get feed(): EventFeed {
    return this.context.feed;
  }

  /** The text of a new access token. */
  async token(name: string, scopes: AccessTokenInput["scopes"], more: Partial<AccessTokenInput> = {}): Promise<string> {
    const { text } = await createAccessToken({ pool: this.pool, createdBy: "test" }, { name, scopes, ...more });
    return text;
  }

  /** A connection of its own. */
  connect(channel: ChannelCredentials = credentials.createInsecure()): Connection {
    const client = new Client(this.address, channel);
    this.#clients.push(client);
    return new Connection(client);
  }

  async stop(): Promise<void> {
    this.stopping.abort();
    await this.server.stop(10_000);
    for (const client of this.#clients) client.close();
  }
}

const methodOf = (name: string) => {
  const [service, method] = name.split(".") as [string, string];
  return (overlay[`overlay.ipam.v1.${service}`] as ServiceDefinition)[method]!;
};

function metadataOf(token: string | undefined, more: Record<string, string> = {}): Metadata {
  const metadata = new Metadata();
  if (token !== undefined) metadata.set("authorization", `Bearer ${token}`);
  for (const [key, value] of Object.entries(more)) metadata.set(key, value);
  return metadata;
}

const optionsOf = ({ deadline }: CallOptions) => (deadline === undefined ? {} : { deadline: Date.now() + deadline });

export class Connection {
  constructor(readonly client: Client) {}

  /** Calls `SERVICE.METHOD`. */
  call(name: string, request: object, token?: string, options: CallOptions = {}): Promise<Answer> {
    const { path, requestSerialize, responseDeserialize } = methodOf(name);
    return new Promise((resolve, reject) => {
      this.client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        metadataOf(token, options.metadata),
        optionsOf(options),
        (error, answer) => (error ? reject(new CallError(error)) : resolve(answer)),
      );
    });
  }

  watch(request: object, token?: string, options: CallOptions = {}): Watcher {
    const { path, requestSerialize, responseDeserialize } = methodOf("Reservations.Watch");
    const metadata = metadataOf(token, options.metadata);
    return new Watcher(
      this.client.makeServerStreamRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        metadata,
        optionsOf(options),
      ),
    );
  }

  /** Status and code, as `NOT_FOUND POOL_NOT_FOUND`; `OK` for a success. A stream counts once it has sent a message. */
  async outcome(name: string, request: object, token?: string, options: CallOptions = {}): Promise<string> {
    const watcher = name === "Reservations.Watch" ? this.watch(request, token, options) : undefined;
    try {
      await (watcher ? watcher.next() : this.call(name, request, token, options));
      return "OK";
    } catch (error) {
      if (error instanceof CallError) return error.outcome;
      throw error;
    } finally {
      watcher?.cancel();
    }
  }
}

/** A stream of changes. */
export class Watcher {
  readonly #received: Answer[] = [];
  #error: CallError | undefined;
  #notify = () => {};

  constructor(private readonly stream: ClientReadableStream<object>) {
    stream.on("data", (message) => {
      this.#received.push(message);
      this.#notify();
    });
    stream.on("error", (error: ServiceError) => {
      this.#error = new CallError(error);
      this.#notify();
    });
  }

  /** The next message; rejects when the stream ends. */
  async next(): Promise<Answer> {
    while (this.#received.length === 0) {
      if (this.#error) throw this.#error;
      await new Promise<void>((resolve) => {
        this.#notify = resolve;
      });
    }
    return this.#received.shift();
  }

  /** The next change. */
  async event(): Promise<Answer> {
    for (;;) {
      const message = await this.next();
      if (message.event) return message.event;
    }
  }

  cancel(): void {
    this.stream.cancel();
  }
}
