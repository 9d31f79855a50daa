import { type Definition, shownOutputs } from "../resource";

/** Property values as Pulumi passes them, and the changes between the properties in the state and new inputs. */

/** JSON, with a marker for values that are not known yet. */
export type Values = Record<string, unknown>;

/** How Pulumi writes a value that will be known only during `up`. */
export const UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9";

export type Path = string[];

const isContainer = (value: unknown): value is Values => typeof value === "object" && value !== null;

/** Paths of unknown values. */
export function unknownPaths(value: unknown, at: Path = []): Path[] {
  if (value === UNKNOWN) return [at];
  return isContainer(value) ? Object.entries(value).flatMap(([key, v]) => unknownPaths(v, [...at, key])) : [];
}

/** The same, but a list with an unknown element counts as a whole, because the rest of it would be another list. */
export function unknownWholes(value: unknown, at: Path = []): Path[] {
  if (Array.isArray(value)) return unknownPaths(value).length > 0 ? [at] : [];
  if (value === UNKNOWN) return [at];
  return isContainer(value) ? Object.entries(value).flatMap(([key, v]) => unknownWholes(v, [...at, key])) : [];
}

/** The same values without those at `paths`. */
export function withoutPaths<T>(value: T, paths: Path[]): T {
  if (!isContainer(value) || paths.length === 0) return value;
  const kept = Object.entries(value).flatMap(([key, v]) => {
    const below = paths.filter(([first]) => first === key).map(([, ...rest]) => rest);
    return below.some((path) => path.length === 0) ? [] : [[key, withoutPaths(v, below)]];
  });
  return (Array.isArray(value) ? kept.map(([, v]) => v) : Object.fromEntries(kept)) as T;
}

/** Sets the unknown marker at these paths. */
export function withUnknown(value: Values, paths: Path[]): Values {
  if (paths.length === 0) return value;
  const result = structuredClone(value);
  for (const path of paths) {
    let target = result;
    for (const key of path.slice(0, -1)) {
      target[key] ??= {};
      target = target[key] as Values;
    }
    target[path.at(-1)!] = UNKNOWN;
  }
  return result;
}

export const valueAt = (values: unknown, path: string): unknown =>
  path.split(".").reduce<unknown>((value, key) => (isContainer(value) ? value[key] : undefined), values);

export const isPathWithin = (path: Path, parents: string[]): boolean => {
  const text = path.join(".");
  return parents.some((parent) => text === parent || text.startsWith(`${parent}.`));
};

/** Absent and undefined are the same, as they are in JSON. */
export function isEqual(a: unknown, b: unknown): boolean {
  if (!isContainer(a) || !isContainer(b)) return a === b;
  const keys = new Set([...Object.keys(a), ...Object.keys(b)]);
  return Array.isArray(a) === Array.isArray(b) && [...keys].every((key) => isEqual(a[key], b[key]));
}

/** Paths of all differences, each at the depth where values differ. */
export function changedPaths(a: unknown, b: unknown, at: Path = []): Path[] {
  if (isEqual(a, b)) return [];
  const deeper = isContainer(a) && isContainer(b) && !Array.isArray(a) && !Array.isArray(b);
  if (!deeper) return [at];
  return [...new Set([...Object.keys(a), ...Object.keys(b)])].flatMap((key) =>
    changedPaths(a[key], b[key], [...at, key]),
  );
}

/** Properties without outputs. */
export function pickInputs(def: Definition, props: Values): Values {
  const keys = [...Object.keys(def.inputs.shape), ...Object.keys(def.computed.shape), ...shownOutputs(def), "owner"];
  return Object.fromEntries(keys.filter((key) => props[key] !== undefined).map((key) => [key, props[key]]));
}

export function changedInputs(def: Definition, olds: Values, news: Values): Path[] {
  const ignored = def.sourcePool?.ignoreChanges ?? [];
  return changedPaths(pickInputs(def, olds), pickInputs(def, news)).filter((path) => !isPathWithin(path, ignored));
}

/** Changed properties that need a replacement. */
export function replacingPaths(def: Definition, olds: Values, news: Values): string[] {
  const changed = changedInputs(def, olds, news);
  const unknown = unknownPaths(news);
  const replaces = def.replaceOn.filter(
    (path) =>
      isTouched(changed, path) && !isTouched(unknown, path) && !isEqual(valueAt(olds, path), valueAt(news, path)),
  );
  return [...replaces, ...unknownReferences(def, news, unknown)];
}

/**
 * Before Pulumi replaces a resource by deleting it first, it calls `diff` of its dependents with the whole reference unknown. In a
 * preview that does not know the reference, `check` has made the computed values unknown, too.
 */
function unknownReferences({ computed, references = {} }: Definition, news: Values, unknown: Path[]): string[] {
  if (unknown.some(([key]) => key! in computed.shape)) return [];
  return Object.keys(references).filter((key) => news[key] === UNKNOWN);
}

const isTouched = (paths: Path[], path: string): boolean =>
  paths.some((p) => isPathWithin(p, [path]) || isPathWithin(path.split("."), [p.join(".")]));
