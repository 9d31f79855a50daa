#!/usr/bin/env node
import { type Command, CommanderError } from "commander";
import { group } from "./command";
import { gcCommand } from "./gc";
import { heartbeatCommand } from "./heartbeat";
import { importCommand } from "./import";
import { freeCommand } from "./ip/free";
import * as ip from "./ip/list";
import { releaseCommand } from "./ip/release";
import { reserveCommand } from "./ip/reserve";
import { runCommand } from "./ip/run";
import { useCommand } from "./ip/use";
import { validateCommand } from "./ip/validate";
import { layoutCommand } from "./layout";
import { planCommand } from "./plan/command";
import * as pool from "./pool/list";
import { showCommand } from "./pool/show";
import { recoverCommand } from "./recover";
import { scanCommand } from "./scan/command";
import { checkCommand } from "./store/check";
import { dumpCommand } from "./store/dump";
import { keysCommand } from "./store/keys";
import { migrateCommand } from "./store/migrate";
import { reopenCommand } from "./store/reopen";
import { topologyCommand } from "./topology";
import { verifyCommand } from "./verify/command";

/** By its own name: from sources and from dist/ alike. */
const { version } = require("pulumi-overlay/package.json") as { version: string };

/** Composition root of the command line. Each command is one file and one line here. */
const program = group("overlayctl", "Looks at overlay networks and their pools, and gives out addresses.", [
  layoutCommand(),
  group("pool", "What is given out, and to whom.", [pool.listCommand(), showCommand()]),
  group("ip", "Addresses on runners.", [
    reserveCommand(),
    validateCommand(),
    useCommand(),
    releaseCommand(),
    freeCommand(),
    ip.listCommand(),
    runCommand(),
  ]),
  importCommand(),
  heartbeatCommand(),
  gcCommand(),
  recoverCommand(),
  scanCommand(),
  topologyCommand(),
  planCommand(),
  verifyCommand(),
  group("store", "The place where pools are kept.", [
    checkCommand(),
    dumpCommand(),
    keysCommand(),
    migrateCommand(),
    reopenCommand(),
  ]),
]).version(version);

/** Commander ends the process with 1, which here means a refusal. */
const BAD_USAGE = 2;

function letErrorsPass(command: Command): void {
  command.exitOverride();
  for (const each of command.commands) letErrorsPass(each);
}

/** Whoever reads our output may have seen enough, like `head`. */
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code !== "EPIPE") throw error;
  process.exit();
});

letErrorsPass(program);
program.parseAsync().catch((error: unknown) => {
  if (!(error instanceof CommanderError)) throw error;
  process.exitCode = error.exitCode === 0 ? 0 : BAD_USAGE;
});
