import { spawn } from "node:child_process";
import { existsSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, expect, onTestFinished, vi } from "vitest";
import type { OverlayError } from "../../provider/errors";
import type { Connection, HostSettings } from "../../provider/host/connection";
import { openHosts, type SshHosts, type SshOptions } from "../../provider/host/ssh/hosts";
import { makeFolder, makeKey, type Sshd, type SshdOptions, startSshd } from "./sshd";

/** SSH servers of a test file, their keys, and clients that are ended with each test. */
vi.setConfig({ testTimeout: 20_000 });
delete process.env.SSH_AUTH_SOCK;
export const ready = process.getuid?.() === 0 && existsSync("/usr/sbin/sshd");
export const folder = makeFolder();
export const knownHosts = join(folder, "known_hosts");
/** A server that all tests of the file may use. */
export let main: Sshd;
export const key = makeKey(folder, "id");
const opened: SshHosts[] = [];
const servers: Sshd[] = [];

const settings: HostSettings = { connectTimeout: 5, operationTimeout: 10, parallelHosts: 16, knownHosts: [knownHosts] };

export function open(changes: Partial<HostSettings> = {}, options?: SshOptions): SshHosts {
  const hosts = openHosts({ ...settings, ...changes }, options);
  opened.push(hosts);
  return hosts;
}

export async function serve(options?: SshdOptions): Promise<Sshd> {
  const sshd = await startSshd(`${key}.pub`, options);
  servers.push(sshd);
  return sshd;
}

export const at = (sshd: { port: number; hostKey?: string }, changes: Partial<Connection> = {}): Connection => ({
  host: "127.0.0.1",
  port: sshd.port,
  privateKeyPath: key,
  hostKey: sshd.hostKey,
  ...changes,
});

export const failure = async (work: Promise<unknown>): Promise<OverlayError> => {
  const error = await work.then(
    () => undefined,
    (error: OverlayError) => error,
  );
  if (!error?.code) throw new Error("it did not fail as it should", { cause: error });
  return error;
};

export const logins = (sshd: Sshd): number => sshd.log().match(/Accepted (publickey|password)/g)?.length ?? 0;

beforeAll(async () => {
  if (ready) main = await serve();
});

afterEach(async () => {
  await Promise.all(opened.splice(0).map((hosts) => hosts.end()));
});

const warnings: Error[] = [];
process.on("warning", (warning) => warnings.push(warning));

afterAll(async () => {
  expect(warnings, "Node warns of leaks").toEqual([]);
  await Promise.all(servers.map((sshd) => sshd.stop()));
  rmSync(folder, { recursive: true, force: true });
});

/** A process of its own with a connected `host`. */
export function client(code: string) {
  const path = join(folder, "client.mts");
  const root = join(__dirname, "../..");
  writeFileSync(
    path,
    `import ssh from ${JSON.stringify(join(root, "provider/host/ssh/hosts.ts"))};
    const host = await ssh.openHosts(${JSON.stringify(settings)}).connect(${JSON.stringify(at(main))});
    ${code}`,
  );
  const child = spawn(process.execPath, ["--import", "tsx", path], { cwd: root, stdio: ["ignore", "pipe", "inherit"] });
  onTestFinished(() => void child.kill("SIGKILL"));
  return child;
}
