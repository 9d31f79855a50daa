import { machineKey } from "../host/connection";
import type { Lease } from "../pool/types";
import { type Definition, type TargetHost, targetsOf } from "../resource";
import { dataOf } from "./apply";
import type { Values } from "./values";
import type { World } from "./world";

/** The hosts of a resource over its life: those that may have something of it, and those that are no longer part of it. */

/**
 * Hosts of a resource that have nothing of it, as its lease says. Kept there and not in the state, because a run that is killed
 * does not write its state: the list is removed from the lease before a run changes hosts, and written again when it fails.
 */
export function cleanIn(lease: Lease): string[] {
  const { clean } = dataOf(lease);
  return Array.isArray(clean) ? clean.map(String) : [];
}

/** Hosts that have nothing of the resource after a failed run. `before`: those that may have had something when it began. */
export const cleanAfter = (
  def: Definition,
  fleet: World["fleet"],
  props: Values,
  uid: string,
  before: TargetHost[],
): string[] => {
  const earlier = new Set(machinesOf(before));
  const isClean = ({ connection }: TargetHost) =>
    !earlier.has(machineKey(connection)) && !fleet.wasWritten(connection, uid);
  return machinesOf(targetsOf(def, props).filter(isClean));
};

/** Hosts that may have something of the resource. */
export function usedParts(def: Definition, props: Values, clean: string[]): TargetHost[] {
  return targetsOf(def, props).filter(({ connection }) => !clean.includes(machineKey(connection)));
}

/** The same before a change, with the hosts that an earlier change has not finished leaving. */
export function partsBefore(def: Definition, olds: Values, news: Values, clean: string[]): TargetHost[] {
  const leaving = ((olds.leaving ?? []) as string[]).map((text) => parsePart(text, targetsOf(def, news)));
  return [...usedParts(def, olds, clean), ...leaving];
}

/** Hosts that are no longer part of it: since this change, or since an earlier one that was not finished. */
export function leftParts(def: Definition, olds: Values, news: Values, clean: string[]): TargetHost[] {
  const now = new Set(machinesOf(targetsOf(def, news)));
  return partsBefore(def, olds, news, clean).filter(({ connection }) => !now.has(machineKey(connection)));
}

export const machinesOf = (parts: TargetHost[]): string[] => parts.map(({ connection }) => machineKey(connection));

/** A host to come back to, without credentials: those of the host that has its role now are used. */
export const partText = ({ role, connection: { host, port = 22 } }: TargetHost): string => `${role} ${host} ${port}`;

/** The role may not exist any more. */
function parsePart(text: string, parts: TargetHost[]): TargetHost {
  const [role, host, port] = text.split(" ") as [string, string, string];
  const { connection } = parts.find((part) => part.role === role) ?? parts[0]!;
  return { role, connection: { ...connection, host, port: Number(port) } };
}
