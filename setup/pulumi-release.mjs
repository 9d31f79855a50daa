/** Downloads the official release of the Pulumi CLI. Bytes whose SHA-256 sum does not stand here are never unpacked. */
import { createHash } from "node:crypto";
import { rmSync, writeFileSync } from "node:fs";
import { arch, platform } from "node:os";
import { join } from "node:path";
import { during, run } from "./progress.mjs";
import { pulumiVersion } from "./tools.mjs";

/**
 * SHA-256 sums of the archives of `pulumiVersion`, by platform. Source: Pulumi's own Homebrew formula,
 * github.com/pulumi/homebrew-tap, Formula/pulumi.rb at commit 46e067829eb4e2a9184139c72d1a9ed92184f464.
 * @type {Readonly<Record<string, string>>}
 */
export const releaseSums = {
  "linux-x64": "8b72c69d8b66530ede5c6907d7d0bb3fcacac440c59e3aa2f7226e78dc724423",
  "linux-arm64": "02c649a79136b783ecf2b4c63ad1e62cad678bd277100a2eefe57c3fded007d1",
  "darwin-x64": "dbf83a059174d16ef5ddb0e7aa0815454e2fc9735d741f82383abdb33219072a",
  "darwin-arm64": "b29a97b0e9e1790b1424759503eb65bf5a0258a7b1e741ba25298a858d3250ec",
};

const secondsToAnswer = 10;

/**
 * Unpacks the release for this platform into `folder`.
 * @param {string} folder
 * @param {{ site?: string, target?: string, sums?: Readonly<Record<string, string>> }} [options]
 */
export async function downloadRelease(folder, options = {}) {
  const {
    site = `https://github.com/pulumi/pulumi/releases/download/v${pulumiVersion}`,
    target = `${platform()}-${arch()}`,
    sums = releaseSums,
  } = options;
  const expected = sums[target];
  if (expected === undefined) throw new Error(`no checksum of a release for ${target} is known`);
  const file = `pulumi-v${pulumiVersion}-${target}.tar.gz`;
  const bytes = await during(`Downloading ${file}`, (detail) => fetchBytes(`${site}/${file}`, detail));
  const actual = createHash("sha256").update(bytes).digest("hex");
  if (actual !== expected) throw new Error(`the SHA-256 sum of ${file} is ${actual}, not ${expected}`);
  const archive = join(folder, file);
  writeFileSync(archive, bytes);
  await run("tar", ["-xzf", archive, "-C", folder, "--strip-components=1"]);
  rmSync(archive);
}

/**
 * Gives up when no data comes for a while: closed networks refuse at once, or drop packets.
 * @param {string} url @param {(text: string) => void} detail
 */
async function fetchBytes(url, detail) {
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
