/** Messages of set-up: a line for each action and its reason, and progress for long ones. On standard error, so that output can be piped. */
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

/** @param {string} line */
export const say = (line) => console.error(line);

/**
 * Shows "  label: 12 s, detail" until it is done: in place on a terminal, else a line every 15 seconds.
 * @template T @param {string} label @param {(detail: (text: string) => void) => Promise<T>} work @returns {Promise<T>}
 */
export async function during(label, work) {
  const started = Date.now();
  const tty = process.stderr.isTTY;
  let detail = "";
  const line = () => `  ${label}: ${Math.round((Date.now() - started) / 1000)} s${detail && `, ${detail}`}`;
  const show = () =>
    process.stderr.write(tty ? `\r\x1b[K${line().slice(0, (process.stderr.columns ?? 80) - 1)}` : `${line()}\n`);
  const timer = setInterval(show, tty ? 500 : 15_000);
  try {
    const result = await work((text) => {
      detail = text;
    });
    detail = "done";
    return result;
  } catch (error) {
    detail = "failed";
    throw error;
  } finally {
    clearInterval(timer);
    show();
    if (tty) process.stderr.write("\n");
  }
}

/**
 * Runs a command to its end; its output is handed on line by line, and is in the error if it fails.
 * @param {string} command @param {string[]} args
 * @param {{ cwd?: string, env?: NodeJS.ProcessEnv, onLine?: (line: string) => void }} [options]
 * @returns {Promise<string>} its stdout
 */
export function run(command, args, { onLine = () => {}, ...options } = {}) {
  const child = spawn(command, args, { ...options, stdio: ["ignore", "pipe", "pipe"] });
  const stdout = /** @type {string[]} */ ([]);
  const all = /** @type {string[]} */ ([]);
  for (const stream of [child.stdout, child.stderr])
    createInterface({ input: stream }).on("line", (line) => {
      if (stream === child.stdout) stdout.push(line);
      all.push(line);
      onLine(line);
    });
  const failure = (/** @type {number | null} */ code) =>
    new Error(`${command} ${args[0]} ended with exit code ${code}:\n${all.slice(-40).join("\n")}`);
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code) => (code === 0 ? resolve(stdout.join("\n")) : reject(failure(code))));
  });
}
