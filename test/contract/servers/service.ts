import { readFileSync } from "node:fs";
import { Authenticator } from "../../../provider/access/authenticate";
import type { Caller } from "../../../provider/access/caller";
import type { Store } from "../../../provider/ipam/types";
import type { App, Limits } from "../../../service/app";
import { openInstance } from "../../../service/instance";
import { createLog } from "../../../service/log";
import { buildServer } from "../../../service/server";
import type { Certificate } from "./certificates";

const LIMITS: Limits = { bodyLimit: 65_536, pageLimit: 1000, rateLimit: 100_000, requestTimeout: 30 };

/** A service on a pool, in this process. */
export interface Service {
  port: number;
  /** Its log, as lines of JSON. */
  lines: string[];
  app: App;
}

/** Every request is of this caller; without one, by the access tokens in the store. */
export async function serveInProcess(
  pool: Store,
  { tls, caller, limits = {} }: { tls?: Certificate; caller?: Caller; limits?: Partial<Limits> } = {},
): Promise<Service> {
  const lines: string[] = [];
  const log = createLog("info", (line) => lines.push(line));
  const context = {
    ...(await openInstance(async () => pool, { version: "1.2.3", node: "v0", mostPools: 1000 }, log)),
    operator: caller ?? { name: "root@test", scopes: ["admin" as const] },
    ...(!caller && { authenticator: new Authenticator(pool.admin) }),
    limits: { ...LIMITS, ...limits },
    metricsPublic: false,
    stopping: new AbortController().signal,
  };
  const https = tls && { cert: readFileSync(tls.cert), key: readFileSync(tls.key) };
  const app = await buildServer(context, { log, version: "1.2.3", ...(https && { https }) });
  await app.listen({ host: "127.0.0.1", port: 0 });
  const { port } = app.server.address() as { port: number };
  return { port, lines, app };
}
