import { hostId } from "../host/connection";
import type { Lease } from "../ipam/types";
import { type Definition, shownOutputs, type TargetHost, targetsOf } from "../resource";
import type { Dependencies } from "./dependencies";
import { readLeaseData } from "./lease";
import { changedInputs, isEqual, isPathWithin, unknownPaths, type Values } from "./values";

/** Which hosts of a resource may have items of it, and which hosts it no longer has. */

/**
 * Hosts of a resource that have no items of it. The list is stored with the lease and not in the state, because a run that is killed
 * does not write its state. It is removed from the lease before a run changes hosts, and written again if the run fails.
 */
export function readCleanHosts(lease: Lease): string[] {
  const { clean } = readLeaseData(lease);
  return Array.isArray(clean) ? clean.map(String) : [];
}

/** Hosts without items of the resource after a failed run. `before`: hosts that may have had some when the run began. */
export const findCleanHosts = (
  def: Definition,
  fleet: Dependencies["fleet"],
  props: Values,
  uid: string,
  before: TargetHost[],
): string[] => {
  const earlier = new Set(hostIds(before));
  const isClean = ({ connection }: TargetHost) =>
    !earlier.has(hostId(connection)) && !fleet.wasWritten(connection, uid);
  return hostIds(targetsOf(def, props).filter(isClean));
};

/** Hosts that may have items of the resource. */
export function configuredTargets(def: Definition, props: Values, clean: string[]): TargetHost[] {
  return targetsOf(def, props).filter(({ connection }) => !clean.includes(hostId(connection)));
}

/** The same before a change, and hosts that an earlier change has removed from the resource but not cleaned. */
export function configuredTargetsBefore(def: Definition, olds: Values, news: Values, clean: string[]): TargetHost[] {
  const notCleaned = ((olds.pendingCleanup ?? []) as string[]).map((text) => parseTarget(text, targetsOf(def, news)));
  return [...configuredTargets(def, olds, clean), ...notCleaned];
}

/** Hosts that the resource no longer has: since this change, or since an earlier one that has not cleaned them. */
export function removedTargets(def: Definition, olds: Values, news: Values, clean: string[]): TargetHost[] {
  const now = new Set(hostIds(targetsOf(def, news)));
  return configuredTargetsBefore(def, olds, news, clean).filter(({ connection }) => !now.has(hostId(connection)));
}

export const hostIds = (targets: TargetHost[]): string[] => targets.map(({ connection }) => hostId(connection));

/** For the state, without credentials. `parseTarget` adds those of the host that has the role now. */
export const formatTarget = ({ role, connection: { host, port = 22 } }: TargetHost): string =>
  `${role} ${host} ${port}`;

/** The role may not exist any more. */
function parseTarget(text: string, targets: TargetHost[]): TargetHost {
  const [role, host, port] = text.split(" ") as [string, string, string];
  const { connection } = targets.find((target) => target.role === role) ?? targets[0]!;
  return { role, connection: { ...connection, host, port: Number(port) } };
}

/** Whether all changes are of `host.unaffectedBy` or the owner, on the same hosts and without drift. */
export function hasNoHostEffect(def: Definition, olds: Values, news: Values): boolean {
  const changed = changedInputs(def, olds, news);
  const hasDrift = !Array.isArray(olds.drift) || olds.drift.length > 0;
  const unaffectedBy = [...(def.host?.unaffectedBy ?? []), ...shownOutputs(def), "owner"];
  return (
    changed.length > 0 &&
    !hasDrift &&
    isEqual(hostIds(targetsOf(def, olds)), hostIds(targetsOf(def, news))) &&
    changed.every((path) => isPathWithin(path, unaffectedBy))
  );
}

/** Whether only the credentials for its hosts change. */
export const hasNewCredentials = (def: Definition, olds: Values, news: Values): boolean =>
  unknownPaths(news).length === 0 &&
  hasNoHostEffect(def, olds, news) &&
  changedInputs(def, olds, news).every((path) => isPathWithin(path, [...def.secrets, ...shownOutputs(def)]));
