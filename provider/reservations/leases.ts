import { randomUUID } from "node:crypto";
import { familyOf, formatIp } from "../addressing/ip";
import type { AddressLease } from "../answers";
import { formatTime } from "../format-time";
import type { Lease, Tenant } from "../ipam/types";
import { COMMAND_LINE, formatTenant, isStackOwner } from "../owner";
import { runnerOfPool } from "../pool-names";
import { userLeaseName } from "../resources/runner-subnet";
import type { Context } from "./context";

/** Leases on addresses: their owners, their users, and how they are shown. */

export const RESERVATION = "IPReservation";

/** The owner of what a container has: the same for all callers of a tenant. The names of containers have no blanks. */
export const ownerFor = (pool: string, by: string, tenant?: Tenant): string =>
  `${COMMAND_LINE}/${placeOf(pool)}/${tenant ? `${formatTenant(tenant)} ` : ""}${by}`;

/** The owner of a reservation without a container. Without a name, each has an owner of its own. */
export const ownerOfCaller = (
  { caller }: Pick<Context, "caller">,
  pool: string,
  name: string = randomUUID(),
): string => (caller === undefined ? ownerFor(pool, name) : `service/${caller}/${placeOf(pool)}/${name}`);

/** `NETWORK/RUNNER`, or the name of another pool. */
const placeOf = (pool: string): string => pool.replace(/^runner\//, "");

/** On a runner, the name that a container holds in the network, so that it has one address there. Other pools have no such rule. */
export function userLeaseNames(pool: string, by: string | undefined): string[] {
  const [, network] = /^runner\/([^/]+)\//.exec(pool) ?? [];
  return network !== undefined && by !== undefined ? [userLeaseName(network, by)] : [];
}

/** Whether a container uses the lease, or has reserved it. */
export const isHeldBy = (lease: Lease, by: string): boolean =>
  lease.usedBy === by || [ownerFor(lease.pool, by), ownerFor(lease.pool, by, lease.tenant)].includes(lease.owner);

/** Leases of stacks are released by the stack, which would request them again in its next run. */
export const isOfStack = ({ owner }: Lease): boolean => isStackOwner(owner);

const VM = "vm";
const IMPORTED = "imported";

/** Whether a virtual machine uses it, which Docker does not list. */
export const isOfVm = ({ labels }: Lease): boolean => labels?.[VM] === "true";
export const vmLabel = (vm = false): Record<string, string> => (vm ? { [VM]: "true" } : {});

/** Whether it was imported: then any program may use it. */
export const isImported = ({ labels }: Lease): boolean => labels?.[IMPORTED] === "true";
export const IMPORTED_LABEL = { [IMPORTED]: "true" };

export const isPort = (value: bigint): boolean => value <= 65_535n;

export const formatValue = (value: bigint): string => (isPort(value) ? String(value) : formatIp(value));

/** The address of a lease; in a pool of ports, the port. */
export const ipOf = ({ ranges }: Pick<Lease, "ranges">): string => formatValue(ranges[0]!.first);

export function describeLease(lease: Lease): AddressLease {
  const [first, second] = lease.ranges.map((range) => range.first) as [bigint, bigint?];
  const { pool, state, usedBy, createdAt, by, expiresAt, tenant, labels = {}, owner, leaseId } = lease;
  return {
    ip: formatValue(first),
    ip6: second !== undefined && familyOf(second) === 6 ? formatIp(second) : undefined,
    port: isPort(first) ? Number(first) : undefined,
    pool,
    ...runnerOfPool(pool),
    ...{ state, usedBy, createdAt: formatTime(createdAt), createdBy: by },
    expiresAt: expiresAt === undefined ? undefined : formatTime(expiresAt),
    tenant: tenant && formatTenant(tenant),
    labels: Object.keys(labels).length > 0 ? labels : undefined,
    ...{ owner, leaseId },
  };
}
