import { hash } from "node:crypto";
import { tryParseIp } from "../addressing/ip";
import type { Lease, ValueRange } from "../ipam/types";
import { SPACES } from "../pool-names";

/** What the program requests by value, in its first turn of the event loop: before its first `await`. */
export interface Declared {
  /** See `Request`. */
  declared: ValueRange[];
  /**
   * Whether a resource of the stack releases the values of its lease in this run. Not so if the program does not declare it, or leaves the
   * choice to the pool, because then it keeps them. undefined: not known.
   */
  movesAway(holder: Pick<Lease, "pool" | "owner" | "ranges">): boolean | undefined;
}

/** Whether the program declares the resource in its first turn. `text`: see `DescribedProgram`. */
export function readResources(text: string): (owner: string) => boolean {
  if (latestResources?.text !== text) latestResources = { text, hashes: new Set(text.split(" ")) };
  const { hashes } = latestResources;
  return (owner) => hashes.has(hashResource(owner));
}

let latestResources: { text: string; hashes: Set<string> } | undefined;

/** For each resource, the values that it requests; undefined for an output, or for what is no value. By a hash of type and name. */
type Requested = Map<string, (bigint | undefined)[][]>;

let latest: { text: string; declared: Declared } | undefined;

/** Parses what the SDK passes, see `DescribedProgram`. In a run it is the same text for all resources. */
export function readDeclared(text: string): Declared {
  if (latest?.text !== text) latest = { text, declared: toDeclared(parseRequested(text)) };
  return latest.declared;
}

function toDeclared(requested: Requested): Declared {
  const values = new Set([...requested.values()].flat(2).filter((value) => value !== undefined));
  return {
    declared: [...values].map((value) => ({ first: value, last: value })),
    movesAway: ({ pool, owner, ranges }) => {
      if (pool.startsWith(SPACES)) return undefined; // Ranges are not among the requested values.
      const requests = requested.get(hashResource(owner)) ?? [[]];
      const isHeld = (value?: bigint) =>
        value !== undefined && ranges.some(({ first, last }) => first <= value && value <= last);
      if (requests.some((each) => each.length === 0 || each.some(isHeld))) return false;
      return requests.flat().includes(undefined) ? undefined : true;
    },
  };
}

const ENTRY = /^([0-9a-f]{8})((?:=[^=]*)*)$/;

function parseRequested(text: string): Requested {
  const requested: Requested = new Map();
  for (const each of text.split(" ")) {
    const [, hash, values] = ENTRY.exec(each) ?? [];
    if (hash !== undefined)
      requested.set(hash, [...(requested.get(hash) ?? []), values!.split("=").slice(1).map(parseValue)]);
  }
  return requested;
}

/** Runner ids and ports have at most nine digits. */
const parseValue = (text: string): bigint | undefined => (/^\d{1,9}$/.test(text) ? BigInt(text) : tryParseIp(text));

function hashResource(owner: string): string {
  const [types = "", name = ""] = owner.split("::").slice(-2);
  return hash("sha256", `${types.split(":").at(-1)}::${name}`, "hex").slice(0, 8);
}
