import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { downloadRelease, releaseSums } from "../../../setup/pulumi-release.mjs";
import { pulumiVersion, root } from "../../../setup/tools.mjs";

/** A site with one release: an archive with one program in it. */
let folder: string;
let site: string;
let sum: string;
let server: Server;
const asked: string[] = [];

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "overlay-release-"));
  mkdirSync(join(folder, "pulumi"));
  writeFileSync(join(folder, "pulumi", "pulumi"), "#!/bin/sh\n");
  const archive = join(folder, "release.tar.gz");
  execFileSync("tar", ["-czf", archive, "-C", folder, "pulumi"]);
  const bytes = readFileSync(archive);
  sum = createHash("sha256").update(bytes).digest("hex");
  server = createServer((request, response) => {
    asked.push(request.url!);
    response.end(bytes);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  site = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterAll(() => {
  server?.close();
  rmSync(folder, { recursive: true, force: true });
});

const download = async (target: string, sums: Record<string, string>): Promise<string> => {
  const into = mkdtempSync(join(folder, "into-"));
  await downloadRelease(into, { site, target, sums });
  return into;
};

test("a release with the sum that stands in the repo is unpacked", async () => {
  expect(readdirSync(await download("linux-x64", { "linux-x64": sum }))).toEqual(["pulumi"]);
  expect(asked).toEqual([`/pulumi-v${pulumiVersion}-linux-x64.tar.gz`]);
});

test("a release with any other sum is not unpacked", async () => {
  const other = "0".repeat(64);
  const into = mkdtempSync(join(folder, "into-"));
  await expect(downloadRelease(into, { site, target: "linux-x64", sums: { "linux-x64": other } })).rejects.toThrow(
    `the SHA-256 sum of pulumi-v${pulumiVersion}-linux-x64.tar.gz is ${sum}, not ${other}`,
  );
  expect(readdirSync(into)).toEqual([]);
});

test("nothing is downloaded for a platform without a sum", async () => {
  const before = asked.length;
  await expect(download("plan9-x64", releaseSums)).rejects.toThrow("no checksum of a release for plan9-x64 is known");
  expect(asked.length).toBe(before);
});

test("there is a sum for each platform that we support", () => {
  expect(Object.keys(releaseSums).sort()).toEqual(["darwin-arm64", "darwin-x64", "linux-arm64", "linux-x64"]);
  for (const sum of Object.values(releaseSums)) expect(sum).toMatch(/^[0-9a-f]{64}$/);
});

test.each([
  ["pulumi-cli", "github.com/pulumi/pulumi/pkg/v3", `v${pulumiVersion}`],
  ["pulumi-language-nodejs", "github.com/pulumi/pulumi/sdk/v3", "v3.68.0"],
])("%s: go.mod and go.sum fix what is built", (module, path, version) => {
  const read = (name: string): string => readFileSync(join(root, "setup", module, name), "utf8");
  expect(read("go.mod")).toContain(`require ${path} ${version}\n`);
  expect(read("go.mod")).toMatch(new RegExp(`^tool ${path}/.*cmd/pulumi`, "m"));
  expect(read("go.sum")).toMatch(new RegExp(`^${path} ${version} h1:`, "m"));
});
