import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { z } from "zod";
import { OverlayError } from "../provider/errors";
import { tryParseJson } from "../provider/json";

const configuration = z.record(z.string(), z.looseObject({ value: z.string().optional() }));

/** The settings `overlay:KEY` of a stack, by KEY, as `pulumi` reads them in this folder. */
export async function readStackSettings(stack: string): Promise<Map<string, string>> {
  const args = ["config", "--json", "--show-secrets", "--stack", stack, "--non-interactive"];
  const { stdout } = await promisify(execFile)("pulumi", args, { maxBuffer: 1 << 26 }).catch(rejectUnreadable(stack));
  const parsed = configuration.safeParse(tryParseJson(stdout));
  if (!parsed.success) throw rejectUnreadable(stack)(new Error("its output is not JSON"));
  const ours = Object.entries(parsed.data).filter(([key]) => key.startsWith(PREFIX));
  return new Map(ours.flatMap(([key, { value }]) => (value === undefined ? [] : [[key.slice(PREFIX.length), value]])));
}

const PREFIX = "overlay:";

const rejectUnreadable =
  (stack: string) =>
  (error: Error & { stderr?: string }): never => {
    throw new OverlayError(
      "INPUT_INVALID",
      `The settings of stack ${stack} cannot be read: ${(error.stderr || error.message).trim()}.`,
      "Run it in the folder of the stack's program, with pulumi on the PATH and the passphrase of the stack.",
      error,
    );
  };
