import { machineOf } from "../host/types";
import type { Definition, Part } from "../resource";
import type { Values } from "./values";
import type { World } from "./world";

/** The hosts of a resource over its life: those that SSH has reached, and those that are no longer part of it. */

/** Hosts that SSH has not reached since they became part of the resource: nothing of it can be on them. */
export function unreachedParts(
  def: Definition,
  fleet: World["fleet"],
  props: Values,
  olds: Values | undefined,
): Part[] {
  const before = new Set(olds && reachedParts(def, olds).map(({ connection }) => machineOf(connection)));
  return def
    .hosts(props)
    .filter(({ connection }) => !before.has(machineOf(connection)) && !fleet.wasReached(connection));
}

/** Hosts that may have something of the resource. */
export function reachedParts(def: Definition, props: Values): Part[] {
  const unreached = new Set((props.unreached ?? []) as string[]);
  return def.hosts(props).filter(({ connection }) => !unreached.has(machineOf(connection)));
}

/** Hosts that are no longer part of it: since this change, or since an earlier one that was not finished. */
export function leftParts(def: Definition, olds: Values, news: Values): Part[] {
  const parts = def.hosts(news);
  const now = new Set(parts.map(({ connection }) => machineOf(connection)));
  const earlier = ((olds.leaving ?? []) as string[]).map((text) => parsePart(text, parts));
  return [...reachedParts(def, olds), ...earlier].filter(({ connection }) => !now.has(machineOf(connection)));
}

/** A host to come back to, without credentials: those of the host that has its role now are used. */
export const partText = ({ role, connection: { host, port = 22 } }: Part): string => `${role} ${host} ${port}`;

/** The role may not exist any more. */
function parsePart(text: string, parts: Part[]): Part {
  const [role, host, port] = text.split(" ") as [string, string, string];
  const { connection } = parts.find((part) => part.role === role) ?? parts[0]!;
  return { role, connection: { ...connection, host, port: Number(port) } };
}
