#!/usr/bin/env node
import { type Command, CommanderError } from "commander";
import pkg from "../../package.json";
import { group } from "./command";
import { heartbeatCommand } from "./heartbeat";
import { freeCommand } from "./ip/free";
import * as ip from "./ip/list";
import { releaseCommand } from "./ip/release";
import { reserveCommand } from "./ip/reserve";
import { useCommand } from "./ip/use";
import { validateCommand } from "./ip/validate";
import { layoutCommand } from "./layout";
import * as pool from "./pool/list";
import { showCommand } from "./pool/show";
import { checkCommand } from "./store/check";
import { dumpCommand } from "./store/dump";
import { migrateCommand } from "./store/migrate";

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
  ]),
  heartbeatCommand(),
  group("store", "The place where pools are kept.", [checkCommand(), dumpCommand(), migrateCommand()]),
]).version(pkg.version);

/** Commander ends the process with 1, which here means a refusal. */
const BAD_USAGE = 2;

function letErrorsPass(command: Command): void {
  command.exitOverride().enablePositionalOptions();
  for (const each of command.commands) letErrorsPass(each);
}

letErrorsPass(program);
program.parseAsync().catch((error: unknown) => {
  if (!(error instanceof CommanderError)) throw error;
  process.exitCode = error.exitCode === 0 ? 0 : BAD_USAGE;
});
