import type { Command } from "commander";
import type { Lease } from "../../pool/types";
import { describeLease } from "../../reservations";
import type { Output } from "../output";

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
