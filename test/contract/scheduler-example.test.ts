import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { afterAll, beforeAll, expect, test } from "vitest";
import { OverlayClient } from "../../client";
import { root } from "../../setup/tools.mjs";
import { Ctl, deploy } from "../unit/cli/ctl";
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
