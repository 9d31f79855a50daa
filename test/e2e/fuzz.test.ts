import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { fuzz } from "../../fuzz/programs";
import { FuzzStack } from "../../fuzz/programs/stack";

test("the backend of a fuzzed stack has no file that a killed CLI could leave half written", async () => {
  const home = mkdtempSync(join(tmpdir(), "overlay-fuzz-"));
  onTestFinished(() => rmSync(home, { recursive: true }));
  await new FuzzStack(home, "s0", `sqlite:${join(home, "pool.db")}`).init();
  const files = readdirSync(join(home, "state/.pulumi/stacks/fuzz"));
  expect(files.sort()).toEqual(["s0.json", "s0.json.bak"]);
});

/** A short part of `npm run fuzz -- programs`: two stacks, previews of both before either goes up, a destroy that is
 * killed, offers that expire, and a pool found by tenant and type. */
test("what preview shows is what up gives, for a random program and its edits", async () => {
  const { failures, counts } = await fuzz({
    seed: 1184,
    scenarios: 1,
    rounds: 4,
    store: "sqlite",
    until: Infinity,
    shrinkSeconds: 0,
    workers: 1,
  });
  expect(failures).toEqual([]);
  expect(counts.ups).toBeGreaterThanOrEqual(3);
  expect(counts.values).toBeGreaterThan(20);
});
