import { readFileSync } from "node:fs";
import { Session } from "node:inspector/promises";
import { relative } from "node:path";
import type * as accessTokens from "../../provider/access/access-tokens";
import type * as authenticate from "../../provider/access/authenticate";
import type * as ipam from "../../provider/ipam";
import type * as runtime from "../../provider/runtime";
import type * as instance from "../../service/instance";
import type * as logs from "../../service/log";
import type * as server from "../../service/server";

/**
 * Prints as JSON the files of the provider and the service in which a function ran during one call, with the number of functions:
 * `create`, of a runner, as Pulumi calls the provider; `preview`, of an IPReservation; `reserve`, which is `POST ip/reserve`.
 * Environment: the settings OVERLAY_*; for `create` HUB and RUNNER, two addresses, and KEY, the private key's file.
 */
const { HUB, RUNNER, KEY } = process.env;
const dist = `${process.cwd()}/dist/`;
const { provider } = require(`${dist}provider/runtime.js`) as typeof runtime;

const connectionTo = (host: string) => ({ host, user: "root", privateKey: readFileSync(KEY!, "utf8") });

async function check(type: string, name: string, inputs: object, dryRun = false) {
  const owner = `lab/urn:pulumi:dev::lab::overlay:index:${type}::${name}`;
  const checked = await provider(type).check({}, { owner, dryRun, ...inputs });
  if (checked.failures.length > 0) throw new Error(checked.failures.map(({ reason }) => reason).join("\n"));
  return checked.inputs;
}

/** Each prepares its call. */
const CALLS: Record<string, () => Promise<() => Promise<unknown>>> = {
  async create() {
    const hubConnection = connectionTo(HUB!);
    await provider("OverlayNetwork").create(await check("OverlayNetwork", "training", { hubConnection }));
    const inputs = { network: "training", connection: connectionTo(RUNNER!), hubConnection };
    const runner = await check("RunnerSubnet", "r1", inputs);
    return () => provider("RunnerSubnet").create(runner);
  },
  async preview() {
    await provider("IPPool").create(await check("IPPool", "web", { ranges: ["192.168.7.0/24"] }));
    await check("IPReservation", "first", { pool: "web" }, true);
    return () => check("IPReservation", "job", { pool: "web" }, true);
  },
  async reserve() {
    await provider("IPPool").create(await check("IPPool", "web", { ranges: ["192.168.7.0/24"] }));
    const send = await startService();
    await send();
    return send;
  },
};

async function startService(): Promise<() => Promise<void>> {
  const { openIpam } = require(`${dist}provider/ipam/index.js`) as typeof ipam;
  const { createAccessToken } = require(`${dist}provider/access/access-tokens.js`) as typeof accessTokens;
  const { Authenticator } = require(`${dist}provider/access/authenticate.js`) as typeof authenticate;
  const { openInstance } = require(`${dist}service/instance.js`) as typeof instance;
  const { createLog } = require(`${dist}service/log.js`) as typeof logs;
  const { buildServer } = require(`${dist}service/server.js`) as typeof server;
  const pool = await openIpam(process.env.OVERLAY_STORE!, { offerTtl: 3600, quarantine: 0 });
  const log = createLog("info", () => {});
  const context = {
    ...(await openInstance(async () => pool, { version: "1.2.3", node: "v0", mostPools: 1000 }, log)),
    operator: { name: "root@test", scopes: ["admin" as const] },
    authenticator: new Authenticator(pool.admin),
    limits: { bodyLimit: 65_536, pageLimit: 1000, rateLimit: 100_000, requestTimeout: 30 },
    metricsPublic: false,
    stopping: new AbortController().signal,
  };
  const app = await buildServer(context, { log, version: "1.2.3" });
  const { text } = await createAccessToken({ pool, createdBy: "test" }, { name: "runner", scopes: ["reserve"] });
  const headers = { authorization: `Bearer ${text}` };
  return async () => {
    const answer = await app.inject({
      method: "POST",
      url: "/api/overlay/ip/reserve",
      payload: { pool: "web" },
      headers,
    });
    if (answer.statusCode >= 300) throw new Error(answer.body);
  };
}

async function main(): Promise<void> {
  const call = await CALLS[process.argv[2]!]!();
  const session = new Session();
  session.connect();
  await session.post("Profiler.enable");
  await session.post("Profiler.startPreciseCoverage", { callCount: true, detailed: false });
  await call();
  const { result } = await session.post("Profiler.takePreciseCoverage");
  const files = result
    .map(({ url, functions }) => ({
      file: relative(dist, url.replace(/^file:\/\//, "")).replace(/\.js$/, ".ts"),
      functions: functions.filter(({ ranges }) => ranges[0]!.count > 0).length,
    }))
    .filter(({ file, functions }) => /^(provider|service)\//.test(file) && functions > 0);
  console.log(JSON.stringify(files.sort((a, b) => (a.file < b.file ? -1 : 1))));
  process.exit(0); // Else SSH connections keep the process alive for their idle time.
}

void main();
