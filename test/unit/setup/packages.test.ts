import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { expect, test } from "vitest";
import { root } from "../../../setup/tools.mjs";

/** What `npm ci`, users and workflows rely on in package.json and package-lock.json. */

interface LockedPackage {
  version: string;
  dev?: boolean;
  peer?: boolean;
  engines?: { node?: string };
  dependencies?: Record<string, string>;
  optionalDependencies?: Record<string, string>;
}

const readJson = (path: string) => JSON.parse(readFileSync(join(root, path), "utf8"));
const manifest = readJson("package.json");
const locked: Record<string, LockedPackage> = readJson("package-lock.json").packages;
const semver: { satisfies(version: string, range: string): boolean } = createRequire(__filename)("semver");

/** Node looks for a package in `node_modules` beside the one that asks, then in those above. */
function isLocked(name: string, asker: string): boolean {
  for (let folder = asker; ; folder = folder.slice(0, Math.max(0, folder.lastIndexOf("/node_modules/")))) {
    if (locked[`${folder === "" ? "" : `${folder}/`}node_modules/${name}`]) return true;
    if (!folder.includes("/node_modules/")) return folder !== "" && isLocked(name, "");
  }
}

test("the lock file has every package of every platform, so that `npm ci` works on each", () => {
  const missing = Object.entries(locked).flatMap(([path, { dependencies, optionalDependencies }]) =>
    Object.keys({ ...dependencies, ...optionalDependencies })
      .filter((name) => !isLocked(name, path))
      .map((name) => `${name} of ${path}`),
  );
  expect(missing).toEqual([]);
});

test("the lock file names no registry", () => {
  expect(Object.values(locked).filter((each) => "resolved" in each)).toEqual([]);
});

test.each(["20.12.0", "22.0.0", "24.0.0"])("each package that users get runs on Node %s", (node) => {
  expect(semver.satisfies(node, manifest.engines.node)).toBe(true);
  const refusing = Object.entries(locked)
    .filter(([path, { dev, peer }]) => path !== "" && !dev && !peer)
    .filter(([, { engines }]) => engines?.node && !semver.satisfies(node, engines.node))
    .map(([path, { engines }]) => `${path} needs ${engines?.node}`);
  expect(refusing).toEqual([]);
});

test("versions are chosen by dependencies: overrides do not reach users", () => {
  expect(manifest).not.toHaveProperty("overrides");
});

test("each script that a workflow runs is there", () => {
  const folder = join(root, ".github/workflows");
  const workflows = readdirSync(folder).map((name) => readFileSync(join(folder, name), "utf8"));
  const scripts = Array.from(workflows.join("\n").matchAll(/npm run ([\w:-]+)/g), ([, name]) => name!);
  expect(scripts).toContain("check");
  expect(scripts.filter((name) => !(name in manifest.scripts))).toEqual([]);
});
