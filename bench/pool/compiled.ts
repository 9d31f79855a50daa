import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { root } from "../../setup/tools.mjs";

/** The claimer as users run the provider: compiled. What compiles while it runs names every function that is made, too. */
export function compiledClaimer(): string {
  const outDir = join(root, "node_modules", ".bench");
  const args = [require.resolve("typescript/bin/tsc"), "-p", __dirname, "--outDir", outDir];
  const { status } = spawnSync(process.execPath, args, { stdio: ["ignore", 2, 2] });
  if (status !== 0) throw new Error("The claimer cannot be compiled.");
  return join(outDir, "bench", "pool", "claimer.js");
}
