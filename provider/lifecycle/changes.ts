import type { Changes, Lease, Request } from "../pool/types";
import type { Definition } from "../resource";
import { equal, unknownPaths, type Values, without } from "./values";

/** From a resource's inputs to what its lease must say, and from a change of inputs to a change of the lease. */

/** As far as the inputs are known. */
export function requestOf(def: Definition, inputs: Values): Request {
  const owner = String(inputs.owner);
  return { ...def.request(without(inputs, unknownPaths(inputs)), owner), owner, type: def.type };
}

export const opensOf = (def: Definition, inputs: Values) =>
  def.opens?.(without(inputs, unknownPaths(inputs)), def.extentsFromProps(inputs));

/** What must change about a lease when its resource does. What others did to it meanwhile stays: who uses it, until when. */
export function changesOf(def: Definition, olds: Values, news: Values, lease: Lease): Changes {
  const [before, after] = [requestOf(def, olds), requestOf(def, news)];
  const opens = opensOf(def, news);
  const [had, has] = [def.extentsFromProps(olds), def.extentsFromProps(news)];
  return {
    owner: after.owner,
    names: [...new Set([...othersNames(lease, before), ...(after.names ?? [])])],
    labels: after.labels ?? {},
    ...(opens && { opens }),
    tenant: after.tenant ?? null,
    ...(!equal(had, has) && { extents: has }),
    ...((before.sharingKey !== undefined || after.sharingKey !== undefined) && {
      sharingKey: after.sharingKey ?? null,
    }),
    ...(after.ports && { ports: after.ports, takes: after.takes ?? false }),
    ...useChanges(before, after),
  };
}

/** Names that it did not get from its resource, such as that of the container that uses it. */
const othersNames = ({ names = [] }: Lease, before: Request): string[] =>
  names.filter((name) => !before.names?.includes(name));

function useChanges(before: Request, after: Request): Changes {
  if (before.usedBy !== after.usedBy) {
    return after.usedBy === undefined
      ? { state: "reserved", ttl: after.ttl ?? null }
      : { state: "used", usedBy: after.usedBy };
  }
  return before.ttl === after.ttl ? {} : { ttl: after.ttl ?? null };
}
