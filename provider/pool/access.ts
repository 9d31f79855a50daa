import type { OverlayError } from "../errors";
import type { Lease, PoolSpec } from "./types";

/**
 * The part of a store that the user of an operation may see and change. The rules ask it inside of the transaction: leases that the user
 * may not change are those of strangers, whatever their owner is. `replaceLease` and `putLease`, through which all leases are written, refuse
 * what a rule has not asked about. Operations without it may do everything.
 */
export interface Access {
  /** Whether it may request values of this pool; `spec` is absent if there is no such pool. */
  mayUse(pool: string, spec: PoolSpec | undefined): boolean;
  /** Whether it may change and end this lease. */
  mayChange(lease: Lease): boolean;
  /** Whether its requests may write this lease: one that it may change, or one that all tenants have in common. */
  mayHold(lease: Lease): boolean;
  /** Whether a lease of it may take this name. */
  mayName(name: string, lease: Lease): boolean;
  /** Whether a lease of it may have this child pool. */
  mayOpen(spec: PoolSpec, lease: Lease): boolean;
  /** What it may read of a lease. Of one that it may not see: that there is one, without owner and values. */
  show(lease: Lease): Lease;
  denied(what: string): OverlayError;
}
