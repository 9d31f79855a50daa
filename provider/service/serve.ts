import type { Server as HttpsServer } from "node:https";
import { setTimeout as sleep } from "node:timers/promises";
import type { Logger } from "pino";
import { Authenticator } from "../access/authenticate";
import type { Caller } from "../access/caller";
import { OverlayError } from "../errors";
import type { Context } from "../reservations";
import type { App } from "./app";
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
  tenantDefaults?: Context["tenantDefaults"];
  /** The user that runs the service; without authentication, all changes are its own. */
  actor: string;
  version: string;
}

/** Serves until the process gets SIGTERM or SIGINT. Requests that are under way then are answered. */
export async function serve(context: ServeContext, settings: ServiceSettings): Promise<void> {
  const stop = new AbortController();
  const log = createLog(settings.logLevel, (line) => process.stdout.write(line));
  const address = findPassedSocket(process.env, process.pid) ?? settings.listen;
  const protection = { hasTls: settings.tlsCert !== undefined, hasAuthentication: !settings.noAuth };
  if ("host" in address) refuseOpenAddress(address.host, protection);
  const { version } = context;
  const measured = { version, node: process.version, mostPools: settings.metricsPools };
  const instance = await openInstance(context.openPool, measured, log);
  try {
    const tls = tlsFilesOf(settings);
    const app = await buildApp(context, settings, { instance, log, stopping: stop.signal, tls });
    const signal = receiveSignal();
    await listen(app, address, protection);
    logProtection(log, protection);
    instance.deliveries.start();
    const unwatch = tls ? reloadTls(app, tls, log) : () => {};
    log.info({ signal: await signal }, "stopping");
    stop.abort();
    unwatch();
    await closeServer(app);
  } finally {
    await instance.end();
  }
  log.info("stopped");
}

const tlsFilesOf = ({ tlsCert, tlsKey, clientCa }: ServiceSettings): TlsFiles | undefined =>
  tlsCert === undefined ? undefined : { tlsCert, tlsKey: tlsKey!, clientCa };

function buildApp(
  { tokenKeys, tenantDefaults, actor, version }: ServeContext,
  settings: ServiceSettings,
  {
    instance,
    log,
    stopping,
    tls,
  }: { instance: Instance; log: Logger; stopping: AbortSignal; tls: TlsFiles | undefined },
): Promise<App> {
  const operator: Caller = { name: actor, scopes: ["admin"] };
  const authentication = settings.noAuth ? {} : { authenticator: new Authenticator(instance.pool) };
  const { metricsPublic } = settings;
  const context = { ...instance, tokenKeys, tenantDefaults, operator, metricsPublic, stopping };
  const service = { ...context, ...authentication, limits: settings };
  const mutual = { requestCert: true, rejectUnauthorized: true };
  const https = tls && { ...readTls(tls), ...(tls.clientCa !== undefined && mutual) };
  return buildServer(service, { log, version, ...(https && { https }) });
}

/** A socket that was passed to this process may have any address, and clients that wait: none is served before its check. */
async function listen(app: App, address: ListenAddress, protection: Protection): Promise<void> {
  let isChecked = false;
  app.server.prependListener("connection", (socket) => {
    if (!isChecked) socket.destroy();
  });
  // `host` keeps fastify from listening on a second address beside the passed socket.
  const where = "fd" in address ? { ...address, host: "passed" } : address;
  await app.listen({ ...where, listenTextResolver: (url) => `listening at ${url}` }).catch((error: Error) => {
    throw listenError(error);
  });
  const bound = app.server.address();
  try {
    refuseOpenAddress(typeof bound === "object" ? bound?.address : undefined, protection);
  } catch (error) {
    await app.close();
    throw error;
  }
  isChecked = true;
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

function reloadTls(app: App, tls: TlsFiles, log: Logger): () => void {
  return watchTls(tls, {
    apply: (options) => {
      (app.server as unknown as HttpsServer).setSecureContext(options);
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

/** Refuses new connections, and waits for requests that are under way. */
async function closeServer(app: App): Promise<void> {
  const closed = app.close();
  const timeout = new AbortController();
  const late = sleep(STOP_TIMEOUT, undefined, { signal: timeout.signal }).catch(() => {});
  await Promise.race([closed, late]);
  timeout.abort();
  app.server.closeAllConnections();
  await closed;
}
