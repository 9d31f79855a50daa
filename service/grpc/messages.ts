import { z } from "zod";
import type { PoolStatus, Validation } from "../../provider/answers";
import type { LoggedEvent } from "../../provider/ipam/types";
import { createPoolInput, describeEvent, describeLease, reserveInput } from "../../provider/reservations";

/** Parts of messages: how those of requests are parsed, and how those of answers are built. */

/** `handed over` as an EVENT_KIND is EVENT_KIND_HANDED_OVER. */
export const enumName = (prefix: string, value: string): string =>
  `${prefix}_${value
    .replace(/([a-z])([A-Z])/g, "$1_$2")
    .replaceAll(" ", "_")
    .toUpperCase()}`;

/** The value that the name of an enum stands for; undefined: not given. */
function enumField<V extends string>(prefix: string, values: readonly V[]) {
  const byName = new Map(values.map((value) => [enumName(prefix, value), value]));
  return z
    .enum([`${prefix}_UNSPECIFIED`, ...byName.keys()])
    .transform((name) => byName.get(name))
    .optional();
}

const { type, allocation } = createPoolInput.shape;
export const poolTypeField = enumField("POOL_TYPE", type.unwrap().options);
export const allocationPolicyField = enumField("ALLOCATION_POLICY", allocation.unwrap().options);
export const placementField = enumField("PLACEMENT", reserveInput.shape.placement.unwrap().options);

interface Timestamp {
  seconds: number;
  nanos: number;
}

/** From RFC 3339. */
function toTimestamp(text: string | undefined): Timestamp | undefined {
  if (text === undefined) return undefined;
  const ms = Date.parse(text);
  return { seconds: Math.floor(ms / 1000), nanos: (ms % 1000) * 1_000_000 };
}

/** From `ORGANIZATION/PROJECT`. */
function toTenant(text: string | undefined): { org: string; project: string } | undefined {
  const [org, project] = text?.split("/") ?? [];
  return org === undefined || project === undefined ? undefined : { org, project };
}

/** Fields of messages have names such as `lease_id`. */
export const toFields = <V>(values: { [name: string]: V }): Record<string, V> =>
  Object.fromEntries(
    Object.entries(values).map(([name, value]) => [name.replace(/[A-Z]/g, (sign) => `_${sign.toLowerCase()}`), value]),
  );

export const fromFields = <V>(fields: { [name: string]: V }): Record<string, V> =>
  Object.fromEntries(
    Object.entries(fields).map(([name, value]) => [name.replace(/_(.)/g, (_, sign) => sign.toUpperCase()), value]),
  );

/** The message `Lease`. After an offline check of a token, only a part of it is known. */
export const toLeaseMessage = (lease: Omit<Validation, "valid" | "checked">): object =>
  toFields<unknown>({
    ...lease,
    state: lease.state && enumName("LEASE_STATE", lease.state),
    createdAt: toTimestamp(lease.createdAt),
    expiresAt: toTimestamp(lease.expiresAt),
    tenant: toTenant(lease.tenant),
  });

export const describeLeases = (leases: Parameters<typeof describeLease>[0][]): object[] =>
  leases.map((lease) => toLeaseMessage(describeLease(lease)));

/** The message `Pool`. */
export const toPoolMessage = ({ pool, range, utilization, ...rest }: PoolStatus): object =>
  toFields<unknown>({
    ...rest,
    name: pool,
    type: rest.type && enumName("POOL_TYPE", rest.type),
    ranges: range.split(", "),
    allocation: enumName("ALLOCATION_POLICY", rest.allocation),
    tenant: toTenant(rest.tenant),
    ...{ capacity: String(rest.capacity), allocated: String(rest.allocated), available: String(rest.available) },
    utilizationPercent: utilization,
  });

/** The message `Event`. */
export function toEventMessage({ id, uid, ...event }: LoggedEvent): object {
  const { at: _, what, value, tenant, ...change } = describeEvent({ uid, ...event });
  return toFields<unknown>({
    ...change,
    id,
    time: { seconds: Math.floor(event.at / 1000), nanos: (event.at % 1000) * 1_000_000 },
    kind: enumName("EVENT_KIND", what),
    values: value.split(", "),
    leaseUid: uid,
    tenant: toTenant(tenant),
  });
}
