import { hash } from "node:crypto";
import { tryParseIp } from "../addressing/ip";
import type { Lease } from "../ipam/types";

/**
 * What the SDK passes about the program's resources: `HASH`, or `HASH=VALUE` for each value that a resource asks for, `?` if that is an
 * output. HASH is eight digits of a hash of type and name. Resources that are declared after an `await` may be missing.
 */

/**
 * Whether a resource of the stack releases the values of its lease in this run. Not so if the program does not declare it, or leaves
 * the choice to the pool, because then it keeps them. undefined: not known yet.
 */
export function readDeclared(text: string): (holder: Pick<Lease, "owner" | "extents">) => boolean | undefined {
  let declared: Map<string, string[][]> | undefined;
  return ({ owner, extents }) => {
    declared ??= parseDeclared(text);
    const pins = declared.get(hashResource(owner)) ?? [[]];
    const keeps = pins.some(
      (values) => values.length === 0 || values.some((value) => extents.some((extent) => isInExtent(value, extent))),
    );
    if (keeps) return false;
    return pins.flat().includes("?") ? undefined : true;
  };
}

function parseDeclared(text: string): Map<string, string[][]> {
  const declared = new Map<string, string[][]>();
  for (const each of text.split(" ")) {
    const [hash = "", ...values] = each.split("=");
    declared.set(hash, [...(declared.get(hash) ?? []), values]);
  }
  return declared;
}

function hashResource(owner: string): string {
  const [types = "", name = ""] = owner.split("::").slice(-2);
  return hash("sha256", `${types.split(":").at(-1)}::${name}`, "hex").slice(0, 8);
}

function isInExtent(value: string, { first, last }: Lease["extents"][number]): boolean {
  const point = /^\d{1,9}$/.test(value) ? BigInt(value) : tryParseIp(value);
  return point !== undefined && first <= point && point <= last;
}
