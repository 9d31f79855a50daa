/**
 * A Pulumi CLI with its host for Node programs: the one on PATH, one that is in the cache, the official release, or, where
 * that cannot be reached, one built from the Go module registry.
 */
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { say } from "./progress.mjs";
import { buildPulumi } from "./pulumi-build.mjs";
import { downloadRelease } from "./pulumi-release.mjs";
import { cacheFolder, folderOnPath, pulumiBinDir, pulumiCacheFolder, pulumiVersion } from "./tools.mjs";

export class NoPulumi extends Error {}

export async function ensurePulumi() {
  if (pulumiBinDir() !== undefined) return;
  say(`There is no Pulumi CLI on PATH: getting ${pulumiVersion} into ${pulumiCacheFolder()}, once.`);
  await atomically(pulumiCacheFolder(), async (staging) => {
    try {
      await downloadRelease(staging);
    } catch (error) {
      say(`  The official release cannot be used (${reason(error)}).`);
      for (const name of readdirSync(staging)) rmSync(join(staging, name), { recursive: true });
      if (!folderOnPath("go"))
        throw new NoPulumi(
          "There is no Pulumi CLI, its release cannot be used, and there is no Go to build it with. Install Pulumi, or Go.",
        );
      say("  Building it from its Go modules instead: about 4 minutes on two cores, and 3 GB in Go's own caches.");
      await buildPulumi(staging);
    }
  });
}

/**
 * The folder appears complete or not at all.
 * @param {string} folder @param {(staging: string) => Promise<void>} fill
 */
async function atomically(folder, fill) {
  mkdirSync(cacheFolder(), { recursive: true });
  for (const name of readdirSync(cacheFolder())) {
    const [, pid] = /^staging-(\d+)$/.exec(name) ?? [];
    if (pid && !existsSync(`/proc/${pid}`)) rmSync(join(cacheFolder(), name), { recursive: true });
  }
  const staging = join(cacheFolder(), `staging-${process.pid}`);
  mkdirSync(staging);
  try {
    await fill(staging);
    if (!existsSync(folder)) renameSync(staging, folder);
  } finally {
    rmSync(staging, { recursive: true, force: true });
  }
}

/** @param {unknown} error */
function reason(error) {
  const { cause, message } = /** @type {Error} */ (error);
  return cause instanceof Error ? cause.message : message;
}
