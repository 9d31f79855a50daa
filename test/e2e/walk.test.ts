import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { Lab } from "../../lab/lab";

/** More files than this are hard to follow. Merge what is read together before you raise it. */
const MOST_FILES = 93;

const ROOT = join(__dirname, "../..");
const folder = mkdtempSync(join(tmpdir(), "overlay-walk-"));
let lab: Lab;

beforeAll(async () => {
  lab = await Lab.up({ runners: 1 });
});
afterAll(async () => {
  await lab?.down();
  rmSync(folder, { recursive: true, force: true });
});

test(`the create of a RunnerSubnet on SQLite runs functions of at most ${MOST_FILES} files`, async () => {
  const { code, stdout, stderr } = await lab.controller("node", ["--import", "tsx", "test/e2e/walked-create.ts"], {
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
  const files = z.array(z.string()).parse(JSON.parse(stdout));
  console.log(`${files.length} files:\n${files.join("\n")}`);
  expect(files).toContain("provider/resources/runner-subnet.ts");
  expect(files.length).toBeLessThanOrEqual(MOST_FILES);
});
