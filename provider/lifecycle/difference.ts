import { type Definition, targetsOf } from "../resource";
import { machinesOf } from "./parts";
import { changedPaths, equal, isWithin, type Path, UNKNOWN, unknownPaths, type Values, valueAt } from "./values";

/** What differs between the properties in the state and new inputs, and what follows from it. */

/** Properties without what only hosts and pool can tell. */
export function inputsOf({ inputs, computed }: Definition, props: Values): Values {
  const keys = [...Object.keys(inputs.shape), ...Object.keys(computed.shape), "owner"];
  return Object.fromEntries(keys.filter((key) => props[key] !== undefined).map((key) => [key, props[key]]));
}

export function changedInputs(def: Definition, olds: Values, news: Values): Path[] {
  const ignored = def.sourcePool?.ignoreChanges ?? [];
  return changedPaths(inputsOf(def, olds), inputsOf(def, news)).filter((path) => !isWithin(path, ignored));
}

/** Properties that cannot change in place. */
export function replacedBy(def: Definition, olds: Values, news: Values): string[] {
  const changed = changedInputs(def, olds, news);
  const unknown = unknownPaths(news);
  const replaces = def.replaceOn.filter(
    (path) => isTouched(changed, path) && !isTouched(unknown, path) && !equal(valueAt(olds, path), valueAt(news, path)),
  );
  return [...replaces, ...lostReferences(def, news, unknown)];
}

/**
 * Before it replaces a resource by deleting it first, Pulumi asks its dependents with the whole reference unknown. In a
 * preview that really does not know it, check has made our own values unknown, too.
 */
function lostReferences({ computed, references = {} }: Definition, news: Values, unknown: Path[]): string[] {
  if (unknown.some(([key]) => key! in computed.shape)) return [];
  return Object.keys(references).filter((key) => news[key] === UNKNOWN);
}

/** Credentials, labels and the owner concern no machine, unless there is something left to do or a machine changed. */
export function isQuiet(def: Definition, olds: Values, news: Values): boolean {
  const changed = changedInputs(def, olds, news);
  const unfinished = !Array.isArray(olds.drift) || olds.drift.length > 0;
  const quiet = [...(def.host?.unaffectedBy ?? []), "owner"];
  return (
    changed.length > 0 &&
    !unfinished &&
    equal(machinesOf(targetsOf(def, olds)), machinesOf(targetsOf(def, news))) &&
    changed.every((path) => isWithin(path, quiet))
  );
}

const isTouched = (paths: Path[], path: string): boolean =>
  paths.some((p) => isWithin(p, [path]) || isWithin(path.split("."), [p.join(".")]));
