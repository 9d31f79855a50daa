import { describePool } from "../../pool-names";
import { isLive, leasesOfOwner } from "../storage/leases";
import type { WriteBuffer } from "../storage/write-buffer";
import type { Lease, PoolSpec } from "../types";

/** What the user of an operation may see and change: see `Access`. */

export const mayChange = ({ options }: WriteBuffer, lease: Lease): boolean => options.access?.mayChange(lease) ?? true;

/** Whether the lease has one of these owners. A lease of another user does not count, even if its owner has the same name. */
export const isOwnedBy = (tx: WriteBuffer, lease: Lease, ...owners: (string | undefined)[]): boolean =>
  owners.includes(lease.owner) && mayChange(tx, lease);

/** A lease as errors, warnings and questions may show it. */
export const show = ({ options }: WriteBuffer, lease: Lease): Lease => options.access?.show(lease) ?? lease;

export function mustBeChangeable(tx: WriteBuffer, lease: Lease): void {
  if (!mayChange(tx, lease)) throw deniedError(tx, lease);
}

/** Leases of this owner that the user may have; those of other users under the same owner are left out. */
export async function ownLeases(tx: WriteBuffer, pool: string, owner: string): Promise<Lease[]> {
  const leases = await leasesOfOwner(tx, pool, owner);
  const { access } = tx.options;
  return access ? leases.filter((lease) => access.mayHold(lease)) : leases;
}

/** The same for an owner that requests values. It has one user: the request is refused while another user holds a lease of that owner. */
export async function leasesOfRequester(tx: WriteBuffer, pool: string, owner: string): Promise<Lease[]> {
  const leases = await leasesOfOwner(tx, pool, owner);
  const { access } = tx.options;
  if (!access) return leases;
  const other = leases.find((lease) => isLive(lease, tx.now) && !access.mayHold(lease));
  if (other) throw deniedError(tx, other);
  return leases.filter((lease) => access.mayHold(lease));
}

/** `spec` is absent if there is no such pool. */
export function mustBeUsable({ options: { access } }: WriteBuffer, name: string, spec: PoolSpec | undefined): void {
  if (access && !access.mayUse(name, spec)) throw access.denied(describePool(name));
}

export function mustBeNameable({ options: { access } }: WriteBuffer, name: string, lease: Lease): void {
  if (access && !access.mayName(name, lease)) throw access.denied(`the name ${name}`);
}

export function mustBeOpenable({ options: { access } }: WriteBuffer, spec: PoolSpec, lease: Lease): void {
  if (access && !access.mayOpen(spec, lease)) throw access.denied(describePool(spec.name));
}

/** Refuses a lease that the user may not have, such as one of another tenant. */
export function mustBeHoldable({ options: { access } }: WriteBuffer, lease: Lease): void {
  if (access && !access.mayHold(lease)) throw access.denied(`the owner ${lease.owner} in ${describePool(lease.pool)}`);
}

const deniedError = ({ options: { access } }: WriteBuffer, { pool }: Lease) =>
  access!.denied(`a lease in ${describePool(pool)} that is not its own`);
