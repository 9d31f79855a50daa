/** Builds fuzz/engine: Pulumi's deployment engine without its CLI, for `npm run fuzz -- programs --in-process`. */
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { during, run } from "./progress.mjs";
import { cacheFolder, folderOnPath, root } from "./tools.mjs";

/** @returns {Promise<string>} the path of the program, which is built once for each version of its source */
export async function ensureFuzzEngine() {
  const source = join(root, "fuzz", "engine");
  const hash = createHash("sha256");
  for (const name of readdirSync(source).sort()) hash.update(`${name}\n`).update(readFileSync(join(source, name)));
  const program = join(cacheFolder(), `fuzz-engine-${hash.digest("hex").slice(0, 12)}`);
  if (existsSync(program)) return program;
  if (!folderOnPath("go"))
    throw new Error("fuzz/engine is written in Go, and there is no Go on PATH. Install Go 1.25 or later.");
  mkdirSync(cacheFolder(), { recursive: true });
  const env = {
    ...process.env,
    GOFLAGS: `${process.env.GOFLAGS ?? ""} -mod=readonly`.trim(),
    GOWORK: "off",
    CGO_ENABLED: "0",
  };
  await during("Compiling fuzz/engine", () =>
    run("go", ["build", "-trimpath", "-o", program, "."], { cwd: source, env }),
  );
  return program;
}
