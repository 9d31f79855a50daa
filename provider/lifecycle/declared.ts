import { hash } from "node:crypto";
import { tryParseIp } from "../addressing/ip";
import type { Lease } from "../pool/types";

/**
 * What the SDK passes of the program's resources: `MARK`, or `MARK=VALUE` for each value that one asks for, `?` where that is an
 * output. A mark is eight digits of a hash of type and name. Resources that are declared after an `await` may be missing.
 */

/**
 * Whether a resource of the stack gives up the values of its lease in this run: not if the program does not declare it, or leaves
 * the choice to the pool, because then it keeps them. undefined: that is not known yet.
 */
export function readDeclared(text: string): (holder: Pick<Lease, "owner" | "extents">) => boolean | undefined {
  let declared: Map<string, string[][]> | undefined;
  return ({ owner, extents }) => {
    declared ??= parse(text);
    const pins = declared.get(markOf(owner)) ?? [[]];
    const keeps = pins.some(
      (values) => values.length === 0 || values.some((value) => extents.some((extent) => isIn(value, extent))),
    );
    if (keeps) return false;
    return pins.flat().includes("?") ? undefined : true;
  };
}

function parse(text: string): Map<string, string[][]> {
  const declared = new Map<string, string[][]>();
  for (const each of text.split(" ")) {
    const [mark = "", ...values] = each.split("=");
    declared.set(mark, [...(declared.get(mark) ?? []), values]);
  }
  return declared;
}

function markOf(owner: string): string {
  const [types = "", name = ""] = owner.split("::").slice(-2);
  return hash("sha256", `${types.split(":").at(-1)}::${name}`, "hex").slice(0, 8);
}

function isIn(value: string, { first, last }: Lease["extents"][number]): boolean {
  const point = /^\d{1,9}$/.test(value) ? BigInt(value) : tryParseIp(value);
  return point !== undefined && first <= point && point <= last;
}
