import { promisify } from "node:util";
import { Server, ServerCredentials, type UntypedServiceImplementation } from "@grpc/grpc-js";
import { HealthImplementation, type ServingStatus } from "grpc-health-check";
import type { Logger } from "pino";
import { OverlayError } from "../../errors";
import type { Admission } from "../admission";
import type { ServiceContext } from "../app";
import type { EventFeed } from "../events/feed";
import { readinessOf } from "../readiness";
import { fullName, SERVICE_NAMES, serviceDefinition } from "./api";
import { type CallServices, handleStream, handleUnary } from "./calls";
import type { TlsCredentials } from "./credentials";
import type { Method } from "./methods";
import { addReflection } from "./reflection";
import { METHODS } from "./table";

/** Milliseconds between checks whether the store answers. */
const HEALTH_INTERVAL = 5000;
/** Milliseconds that calls under way have to end. */
const STOP_TIMEOUT = 10_000;
/** Milliseconds for the last answers to arrive, while streams of the health service and of reflection would keep connections open. */
const LAST_ANSWERS = 500;

/** Milliseconds. A connection without calls is closed after a time; a client that answers no ping has gone. */
const CONNECTION_LIMITS = {
  "grpc.max_connection_idle_ms": 300_000,
  "grpc.keepalive_time_ms": 60_000,
  "grpc.keepalive_timeout_ms": 20_000,
  "grpc.max_concurrent_streams": 256,
};

export interface GrpcOptions {
  admission: Admission;
  feed: EventFeed;
  log: Logger;
  /** Without it, the server has no TLS. */
  credentials?: TlsCredentials | undefined;
}

/** The gRPC server with its services, health and reflection. */
export class GrpcServer {
  readonly #server: Server;
  readonly #health = new HealthImplementation({ "": "SERVING" });
  readonly #active = new Set<Promise<void>>();
  #timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly service: ServiceContext,
    private readonly options: GrpcOptions,
  ) {
    this.#server = new Server({ ...CONNECTION_LIMITS, "grpc.max_receive_message_length": service.limits.bodyLimit });
    const services = { service, ...options, active: this.#active };
    for (const name of SERVICE_NAMES) this.#server.addService(serviceDefinition(name), implement(services, name));
    this.#health.addToServer(this.#server);
    addReflection(this.#server);
  }

  /** Returns the port, which the system chooses for port 0. */
  async listen({ host, port }: { host: string; port: number }): Promise<number> {
    const address = `${host.includes(":") ? `[${host}]` : host}:${port}`;
    const credentials = this.options.credentials ?? ServerCredentials.createInsecure();
    await this.#watchStore();
    return new Promise((resolve, reject) => {
      this.#server.bindAsync(address, credentials, (error, bound) =>
        error ? reject(listenError(address, error)) : resolve(bound),
      );
    });
  }

  /** Refuses new calls, and waits for those that are under way. `stopping` of the service ends streams. */
  async stop(): Promise<void> {
    clearTimeout(this.#timer);
    this.#setStatus("NOT_SERVING", ["", ...SERVICE_NAMES.map(fullName)]);
    const timers: NodeJS.Timeout[] = [];
    const after = (ms: number) => new Promise<void>((resolve) => void timers.push(setTimeout(resolve, ms)));
    const closed = promisify(this.#server.tryShutdown.bind(this.#server))();
    const answered = Promise.all(this.#active).then(() => after(LAST_ANSWERS));
    await Promise.race([closed, answered, after(STOP_TIMEOUT)]);
    for (const timer of timers) clearTimeout(timer);
    this.#server.forceShutdown();
  }

  /** The services are healthy while the store answers. The process as a whole, which has the empty name, is until it stops. */
  async #watchStore(): Promise<void> {
    const isReady = readinessOf(this.service.pool);
    const check = async (): Promise<void> => {
      const status = await isReady().then(
        (): ServingStatus => "SERVING",
        (): ServingStatus => "NOT_SERVING",
      );
      if (this.service.stopping.aborted) return;
      this.#setStatus(status, SERVICE_NAMES.map(fullName));
      this.#timer = setTimeout(check, HEALTH_INTERVAL).unref();
    };
    await check();
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
