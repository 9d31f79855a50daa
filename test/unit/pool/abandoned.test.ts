import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { openPool } from "../../../provider/pool";
import type { Pool, Request } from "../../../provider/pool/types";

/** Offers of a preview that nobody will ever carry out: its program has been changed since. */
let folder: string;
let runs: Pool[];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "overlay-abandoned-"));
  runs = [];
});

afterEach(async () => {
  for (const run of runs) await run.end();
  rmSync(folder, { recursive: true });
});

/** A run of Pulumi has a process of its own. */
async function run(): Promise<Pool> {
  const pool = await openPool(`sqlite:${join(folder, "pool.db")}`, { offerTtl: 3600, quarantine: 300 });
  runs.push(pool);
  return pool;
}

const network = (name: string, stack: string): Request => ({
  pool: "space/default",
  owner: `org/urn:pulumi:${stack}::p::overlay:index:OverlayNetwork::${name}`,
  type: "OverlayNetwork",
  want: [{ first: 1024n, last: 2047n }],
  names: ["network/training"],
});

test("a renamed resource gets what the last preview promised under its old name", async () => {
  await (await run()).offer(network("old", "dev"));
  const lease = await (await run()).offer(network("new", "dev"));
  expect(lease).toMatchObject({ state: "offered", names: ["network/training"] });
});

test("two resources of one program that want the same are refused, whatever an earlier preview said", async () => {
  await (await run()).offer(network("old", "dev"));
  const second = await run();
  await second.offer(network("old", "dev"));
  await expect(second.offer(network("new", "dev"))).rejects.toThrow(/^POOL_OVERLAP: .*::old/);
});

test("a promise to another stack is kept", async () => {
  await (await run()).offer(network("a", "dev"));
  await expect((await run()).offer(network("a", "prod"))).rejects.toThrow(/^POOL_OVERLAP: .*:dev::/);
});

test("what was claimed does not give way", async () => {
  await (await run()).claim(network("old", "dev"));
  await expect((await run()).offer(network("new", "dev"))).rejects.toThrow(/^POOL_OVERLAP: .*::old/);
});
