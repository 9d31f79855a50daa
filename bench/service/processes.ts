import { type ChildProcess, fork, spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildSync } from "esbuild";
import { root } from "../../setup/tools.mjs";
import { tied } from "../../test/contract/servers/process";
import { waitFor } from "../../test/contract/service-process";
import { OVERLAYCTL } from "../../test/unit/cli/ctl";
import { type CompiledProgram, compilePrograms as compilePool } from "../pool/compiled";

/** A process that answers HTTP. */
export interface HttpProcess {
  url: string;
  /** CPU time that it has used, in milliseconds. */
  cpuTime(): number;
  stop(): Promise<void>;
}

/** What the measured and measuring processes run, compiled: tsx makes code slower. */
export interface Programs {
  driver: string;
  reference: string;
  pool: CompiledProgram;
}

export function compilePrograms(): Programs {
  const outdir = join(root, "node_modules", ".bench", "service");
  const entryPoints = ["driver.ts", "reference.ts"].map((name) => join(__dirname, name));
  buildSync({ entryPoints, outdir, bundle: true, platform: "node", packages: "external", target: "node20" });
  const [driver, reference] = [join(outdir, "driver.js"), join(outdir, "reference.js")];
  return { driver, reference, pool: compilePool().this };
}

/** Options of `overlayctl serve`: the driver has one access token. */
const RATE_LIMIT = ["--rate-limit", "1000000"];

/** Without quarantine, as the other benchmarks: an address can be given out again at once. */
const SETTINGS = { OVERLAY_QUARANTINE: "0" };

/** `overlayctl serve` of dist/ as a process of its own, with its usual log, into a file. */
export async function startInstance(store: string): Promise<HttpProcess> {
  const folder = mkdtempSync(join(tmpdir(), "overlay-bench-"));
  const log = join(folder, "log");
  const file = openSync(log, "w");
  const command = [process.execPath, OVERLAYCTL, "serve", "--listen", "127.0.0.1:0", ...RATE_LIMIT];
  const [program, ...args] = tied(command, "KILL") as [string, ...string[]];
  const env = { PATH: process.env.PATH, HOME: folder, OVERLAY_STORE: store, ...SETTINGS };
  const child = spawn(program, args, { cwd: folder, env, stdio: ["ignore", file, file] });
  closeSync(file);
  const readUrl = () => {
    const text = readFileSync(log, "utf8");
    if (child.exitCode !== null) throw new Error(`overlayctl serve has ended:\n${text}`);
    return /listening at (http[^"]+)/.exec(text)?.[1];
  };
  const stop = async () => {
    await end(child);
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    return { url: await waitFor(readUrl), cpuTime: () => cpuTimeOf(child), stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

export async function startReference(program: string): Promise<HttpProcess> {
  const child = fork(program, { execArgv: [] });
  const url = await Promise.race([
    once(child, "message").then(([text]) => String(text)),
    once(child, "exit").then(() => Promise.reject(new Error("the reference has ended"))),
  ]);
  return { url, cpuTime: () => cpuTimeOf(child), stop: () => end(child) };
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, "exit");
  child.kill("SIGTERM");
  await ended;
}

/** The kernel counts in hundredths of a second. */
const TICK_MS = 10;

function cpuTimeOf({ pid }: ChildProcess): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8")
    .replace(/^.*\) /s, "")
    .split(" ");
  const [user, system] = fields.slice(11, 13).map(Number) as [number, number];
  return (user + system) * TICK_MS;
}
