/**
 * Builds the Pulumi CLI and its host for Node programs from the Go module registry. The versions and sums of all modules stand in
 * go.mod and go.sum of setup/pulumi-cli and setup/pulumi-language-nodejs; Go refuses modules that differ (`-mod=readonly`).
 */
import { chmodSync, copyFileSync } from "node:fs";
import { join } from "node:path";
import { during, run } from "./progress.mjs";
import { pulumiVersion, root } from "./tools.mjs";

const builds = [
  { command: "pulumi", module: "pulumi-cli", version: `v${pulumiVersion}` },
  // v3.68.0 is the last version that the registry has; it runs programs of today's SDK.
  { command: "pulumi-language-nodejs", module: "pulumi-language-nodejs", version: "v3.68.0" },
];

/** @param {string} folder */
export async function buildPulumi(folder) {
  for (const build of builds) await goBuild(folder, build);
  // The provider process of dynamic resources: a script that is part of the npm package.
  const script = "pulumi-resource-pulumi-nodejs";
  copyFileSync(join(root, "node_modules", "@pulumi", "pulumi", script), join(folder, script));
  chmodSync(join(folder, script), 0o755);
}

/** Builds the one `tool` of the module's go.mod. @param {string} folder @param {{ command: string, module: string, version: string }} build */
async function goBuild(folder, { command, module, version }) {
  const cwd = join(root, "setup", module);
  const flags = `${process.env.GOFLAGS ?? ""} -mod=readonly`.trim();
  const env = { ...process.env, GOFLAGS: flags, GOWORK: "off", CGO_ENABLED: "0" };
  const packages = await during(`Fetching the modules of ${command}`, (detail) => {
    let count = 0;
    const onLine = (/** @type {string} */ line) => line.startsWith("go: downloading") && detail(`${++count} modules`);
    return run("go", ["list", "-deps", "tool"], { cwd, env, onLine });
  });
  const total = packages.trim().split("\n").length;
  await during(`Compiling ${command}`, (detail) => {
    let count = 0;
    const onLine = () => detail(`${++count} of at most ${total} packages`);
    const ldflags = `-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=${version}`;
    const args = ["build", "-v", "-trimpath", "-ldflags", ldflags, "-o", join(folder, command), "tool"];
    return run("go", args, { cwd, env, onLine });
  });
}
