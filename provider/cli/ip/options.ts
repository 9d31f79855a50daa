import type { Command } from "commander";
import type { Lease } from "../../pool/types";
import { describeLease } from "../../reservations";
import type { Output } from "../output";
import { secretOf } from "../secret-file";

/** What the commands on addresses have in common. */

/** A runner's subnet, or any other pool. */
export const withPlace = (command: Command): Command =>
  command
    .option("--network <name>", "the network of the runner")
    .option("--runner <name>", "the runner")
    .option("--pool <name>", "instead of a runner: an IPPool, or any pool that `pool list` shows");

/** A place and a value in it. */
export const withAddress = (command: Command, what = "the address"): Command =>
  withPlace(command).option("--ip <address>", what).option("--port <number>", "in a pool of ports: the port");

interface Token {
  token?: string;
  tokenFile?: string;
}

export const withTokenFile = (command: Command): Command =>
  command.option(
    "--token-file <file>",
    "a file with the token, which keeps it out of process lists; `-` is standard input",
  );

export const withToken = (command: Command, what: string): Command =>
  withTokenFile(command.option("--token <token>", `${what}; \`-\` is standard input`));

/** The same options, with the token itself in them. */
export async function readToken<O extends Token>({ tokenFile, ...options }: O): Promise<Omit<O, "tokenFile">> {
  const token = await secretOf("token", options.token, tokenFile);
  return { ...options, ...(token !== undefined && { token }) };
}

export const COLUMNS = [
  "ip",
  "ip6",
  "pool",
  "state",
  "usedBy",
  "createdAt",
  "expiresAt",
  "tenant",
  "labels",
  "owner",
] as const;

export const listLeases = (out: Output, leases: Lease[]): void => out.list(leases.map(describeLease), [...COLUMNS]);
