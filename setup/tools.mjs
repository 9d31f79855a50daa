/** Paths of the tools that set-up installs, for the demo, the tests and the benchmarks. */
import { spawnSync } from "node:child_process";
import { accessSync, constants, existsSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, join } from "node:path";

export const root = join(import.meta.dirname ?? new URL(".", import.meta.url).pathname, "..");

/** The release that is downloaded or built where none is on PATH. Any 3.x on PATH will do. */
export const pulumiVersion = "3.232.0";

export const pulumiTools = ["pulumi", "pulumi-language-nodejs"];

/** Outside the repository: clones and work trees share it. */
export function cacheFolder() {
  return join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "pulumi-overlay");
}

export function pulumiCacheFolder() {
  return join(cacheFolder(), `pulumi-${pulumiVersion}`);
}

/** @param {string} command @returns {string | undefined} the folder on PATH that has it */
export function folderOnPath(command) {
  return (process.env.PATH ?? "")
    .split(delimiter)
    .find((folder) => folder !== "" && isExecutable(join(folder, command)));
}

/** @returns {string | undefined} the folder with the Pulumi CLI; undefined before set-up has run */
export function pulumiBinDir() {
  const onPath = pulumiTools.map(folderOnPath);
  if (onPath.every((folder) => folder !== undefined)) return onPath[0];
  return existsSync(pulumiCacheFolder()) ? pulumiCacheFolder() : undefined;
}

/** @returns {NodeJS.ProcessEnv} this process's environment, with the Pulumi CLI on PATH */
export function pulumiEnv() {
  const folder = pulumiBinDir();
  if (folder === undefined) throw new Error("There is no Pulumi CLI yet: `node setup/setup.mjs --for start` gets it.");
  return { ...process.env, PATH: `${folder}${delimiter}${process.env.PATH ?? ""}` };
}

/**
 * A file backend of Pulumi in this folder. By default it keeps metadata of FILE in FILE.attrs, which is not written atomically: a
 * killed CLI can leave it empty, and then every command fails with "failed to load checkpoint: EOF". Without metadata, every
 * file is replaced by a rename.
 * @param {string} folder
 */
export function fileBackend(folder) {
  return `file://${folder}?metadata=skip`;
}

/** @returns {string | undefined} why this machine can have no lab, if it cannot */
export function whyNoLab() {
  if (process.platform !== "linux") return "this is not Linux";
  if (process.getuid?.() !== 0) return "this is not root";
  const probe = spawnSync("unshare", ["--net", "--mount", "--pid", "--fork", "true"]);
  return probe.status === 0
    ? undefined
    : "root may not make namespaces here (a container has to be privileged for that)";
}

/** @param {string} file */
function isExecutable(file) {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
