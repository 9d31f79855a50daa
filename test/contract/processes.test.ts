import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { createPool, extents, openPool } from "./fixture";

test("four processes that claim at the same time never get the same value, and no lease is lost", {
  timeout: 60_000,
}, async () => {
  const folder = mkdtempSync(join(tmpdir(), "overlay-processes-"));
  const url = `sqlite:${join(folder, "pool.db")}`;
  const pool = await openPool(url, { offerTtl: 3600, quarantine: 0 });
  await createPool(pool, { kind: "id", extents: extents("1-400"), allocation: "lowest" });
  const runWorker = (name: string) =>
    promisify(execFile)(process.execPath, ["--import", "tsx", join(__dirname, "lease-worker.ts"), url, name, "100"]);
  const outputs = await Promise.all(["w", "x", "y", "z"].map(runWorker));
  const acknowledged = outputs.flatMap(({ stdout }) => JSON.parse(stdout) as [string, string][]);
  expect(new Set(acknowledged.map(([value]) => value)).size).toBe(320);
  const stored = (await pool.leases("pool/p")).map(({ extents, leaseId }) => [String(extents[0]!.first), leaseId]);
  expect(stored.sort()).toEqual(acknowledged.sort());
  expect(await pool.fsck()).toEqual([]);
  await pool.end();
  rmSync(folder, { recursive: true });
});
