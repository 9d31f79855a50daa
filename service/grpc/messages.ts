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

/** The message `Lease`. After an offline check of a token, only a part of it is known. */
export const toLeaseMessage = (lease: Omit<Validation, "valid" | "checked">): object => ({
  ip: lease.ip,
  ip6: lease.ip6,
  port: lease.port,
  pool: lease.pool,
  network: lease.network,
  runner: lease.runner,
  state: lease.state && enumName("LEASE_STATE", lease.state),
  used_by: lease.usedBy,
  created_at: toTimestamp(lease.createdAt),
  created_by: lease.createdBy,
  expires_at: toTimestamp(lease.expiresAt),
  tenant: toTenant(lease.tenant),
  labels: lease.labels,
  owner: lease.owner,
  lease_id: lease.leaseId,
});

export const describeLeases = (leases: Parameters<typeof describeLease>[0][]): object[] =>
  leases.map((lease) => toLeaseMessage(describeLease(lease)));

/** The message `Pool`. */
export const toPoolMessage = (pool: PoolStatus): object => ({
  name: pool.pool,
  kind: pool.kind,
  type: pool.type && enumName("POOL_TYPE", pool.type),
  ranges: pool.range.split(", "),
  allocation: enumName("ALLOCATION_POLICY", pool.allocation),
  tenant: toTenant(pool.tenant),
  capacity: String(pool.capacity),
  allocated: String(pool.allocated),
  available: String(pool.available),
  utilization_percent: pool.utilization,
  offered: pool.offered,
  reserved: pool.reserved,
  used: pool.used,
  quarantined: pool.quarantined,
  growth_last_hour: pool.growthLastHour,
  growth_last_day: pool.growthLastDay,
  exhausted_in_seconds: pool.exhaustedInSeconds,
});

/** The message `Event`. */
export function toEventMessage({ id, uid, ...event }: LoggedEvent): object {
  const change = describeEvent({ uid, ...event });
  return {
    id,
    time: { seconds: Math.floor(event.at / 1000), nanos: (event.at % 1000) * 1_000_000 },
    kind: enumName("EVENT_KIND", change.what),
    pool: change.pool,
    values: change.value.split(", "),
    owner: change.owner,
    lease_uid: uid,
    lease_id: change.leaseId,
    tenant: toTenant(change.tenant),
    used_by: change.usedBy,
    by: change.by,
    taken_by: change.takenBy,
    former_owner: change.formerOwner,
  };
}
