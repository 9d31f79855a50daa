/**
 * provider/, service/, client/, cli/ and sdk/ → dist/: CommonJS with types, and for `import` a thin ES module over it, so that a program that is
 * loaded both ways still has one instance of everything. Does nothing when dist/ is newer than its sources.
 */
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { createRequire } from "node:module";
import { join, relative } from "node:path";
import { pathToFileURL } from "node:url";
import { root } from "./tools.mjs";

const dist = join(root, "dist");
const stamp = join(dist, ".built");
const cache = join(root, "node_modules", ".cache", "build");
const folders = ["provider", "service", "client", "cli", "sdk"];
const sources = [...folders, "tsconfig.json", "package.json", "setup/build.mjs", "setup/tsconfig.build.json"];
const require = createRequire(import.meta.url);

export const isBuilt = () =>
  fs.existsSync(stamp) && fs.statSync(stamp).mtimeMs >= newestChange(sources.map((path) => join(root, path)));

/** Builds beside dist/ and renames at the end: a program that runs meanwhile finds the old or the new one. */
export function build() {
  const started = new Date();
  const staging = join(root, "node_modules", `.dist-${process.pid}`);
  const old = `${staging}-old`;
  try {
    compile(staging);
    copyProtos(staging);
    for (const folder of ["sdk", "client"]) writeModule(join(staging, folder));
    makeExecutable(staging);
    fs.writeFileSync(join(staging, ".built"), "");
    fs.utimesSync(join(staging, ".built"), started, started); // what changes meanwhile is newer
    if (fs.existsSync(dist)) fs.renameSync(dist, old);
    fs.renameSync(staging, dist);
  } finally {
    for (const folder of [staging, old]) fs.rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * tsc compiles into a cache, where it finds what it compiled before, and leaves the files of sources that are gone.
 * @param {string} outDir
 */
function compile(outDir) {
  const tsc = require.resolve("typescript/bin/tsc");
  const cached = join(cache, "dist");
  const incremental = ["--incremental", "--tsBuildInfoFile", join(cached, "tsconfig.tsbuildinfo")];
  const args = [tsc, "-p", join(root, "setup", "tsconfig.build.json"), "--outDir", cached, ...incremental];
  const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: "inherit" });
  if (status !== 0) throw new Error("tsc found errors.");
  const hasSource = (/** @type {string} */ path) =>
    fs.existsSync(join(root, relative(cached, path).replace(/(\.d\.ts|\.js)$/, ".ts")));
  fs.cpSync(cached, outDir, { recursive: true, filter: (path) => path === cached || hasSource(path) });
}

/** Read at run time from beside the modules that load them. @param {string} outDir */
function copyProtos(outDir) {
  const names = fs.readdirSync(join(root, "service"), { recursive: true, encoding: "utf8" });
  for (const name of names.filter((each) => each.endsWith(".proto")))
    fs.copyFileSync(join(root, "service", name), join(outDir, "service", name));
}

/** index.mjs names what index.js exports; its values are those of index.js. @param {string} folder */
function writeModule(folder) {
  const entry = join(folder, "index.js");
  const names = Object.keys(require(entry)).filter((name) => name !== "default");
  const lines = ['import module from "./index.js";', `export const { ${names.join(", ")} } = module;`, ""];
  fs.writeFileSync(join(folder, "index.mjs"), lines.join("\n"));
  fs.writeFileSync(join(folder, "index.d.mts"), 'export * from "./index.js";\n');
}

/** @param {string} folder */
function makeExecutable(folder) {
  const { bin } = JSON.parse(fs.readFileSync(join(root, "package.json"), "utf8"));
  for (const path of Object.values(bin)) {
    const file = join(folder, String(path).replace(/^\.\/dist\//, ""));
    const text = fs.readFileSync(file, "utf8");
    if (!text.startsWith("#!")) fs.writeFileSync(file, `#!/usr/bin/env node\n${text}`);
    fs.chmodSync(file, 0o755);
  }
}

/** Folders count, too: their time changes when a file is added or removed. @param {string[]} paths @returns {number} */
function newestChange(paths) {
  const times = paths
    .filter((path) => fs.existsSync(path))
    .map((path) => {
      const stat = fs.statSync(path);
      const inside = stat.isDirectory() ? newestChange(fs.readdirSync(path).map((name) => join(path, name))) : 0;
      return Math.max(stat.mtimeMs, inside);
    });
  return Math.max(0, ...times);
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  if (isBuilt()) console.error("dist/ is up to date.");
  else build();
}
