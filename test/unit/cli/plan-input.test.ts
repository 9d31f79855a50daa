import { afterAll, beforeAll, expect, test } from "vitest";
import { Ctl, deploy } from "./ctl";

/** What `overlayctl plan` reads, and refuses. */
const ctl = new Ctl();
beforeAll(() => ctl.withPool(async (pool) => void (await deploy(pool, ["node1"]))));
afterAll(() => ctl.remove());

const preview = (diagnostics: object[]) => JSON.stringify({ steps: [], diagnostics });

test.each<[name: string, input: string, code: number, stderr: string]>([
  ["a preview without changes", preview([]), 0, "Nothing would be changed on any host.\n"],
  [
    "a preview with a warning",
    preview([{ severity: "warning", message: "drift" }]),
    0,
    "Nothing would be changed on any host.\n",
  ],
  [
    "a preview that failed",
    preview([{ severity: "error", message: "error: POOL_NOT_FOUND: There is no pool.\n" }]),
    1,
    "PLAN_INCOMPLETE: The preview failed: POOL_NOT_FOUND: There is no pool. Correct the program, and plan its next preview.\n",
  ],
  [
    "an empty input",
    "",
    1,
    "INPUT_INVALID: Standard input is not the output of `pulumi preview --json`, nor of `pulumi stack export`. Pipe one of these to `overlayctl plan`, or give a file with its output.\n",
  ],
])("%s", async (_, input, code, stderr) => {
  const { child, ended } = ctl.start(["plan"]);
  child.stdin.end(input);
  expect(await ended).toMatchObject({ code, stderr });
});
