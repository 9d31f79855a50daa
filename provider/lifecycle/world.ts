import type { Fleet } from "../host/fleet";
import type { Lease, Pool, Tenant } from "../pool/types";
import type { TenantDefaults } from "../resource";

/** All that the lifecycle needs of the outside; only the composition roots build the real ones. */
export interface World {
  /** Rejects with STORE_UNAVAILABLE, remembered for the run, when the store is out of reach. */
  pool(): Promise<Pool>;
  fleet: Fleet;
  /** `forget`: a dead host does not block a delete; its values stay withheld. */
  unreachableOnDelete: "fail" | "forget";
  tenantDefaults: TenantDefaults;
  /** Of resources that name none themselves. */
  tenant?: Tenant | undefined;
  warn(text: string): void;
  /** Lets its bearer use the address of a lease. */
  token(lease: Lease): Promise<string>;
  /** false: it was signed with a key that is gone, as after a recovery without the old key ring. */
  isSignedHere(token: string): Promise<boolean>;
}
