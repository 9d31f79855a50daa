import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { createContext, runInContext } from "node:vm";
import { build } from "esbuild";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { OverlayClient, OverlayServiceError } from "../../client";
import { root } from "../../setup/tools.mjs";
import { Ctl, deploy } from "../unit/cli/ctl";
import { type ServiceProcess, startService } from "./service-process";

/** The client against the real service on a SQLite file; and the package as users have it: ES module, CommonJS, types, browser. */
const ctl = new Ctl();
const folder = mkdtempSync(join(tmpdir(), "overlay-client-"));
let service: ServiceProcess;
let client: OverlayClient;
let token: string;

beforeAll(async () => {
  await ctl.withPool((pool) => deploy(pool, ["node1", "node2"]));
  const [made] = await ctl.must("access", "create", "scheduler", "--scope", "reserve", "--scope", "read");
  token = String(made!.token);
  service = await startService(ctl);
  client = new OverlayClient({ baseUrl: service.url, token });
  symlinkSync(join(root, "node_modules"), join(folder, "node_modules"));
});
afterAll(async () => {
  await service.stop();
  ctl.remove();
  rmSync(folder, { recursive: true, force: true });
});

describe.sequential("against the service", () => {
  test("reserve, validate, use, list and release", async () => {
    const { token: given, ip } = await client.reserve({ runner: "node1", ttl: 60 });
    expect(await client.validate({ token: given })).toMatchObject({ valid: true, ip });
    expect(await client.use({ token: given, container: "web" })).toMatchObject({ ip, state: "used", usedBy: "web" });
    const { reservations } = await client.reservations({ container: "web" });
    expect(reservations).toMatchObject([{ ip, usedBy: "web" }]);
    expect(await client.release({ container: "web" })).toMatchObject({ released: [{ ip }], kept: [] });
  });

  test("the same idempotency key gets the same reservation", async () => {
    const options = { idempotencyKey: "job-17" };
    const first = await client.reserve({ runner: "node1" }, options);
    expect(await client.reserve({ runner: "node1" }, options)).toMatchObject({ ip: first.ip, leaseId: first.leaseId });
    expect(await client.reserve({ runner: "node1" })).not.toMatchObject({ ip: first.ip });
  });

  test("several at once: all or none, and the same again for the same key", async () => {
    const input = { network: "training", anyRunner: true, count: 4, placement: "spread" } as const;
    const options = { idempotencyKey: "job-18" };
    const workers = await client.reserveMany(input, options);
    expect(new Set(workers.map(({ ip }) => ip)).size).toBe(4);
    expect(new Set(workers.map(({ runner }) => runner))).toEqual(new Set(["node1", "node2"]));
    expect((await client.reserveMany(input, options)).map(({ ip }) => ip)).toEqual(workers.map(({ ip }) => ip));
    await expect(client.reserveMany({ ...input, count: 65 })).rejects.toMatchObject({ code: "INPUT_INVALID" });
  });

  test("a container gets its reservation again", async () => {
    const first = await client.reserve({ runner: "node1", container: "db" });
    expect(await client.reserve({ runner: "node1", container: "db" })).toMatchObject({ leaseId: first.leaseId });
  });

  test("pools, runners and addresses", async () => {
    const { ip } = await client.reserve({ runner: "training/node2", container: "seen" });
    expect(await client.address(ip)).toMatchObject({ holders: [{ ip, state: "reserved" }], before: [] });
    expect(await client.addressHistory(ip)).toMatchObject([{ what: "claimed", value: ip, by: "scheduler" }]);
    expect(await client.available({ runner: "node2", limit: 2 })).toMatchObject([{ addresses: [{}, {}] }]);
    expect((await client.stats()).pools).toBe(2);
    expect((await client.pools({ prefix: "runner/" })).pools.map(({ pool }) => pool)).toEqual([
      "runner/training/node1",
      "runner/training/node2",
    ]);
    expect(await client.pool("runner/training/node2")).toMatchObject({
      pool: "runner/training/node2",
      kind: "address",
    });
    expect(await client.poolHistory("runner/training/node2", { limit: 1 })).toHaveLength(1);
    expect(await client.runner("training/node2")).toMatchObject({ runnerName: "node2", vxlanPort: expect.any(Number) });
    expect(await client.runnerInfo("node2")).toMatchObject({ available: expect.any(Number) });
    expect(await client.heartbeat("node2")).toMatchObject({ network: "training", runner: "node2" });
    const report = await client.report("node2", { containers: [{ name: "seen", ip }] });
    expect(report).toMatchObject({ used: [{ ip, usedBy: "seen" }], conflicts: [] });
  });

  test("an operator creates and deletes a pool", async () => {
    const [made] = await ctl.must("access", "create", "operator", "--scope", "admin");
    const operator = new OverlayClient({ baseUrl: service.url, token: String(made!.token) });
    const input = { poolName: "edge", ranges: ["192.168.9.0/30"] };
    expect(await operator.createPool(input)).toMatchObject({ pool: "pool/edge", capacity: 4 });
    expect(await operator.createPool(input)).toMatchObject({ pool: "pool/edge" });
    const { ip } = await operator.reserve({ pool: "edge" });
    expect(await operator.free({ ip, pool: "edge" })).toMatchObject({ ip });
    expect(await operator.deletePool("edge")).toBe("pool/edge");
    const { id, secret } = await operator.addWebhook({ url: "http://127.0.0.1:9/hook", network: "training" });
    expect(secret).toMatch(/^whsec_/);
    await operator.resumeWebhook(id);
    expect(await operator.webhooks()).toMatchObject([{ id, network: "training" }]);
    await operator.removeWebhook(id);
    expect(await operator.webhooks()).toEqual([]);
  });

  test("events: from now on, and all that came after an event of before", async () => {
    const seen: string[] = [];
    const controller = new AbortController();
    const following = (async () => {
      for await (const { id, what, value, usedBy } of client.events({}, { signal: controller.signal })) {
        seen.push(`${what} ${value} ${usedBy ?? ""}`);
        if (seen.length === 3) return id;
      }
      return 0;
    })();
    while (!(await client.metrics()).includes("overlay_event_streams 1")) await sleep(50);
    const ip = await client.withAddress("node1", async (given) => given, { container: "watched" });
    const last = await following;
    expect(seen).toEqual([`claimed ${ip} `, `used ${ip} watched`, `released ${ip} watched`]);
    for await (const event of client.events({ after: last - 1 })) {
      expect(event).toMatchObject({ id: last, what: "released", value: ip, by: "scheduler" });
      break;
    }
  });

  test("withAddress keeps the address longer than the reservation would last, and releases it", async () => {
    const seen = await client.withAddress("node2", async (ip) => {
      await sleep(100);
      expect((await client.reservations({ ip })).reservations).toMatchObject([{ ip, state: "used" }]);
      expect((await client.reservations({ ip })).reservations[0]).not.toHaveProperty("expiresAt");
      return ip;
    });
    expect((await client.reservations({ ip: seen })).reservations).toEqual([]);
  });

  test.each(["reserved", "used"])(
    "withAddress leaves an address alone that another process has %s for the container",
    async (state) => {
      const container = `job-${state}`;
      const { ip, token: given } = await client.reserve({ runner: "node1", container });
      if (state === "used") await client.use({ token: given, container });
      const before = (await client.reservations({ runner: "node1" })).reservations;
      const call = client.withAddress("node1", () => Promise.reject(new Error("not called")), { container });
      await expect(call).rejects.toMatchObject({ code: "RESERVATION_EXISTS" });
      expect((await client.reservations({ runner: "node1" })).reservations).toEqual(before);
      expect(before).toContainEqual(expect.objectContaining({ ip, state }));
    },
  );

  test.each([
    [() => client.reserve({ runner: "nowhere" }), 404, "POOL_NOT_FOUND"],
    [() => client.reserve({ runner: "node1", ttl: 0 }), 400, "INPUT_INVALID"],
    [() => client.free({ ip: "10.128.64.5" }), 403, "ACCESS_DENIED"],
    [() => client.validate({ token: "nonsense" }), 400, "TOKEN_FORMAT"],
    [() => new OverlayClient({ baseUrl: service.url }).reservations(), 401, "ACCESS_TOKEN_MISSING"],
  ])("%s is refused with %s %s", async (call, status, code) => {
    const error = await call().catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(OverlayServiceError);
    expect(error).toMatchObject({ status, code, fix: expect.stringMatching(/\.$/) });
  });
});

describe("the package", { timeout: 240_000 }, () => {
  const PROGRAM = `
    const client = new OverlayClient({ baseUrl: "URL", token: "TOKEN" });
    const result = client.withAddress("node1", async (ip) => ip);`;
  const program = (text: string) => text.replace("URL", service.url).replace("TOKEN", token);

  test.each([
    ["module.mjs", `import { OverlayClient } from "pulumi-overlay/client";${PROGRAM} console.log(await result);`],
    ["module.cjs", `const { OverlayClient } = require("pulumi-overlay/client");${PROGRAM} result.then(console.log);`],
  ])("%s", (name, text) => {
    writeFileSync(join(folder, name), program(text));
    expect(execFileSync(process.execPath, [join(folder, name)], { encoding: "utf8" })).toMatch(/^10\.128\.\d+\.\d+\n$/);
  });

  test("a bundle for browsers needs nothing but what browsers have", async () => {
    const source = `import { OverlayClient } from "pulumi-overlay/client";${PROGRAM} globalThis.result = result;`;
    const stdin = { contents: program(source), resolveDir: folder };
    const { outputFiles } = await build({ stdin, bundle: true, write: false, platform: "browser", format: "iife" });
    const web = { fetch, AbortController, AbortSignal, TextDecoder, URL, URLSearchParams, setTimeout, clearTimeout };
    const context = createContext({ ...web, crypto: globalThis.crypto });
    runInContext(outputFiles[0]!.text, context);
    expect(await context.result).toMatch(/^10\.128\.\d+\.\d+$/);
  });

  test("types compile for a browser, without those of Node", () => {
    writeFileSync(
      join(folder, "types.mts"),
      `import { OverlayClient, OverlayServiceError, type Reservation } from "pulumi-overlay/client";
       const client = new OverlayClient({ baseUrl: location.href, token: async () => "t", fetch: window.fetch });
       const reservation: Reservation = await client.reserve({ runner: "node1", ttl: 60 }, { idempotencyKey: "k" });
       const ip: string = reservation.ip;
       for await (const { state } of client.allReservations({ label: "a=b" })) { const text: string = state; }
       // @ts-expect-error: no such input
       await client.reserve({ runnr: "node1" });
       // @ts-expect-error: no such state
       await client.reservations({ state: "lost" });
       export { ip, OverlayServiceError };`,
    );
    const browser = { target: "es2022", module: "nodenext", lib: ["es2023", "dom"], types: [] };
    const project = { compilerOptions: { noEmit: true, strict: true, ...browser }, files: ["types.mts"] };
    writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(project));
    const args = [join(root, "node_modules/typescript/bin/tsc"), "-p", folder];
    expect(spawnSync(process.execPath, args, { encoding: "utf8" })).toMatchObject({ stdout: "", status: 0 });
  });
});
