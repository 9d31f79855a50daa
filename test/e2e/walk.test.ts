import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { Lab } from "../../lab/lab";

/** More files and functions than these are hard to follow. Merge what is read together before you raise them. */
const MOST = { preview: [47, 381], reserve: [57, 384] } as const;
const MOST_FILES = 99;

const ROOT = join(__dirname, "../..");
const SCRIPT = ["--import", "tsx", "test/e2e/walked.ts"];
const folder = mkdtempSync(join(tmpdir(), "overlay-walk-"));
let lab: Lab;

beforeAll(async () => {
  lab = await Lab.up({ runners: 1 });
});
afterAll(async () => {
  await lab?.down();
  rmSync(folder, { recursive: true, force: true });
});

function parseWalk(stdout: string): { files: string[]; functions: number } {
  const walk = z.array(z.object({ file: z.string(), functions: z.number() })).parse(JSON.parse(stdout));
  console.log(`${walk.length} files:\n${walk.map(({ file, functions }) => `${functions} ${file}`).join("\n")}`);
  return {
    files: walk.map(({ file }) => file),
    functions: walk.reduce((sum, { functions }) => sum + functions, 0),
  };
}

test(`the create of a RunnerSubnet on SQLite runs functions of at most ${MOST_FILES} files`, async () => {
  const { code, stdout, stderr } = await lab.controller("node", [...SCRIPT, "create"], {
    cwd: ROOT,
    env: {
      ...process.env,
      OVERLAY_STORE: `sqlite:${join(folder, "pool.db")}`,
      OVERLAY_KNOWN_HOSTS: lab.knownHosts,
      HUB: lab.host("hub").address,
      RUNNER: lab.host("r1").address,
      KEY: lab.privateKeyPath,
    },
  });
  expect(code, stderr).toBe(0);
  const files = parseWalk(stdout).files.filter((file) => file.startsWith("provider/"));
  expect(files).toContain("provider/resources/runner-subnet.ts");
  expect(files.length).toBeLessThanOrEqual(MOST_FILES);
});

test.each([
  ["preview", "the preview of an IPReservation", "provider/resources/ip-reservation.ts"],
  ["reserve", "POST ip/reserve", "provider/reservations/reserve.ts"],
] as const)("%s: %s runs few files and functions", async (name, _, expected) => {
  const [mostFiles, mostFunctions] = MOST[name];
  const env = { ...process.env, OVERLAY_STORE: `sqlite:${join(folder, `${name}.db`)}` };
  const { stdout } = await promisify(execFile)("node", [...SCRIPT, name], { cwd: ROOT, env });
  const { files, functions } = parseWalk(stdout);
  expect(files).toContain(expected);
  expect(files.length).toBeLessThanOrEqual(mostFiles);
  expect(functions).toBeLessThanOrEqual(mostFunctions);
});
