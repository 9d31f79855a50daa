import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import {
  chmodSync,
  closeSync,
  copyFileSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

/** Users of a lab server beside root, by name: their passwords, and a line for sudoers where they may use sudo. */
export const USERS = { alice: { password: "open sesame", sudo: true }, bob: { password: "x", sudo: false } };

/** A real sshd on loopback in its own mount namespace: private /run, users and tools, all in one temporary folder. */
export interface Sshd {
  port: number;
  folder: string;
  hostKey: string;
  log(): string;
  stop(): Promise<void>;
  pid: number;
}

export const makeFolder = (): string => mkdtempSync(join(tmpdir(), "overlay-ssh-"));

export function makeKey(folder: string, name: string, ...options: string[]): string {
  const path = join(folder, name);
  execFileSync("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", path, ...options]);
  return path;
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return port;
}

export interface SshdOptions {
  port?: number;
  /** Lines of sshd_config. */
  options?: string[];
  /** Shell commands that change its file system before sshd starts. */
  setup?: string;
  /** Paths of host keys. */
  keys?: string[];
}

export async function startSshd(
  publicKey: string,
  { port, options = [], setup = "", keys = [] }: SshdOptions = {},
): Promise<Sshd> {
  const folder = makeFolder();
  const hostKeys = keys.length > 0 ? keys : [makeKey(folder, "host")];
  const at = port ?? (await freePort());
  copyFileSync(publicKey, join(folder, "authorized_keys"));
  const child = spawn(
    "unshare",
    ["--mount", "--propagation", "private", "sh", "-ec", setupScript(folder, setup), "sshd"].concat(
      ["-D", "-f", "/dev/null", "-E", join(folder, "log"), "-p", String(at)],
      hostKeys.flatMap((key) => ["-h", key]),
      sshdOptions(folder)
        .concat(options)
        .flatMap((option) => ["-o", option]),
    ),
    { stdio: "inherit" },
  );
  await answering(at).catch(async (error) => {
    await stop(child, folder);
    throw error;
  });
  return {
    port: at,
    folder,
    pid: child.pid!,
    hostKey: readFileSync(`${hostKeys[0]}.pub`, "utf8").trim(),
    log: () => readFileSync(join(folder, "log"), "utf8"),
    stop: () => stop(child, folder),
  };
}

const sshdOptions = (folder: string): string[] => [
  "ListenAddress=127.0.0.1",
  `AuthorizedKeysFile=${join(folder, "authorized_keys")}`,
  "StrictModes=no",
  "UsePAM=no",
  "PidFile=none",
  // Without the real root's .bashrc, which cost 120 ms a command.
  `SetEnv=HOME=${folder}`,
];

/** The shell script that sets up the mount namespace and then executes sshd. */
function setupScript(folder: string, setup: string): string {
  const users = Object.entries(USERS);
  const passwd = users.map(([name], index) => `${name}:x:${4200 + index}:4200::${folder}:/bin/sh\n`);
  const shadow = users.map(([name, { password }]) => `${name}:${hash(password)}:19000:0:99999:7:::\n`);
  const sudoers = users.map(([name, { sudo }]) => (sudo ? `${name} ALL=(root) NOPASSWD: ALL\n` : ""));
  chmodSync(folder, 0o755);
  writeFileSync(join(folder, "passwd"), readFileSync("/etc/passwd", "utf8") + passwd.join(""), { mode: 0o644 });
  writeFileSync(join(folder, "shadow"), readFileSync("/etc/shadow", "utf8") + shadow.join(""), { mode: 0o640 });
  // use_pty is the default of current sudo, and the harder case: sudo passes all data on.
  writeFileSync(join(folder, "sudoers"), `Defaults use_pty\n${sudoers.join("")}`, { mode: 0o440 });
  return `
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir /run/sshd
    for file in passwd shadow sudoers; do [ ! -e /etc/$file ] || mount --bind ${folder}/$file /etc/$file; done
    ${setup}
    exec /usr/sbin/sshd "$@"`;
}

const hash = (password: string): string =>
  execFileSync("openssl", ["passwd", "-6", password], { encoding: "utf8" }).trim();

async function answering(port: number): Promise<void> {
  for (let left = 100; left > 0; left--) {
    if (await answers(port)) return;
    await sleep(30);
  }
  throw new Error(`no sshd on port ${port}`);
}

const answers = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    const done = (up: boolean) => {
      socket.destroy();
      resolve(up);
    };
    socket
      .once("data", () => done(true))
      .once("error", () => done(false))
      .once("end", () => done(false));
  });

async function stop(child: ChildProcess, folder: string): Promise<void> {
  const gone = new Promise((resolve) => child.once("exit", resolve));
  if (child.exitCode === null && child.kill()) await gone;
  rmSync(folder, { recursive: true, force: true });
}

/** Creates an empty file, for binding over a tool that a test takes away. */
export function emptyFile(folder: string): string {
  const path = join(folder, "nothing");
  closeSync(openSync(path, "w", 0o600));
  return path;
}
