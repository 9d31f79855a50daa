import { expect, test } from "vitest";
import type { Program } from "../../../fuzz/programs/program";
import { renderReproduction } from "../../../fuzz/programs/report";
import { Scenario } from "../../../fuzz/programs/scenario";
import type { FuzzStep } from "../../../fuzz/programs/session";
import { shrinkSteps } from "../../../fuzz/programs/shrink";
import { Random } from "../../../fuzz/random";

const pool: Program[number] = { type: "IPPool", name: "p1", args: { ranges: ["10.1.0.0/29"], allocation: "lowest" } };
const reservation = (name: string, ip?: string): Program[number] => ({
  type: "IPReservation",
  name,
  args: { pool: { $resource: "p1" }, ...(ip && { ip }) },
});
const up = (...program: Program): FuzzStep => ({ act: "up", stack: 0, program, previewFirst: true });

test("a failure is shrunk to the step, the resources and the inputs that it needs", async () => {
  const steps = [up(pool), up(pool, reservation("a")), up(pool, reservation("a", "10.1.0.3"), reservation("b"))];
  const fails = async (candidate: FuzzStep[]) =>
    candidate.some(({ program }) => program.some(({ args }) => args.ip === "10.1.0.3"));
  const shortest = await shrinkSteps(steps, fails, Date.now() + 10_000);
  expect(renderReproduction(shortest)).toBe(
    [
      "// program of s0",
      'const p1 = new overlay.IPPool("p1", { ranges: ["10.1.0.0/29"] });',
      'const a = new overlay.IPReservation("a", { pool: p1, ip: "10.1.0.3" });',
      "$ pulumi preview --stack s0",
      "$ pulumi up --yes --skip-preview --stack s0",
      "",
    ].join("\n"),
  );
});

test("a seed gives the same steps again", () => {
  const stepsOf = (seed: number): FuzzStep[] => {
    const scenario = new Scenario(new Random(seed), 6);
    const steps: FuzzStep[] = [];
    for (let round = scenario.next(); round; round = scenario.next()) {
      for (const step of round) scenario.recordOutcome(step, "done");
      steps.push(...round);
    }
    return steps;
  };
  expect(stepsOf(7)).toEqual(stepsOf(7));
  expect(stepsOf(7)).not.toEqual(stepsOf(8));
});
