#!/usr/bin/env node
import { Command } from "commander";
import pkg from "../../package.json";
import { isOverlayError } from "../errors";
import { layoutCommand } from "./layout";

/** Composition root of the command line. Each command is one file and one line here. */
const program = new Command("overlayctl")
  .description("Looks at overlay networks and their pools.")
  .version(pkg.version)
  .addCommand(layoutCommand());

program.parseAsync().catch((error: unknown) => {
  if (!isOverlayError(error)) throw error;
  console.error(error.message);
  process.exitCode = 1;
});
