import type { MachineQuestion } from "../host/machine";
import type { Seen, Work } from "../host/reconcile";
import type { Connection } from "../host/types";
import type { Machine } from "../network/hub";
import type { Want } from "../network/steps";
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

/** The hosts, as the lifecycle sees them. */
export interface Fleet {
  ask(connection: Connection, question: MachineQuestion): Promise<Machine>;
  /** Throws what an apply would be refused with. Changes nothing. */
  check(connection: Connection, work: Work): Promise<Seen>;
  apply(connection: Connection, work: Work): Promise<Seen>;
  inspect(connection: Connection, want: Want): Promise<Seen>;
  /** Whether this process has begun to write to the machine for the owner with this uid. */
  wasWritten(connection: Connection, uid: string): boolean;
  run(connection: Connection, script: string): Promise<{ code: number; stderr: string }>;
}
