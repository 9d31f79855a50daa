import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { chownSync, closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

/** A server process that runs in its folder, writes to `LOG` there, and ends with this process in any case. Paths in its command are absolute. */
export class Server {
  #child: ChildProcess | undefined;

  constructor(
    readonly folder: string,
    private readonly command: string[],
    private readonly user?: string,
    /** A prefix of the command, such as one that enters a network namespace. */
    private readonly within: string[] = [],
  ) {}

  get pid(): number {
    return this.#child!.pid!;
  }

  /** `isReady` is called until it returns true. */
  async start(isReady: () => Promise<boolean>): Promise<void> {
    const log = openSync(join(this.folder, "LOG"), "a");
    const [program, ...args] = [...this.within, ...tied(this.command, "KILL", this.user)] as [string, ...string[]];
    this.#child = spawn(program, args, { stdio: ["ignore", log, log], cwd: this.folder });
    closeSync(log);
    for (const deadline = Date.now() + 30_000; !(await isReady()); await sleep(50)) {
      if (this.#child.exitCode !== null || Date.now() > deadline)
        throw new Error(
          `${this.command[0]} did not start:\n${readFileSync(join(this.folder, "LOG"), "utf8").slice(-4000)}`,
        );
    }
  }

  async kill(signal: NodeJS.Signals): Promise<void> {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, "exit");
    child.kill(signal);
    await gone;
  }
}

/** A command that gets a signal when its parent is gone; as another user where we are root. */
export function tied(command: string[], signal: string, user?: string): string[] {
  const as = user && process.getuid?.() === 0 ? ["--reuid", user, "--regid", user, "--init-groups"] : [];
  return ["setpriv", ...as, "--pdeathsig", signal, ...command];
}

/** In memory if possible, because it is faster. On disk for tests of crashes. */
export function newFolder(where: "memory" | "disk", user?: string): string {
  const folder = mkdtempSync(
    join(where === "memory" && existsSync("/dev/shm") ? "/dev/shm" : tmpdir(), "overlay-server-"),
  );
  giveTo(folder, user);
  return folder;
}

/** Only as root; other users own the files that they create. */
export function giveTo(path: string, user?: string): void {
  if (!user || process.getuid?.() !== 0) return;
  const id = (flag: string) => Number(execFileSync("id", [flag, user], { encoding: "utf8" }));
  chownSync(path, id("-u"), id("-g"));
}

export const removeFolder = (folder: string): void => rmSync(folder, { recursive: true, force: true });

/** A port without a listener. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, "close");
  return port;
}
