import { text as streamText } from "node:stream/consumers";
import { Command, InvalidArgumentError } from "commander";
import type { z } from "zod";
import { isOverlayError, OverlayError } from "../errors";
import type { Pool } from "../pool/types";
import type { Context } from "../reservations/tokens";
import { readSecretFile, trimSecret } from "../secret-file";
import type { Settings } from "../settings";
import { jsonLine, Output } from "./output";

/** What every command has: the store and the form of its answer. */
export const command = (name: string, description: string): Command =>
  new Command(name)
    .description(description)
    .option(
      "--store <url>",
      "where the pool is kept; default: OVERLAY_STORE or OVERLAY_STORE_FILE, else a file under Pulumi's home",
    )
    .option(
      "--store-file <file>",
      "a file with that URL, which keeps a password out of process lists; `-` is standard input",
    )
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
  /** For the functions of `reservations/`. */
  context: Context;
  out: Output;
}

interface Common {
  store?: string;
  storeFile?: string;
  json?: boolean;
}

/** A command's work, with the pool open around it and its refusals printed. The pool is loaded when it is needed. */
export const withPool = <O>(work: (session: Session, options: O, ...words: string[]) => Promise<void>) =>
  withSettings<O>(async (settings, out, options, ...words) => {
    const { openPool } = await import("../pool/index.js");
    const pool = await openPool(settings.store, settings);
    try {
      const { tokenKeys, tenant } = settings;
      await work({ settings, pool, context: { pool, tokenKeys, tenant }, out }, options, ...words);
    } finally {
      await pool.end();
    }
  });

/** The same for those that open stores themselves. */
export const withSettings =
  <O>(work: (settings: Settings, out: Output, options: O, ...words: string[]) => Promise<void>) =>
  async (...given: unknown[]): Promise<void> => {
    const [options, words] = [given.at(-2) as O & Common, given.slice(0, -2) as string[]];
    try {
      const { readSettings } = await import("../settings.js");
      const store = await readSecretOption("store", options.store, options.storeFile);
      const settings = readSettings((key) => (key === "store" ? store : undefined));
      await work(settings, new Output(options.json === true), options, ...words);
    } catch (error) {
      if (!isOverlayError(error)) throw error;
      printError(error, options.json === true);
    }
  };

const REFUSED = 1;

/** Prints an error, for programs too where they asked for that. Bad usage has an exit code of its own. */
export function printError(error: OverlayError, json: boolean, exitCode = REFUSED): void {
  process.exitCode = exitCode;
  const { code, message, what, fix } = error;
  if (json) process.stdout.write(`${jsonLine({ error: code, message, what, fix })}\n`);
  process.stderr.write(`${message}\n`);
}

/** Options as the schema wants them; what it refuses is bad usage. `flags`: options that have another name than their property. */
export function parseOptions<S extends z.ZodObject>(
  schema: S,
  options: unknown,
  flags: Record<string, string> = {},
): z.output<S> {
  const parsed = schema.safeParse(options);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const property = String(issue!.path[0]);
  const flag = flags[property] ?? property;
  throw new InvalidArgumentError(`${flag === flag.toUpperCase() ? flag : `--${flag}`} ${issue!.message}.`);
}

export function wholeNumber(text: string): number {
  if (/^\d{1,15}$/.test(text)) return Number(text);
  throw new InvalidArgumentError("It must be a whole number.");
}

export function percent(text: string): number {
  if (/^\d{1,3}(\.\d{1,2})?$/.test(text) && Number(text) <= 100) return Number(text);
  throw new InvalidArgumentError("It must be a number from 0 to 100.");
}

/** The secret in a file. `-` is standard input: what stands on a command line, every local user can read. */
export async function readSecret(file: string): Promise<string> {
  if (file !== "-") return readSecretFile(file);
  return trimSecret(await streamText(process.stdin), "Standard input is empty, or was read already");
}

/** A secret that an option gives, or a file that another option names; `-` in the place of either is standard input. */
export async function readSecretOption(
  name: string,
  given: string | undefined,
  file: string | undefined,
): Promise<string | undefined> {
  if (given !== undefined && file !== undefined)
    throw new OverlayError("INPUT_INVALID", `Both a ${name} and a file with it were given.`, "Leave one of them out.");
  if (file !== undefined || given === "-") return readSecret(file ?? "-");
  return given;
}
