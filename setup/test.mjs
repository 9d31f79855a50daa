/** Runs the tests that this machine can run. Arguments go to vitest: `npm test -- --project unit`. */
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pulumiBinDir, root, whyNoLab } from "./tools.mjs";

const args = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "overlay-test-"));
const countFile = join(folder, "count.json");
const vitest = [
  join(root, "node_modules", "vitest", "vitest.mjs"),
  "run",
  `--reporter=${join(root, "setup", "count.mjs")}`, // first: its lines come before vitest's summary
  "--reporter=default",
  ...projects(),
  ...args,
];
const env = { ...process.env, COUNT_FILE: countFile };
const { status } = spawnSync(process.execPath, vitest, { cwd: root, env, stdio: "inherit" });
const { passed, failed, skipped } = existsSync(countFile)
  ? JSON.parse(readFileSync(countFile, "utf8"))
  : { passed: 0, failed: 1, skipped: 0 }; // vitest itself did not finish
rmSync(folder, { recursive: true, force: true });
if (skipped > 0) console.log(`${skipped} skipped: each says why.`);
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = status ?? 1;

/** All projects that can run here, unless the caller has chosen some. */
function projects() {
  if (args.some((arg) => arg.startsWith("--project"))) return [];
  const reason = whyNoLab();
  if (reason !== undefined) {
    console.log(`Unit and contract tests only: ${reason}.`);
    return ["--project=unit", "--project=contract"];
  }
  if (pulumiBinDir() === undefined) {
    console.log("All but the e2e tests: there is no Pulumi CLI.");
    return ["--project=unit", "--project=contract", "--project=lab"];
  }
  return [];
}
