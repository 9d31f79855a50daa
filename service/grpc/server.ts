import { type AddressInfo, createServer, type Server as NetServer } from "node:net";
import { promisify } from "node:util";
import { Server, ServerCredentials, type UntypedServiceImplementation } from "@grpc/grpc-js";
import { HealthImplementation, type ServingStatus } from "grpc-health-check";
import type { Logger } from "pino";
import { OverlayError } from "../../provider/errors";
import type { Admission } from "../admission";
import type { ServiceContext } from "../app";
import { readinessOf } from "../readiness";
import { fullName, SERVICE_NAMES, serviceDefinition } from "./api";
import { type CallServices, handleStream, handleUnary } from "./calls";
import { Connections } from "./connections";
import type { TlsCredentials } from "./credentials";
import type { Method } from "./methods";
import { addReflection } from "./reflection";
import { METHODS } from "./table";

/** Milliseconds between checks whether the store answers. */
const HEALTH_INTERVAL = 5000;
/** Milliseconds for the last answers to arrive, while streams of the health service and of reflection would keep connections open. */
const LAST_ANSWERS = 500;

/** Milliseconds. A connection without calls is closed after a time; a client that answers no ping has gone. */
const CONNECTION_LIMITS = {
  "grpc.max_connection_idle_ms": 300_000,
  "grpc.keepalive_time_ms": 60_000,
  "grpc.keepalive_timeout_ms": 20_000,
  "grpc.max_concurrent_streams": 256,
};
const MOST_CONNECTIONS = 2000;

export interface GrpcOptions {
  admission: Admission;
  log: Logger;
  /** Without it, the server has no TLS. */
  credentials?: TlsCredentials | undefined;
  /** For tests. */
  mostConnections?: number;
}

/** The gRPC server with its services, health and reflection. */
export class GrpcServer {
  readonly #server: Server;
  readonly #health = new HealthImplementation({ "": "SERVING" });
  readonly #active = new Set<Promise<void>>();
  readonly #isReady: () => Promise<void>;
  readonly #connections: Connections;
  #listener: NetServer | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly service: ServiceContext,
    private readonly options: GrpcOptions,
  ) {
    this.#connections = new Connections(options.mostConnections ?? MOST_CONNECTIONS);
    this.#server = new Server({ ...CONNECTION_LIMITS, "grpc.max_receive_message_length": service.limits.bodyLimit });
    this.#isReady = readinessOf(service.pool);
    const services = { service, ...options, active: this.#active, connections: this.#connections };
    for (const name of SERVICE_NAMES) this.#server.addService(serviceDefinition(name), implement(services, name));
    this.#health.addToServer(this.#server);
    addReflection(this.#server);
  }

  /** Returns the address as HOST:PORT; the system chooses a port for port 0. */
  async listen({ host, port }: { host: string; port: number }): Promise<string> {
    const name = host.includes(":") ? `[${host}]` : host;
    await this.#checkStore();
    this.#listener = this.#createListener();
    await new Promise<void>((resolve, reject) => {
      this.#listener!.once("error", (error) => reject(listenError(`${name}:${port}`, error)));
      this.#listener!.listen({ host, port }, resolve);
    });
    this.#timer = setInterval(() => void this.#checkStore(), HEALTH_INTERVAL).unref();
    return `${name}:${(this.#listener.address() as AddressInfo).port}`;
  }

  /** Accepts connections for the gRPC library, which has no limit of them. */
  #createListener(): NetServer {
    const { credentials = ServerCredentials.createInsecure() } = this.options;
    const injector = this.#server.createConnectionInjector(credentials);
    const listener = createServer((socket) => {
      this.#connections.add(socket);
      injector.injectConnection(socket);
    });
    listener.maxConnections = this.#connections.most;
    return listener;
  }

  /** Refuses new calls, and waits so many milliseconds for those that are under way. `stopping` of the service ends streams. */
  async stop(timeout: number): Promise<void> {
    clearInterval(this.#timer);
    this.#listener?.close();
    this.#setStatus("NOT_SERVING", ["", ...SERVICE_NAMES.map(fullName)]);
    const timers: NodeJS.Timeout[] = [];
    const after = (ms: number) => new Promise<void>((resolve) => void timers.push(setTimeout(resolve, ms)));
    const closed = promisify(this.#server.tryShutdown.bind(this.#server))();
    const answered = Promise.all(this.#active).then(() => after(LAST_ANSWERS));
    await Promise.race([closed, answered, after(timeout)]);
    for (const timer of timers) clearTimeout(timer);
    this.#server.forceShutdown();
    this.#connections.destroyAll();
  }

  /** The services are healthy while the store answers. The process as a whole, which has the empty name, is until it stops. */
  async #checkStore(): Promise<void> {
    const status = await this.#isReady().then(
      (): ServingStatus => "SERVING",
      (): ServingStatus => "NOT_SERVING",
    );
    if (!this.service.stopping.aborted) this.#setStatus(status, SERVICE_NAMES.map(fullName));
  }

  #setStatus(status: ServingStatus, names: string[]): void {
    for (const name of names) this.#health.setStatus(name, status);
  }
}

function implement(services: CallServices, name: (typeof SERVICE_NAMES)[number]): UntypedServiceImplementation {
  const methods: Record<string, Method> = METHODS[name];
  const handlers = Object.entries(serviceDefinition(name)).map(([key, definition]) => {
    const method = methods[key];
    if (!method) throw new Error(`Method ${key} of service ${name} is not in the table of methods.`);
    const handler = "run" in method ? handleUnary : handleStream;
    return [key, handler(services, definition, method as never)];
  });
  return Object.fromEntries(handlers) as UntypedServiceImplementation;
}

const listenError = (address: string, cause: Error): OverlayError =>
  new OverlayError(
    "SETTING_INVALID",
    `The gRPC server cannot listen on ${address}: ${cause.message}.`,
    "Give --grpc-listen another address or port.",
    cause,
  );
