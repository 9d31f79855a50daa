import { type SpawnOptions, spawn } from "node:child_process";
import { existsSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

/** Identifies a process: its pid and its start time, because pids are reused. */
export interface Identity {
  pid: number;
  start: string;
}

export interface ProcessResult {
  code: number;
  stdout: string;
  stderr: string;
}

/** The fields of /proc/PID/stat after the command's name, which may itself hold blanks and brackets; none for a zombie. */
function statFields(pid: number): string[] | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return fields[0] === "Z" || fields[0] === "X" ? undefined : fields;
  } catch {
    return undefined;
  }
}

export function identityOf(pid: number): Identity | undefined {
  const start = statFields(pid)?.[19];
  return start === undefined ? undefined : { pid, start };
}

export const isAlive = (process: Identity): boolean => identityOf(process.pid)?.start === process.start;

/** Ends these processes, if their pids were not reused, and waits until they are gone. */
export async function end(processes: Identity[]): Promise<void> {
  for (const process of processes) if (isAlive(process)) kill(process.pid);
  for (let waited = 0; processes.some(isAlive); waited += 10) {
    if (waited > 10_000) throw new Error(`still there after SIGKILL: ${processes.filter(isAlive).map((p) => p.pid)}`);
    await sleep(10);
  }
}

function kill(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

/** Every other process in the network namespace of `holder`, but not the calling process and its ancestors. */
export function guestsOf(holder: Identity): Identity[] {
  const namespace = networkNamespace(holder.pid);
  const spared = new Set([holder.pid]);
  for (let pid = process.pid; pid > 0; pid = Number(statFields(pid)?.[1] ?? 0)) spared.add(pid);
  return readdirSync("/proc")
    .map(Number)
    .filter((pid) => pid > 0 && !spared.has(pid) && networkNamespace(pid) === namespace)
    .map(identityOf)
    .filter((identity) => identity !== undefined);
}

/** Whether anything listens on a TCP port in the network namespace of a process. */
export function isListening(pid: number, port: number): boolean {
  const local = new RegExp(`:${port.toString(16).toUpperCase().padStart(4, "0")} [0-9A-F]+:0000 0A `);
  return ["tcp", "tcp6"].some((table) => {
    const file = `/proc/${pid}/net/${table}`;
    return existsSync(file) && local.test(readFileSync(file, "utf8"));
  });
}

function networkNamespace(pid: number): string | undefined {
  try {
    return readlinkSync(`/proc/${pid}/ns/net`);
  } catch {
    return undefined;
  }
}

export type RunOptions = SpawnOptions & { input?: string };

/** Runs a command and returns its output. Rejects only if it cannot be started. */
export async function run([command, ...args]: readonly string[], options: RunOptions = {}): Promise<ProcessResult> {
  const { input, ...rest } = options;
  const child = spawn(command!, args, { stdio: [input === undefined ? "ignore" : "pipe", "pipe", "pipe"], ...rest });
  const output = { stdout: "", stderr: "" };
  for (const name of ["stdout", "stderr"] as const)
    child[name]?.setEncoding("utf8").on("data", (text: string) => {
      output[name] += text;
    });
  child.stdin?.on("error", () => {}).end(input); // a command may end without reading its input
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code) => resolve({ code: code ?? 255, ...output }));
  });
}

/** Output of a command that has to succeed. */
export async function must(command: readonly string[]): Promise<string> {
  const { code, stdout, stderr } = await run(command);
  if (code !== 0) throw new Error(`${command.join(" ")}: exit code ${code}: ${stderr.trim() || stdout.trim()}`);
  return stdout;
}

/** Runs all calls, at most `limit` at a time. After a failure no further call starts, and running ones are awaited. */
export async function inParallel(work: readonly (() => Promise<void>)[], limit: number): Promise<void> {
  const queue = [...work];
  const worker = async () => {
    try {
      for (let next = queue.shift(); next !== undefined; next = queue.shift()) await next();
    } finally {
      queue.length = 0;
    }
  };
  const ends = await Promise.allSettled(Array.from({ length: limit }, worker));
  for (const end of ends) if (end.status === "rejected") throw end.reason;
}

/** All descendants of a process. */
export function descendantsOf(pid: number): Identity[] {
  const all = readdirSync("/proc").map(Number).filter(Boolean);
  const parents = new Map(all.map((each) => [each, Number(statFields(each)?.[1])]));
  const found: number[] = [];
  for (let level = [pid]; level.length > 0; ) {
    level = all.filter((each) => level.includes(parents.get(each)!));
    found.push(...level);
  }
  return found.map(identityOf).filter((identity) => identity !== undefined);
}
