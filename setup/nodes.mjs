/**
 * Runs the tests that depend on Node itself (pure code, the embedded store, the command line, one whole overlay) on the
 * other versions that we support. They come from the npm registry, into the cache. Arguments are versions: `-- 26`.
 */
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { delimiter, dirname, join } from "node:path";
import { during, run, say } from "./progress.mjs";
import { cacheFolder, root } from "./tools.mjs";

const VERSIONS = ["22", "24"];
const PARTS = [
  ["--project", "unit"],
  ["--project", "contract", "test/contract/sqlite.test.ts", "test/contract/cli-ip.test.ts"],
  ["--project", "e2e", "test/e2e/overlay.test.ts"],
];

const args = process.argv.slice(2);
const failed = [];
for (const version of args.length > 0 ? args : VERSIONS) {
  const node = await nodeOf(version);
  const env = { ...process.env, PATH: `${dirname(node)}${delimiter}${process.env.PATH}` };
  for (const part of PARTS) {
    say(`Node ${version}: ${part.join(" ")}`);
    const vitest = [join(root, "node_modules", "vitest", "vitest.mjs"), "run", ...part];
    if (spawnSync(node, vitest, { cwd: root, env, stdio: "inherit" }).status !== 0) failed.push(`Node ${version}`);
  }
}
say(failed.length === 0 ? "All passed." : `Failed: ${[...new Set(failed)].join(", ")}.`);
process.exitCode = failed.length === 0 ? 0 : 1;

/** @param {string} version */
async function nodeOf(version) {
  const name = `node-${process.platform}-${process.arch}`;
  const folder = join(cacheFolder(), `node-${version}`);
  const node = join(folder, "node_modules", name, "bin", "node");
  if (!existsSync(node)) {
    const options = ["--no-save", "--no-audit", "--no-fund", "--prefix", folder];
    await during(`npm install ${name}@${version}`, () => run("npm", ["install", ...options, `${name}@${version}`]));
  }
  return node;
}
