import type { Changes, Lease, Request } from "../pool/types";
import { type Definition, targetsOf } from "../resource";
import { machineKeys } from "./target-hosts";
import {
  changedPaths,
  equal,
  isWithin,
  type Path,
  UNKNOWN,
  unknownPaths,
  type Values,
  valueAt,
  without,
} from "./values";

/** Changes between the properties in the state and new inputs, and what follows from them for the resource, its hosts and its lease. */

/** Properties without outputs. */
export function pickInputs({ inputs, computed }: Definition, props: Values): Values {
  const keys = [...Object.keys(inputs.shape), ...Object.keys(computed.shape), "owner"];
  return Object.fromEntries(keys.filter((key) => props[key] !== undefined).map((key) => [key, props[key]]));
}

export function changedInputs(def: Definition, olds: Values, news: Values): Path[] {
  const ignored = def.sourcePool?.ignoreChanges ?? [];
  return changedPaths(pickInputs(def, olds), pickInputs(def, news)).filter((path) => !isWithin(path, ignored));
}

/** Changed properties that need a replacement. */
export function replacingPaths(def: Definition, olds: Values, news: Values): string[] {
  const changed = changedInputs(def, olds, news);
  const unknown = unknownPaths(news);
  const replaces = def.replaceOn.filter(
    (path) => isTouched(changed, path) && !isTouched(unknown, path) && !equal(valueAt(olds, path), valueAt(news, path)),
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

/** Whether all changes are of `host.unaffectedBy` or the owner, on the same hosts and without drift. */
export function hasNoHostEffect(def: Definition, olds: Values, news: Values): boolean {
  const changed = changedInputs(def, olds, news);
  const hasDrift = !Array.isArray(olds.drift) || olds.drift.length > 0;
  const unaffectedBy = [...(def.host?.unaffectedBy ?? []), "owner"];
  return (
    changed.length > 0 &&
    !hasDrift &&
    equal(machineKeys(targetsOf(def, olds)), machineKeys(targetsOf(def, news))) &&
    changed.every((path) => isWithin(path, unaffectedBy))
  );
}

const isTouched = (paths: Path[], path: string): boolean =>
  paths.some((p) => isWithin(p, [path]) || isWithin(path.split("."), [p.join(".")]));

/** The request for its lease, from the inputs that are known. */
export function buildRequest(def: Definition, inputs: Values): Request {
  const owner = String(inputs.owner);
  return { ...def.request(without(inputs, unknownPaths(inputs)), owner), owner, type: def.type };
}

export const openedPool = (def: Definition, inputs: Values) =>
  def.opens?.(without(inputs, unknownPaths(inputs)), def.extentsFromProps(inputs));

/** Changes of the lease that follow from a change of inputs. Changes by others are kept: the user, the expiry. */
export function diffLease(def: Definition, olds: Values, news: Values, lease: Lease): Changes {
  const [before, after] = [buildRequest(def, olds), buildRequest(def, news)];
  const opens = openedPool(def, news);
  const [had, has] = [def.extentsFromProps(olds), def.extentsFromProps(news)];
  return {
    owner: after.owner,
    names: [...new Set([...namesFromElsewhere(lease, before), ...(after.names ?? [])])],
    labels: after.labels ?? {},
    ...(opens && { opens }),
    tenant: after.tenant ?? null,
    ...(!equal(had, has) && { extents: has }),
    ...((before.sharingKey !== undefined || after.sharingKey !== undefined) && {
      sharingKey: after.sharingKey ?? null,
    }),
    ...(after.ports && { ports: after.ports, takes: after.takes ?? false }),
    ...diffUse(before, after),
  };
}

/** Names that are not from the resource, such as that of the container that uses the address. */
const namesFromElsewhere = ({ names = [] }: Lease, before: Request): string[] =>
  names.filter((name) => !before.names?.includes(name));

function diffUse(before: Request, after: Request): Changes {
  if (before.usedBy !== after.usedBy) {
    return after.usedBy === undefined
      ? { state: "reserved", ttl: after.ttl ?? null }
      : { state: "used", usedBy: after.usedBy };
  }
  return before.ttl === after.ttl ? {} : { ttl: after.ttl ?? null };
}
