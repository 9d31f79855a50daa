/**
 * A Pulumi CLI with its host for Node programs: the one on PATH, one that is in the cache, the official release, or, where
 * that cannot be reached, one built from the Go module registry.
 */
import { createHash } from "node:crypto";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { arch, platform } from "node:os";
import { join } from "node:path";
import { during, run, say } from "./progress.mjs";
import { cacheFolder, folderOnPath, pulumiBinDir, pulumiCacheFolder, pulumiVersion, root } from "./tools.mjs";

const secondsToAnswer = 10;

export class NoPulumi extends Error {}

/** Each is built as a dependency of a small module: `go install` refuses modules that replace others. */
const builds = [
  {
    command: "pulumi",
    module: "github.com/pulumi/pulumi/pkg/v3",
    path: "cmd/pulumi",
    version: `v${pulumiVersion}`,
    replace: "github.com/atotto/clipboard => github.com/tgummerer/clipboard v0.0.0-20241001131231-d02d263e614e",
  },
  {
    command: "pulumi-language-nodejs",
    module: "github.com/pulumi/pulumi/sdk/v3",
    path: "nodejs/cmd/pulumi-language-nodejs",
    version: "v3.68.0", // the last one that the registry has; it runs programs of today's SDK
  },
];

export async function ensurePulumi() {
  if (pulumiBinDir() !== undefined) return;
  say(`There is no Pulumi CLI on PATH: getting ${pulumiVersion} into ${pulumiCacheFolder()}, once.`);
  await atomically(pulumiCacheFolder(), async (draft) => {
    try {
      await download(draft);
    } catch (error) {
      say(`  The official release cannot be had (${reason(error)}).`);
      for (const name of readdirSync(draft)) rmSync(join(draft, name), { recursive: true });
      await buildFromRegistry(draft);
    }
  });
}

/**
 * The folder appears complete or not at all.
 * @param {string} folder @param {(draft: string) => Promise<void>} fill
 */
async function atomically(folder, fill) {
  mkdirSync(cacheFolder(), { recursive: true });
  for (const name of readdirSync(cacheFolder())) {
    const [, pid] = /^draft-(\d+)$/.exec(name) ?? [];
    if (pid && !existsSync(`/proc/${pid}`)) rmSync(join(cacheFolder(), name), { recursive: true });
  }
  const draft = join(cacheFolder(), `draft-${process.pid}`);
  mkdirSync(draft);
  try {
    await fill(draft);
    if (!existsSync(folder)) renameSync(draft, folder);
  } finally {
    rmSync(draft, { recursive: true, force: true });
  }
}

/** @param {string} folder */
async function download(folder) {
  const file = `pulumi-v${pulumiVersion}-${platform()}-${arch()}.tar.gz`;
  const site = `https://github.com/pulumi/pulumi/releases/download/v${pulumiVersion}`;
  const sums = (await fetchBytes(`${site}/pulumi-${pulumiVersion}-checksums.txt`)).toString();
  const archive = join(folder, file);
  const bytes = await during(`Downloading ${file}`, (detail) => fetchBytes(`${site}/${file}`, detail));
  const sum = createHash("sha256").update(bytes).digest("hex");
  if (!sums.split("\n").some((line) => line.startsWith(sum) && line.trim().endsWith(file)))
    throw new Error(`${file} is not the file that the release's checksums name`);
  writeFileSync(archive, bytes);
  await run("tar", ["-xzf", archive, "-C", folder, "--strip-components=1"]);
  rmSync(archive);
}

/** Gives up when nothing comes for a while: closed networks refuse at once, or swallow. @param {string} url */
async function fetchBytes(url, detail = (/** @type {string} */ _text) => {}) {
  const control = new AbortController();
  const giveUp = () => control.abort(new Error(`no answer for ${secondsToAnswer} s`));
  let timer = setTimeout(giveUp, secondsToAnswer * 1000);
  try {
    const response = await fetch(url, { signal: control.signal });
    if (!response.ok || !response.body) throw new Error(`${new URL(url).host} answers ${response.status}`);
    const chunks = [];
    let size = 0;
    for await (const chunk of response.body) {
      clearTimeout(timer);
      timer = setTimeout(giveUp, secondsToAnswer * 1000);
      chunks.push(chunk);
      size += chunk.length;
      detail(`${Math.round(size / 1e6)} MB`);
    }
    return Buffer.concat(chunks);
  } finally {
    clearTimeout(timer);
  }
}

/** @param {string} folder */
async function buildFromRegistry(folder) {
  if (!folderOnPath("go"))
    throw new NoPulumi(
      "There is no Pulumi CLI, its release cannot be had, and there is no Go to build it with. Install Pulumi, or Go.",
    );
  say("  Building it from its Go modules instead: about 4 minutes on two cores, and 3 GB in Go's own caches.");
  for (const build of builds) await goBuild(folder, build);
  // The provider process of dynamic resources: a script that is part of the npm package.
  const script = "pulumi-resource-pulumi-nodejs";
  copyFileSync(join(root, "node_modules", "@pulumi", "pulumi", script), join(folder, script));
  chmodSync(join(folder, script), 0o755);
}

/** @param {string} folder @param {{ command: string, module: string, path: string, version: string, replace?: string }} build */
async function goBuild(folder, { command, module, path, version, replace }) {
  const cwd = join(folder, `${command}.module`);
  mkdirSync(cwd);
  // Without a go line Go reads the requirements of every module that any module names: minutes instead of seconds.
  const mod = ["module tools", "go 1.21", `require ${module} ${version}`, replace ? `replace ${replace}` : ""];
  writeFileSync(join(cwd, "go.mod"), mod.join("\n"));
  const flags = `${process.env.GOFLAGS ?? ""} -mod=mod`.trim(); // no go.sum yet: Go writes it
  const env = { ...process.env, GOFLAGS: flags, GOWORK: "off", CGO_ENABLED: "0" };
  const target = `${module}/${path}`;

  const packages = await during(`Fetching the modules of ${command}`, (detail) => {
    let count = 0;
    const onLine = (/** @type {string} */ line) => line.startsWith("go: downloading") && detail(`${++count} modules`);
    return run("go", ["list", "-deps", target], { cwd, env, onLine });
  });
  const total = packages.trim().split("\n").length;
  await during(`Compiling ${command}`, (detail) => {
    let count = 0;
    const onLine = () => detail(`${++count} of at most ${total} packages`);
    const ldflags = `-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=${version}`;
    return run("go", ["build", "-v", "-trimpath", "-ldflags", ldflags, "-o", join(folder, command), target], {
      cwd,
      env,
      onLine,
    });
  });
  rmSync(cwd, { recursive: true });
}

/** @param {unknown} error */
function reason(error) {
  const { cause, message } = /** @type {Error} */ (error);
  return cause instanceof Error ? cause.message : message;
}
