import { createHash } from "node:crypto";

/** How the SDK describes the resources of a program to the provider. */

export interface Declaration {
  type: string;
  /** The present one and former ones. */
  names: string[];
  args: Record<string, unknown>;
}

/** A resource that the pool serves in the order of the program. */
export interface OrderedDeclaration {
  /** The present one and former ones. */
  names: string[];
  /** The resource, or the name, that it is declared for. */
  of: unknown;
  /** Its type behind those of its parents, as in its owner. */
  types: string;
}

export interface DescribedProgram {
  /** Differs between programs, such as those of two branches, that declare other resources or request other values. */
  program: string;
  /**
   * `HASH=VALUE` for each value that a resource requests, `?` if that is an output; HASH is one of type and name. If another resource has the
   * same hash, and requests none, `HASH`. undefined: no resource requests a value.
   */
  declared: string | undefined;
  /** The hash of each resource. */
  resources: string;
}

/** The same in any order of the resources. */
export function describeProgram(declarations: Declaration[]): DescribedProgram {
  const entries = declarations.flatMap(({ type, names, args }) =>
    names.map((name) => ({ hash: shortHash(`${type}::${name}`), values: requestedValues(args) })),
  );
  const textOf = (some: typeof entries) => [...new Set(some.map(({ hash, values }) => hash + values))].sort().join(" ");
  const requesting = new Set(entries.filter(({ values }) => values !== "").map(({ hash }) => hash));
  return {
    program: shortHash(textOf(entries)),
    resources: [...new Set(entries.map(({ hash }) => hash))].join(" "),
    declared: textOf(entries.filter(({ hash }) => requesting.has(hash))) || undefined,
  };
}

/**
 * Name and former name of those that are declared before this one, for the same resource: as `TYPES::NAME`, or only `NAME` if the types of its
 * parents are those of this one. A name with `::` cannot be told from the rest of an owner.
 */
export function namesBefore(all: OrderedDeclaration[], last: OrderedDeclaration): string[][] {
  const before = all
    .slice(0, all.indexOf(last))
    .filter(({ of, names }) => of === last.of && [...names, ...last.names].every((name) => !name.includes("::")));
  return before.map(({ names, types }) =>
    names.slice(0, 2).map((name) => (types === last.types ? name : `${types}::${name}`)),
  );
}

const shortHash = (text: string): string => createHash("sha256").update(text).digest("hex").slice(0, 8);

const requestedValues = (args: Record<string, unknown>): string =>
  ["ip", "ip6", "port", "runnerId"]
    .filter((key) => args[key] !== undefined)
    .map((key) => `=${["string", "number"].includes(typeof args[key]) ? args[key] : "?"}`)
    .join("");
