import { isOverlayError, OverlayError } from "../errors";
import { tokenUsedError } from "../ipam/token";
import type { Ipam, Lease } from "../ipam/types";
import { type AddressPool, requireValue } from "./address-pools";
import { type AddressClaim, claimAddress } from "./claim";
import { type Context, refuseLeaseOfOther } from "./context";
import type { UseInput } from "./inputs";
import { formatValue, isHeldBy, isOfVm, userLeaseNames, vmLabel } from "./leases";
import { leaseOfToken, readToken } from "./tokens";

/**
 * Marks an address as used, by the token of its reservation, or by itself if it is free or was reserved for the same container: it does not expire then. The same
 * container may ask again.
 */
export async function useAddress(context: Context, input: UseInput): Promise<Lease> {
  const { token, runner, by, vm } = input;
  if (token === undefined) {
    const { place, value } = await requireValue(context, input, "Give ip, port or token.");
    return useValue(context, place, value, input);
  }
  const claims = await readToken(context, token, runner);
  return markUsed(context.pool, { by, vm }, async () => {
    const lease = await leaseOfToken(context, claims);
    if (lease.state === "used" && lease.usedBy !== by) throw tokenUsedError(claims, lease.usedBy ?? lease.owner);
    return lease;
  });
}

/** `value` is the address or the port, `ip6` the address of the other family. */
export async function useValue(
  context: Context,
  place: AddressPool,
  value: bigint,
  { ip, ip6, port, by, vm }: Pick<AddressClaim, "ip" | "ip6" | "port" | "vm"> & { by: string },
): Promise<Lease> {
  const find = () => context.pool.find({ pool: place.pool, value });
  if (!(await find())) return claimAddress(context, place, { ip, ip6, port, by, vm, usedBy: by });
  return markUsed(context.pool, { by, vm }, async () => {
    const lease = await find();
    if (lease) refuseLeaseOfOther(lease, context);
    if (lease && (lease.usedBy === by || (lease.state === "reserved" && isHeldBy(lease, by)))) return lease;
    const holder = lease ? `${lease.state} by ${lease.usedBy ?? lease.owner}` : "no longer held";
    throw new OverlayError("IP_IN_USE", `${formatValue(value)} is ${holder}.`, "Use its token, or another address.");
  });
}

const ATTEMPTS = 5;

/**
 * The pool compares the state in the transaction that changes it. If the lease changed since `find` saw it, `find` decides again,
 * and fails when another container was first.
 */
async function markUsed(
  pool: Ipam,
  { by, vm = false }: { by: string; vm?: boolean | undefined },
  find: () => Promise<Lease>,
): Promise<Lease> {
  for (let attempt = 1; ; attempt++) {
    const lease = await find();
    const { state, usedBy } = lease;
    if (state === "used" && (!vm || isOfVm(lease))) return lease;
    const names = [...new Set([...(lease.names ?? []), ...userLeaseNames(lease.pool, by)])];
    const changes = { state: "used", usedBy: by, names, labels: { ...lease.labels, ...vmLabel(vm) } } as const;
    const onlyIf = state === "used" ? ({ state, usedBy: usedBy! } as const) : ({ state: "reserved" } as const);
    try {
      return await pool.change(lease.pool, lease.leaseId, changes, { onlyIf });
    } catch (error) {
      const hasChanged = isOverlayError(error, "LEASE_CHANGED", "LEASE_FENCED", "LEASE_EXPIRED");
      if (!hasChanged || attempt === ATTEMPTS) throw error;
    }
  }
}
