import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Ctl, deploy, OVERLAYCTL, objects } from "../unit/cli/ctl";

/** Tokens and store URLs are neither on a command line nor in the environment of a command that `ip run` starts. */
const ctl = new Ctl();
/** Part of every secret in these tests. */
const SECRET = "s3cr3t";
const store = `sqlite:${join(ctl.folder, SECRET, "pool.db")}`;
const storeFile = join(ctl.folder, "store");

beforeAll(async () => {
  mkdirSync(join(ctl.folder, SECRET));
  writeFileSync(storeFile, `${store}\n`);
  await ctl.withPool((pool) => deploy(pool, ["node1"]), store);
});
afterAll(() => ctl.remove());

interface Run {
  input?: string;
  env?: Record<string, string>;
}

/** Without OVERLAY_STORE, unless it is given. */
async function run(args: string[], { input = "", env = {} }: Run = {}) {
  const child = spawn(process.execPath, [OVERLAYCTL, ...args], {
    cwd: ctl.folder,
    env: { PATH: process.env.PATH, HOME: ctl.folder, ...env },
    stdio: "pipe",
  });
  let [stdout, stderr] = ["", ""];
  child.stdout.on("data", (data) => (stdout += data));
  child.stderr.on("data", (data) => (stderr += data));
  child.stdin.end(input);
  const code = await new Promise((resolve) => child.once("close", resolve));
  return { code, stdout, stderr, json: objects(stdout) };
}

const place = ["--network", "training", "--runner", "node1"];
const tokenFile = join(ctl.folder, "token");

async function reserved(): Promise<string> {
  const { json } = await run(["ip", "reserve", ...place, "--store-file", storeFile, "--json"]);
  const token = String(json[0]!.token);
  writeFileSync(tokenFile, `${token}\n`);
  return token;
}

describe.sequential("overlayctl", { timeout: 60_000 }, () => {
  test.each<[string, string[], boolean]>([
    ["ip validate --token-file FILE", ["ip", "validate", "--token-file", tokenFile], false],
    ["ip validate -", ["ip", "validate", "-"], true],
    ["ip use --token-file FILE", ["ip", "use", "--token-file", tokenFile, "--by", "c1"], false],
    ["ip use --token-file -", ["ip", "use", "--token-file", "-", "--by", "c2"], true],
    ["ip use --token -", ["ip", "use", "--token", "-", "--by", "c3"], true],
    ["ip release --token-file FILE", ["ip", "release", "--token-file", tokenFile], false],
    ["ip release --token -", ["ip", "release", "--token", "-"], true],
  ])("%s reads the token from there", async (_, args, fromInput) => {
    const token = await reserved();
    const answer = await run([...args, "--store-file", storeFile, "--json"], fromInput ? { input: `${token}\n` } : {});
    expect([answer.code, answer.stderr]).toEqual([0, ""]);
    expect(answer.json[0]).toMatchObject({ network: "training", runner: "node1" });
  });

  test.each<[string, string[], Run]>([
    ["--store-file FILE", ["--store-file", storeFile], {}],
    ["--store-file -", ["--store-file", "-"], { input: store }],
    ["--store -", ["--store", "-"], { input: `${store}\n` }],
    ["OVERLAY_STORE_FILE", [], { env: { OVERLAY_STORE_FILE: storeFile } }],
  ])("%s gives the URL of the store", async (_, args, options) => {
    const { code, json } = await run(["pool", "list", "--json", ...args], options);
    expect([code, json.map(({ pool }) => pool)]).toEqual([0, expect.arrayContaining(["network/training"])]);
  });

  test.each<[string, string[], RegExp]>([
    ["a missing file", ["pool", "list", "--store-file", "nowhere"], /cannot be read \(ENOENT\)/],
    [
      "the secret as a name",
      ["pool", "list", "--store-file", `postgres://u:${SECRET}@h/d`],
      /cannot be read \(ENOENT\)/,
    ],
    ["an empty one", ["pool", "list", "--store-file", "/dev/null"], /The file that should have the secret is empty/],
    ["both forms", ["pool", "list", "--store-file", storeFile, "--store", "memory:"], /Both a store and a file/],
    ["both forms of a token", ["ip", "validate", "x", "--token-file", tokenFile], /Both a token and a file/],
    ["no token", ["ip", "validate"], /No token given/],
    ["one store", ["store", "migrate", "--to-file", storeFile], /must each be given once/],
    [
      "standard input for both stores",
      ["store", "migrate", "--from-file", "-", "--to-file", "-"],
      /Both --from-file and --to-file are standard input/,
    ],
    ["three stores", ["store", "migrate", "memory:", "memory:", "--to-file", storeFile], /must each be given once/],
  ])("%s is refused, with a fix", async (_, args, expected) => {
    const { code, stderr } = await run(args, { env: { OVERLAY_STORE_FILE: storeFile } });
    expect(code).not.toBe(0);
    expect(stderr).toMatch(expected);
    expect(stderr).not.toContain(SECRET);
  });

  test("an empty file in OVERLAY_STORE_FILE is refused", async () => {
    const { code, stderr } = await run(["pool", "list"], { env: { OVERLAY_STORE_FILE: "/dev/null" } });
    expect(code).not.toBe(0);
    expect(stderr).toMatch(/^SETTING_INVALID: OVERLAY_STORE_FILE names a file that is empty\./);
  });

  test("standard input can be used for one secret only", async () => {
    const token = await reserved();
    const both = await run(["ip", "validate", "-", "--store", "-"], { input: token });
    expect(both.code).not.toBe(0);
    expect((await run(["ip", "use", "--token", "-", "--by", "c9", "--store-file", storeFile])).stderr).toMatch(
      /^INPUT_INVALID: Standard input is empty/,
    );
  });

  test.runIf(process.platform === "linux")("ip run passes no secret of ours to its command", async () => {
    const names = [
      "OVERLAY_STORE",
      "OVERLAY_STORE_FILE",
      "OVERLAY_TOKEN_KEYS",
      "OVERLAY_PRIVATE_KEY",
      "PGPASSWORD",
      "PGPASSFILE",
      "PGHOST",
      "PGSERVICE",
      "PULUMI_ACCESS_TOKEN",
      "PULUMI_BACKEND_URL",
      "PULUMI_CONFIG_PASSPHRASE",
      "PULUMI_CONFIG_PASSPHRASE_FILE",
    ];
    const env = { ...Object.fromEntries(names.map((name) => [name, `${SECRET}-and-sixteen-more`])), KEPT: "kept" };
    const script = [
      "cat /proc/self/environ /proc/self/cmdline /proc/$PPID/cmdline",
      // The watchdog is another child of overlayctl.
      "for pid in $(cat /proc/$PPID/task/*/children); do cat /proc/$pid/cmdline /proc/$pid/environ; done",
    ].join("; ");
    const { code, stdout } = await run(["ip", "run", ...place, "--store-file", storeFile, "--", "sh", "-c", script], {
      env,
    });
    expect([code, stdout.includes(SECRET)]).toEqual([0, false]);
    for (const part of ["KEPT=kept", "OVERLAY_IP=", "overlayctl-watchdog", "--store-file"])
      expect(stdout).toContain(part);
  });

  test.runIf(process.platform === "linux")("no process of ours shows a secret in the process list", async () => {
    const token = await reserved();
    const child = spawn(
      process.execPath,
      [OVERLAYCTL, "ip", "use", "--token", "-", "--by", "c4", "--store-file", storeFile],
      { env: { PATH: process.env.PATH, HOME: ctl.folder }, stdio: ["pipe", "pipe", "inherit"] },
    );
    const closed = new Promise((resolve) => child.once("close", resolve));
    const shown = ["cmdline", "environ"].map((file) => readFileSync(`/proc/${child.pid}/${file}`, "utf8")).join();
    expect([shown.includes(SECRET), shown.includes(token)]).toEqual([false, false]);
    child.stdin.end(token);
    expect(await closed).toBe(0);
  });

  test("store migrate takes URLs from files, alone and beside an argument", async () => {
    const [second, third] = ["second", "third"].map((name) => `sqlite:${join(ctl.folder, SECRET, name)}`) as [
      string,
      string,
    ];
    const target = join(ctl.folder, "target");
    writeFileSync(target, second);
    expect((await run(["store", "migrate", "--from-file", storeFile, "--to-file", target])).code).toBe(0);
    expect((await run(["store", "migrate", "--from-file", target, third])).code).toBe(0);
    writeFileSync(storeFile, third);
    expect((await run(["store", "check", "--store-file", storeFile])).stdout).toBe("The store has no problems.\n");
  });
});
