import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { OverlayClient } from "../../client";
import { root } from "../../setup/tools.mjs";
import { Ctl, deploy, OVERLAYCTL } from "../unit/cli/ctl";
import { type ServiceProcess, startService } from "./service-process";

/** examples/scheduler as users run it, against the real service on a SQLite file. */
const ctl = new Ctl();
let service: ServiceProcess;
let token: string;

beforeAll(async () => {
  await ctl.withPool((pool) => deploy(pool, ["node1", "node2"]));
  const [made] = await ctl.must("access", "create", "scheduler", "--scope", "reserve", "--scope", "read");
  token = String(made!.token);
  service = await startService(ctl);
});
afterAll(async () => {
  await service.stop();
  ctl.remove();
});

/** The commands of its README, on a free port, with links in place of `npm install`. */
async function pasteReadme(folder: string): Promise<string> {
  cpSync(join(root, "examples/scheduler"), folder, { recursive: true });
  const modules = join(folder, "node_modules");
  mkdirSync(join(modules, ".bin"), { recursive: true });
  for (const name of ["tsx", "pulumi-overlay"])
    symlinkSync(name === "tsx" ? join(root, "node_modules/tsx") : root, join(modules, name));
  symlinkSync(OVERLAYCTL, join(modules, ".bin/overlayctl"));
  symlinkSync(join(root, "node_modules/tsx/dist/cli.mjs"), join(modules, ".bin/tsx"));
  const [, block] = /^```sh\n(.*?)^```$/ms.exec(readFileSync(join(folder, "README.md"), "utf8"))!;
  const port = String(await freePort());
  const script = `set -e
    trap 'kill %1' EXIT
    npm() { [ "$1" = install ] || command npm --silent "$@"; }
    ${block!.replaceAll("7447", port)}`;
  const env = { PATH: process.env.PATH, HOME: folder, PACKAGE: root, OVERLAY_LISTEN: `127.0.0.1:${port}` };
  const { stdout } = await promisify(execFile)("bash", ["-c", script], { cwd: folder, env, timeout: 60_000 });
  return stdout;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

test("its README works as it stands, on a machine without a stack", { timeout: 90_000 }, async () => {
  const lines = (await pasteReadme(join(ctl.folder, "scheduler"))).trim().split("\n");
  expect(lines.at(-1)).toBe("job-1: done");
  expect(lines.filter((line) => line.startsWith("rank "))).toHaveLength(4);
});

async function runExample(...args: string[]) {
  const env = { PATH: process.env.PATH, OVERLAY_URL: service.url, OVERLAY_ACCESS_TOKEN: token };
  const command = ["--import", "tsx", join(root, "examples/scheduler/scheduler.ts"), ...args];
  const child = spawn(process.execPath, command, { env, cwd: root, stdio: ["ignore", "pipe", "pipe"] });
  const [stdout, stderr, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, "exit")]);
  return { code, stderr, lines: stdout.trim().split("\n") };
}

test("every worker knows the master before it starts, uses its own address, and all are released", {
  timeout: 180_000,
}, async () => {
  const { code, stderr, lines } = await runExample("training", "4", "job-1");
  expect([code, stderr]).toEqual([0, ""]);
  const [, master] = /^job-1: 4 workers, master (\S+)$/.exec(lines[0]!)!;
  const workers = lines.slice(1, -1).map((line) => /^rank (\d) of 4 at (\S+) on (\S+), master (\S+)$/.exec(line)!);
  expect(workers.map(([, rank]) => rank).sort()).toEqual(["0", "1", "2", "3"]);
  expect(new Set(workers.map(([, , ip]) => ip)).size).toBe(4);
  expect(new Set(workers.map(([, , , runner]) => runner))).toEqual(new Set(["node1", "node2"]));
  expect(workers.find(([, rank]) => rank === "0")![2]).toBe(master);
  expect(workers.every(([, , , , known]) => known === master)).toBe(true);
  expect(lines.at(-1)).toBe("job-1: done");
  const client = new OverlayClient({ baseUrl: service.url, token });
  expect((await client.reservations()).reservations).toEqual([]);
  for (const [, rank, ip] of workers)
    expect(await client.addressHistory(ip!)).toMatchObject([
      { what: "claimed", by: "scheduler" },
      { what: "used", usedBy: `job-1-${rank}` },
      { what: "released", usedBy: `job-1-${rank}` },
    ]);
});

test("a job that does not fit starts no worker and holds no address", { timeout: 120_000 }, async () => {
  const { code, stderr, lines } = await runExample("training", "257", "job-2");
  expect([code, lines]).toEqual([1, [""]]);
  expect(stderr).toContain("INPUT_INVALID");
  expect(await ctl.must("ip", "list")).toEqual([]);
});
