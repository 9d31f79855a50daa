import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { fuzz, replay } from "../../fuzz/programs";
import { prepareCli } from "../../fuzz/programs/ground";
import type { Program } from "../../fuzz/programs/program";
import type { FuzzStep } from "../../fuzz/programs/session";
import { FuzzStack } from "../../fuzz/programs/stack";

test("the backend of a fuzzed stack has no file that a killed CLI could leave half written", async () => {
  const home = mkdtempSync(join(tmpdir(), "overlay-fuzz-"));
  onTestFinished(() => rmSync(home, { recursive: true }));
  await new FuzzStack(home, "s0", `sqlite:${join(home, "pool.db")}`).init();
  const files = readdirSync(join(home, "state/.pulumi/stacks/fuzz"));
  expect(files.sort()).toEqual(["s0.json", "s0.json.bak"]);
});

test("a destroy that is killed is followed by an up, and offers that expire by the same values or PLAN_STALE", async () => {
  const program: Program = [
    { type: "IPPool", name: "p", args: { ranges: ["10.1.0.0/28"] } },
    { type: "IPReservation", name: "a", args: { pool: { $resource: "p" } } },
  ];
  const more: Program = [...program, { type: "IPReservation", name: "b", args: { pool: { $resource: "p" } } }];
  const ground = await prepareCli("sqlite", []);
  onTestFinished(() => ground.stop());
  const steps: FuzzStep[] = [
    { act: "up", stack: 0, program, previewFirst: true },
    { act: "destroy", stack: 0, program, kill: { afterChanges: 1, milliseconds: 0, target: "both" } },
    { act: "preview", stack: 0, program: more, expires: true },
    { act: "up", stack: 0, program: more, previewFirst: false },
  ];
  expect(await replay(steps, ground)).toBeUndefined();
});

/** A short part of `npm run fuzz -- programs`: two stacks, previews of both before either goes up, and a pool found by tenant and type. */
test("up gives the values that preview shows, for a random program and its edits", async () => {
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
