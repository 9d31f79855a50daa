import type { Item } from "../model/items";
import type { FileToWrite } from "../render/shell";

/** The tools that a host's changes go through, each called once with all its lines where it can be. */
export interface ScriptParts {
  /** Written before the first change. */
  writes: FileToWrite[];
  /** Former values of settings, kept before the first change. */
  saves: string[];
  /** Units that are enabled, and files that go. */
  files: string[];
  shell: string[];
  ip: string[];
  /** After all devices are there. */
  late: string[];
  /** By family and table, in iptables-restore's form. */
  firewall: Map<string, string[]>;
}

export function mismatch(what: string, observed: unknown, desired: unknown): string[] {
  return desired === undefined || observed === desired
    ? []
    : [`${what} is ${observed ?? "none"}, should be ${desired}`];
}

/**
 * What follows a change, once everything stands. It is no item, for nothing of it stays.
 *
 * An address that comes to a host may have been on another one a moment ago, and neighbours believe their caches: 31.8 s
 * were seen without an announcement, 0.07 to 1.1 s with one. Where no tool can announce it, the script says so on a line
 * that begins with WARNING.
 */
export const WARNING_PREFIX = "@@ warning ";

/** How the machine differs from one item: `missing`, or what is wrong, as `what is HAVE, should be WANT`. */
export interface ItemDifference {
  item: Item;
  missing: boolean;
  wrong: string[];
}
