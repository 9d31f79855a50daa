import { Command, InvalidArgumentError } from "commander";
import { fromLine, pointOf } from "../addressing/line";
import { isOverlayError, type OverlayError } from "../errors";
import { openPool, type Pool } from "../pool";
import { readSettings, type Settings } from "../settings";
import { Output } from "./output";

/** What every command has: the store and the form of its answer. */
export const command = (name: string, description: string): Command =>
  new Command(name)
    .description(description)
    .option("--store <url>", "where the pool is kept; default: OVERLAY_STORE, else a file under Pulumi's home")
    .option("--json", "print one JSON object a line");

/** A word with commands of its own. */
export function group(name: string, description: string, commands: Command[]): Command {
  // Behind the command that `ip run` starts, all options are that command's.
  const all = new Command(name).description(description).enablePositionalOptions();
  for (const each of commands) all.addCommand(each);
  return all;
}

export interface Session {
  settings: Settings;
  pool: Pool;
  out: Output;
}

interface Common {
  store?: string;
  json?: boolean;
}

/** A command's work, with the pool open around it and its refusals printed. */
export const withPool = <O>(work: (session: Session, options: O, ...words: string[]) => Promise<void>) =>
  guarded<O>(async (settings, out, options, ...words) => {
    const pool = await openPool(settings.store, settings);
    try {
      await work({ settings, pool, out }, options, ...words);
    } finally {
      await pool.end();
    }
  });

/** The same for those that open stores themselves. */
export const guarded =
  <O>(work: (settings: Settings, out: Output, options: O, ...words: string[]) => Promise<void>) =>
  async (...given: unknown[]): Promise<void> => {
    const [options, words] = [given.at(-2) as O & Common, given.slice(0, -2) as string[]];
    try {
      const settings = readSettings((key) => (key === "store" ? options.store : undefined));
      await work(settings, new Output(options.json === true), options, ...words);
    } catch (error) {
      if (!isOverlayError(error)) throw error;
      refuse(error, options.json === true);
    }
  };

/** Exit code 1 and the error's own code; bad usage is 2. */
export function refuse(error: OverlayError, json: boolean): void {
  process.exitCode = 1;
  if (json) process.stdout.write(`${JSON.stringify({ error: error.code, message: error.message })}\n`);
  process.stderr.write(`${error.message}\n`);
}

/** Options are read strictly: `10.128.064.006` is another address to some programs. */
export function address(text: string): bigint {
  const point = pointOf(text);
  if (point === undefined || fromLine(point) !== text.toLowerCase()) {
    throw new InvalidArgumentError("It must be an IP address in its usual form, like 10.128.64.5 or fd00::5.");
  }
  return point;
}

export function wholeNumber(text: string): number {
  if (/^\d{1,15}$/.test(text)) return Number(text);
  throw new InvalidArgumentError("It must be a whole number.");
}

export function seconds(text: string): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= 1 && value <= 86400) return value;
  throw new InvalidArgumentError("It must be a whole number of seconds from 1 to 86400.");
}

/** Names of containers and the like, which become part of keys. */
export function plainName(text: string): string {
  if (/^[^\s\p{Cc}]{1,200}$/u.test(text)) return text;
  throw new InvalidArgumentError("It must be 1 to 200 characters without blanks.");
}
