import { access, readFile } from "node:fs/promises";
import { text as streamText } from "node:stream/consumers";
import { Command, InvalidArgumentError } from "commander";
import type { z } from "zod";
import { isOverlayError, OverlayError } from "../provider/errors";
import type { Store } from "../provider/ipam";
import type { Context } from "../provider/reservations/context";
import { readSecretFile, trimSecret } from "../provider/secret-file";
import type { Settings } from "../provider/settings";
import { jsonLine, Output } from "./output";

/** A command with the options that all commands have. */
export const command = (name: string, description: string): Command =>
  new Command(name)
    .description(description)
    .option(
      "--store <url>",
      "URL of the store; default: OVERLAY_STORE or OVERLAY_STORE_FILE, else a file under Pulumi's home",
    )
    .option(
      "--store-file <file>",
      "a file with that URL, so that a password is not in process lists; `-` is standard input",
    )
    .option("--stack <name>", "take the settings of this Pulumi stack, in the folder of its program")
    .option("--json", "print one JSON object per line");

/** A command with subcommands. */
export function group(name: string, description: string, commands: Command[]): Command {
  // Options after the command of `ip run` belong to that command.
  const all = new Command(name).description(description).enablePositionalOptions();
  for (const each of commands) all.addCommand(each);
  return all;
}

export interface Session {
  settings: Settings;
  pool: Store;
  /** For the functions of `reservations/`. */
  context: Context;
  out: Output;
}

interface Common {
  store?: string;
  storeFile?: string;
  stack?: string;
  json?: boolean;
}

type PoolWork<O> = (session: Session, options: O, ...words: string[]) => Promise<void>;

/** Runs the action of a command with an open pool, and prints its errors. A file that does not exist is not made. */
export const withPool = <O>(work: PoolWork<O>) =>
  withSettings<O>(async (settings, ...given) => {
    await requireFile(settings.store);
    await runWithPool(work, settings, ...given);
  });

/** The same for a command that can be the first one on a store. */
export const withNewPool = <O>(work: PoolWork<O>) =>
  withSettings<O>((settings, ...given) => runWithPool(work, settings, ...given));

async function runWithPool<O>(
  work: PoolWork<O>,
  settings: Settings,
  out: Output,
  options: O,
  ...words: string[]
): Promise<void> {
  const { openIpam } = await import("../provider/ipam/index.js");
  const pool = await openIpam(settings.store, settings);
  try {
    const { tokenKeys, tenant, tenantDefaults } = settings;
    await work({ settings, pool, context: { pool, tokenKeys, tenant, tenantDefaults }, out }, options, ...words);
  } finally {
    await pool.end();
  }
}

/** Rejects a SQLite file that does not exist: opening it would create it. */
export async function requireFile(store: string): Promise<void> {
  const [, path] = /^sqlite:([^?]+)/.exec(store) ?? [];
  if (path === undefined) return;
  await access(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "ENOENT") return; // opening it names the reason
    throw new OverlayError(
      "STORE_UNAVAILABLE",
      `There is no store at ${path}.`,
      "Check --store, OVERLAY_STORE and OVERLAY_STORE_FILE. The first `pulumi preview` or `pulumi up` of a stack makes its store.",
      error,
    );
  });
}

/** The same without a pool. */
export const withSettings =
  <O>(work: (settings: Settings, out: Output, options: O, ...words: string[]) => Promise<void>) =>
  async (...given: unknown[]): Promise<void> => {
    const [options, words] = [given.at(-2) as O & Common, given.slice(0, -2) as string[]];
    try {
      const { readSettings } = await import("../provider/settings.js");
      const store = await readSecretOption("store", options.store, options.storeFile);
      const { stack } = options;
      const ofStack = stack === undefined ? undefined : await readStack(stack);
      const settings = readSettings((key) => (key === "store" ? store : undefined) ?? ofStack?.get(key));
      await work(settings, new Output(options.json === true), options, ...words);
    } catch (error) {
      if (!isOverlayError(error)) throw error;
      printError(error, options.json === true);
    }
  };

const readStack = async (name: string) => (await import("./stack-config.js")).readStackSettings(name);

const REFUSED = 1;

/** Prints an error to stderr, and with `--json` also to stdout. */
export function printError(error: OverlayError, json: boolean, exitCode = REFUSED): void {
  process.exitCode = exitCode;
  const { code, message, what, fix } = error;
  if (json) process.stdout.write(`${jsonLine({ error: code, message, what, fix })}\n`);
  process.stderr.write(`${message}\n`);
}

/** Parses options; an invalid one is wrong usage. `flags`: options whose name differs from their property. */
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

/** Reads a secret from a file; `-` is standard input. Every local user can read command lines. */
export async function readSecret(file: string): Promise<string> {
  if (file !== "-") return readSecretFile(file);
  return trimSecret(await streamText(process.stdin), "Standard input is empty, or was already read");
}

/** A secret from one option, or from the file that another option names; `-` for either is standard input. */
export async function readSecretOption(
  name: string,
  given: string | undefined,
  file: string | undefined,
): Promise<string | undefined> {
  if (given !== undefined && file !== undefined)
    throw new OverlayError("INPUT_INVALID", `Both a ${name} and a file with it were given.`, "Give only one of them.");
  if (file !== undefined || given === "-") return readSecret(file ?? "-");
  return given;
}

/** The text of a file that the user names; `-` is standard input. */
export const readInput = (file: string): Promise<string> =>
  (file === "-" ? streamText(process.stdin) : readFile(file, "utf8")).catch(rejectUnreadable(file));

export const rejectUnreadable =
  (file: string) =>
  (error: Error): never => {
    throw new OverlayError(
      "INPUT_INVALID",
      `${file} cannot be read: ${error.message}.`,
      "Give a file that exists.",
      error,
    );
  };
