#!/usr/bin/env node
import { type Command, CommanderError } from "commander";
import { OverlayError } from "../provider/errors";
import { group, printError } from "./command";

/** By package name: this works from sources and from dist/. */
const { version } = require("pulumi-overlay/package.json") as { version: string };

type Load = () => Promise<Command>;

/** All commands. Each is loaded when it is used, because the clients of stores and SSH load slowly. */
const COMMANDS: Record<string, Load> = {
  layout: async () => (await import("./layout.js")).layoutCommand(),
  explain: async () => (await import("./explain.js")).explainCommand(),
  "pool list": async () => (await import("./pool.js")).poolListCommand(),
  "pool show": async () => (await import("./pool.js")).poolShowCommand(),
  "ip reserve": async () => (await import("./ip.js")).reserveCommand(),
  "ip validate": async () => (await import("./ip.js")).validateCommand(),
  "ip use": async () => (await import("./ip.js")).useCommand(),
  "ip release": async () => (await import("./ip.js")).releaseCommand(),
  "ip free": async () => (await import("./ip.js")).freeCommand(),
  "ip list": async () => (await import("./ip.js")).ipListCommand(),
  "ip show": async () => (await import("./ip.js")).ipShowCommand(),
  "ip run": async () => (await import("./run.js")).runCommand(),
  history: async () => (await import("./pool.js")).historyCommand(),
  import: async () => (await import("./import.js")).importCommand(),
  heartbeat: async () => (await import("./heartbeat.js")).heartbeatCommand(),
  gc: async () => (await import("./gc.js")).gcCommand(),
  recover: async () => (await import("./recover.js")).recoverCommand(),
  scan: async () => (await import("./scan.js")).scanCommand(),
  simulate: async () => (await import("./simulate.js")).simulateCommand(),
  topology: async () => (await import("./topology.js")).topologyCommand(),
  plan: async () => (await import("./plan.js")).planCommand(),
  verify: async () => (await import("./verify.js")).verifyCommand(),
  serve: async () => (await import("./serve.js")).serveCommand(),
  "access create": async () => (await import("./access.js")).accessCreateCommand(),
  "access list": async () => (await import("./access.js")).accessListCommand(),
  "access revoke": async () => (await import("./access.js")).accessRevokeCommand(),
  "webhook add": async () => (await import("./webhook.js")).webhookAddCommand(),
  "webhook list": async () => (await import("./webhook.js")).webhookListCommand(),
  "webhook resume": async () => (await import("./webhook.js")).webhookResumeCommand(),
  "webhook remove": async () => (await import("./webhook.js")).webhookRemoveCommand(),
  "store check": async () => (await import("./store.js")).checkCommand(),
  "store dump": async () => (await import("./store.js")).dumpCommand(),
  "store keys": async () => (await import("./store.js")).keysCommand(),
  "store migrate": async () => (await import("./store.js")).migrateCommand(),
  "store reopen": async () => (await import("./store.js")).reopenCommand(),
};

const GROUPS: Record<string, string> = {
  pool: "Pools and their leases.",
  ip: "Addresses on runners and in pools.",
  webhook: "Receivers of events, to which `overlayctl serve` delivers.",
  access: "Access tokens for callers of `overlayctl serve`.",
  store: "The store that contains the pools.",
};

/** The command that these arguments name, the commands of a group, or, for help and typing errors, all. */
function commandsFor(words: string[]): string[] {
  if (isVersion(words)) return [];
  const named = words[0] === "help" ? words.slice(1) : words;
  const all = Object.keys(COMMANDS);
  const exact = all.find((name) => name === named[0] || name === `${named[0]} ${named[1]}`);
  const inGroup = all.filter((name) => name.startsWith(`${named[0]} `));
  return exact !== undefined ? [exact] : inGroup.length > 0 ? inGroup : all;
}

const isVersion = ([first]: string[]): boolean => first === "--version" || first === "-V";

async function buildProgram(words: string[]): Promise<Command> {
  const groups = new Map<string, Command>();
  const top: Command[] = [];
  for (const name of commandsFor(words)) {
    const [head = "", tail] = name.split(" ");
    const loaded = await COMMANDS[name]!();
    if (tail === undefined) top.push(loaded);
    else if (groups.has(head)) groups.get(head)!.addCommand(loaded);
    else {
      groups.set(head, group(head, GROUPS[head]!, [loaded]));
      top.push(groups.get(head)!);
    }
  }
  const description = "Shows overlay networks and their pools, and reserves addresses.";
  return group("overlayctl", description, top).version(version).addHelpText("after", COMMON_OPTIONS);
}

const COMMON_OPTIONS = `
Commands on a store take it from --store URL, --store-file FILE, --stack NAME (the settings of a Pulumi stack, in
the folder of its program) or OVERLAY_STORE. All commands take --json. \`overlayctl COMMAND --help\` shows the rest.`;

/** Commander would exit with 1, which here means an error of a command. */
const BAD_USAGE = 2;

/** Makes Commander throw its errors, so that they are printed like all others. */
function throwErrors(command: Command): void {
  command.exitOverride().configureOutput({ outputError: () => {} });
  for (const each of command.commands) throwErrors(each);
}

/** Moves options that all commands have from before the name of the command to after it. */
function moveOptions(words: string[]): string[] {
  const rest = [...words];
  const [name, options]: [string[], string[]] = [[], []];
  while (rest.length > 0 && (name.length === 0 || (name.length === 1 && name[0]! in GROUPS))) {
    const word = rest.shift()!;
    if (["--store", "--store-file", "--stack"].includes(word)) options.push(word, ...rest.splice(0, 1));
    else if (word === "--json" || /^--(store|store-file|stack)=/.test(word)) options.push(word);
    else name.push(word);
  }
  return [...name, ...(name.join(" ") in COMMANDS ? options : []), ...rest];
}

/** Only before `--`: arguments after it belong to the command of `ip run`. */
function hasJsonFlag(words: string[]): boolean {
  const end = words.indexOf("--");
  return (end < 0 ? words : words.slice(0, end)).includes("--json");
}

function printUsageError({ code, exitCode, message }: CommanderError, words: string[]): void {
  if (exitCode === 0) return;
  const isHelp = code === "commander.help"; // Commander has printed the list of commands
  const what = isHelp ? "No command given." : toSentence(message.replace(/^error: /, ""));
  printError(
    new OverlayError("INPUT_INVALID", what, "Add --help to see all commands and options."),
    hasJsonFlag(words),
    BAD_USAGE,
  );
}

/** Commander's texts begin in lower case, with suggestions on a second line. */
const toSentence = (text: string): string =>
  (text[0]!.toUpperCase() + text.slice(1)).replace("\n", " ").replace(/([^.)?])$/, "$1.");

/** A reader such as `head` may close the pipe early. */
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code !== "EPIPE") throw error;
  process.exit();
});

async function main(given: string[]): Promise<void> {
  const words = moveOptions(given);
  const program = await buildProgram(words);
  throwErrors(program);
  await program.parseAsync(words, { from: "user" }).catch((error: unknown) => {
    if (!(error instanceof CommanderError)) throw error;
    printUsageError(error, given);
  });
}

void main(process.argv.slice(2));
