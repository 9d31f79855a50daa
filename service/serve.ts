import type { Server as HttpsServer } from "node:https";
import type { SecureContextOptions } from "node:tls";
import type { Logger } from "pino";
import { Authenticator } from "../provider/access/authenticate";
import type { Caller } from "../provider/access/caller";
import { OverlayError } from "../provider/errors";
import type { Context } from "../provider/reservations";
import { Admission } from "./admission";
import type { App, ServiceContext } from "./app";
import { type Instance, type OpenPool, openInstance } from "./instance";
import { findPassedSocket, type ListenAddress, type Protection, refuseOpenAddress } from "./listen";
import { createLog } from "./log";
import { buildServer } from "./server";
import type { ServiceSettings } from "./settings";
import { readTls, type TlsFiles, watchTls } from "./tls";
import { startWatchdog } from "./watchdog";

/** Milliseconds after a signal in which the process ends, whatever is under way. */
const STOP_TIMEOUT = 10_000;
/** Milliseconds of these for requests under way; the rest is for closing the store. */
const ANSWER_TIMEOUT = 8500;
/** Milliseconds between looks for connections that have become idle. */
const IDLE_INTERVAL = 100;

export interface ServeContext {
  openIpam: OpenPool;
  tokenKeys?: string | undefined;
  tenantDefaults?: Context["tenantDefaults"];
  /** The user that runs the service; without authentication, all changes are its own. */
  actor: string;
  version: string;
}

/** A server that listens. */
interface Listener {
  /** New connections get these certificates. */
  updateTls(options: SecureContextOptions): void;
  /** Refuses new connections, and waits so many milliseconds for requests that are under way. */
  stop(timeout: number): Promise<void>;
}

/** Serves until the process gets SIGTERM or SIGINT. Requests that are under way then are answered. */
export async function serve(context: ServeContext, settings: ServiceSettings): Promise<void> {
  const stopping = new AbortController();
  const log = createLog(settings.logLevel, (line) => process.stdout.write(line));
  const address = findPassedSocket(process.env, process.pid) ?? settings.listen;
  const protection = { hasTls: settings.tlsCert !== undefined, hasAuthentication: !settings.noAuth };
  for (const each of [address, settings.grpcListen])
    if (each && "host" in each) refuseOpenAddress(each.host, protection);
  const { version } = context;
  const measured = { version, node: process.version, mostPools: settings.metricsPools };
  const signal = receiveSignal();
  const instance = await openInstance(context.openIpam, measured, log);
  const listeners: Listener[] = [];
  let unwatch = () => {};
  let endWatchdog = () => {};
  try {
    const service = buildContext(context, settings, { instance, stopping: stopping.signal });
    const tls = tlsFilesOf(settings);
    const common = { log, tls, admission: new Admission(service) };
    listeners.push(await startHttp(service, { ...common, version, address, protection }));
    if (settings.grpcListen) listeners.push(await startGrpc(service, { ...common, address: settings.grpcListen }));
    logProtection(log, protection);
    instance.deliveries.start();
    endWatchdog = startWatchdog(process.env, log);
    if (tls) unwatch = reloadTls(listeners, tls, log);
    log.info({ signal: await signal }, "stopping");
  } finally {
    endProcessAfter(STOP_TIMEOUT, log);
    stopping.abort();
    unwatch();
    endWatchdog();
    await Promise.all([instance.deliveries.stop(), ...listeners.map((listener) => listener.stop(ANSWER_TIMEOUT))]);
    await instance.pool.end();
  }
  log.info("stopped");
}

const tlsFilesOf = ({ tlsCert, tlsKey, clientCa }: ServiceSettings): TlsFiles | undefined =>
  tlsCert === undefined ? undefined : { tlsCert, tlsKey: tlsKey!, clientCa };

function buildContext(
  { tokenKeys, tenantDefaults, actor }: ServeContext,
  settings: ServiceSettings,
  { instance, stopping }: { instance: Instance; stopping: AbortSignal },
): ServiceContext {
  const operator: Caller = { name: actor, scopes: ["admin"] };
  const authentication = settings.noAuth ? {} : { authenticator: new Authenticator(instance.pool.admin) };
  const { metricsPublic } = settings;
  const context = { ...instance, tokenKeys, tenantDefaults, operator, metricsPublic, stopping };
  return { ...context, ...authentication, limits: settings };
}

interface ListenerOptions<A> {
  address: A;
  log: Logger;
  tls: TlsFiles | undefined;
  /** Interfaces share the limits of access tokens. */
  admission: Admission;
}

async function startHttp(
  service: ServiceContext,
  options: ListenerOptions<ListenAddress> & { version: string; protection: Protection },
): Promise<Listener> {
  const { address, log, version, tls, admission, protection } = options;
  const mutual = { requestCert: true, rejectUnauthorized: true };
  const https = tls && { ...readTls(tls), ...(tls.clientCa !== undefined && mutual) };
  const app = await buildServer(service, { log, version, admission, ...(https && { https }) });
  await listen(app, address, protection);
  return {
    updateTls: (files) => (app.server as unknown as HttpsServer).setSecureContext(files),
    stop: (timeout) => closeServer(app, timeout),
  };
}

/** Its libraries are loaded only if it is asked for. */
async function startGrpc(
  service: ServiceContext,
  { address, log, tls, admission }: ListenerOptions<{ host: string; port: number }>,
): Promise<Listener> {
  const { GrpcServer, TlsCredentials } = await import("./grpc/index.js");
  const credentials = tls && new TlsCredentials(readTls(tls));
  const server = new GrpcServer(service, { admission, log, credentials });
  log.info(`gRPC listening at ${await server.listen(address)}`);
  return { updateTls: (files) => credentials?.update(files), stop: (timeout) => server.stop(timeout) };
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

/** A second signal of either kind ends the process at once. */
function receiveSignal(): Promise<NodeJS.Signals> {
  const signals = ["SIGTERM", "SIGINT"] as const;
  return new Promise((resolve) => {
    const receive = (signal: NodeJS.Signals) => {
      for (const each of signals) process.off(each, receive);
      resolve(signal);
    };
    for (const signal of signals) process.on(signal, receive);
  });
}

/** A store that does not answer must not keep the process alive. A process that has nothing left to do ends before. */
function endProcessAfter(ms: number, log: Logger): void {
  const end = () => {
    log.warn(`ended after ${ms / 1000} s with work under way`);
    process.exit();
  };
  setTimeout(end, ms).unref();
}

/** Answers that began before the stop said that their connection stays open: it is closed as soon as it is idle. */
async function closeServer(app: App, timeout: number): Promise<void> {
  const closed = app.close();
  const idle = setInterval(() => app.server.closeIdleConnections(), IDLE_INTERVAL);
  const force = setTimeout(() => app.server.closeAllConnections(), timeout);
  await closed;
  clearInterval(idle);
  clearTimeout(force);
}
