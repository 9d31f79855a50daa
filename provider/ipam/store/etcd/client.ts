import {
  type ChannelCredentials,
  Client,
  type ClientDuplexStream,
  credentials,
  Metadata,
  type MethodDefinition,
  type ServiceError,
  status,
} from "@grpc/grpc-js";
import { methods, type Received, type Sent } from "./api";
import type { Cluster } from "./url";

/**
 * A client for etcd's v3 API. It talks to one endpoint for as long as that answers; a call that an endpoint does not answer
 * within `timeout` goes to the next one, and fails when all of them have been tried. A call may thus reach etcd twice.
 */
export class EtcdClient {
  readonly #endpoints: Client[];
  #current: number;
  #token: Promise<string> | undefined;

  constructor(private readonly cluster: Pick<Cluster, "members" | "tls" | "login" | "timeout">) {
    const security = credentialsFor(cluster.tls);
    this.#endpoints = cluster.members.map((member) => new Client(member.replace(/^\w+:\/\//, ""), security, CHANNEL));
    this.#current = Math.floor(Math.random() * cluster.members.length);
  }

  range(request: Sent<"RangeRequest">): Promise<Received<"RangeResponse">> {
    return this.#call(methods.range, request);
  }

  put(request: Sent<"PutRequest">): Promise<Received<"HeaderResponse">> {
    return this.#call(methods.put, request);
  }

  deleteRange(request: Sent<"DeleteRangeRequest">): Promise<Received<"HeaderResponse">> {
    return this.#call(methods.deleteRange, request);
  }

  txn(request: Sent<"TxnRequest">): Promise<Received<"TxnResponse">> {
    return this.#call(methods.txn, request);
  }

  /** `ttl` in seconds. */
  grantLease(ttl: number): Promise<Received<"LeaseResponse">> {
    return this.#call(methods.leaseGrant, { TTL: ttl });
  }

  async revokeLease(id: string): Promise<void> {
    await this.#call(methods.leaseRevoke, { ID: id });
  }

  /** Renews a lease once; its remaining seconds, 0 if it has expired. */
  async keepLeaseAlive(id: string): Promise<number> {
    const { TTL } = await this.#failOver((endpoint) =>
      this.#authorized(endpoint, async (metadata) => {
        const stream = this.#stream(endpoint, methods.leaseKeepAlive, metadata, this.#deadline());
        stream.end({ ID: id });
        for await (const response of stream) return response as Received<"LeaseResponse">;
        throw unanswered();
      }),
    );
    return Number(TTL);
  }

  /**
   * Changes of keys, in order and each once, until `signal` aborts. After a lost connection it goes on at the next endpoint
   * from the revision after the last one seen. Ends with OUT_OF_RANGE when that revision is compacted away.
   */
  async *watch(request: Sent<"WatchCreateRequest">, signal: AbortSignal): AsyncGenerator<Received<"WatchResponse">> {
    let next = request;
    for (let failures = 0; !signal.aborted; ) {
      const index = this.#current;
      try {
        for await (const response of this.#watchEndpoint(this.#endpoints[index]!, next, signal)) {
          failures = 0;
          const seen =
            response.events.at(-1)?.kv.mod_revision ?? (next.start_revision ? undefined : response.header.revision);
          if (seen !== undefined) next = { ...request, start_revision: String(BigInt(seen) + 1n) };
          if (response.events.length > 0) yield response;
        }
      } catch (error) {
        if (signal.aborted) return;
        if (isAnswer(error) || ++failures > this.#endpoints.length) throw error;
        this.#leave(index);
      }
    }
  }

  close(): void {
    for (const endpoint of this.#endpoints) endpoint.close();
  }

  #call<Request, Response>(method: MethodDefinition<Request, Response>, request: Request): Promise<Response> {
    return this.#failOver((endpoint) =>
      this.#authorized(endpoint, (metadata) => this.#send(endpoint, method, request, metadata)),
    );
  }

  async #failOver<T>(call: (endpoint: Client) => Promise<T>): Promise<T> {
    for (let tried = 1; ; tried++) {
      const index = this.#current;
      try {
        return await call(this.#endpoints[index]!);
      } catch (error) {
        if (isAnswer(error)) throw error;
        this.#leave(index);
        if (tried === this.#endpoints.length) throw error;
      }
    }
  }

  /** Unless another call has moved on from this endpoint already. */
  #leave(index: number): void {
    if (this.#current === index) this.#current = (index + 1) % this.#endpoints.length;
  }

  /** Tokens expire, and a restarted member knows none: the call is made once more with a new one. */
  async #authorized<T>(endpoint: Client, call: (metadata: Metadata) => Promise<T>): Promise<T> {
    if (!this.cluster.login) return call(new Metadata());
    const token = this.#currentToken(endpoint);
    try {
      return await call(metadataWith(await token));
    } catch (error) {
      if (!isTokenRefusal(error)) throw error;
      if (this.#token === token) this.#token = undefined;
      return call(metadataWith(await this.#currentToken(endpoint)));
    }
  }

  #currentToken(endpoint: Client): Promise<string> {
    if (this.#token) return this.#token;
    const token = this.#authenticate(endpoint);
    this.#token = token;
    token.catch(() => {
      if (this.#token === token) this.#token = undefined;
    });
    return token;
  }

  async #authenticate(endpoint: Client): Promise<string> {
    const { username: name, password } = this.cluster.login!;
    const { token } = await this.#send(endpoint, methods.authenticate, { name, password }, new Metadata());
    return token;
  }

  #deadline(): number {
    return Date.now() + this.cluster.timeout;
  }

  #send<Request, Response>(
    endpoint: Client,
    { path, requestSerialize, responseDeserialize }: MethodDefinition<Request, Response>,
    request: Request,
    metadata: Metadata,
  ): Promise<Response> {
    return new Promise((resolve, reject) => {
      const options = { deadline: this.#deadline() };
      endpoint.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        metadata,
        options,
        (error, response) => (error ? reject(error) : resolve(response!)),
      );
    });
  }

  #stream<Request, Response>(
    endpoint: Client,
    { path, requestSerialize, responseDeserialize }: MethodDefinition<Request, Response>,
    metadata: Metadata,
    deadline = Number.POSITIVE_INFINITY,
  ): ClientDuplexStream<Request, Response> {
    return endpoint.makeBidiStreamRequest(path, requestSerialize, responseDeserialize, metadata, { deadline });
  }

  /** The deadline is for the start of the watch; later a dead connection is noticed by HTTP/2 pings. */
  async *#watchEndpoint(
    endpoint: Client,
    request: Sent<"WatchCreateRequest">,
    signal: AbortSignal,
  ): AsyncGenerator<Received<"WatchResponse">> {
    // etcd reports an expired token here as a missing permission, so each watch begins with a new one.
    const metadata = this.cluster.login ? metadataWith(await this.#authenticate(endpoint)) : new Metadata();
    const stream = this.#stream(endpoint, methods.watch, metadata);
    const cancel = () => stream.cancel();
    const timer = setTimeout(cancel, this.cluster.timeout);
    signal.addEventListener("abort", cancel, { once: true });
    try {
      if (signal.aborted) return;
      stream.write({ create_request: request });
      for await (const response of stream as AsyncIterable<Received<"WatchResponse">>) {
        clearTimeout(timer);
        if (response.canceled) throw canceled(response);
        yield response;
      }
      throw unanswered();
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", cancel);
      stream.cancel();
    }
  }
}

const CHANNEL = {
  "grpc.max_receive_message_length": 64 << 20,
  // Which endpoint is asked next is decided above, and one that is back is to be used soon.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1000,
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 5000,
  "grpc.service_config_disable_resolution": 1,
};

/** Without a CA those of the system count. */
const credentialsFor = (tls: Cluster["tls"]): ChannelCredentials =>
  tls ? credentials.createSsl(tls.ca ?? null, tls.key ?? null, tls.cert ?? null) : credentials.createInsecure();

function metadataWith(token: string): Metadata {
  const metadata = new Metadata();
  metadata.set("token", token);
  return metadata;
}

/** Codes with which etcd itself answers a call. With any other, the endpoint is out of reach, without a leader, or overloaded. */
const ANSWERS: unknown[] = [
  status.INVALID_ARGUMENT,
  status.NOT_FOUND,
  status.ALREADY_EXISTS,
  status.PERMISSION_DENIED,
  status.FAILED_PRECONDITION,
  status.OUT_OF_RANGE,
  status.DATA_LOSS,
  status.UNAUTHENTICATED,
];

export const codeOf = (error: unknown): status | undefined => (error as Partial<ServiceError>).code;
export const detailsOf = (error: unknown): string =>
  ((error as Partial<ServiceError>).details ?? (error as Error).message)
    .replace(/^etcdserver: /, "")
    .replace(/\.$/, "");

/** Whether another endpoint would say the same. */
const isAnswer = (error: unknown): boolean => ANSWERS.includes(codeOf(error)) || isOutOfSpace(error);
export const isOutOfSpace = (error: unknown): boolean => detailsOf(error).includes("database space exceeded");

const isTokenRefusal = (error: unknown): boolean =>
  /invalid auth token|revision in header is old/.test(detailsOf(error));

const failure = (code: status, details: string): Error => Object.assign(new Error(details), { code, details });

const unanswered = (): Error => failure(status.UNAVAILABLE, "the stream ended without an answer");

const canceled = ({ compact_revision, cancel_reason }: Received<"WatchResponse">): Error =>
  compact_revision !== "0"
    ? failure(status.OUT_OF_RANGE, `required revision has been compacted, the oldest is ${compact_revision}`)
    : failure(status.PERMISSION_DENIED, cancel_reason || "the watch was canceled");
