import { Client, credentials, Metadata, type MethodDefinition, type ServiceError, status } from "@grpc/grpc-js";
import { AUTHENTICATE, type Received, type Sent, TXN } from "./api";
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
    const { members, tls } = cluster;
    // Without a CA those of the system count.
    const security = tls
      ? credentials.createSsl(tls.ca ?? null, tls.key ?? null, tls.cert ?? null)
      : credentials.createInsecure();
    this.#endpoints = members.map((member) => new Client(member.replace(/^\w+:\/\//, ""), security, CHANNEL));
    this.#current = Math.floor(Math.random() * members.length);
  }

  txn(request: Sent<"TxnRequest">): Promise<Received<"TxnResponse">> {
    return this.#call(TXN, request);
  }

  close(): void {
    for (const endpoint of this.#endpoints) endpoint.close();
  }

  async #call<Q, A>(method: MethodDefinition<Q, A>, request: Q): Promise<A> {
    for (let tried = 1; ; tried++) {
      const index = this.#current;
      try {
        return await this.#sendAuthorized(this.#endpoints[index]!, method, request);
      } catch (error) {
        if (isAnswer(error)) throw error;
        // Unless another call has moved on from this endpoint already.
        if (this.#current === index) this.#current = (index + 1) % this.#endpoints.length;
        if (tried === this.#endpoints.length) throw error;
      }
    }
  }

  /** Tokens expire, and a restarted member knows none: the call is made once more with a new one. */
  async #sendAuthorized<Q, A>(endpoint: Client, method: MethodDefinition<Q, A>, request: Q): Promise<A> {
    const { login, timeout } = this.cluster;
    if (!login) return send(endpoint, method, request, timeout);
    this.#token ??= this.#authenticate(endpoint);
    const token = this.#token;
    try {
      return await send(endpoint, method, request, timeout, await token);
    } catch (error) {
      if (this.#token === token) this.#token = undefined;
      if (!/invalid auth token|revision in header is old/.test(detailsOf(error))) throw error;
      this.#token ??= this.#authenticate(endpoint);
      return send(endpoint, method, request, timeout, await this.#token);
    }
  }

  async #authenticate(endpoint: Client): Promise<string> {
    const { login, timeout } = this.cluster;
    const { username: name, password } = login!;
    return (await send(endpoint, AUTHENTICATE, { name, password }, timeout)).token;
  }
}

function send<Q, A>(
  endpoint: Client,
  { path, requestSerialize, responseDeserialize }: MethodDefinition<Q, A>,
  request: Q,
  timeout: number,
  token?: string,
): Promise<A> {
  const metadata = new Metadata();
  if (token !== undefined) metadata.set("token", token);
  const options = { deadline: Date.now() + timeout };
  return new Promise((resolve, reject) => {
    endpoint.makeUnaryRequest(
      ...([path, requestSerialize, responseDeserialize, request, metadata, options] as const),
      (error, response) => (error ? reject(error) : resolve(response!)),
    );
  });
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
