import type { Server as HttpsServer } from "node:https";
import { setTimeout as sleep } from "node:timers/promises";
import type { SecureContextOptions } from "node:tls";
import type { Logger } from "pino";
import { Authenticator } from "../access/authenticate";
import type { Caller } from "../access/caller";
import { OverlayError } from "../errors";
import type { TenantDefaults } from "../resource";
import { Admission } from "./admission";
import type { App, ServiceContext } from "./app";
import { type Instance, type OpenPool, openInstance } from "./instance";
import { findPassedSocket, type ListenAddress, type Protection, refuseOpenAddress } from "./listen";
import { createLog } from "./log";
import { buildServer } from "./server";
import type { ServiceSettings } from "./settings";
import { readTls, type TlsFiles, watchTls } from "./tls";

/** Milliseconds that requests under way have to end. */
const STOP_TIMEOUT = 10_000;

export interface ServeContext {
  openPool: OpenPool;
  tokenKeys?: string | undefined;
  tenantDefaults?: TenantDefaults | undefined;
  /** The user that runs the service; without authentication, all changes are its own. */
  actor: string;
  version: string;
}

/** A server that listens. */
interface Listener {
  /** New connections get these certificates. */
  updateTls(options: SecureContextOptions): void;
  /** Refuses new connections, and waits for requests that are under way. */
  stop(): Promise<void>;
}

/** Serves until the process gets SIGTERM or SIGINT. Requests that are under way then are answered. */
export async function serve(context: ServeContext, settings: ServiceSettings): Promise<void> {
  const stopping = new AbortController();
  const log = createLog(settings.logLevel, (line) => process.stdout.write(line));
  const protection = { hasTls: settings.tlsCert !== undefined, hasAuthentication: !settings.noAuth };
  const { version } = context;
  const measured = { version, node: process.version, mostPools: settings.metricsPools };
  const signal = receiveSignal();
  const instance = await openInstance(context.openPool, measured, log);
  try {
    const tls = tlsFilesOf(settings);
    const options = { instance, log, protection, tls, stopping: stopping.signal };
    const listeners = await startListeners(context, settings, options);
    logProtection(log, protection);
    instance.deliveries.start();
    const unwatch = tls ? reloadTls(listeners, tls, log) : () => {};
    log.info({ signal: await signal }, "stopping");
    stopping.abort();
    unwatch();
    await Promise.all(listeners.map((listener) => listener.stop()));
  } finally {
    await instance.end();
  }
  log.info("stopped");
}

const tlsFilesOf = ({ tlsCert, tlsKey, clientCa }: ServiceSettings): TlsFiles | undefined =>
  tlsCert === undefined ? undefined : { tlsCert, tlsKey: tlsKey!, clientCa };

interface ListenOptions {
  instance: Instance;
  log: Logger;
  protection: Protection;
  tls: TlsFiles | undefined;
  stopping: AbortSignal;
}

/** HTTP always, gRPC if it has an address. They share the limits of access tokens. */
async function startListeners(
  { tokenKeys, tenantDefaults, actor, version }: ServeContext,
  settings: ServiceSettings,
  options: ListenOptions,
): Promise<Listener[]> {
  const { grpcListen, metricsPublic } = settings;
  const { instance, stopping } = options;
  if (grpcListen) refuseOpenAddress(grpcListen.host, options.protection);
  const operator: Caller = { name: actor, scopes: ["admin"] };
  const authentication = settings.noAuth ? {} : { authenticator: new Authenticator(instance.pool) };
  const context = { ...instance, tokenKeys, tenantDefaults, operator, metricsPublic, stopping };
  const service = { ...context, ...authentication, limits: settings };
  const admission = new Admission(service);
  const http = await startHttp(service, settings, { ...options, admission, version });
  if (!grpcListen) return [http];
  try {
    return [http, await startGrpc(service, grpcListen, { ...options, admission })];
  } catch (error) {
    await http.stop();
    throw error;
  }
}

async function startHttp(
  service: ServiceContext,
  settings: ServiceSettings,
  { log, protection, tls, admission, version }: ListenOptions & { admission: Admission; version: string },
): Promise<Listener> {
  const address = findPassedSocket(process.env, process.pid) ?? settings.listen;
  if ("host" in address) refuseOpenAddress(address.host, protection);
  const mutual = { requestCert: true, rejectUnauthorized: true };
  const https = tls && { ...readTls(tls), ...(tls.clientCa !== undefined && mutual) };
  const app = await buildServer(service, { log, version, admission, ...(https && { https }) });
  await listen(app, address, protection);
  return {
    updateTls: (options) => (app.server as unknown as HttpsServer).setSecureContext(options),
    stop: () => closeServer(app),
  };
}

/** Its libraries are loaded only if it is asked for. */
async function startGrpc(
  service: ServiceContext,
  address: { host: string; port: number },
  { log, tls, admission }: ListenOptions & { admission: Admission },
): Promise<Listener> {
  const { GrpcServer, TlsCredentials } = await import("./grpc/index.js");
  const credentials = tls && new TlsCredentials(readTls(tls));
  const server = new GrpcServer(service, { admission, log, credentials, feed: service.feed });
  const port = await server.listen(address);
  log.info(`gRPC listening at ${address.host.includes(":") ? `[${address.host}]` : address.host}:${port}`);
  return { updateTls: (options) => credentials?.update(options), stop: () => server.stop() };
}

/**
 * A socket that was passed to this process may have any address, and clients that wait. It is checked before the first of them is accepted, so that those
 * of a restart are served.
 */
async function listen(app: App, address: ListenAddress, protection: Protection): Promise<void> {
  let refusal: unknown;
  app.server.once("listening", () => {
    const bound = app.server.address();
    try {
      refuseOpenAddress(typeof bound === "object" ? bound?.address : undefined, protection);
    } catch (error) {
      refusal = error;
    }
  });
  app.server.prependListener("connection", (socket) => {
    if (refusal !== undefined) socket.destroy();
  });
  // `host` keeps fastify from listening on a second address beside the passed socket.
  const where = "fd" in address ? { ...address, host: "passed" } : address;
  await app.listen({ ...where, listenTextResolver: (url) => `listening at ${url}` }).catch((error: Error) => {
    throw listenError(error);
  });
  if (refusal === undefined) return;
  await app.close();
  throw refusal;
}

const listenError = (cause: Error): OverlayError =>
  new OverlayError(
    "SETTING_INVALID",
    `The service cannot listen: ${cause.message}.`,
    "Give another address or port with --listen.",
    cause,
  );

function logProtection(log: Logger, { hasTls, hasAuthentication }: Protection): void {
  if (!hasTls) log.warn("no TLS: the service listens on loopback only");
  if (!hasAuthentication) log.warn("no authentication: every local user may do everything");
}

function reloadTls(listeners: Listener[], tls: TlsFiles, log: Logger): () => void {
  return watchTls(tls, {
    apply: (options) => {
      for (const listener of listeners) listener.updateTls(options);
      log.info("TLS files were read again");
    },
    refuse: (error) => log.error({ code: error.code }, `The old TLS files stay in use. ${error.message}`),
  });
}

/** A second signal ends the process at once. */
function receiveSignal(): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    for (const signal of ["SIGTERM", "SIGINT"] as const) process.once(signal, resolve);
  });
}

async function closeServer(app: App): Promise<void> {
  const closed = app.close();
  const timeout = new AbortController();
  const late = sleep(STOP_TIMEOUT, undefined, { signal: timeout.signal }).catch(() => {});
  await Promise.race([closed, late]);
  timeout.abort();
  app.server.closeAllConnections();
  await closed;
}
