import { spawnSync } from "node:child_process";
import { hash } from "node:crypto";
import { copyFileSync, existsSync, readdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { root } from "../../setup/tools.mjs";

/** The compiled files that a measured process runs. */
export interface CompiledProgram {
  claimer: string;
  /** The checkout that it measures. */
  adapter: string;
}

export interface CompiledPrograms {
  this: CompiledProgram;
  against?: CompiledProgram;
}

/** Compiles this checkout and another: users run a compiled provider, and tsx makes code slower. */
export function compilePrograms(against?: string): CompiledPrograms {
  const own = compile(root);
  const claimer = join(own, "claimer.js");
  const measure = (folder: string): CompiledProgram => ({ claimer, adapter: join(folder, "adapter.js") });
  return { this: measure(own), ...(against !== undefined && { against: measure(compile(resolve(against))) }) };
}

function compile(checkout: string): string {
  for (const needed of ["bench/pool/adapter.ts", "node_modules"])
    if (!existsSync(join(checkout, needed))) throw new Error(`${checkout} has no ${needed}.`);
  // By path: two checkouts may have the same folder of packages.
  const outDir = join(checkout, "node_modules", ".bench", hash("sha256", checkout, "hex").slice(0, 8));
  const args = [require.resolve("typescript/bin/tsc"), "-p", join(checkout, "bench/pool"), "--outDir", outDir];
  const { status } = spawnSync(process.execPath, args, { stdio: ["ignore", 2, 2] });
  if (status !== 0) throw new Error(`${checkout} cannot be compiled.`);
  for (const folder of ["provider", "service"]) copyProtos(join(checkout, folder), join(outDir, folder));
  return join(outDir, "bench", "pool");
}

/** Modules read them from their own folder at run time. Folders of which no module was compiled need none. */
function copyProtos(from: string, to: string): void {
  if (!existsSync(from)) return;
  const files = readdirSync(from, { recursive: true, encoding: "utf8" }).filter((file) => file.endsWith(".proto"));
  for (const file of files) if (existsSync(dirname(join(to, file)))) copyFileSync(join(from, file), join(to, file));
}
