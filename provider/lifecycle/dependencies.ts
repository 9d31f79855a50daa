import type { Fleet } from "../host/fleet";
import type { OfferOptions, RunPlan } from "../ipam/run-plan";
import type { Lease, Tenant, ValueRange } from "../ipam/types";
import type { TenantDefaults } from "../resource";
import type { MeshRunners } from "./mesh";

/** What the lifecycle gets from outside. `runtime.ts` and the command line build it; tests have fakes. */
export interface Dependencies {
  /** Rejects with STORE_UNAVAILABLE, for the rest of the run, if the store does not answer. */
  pool(): Promise<RunPlan>;
  fleet: Fleet;
  mesh: MeshRunners;
  /** `forget`: an unreachable host does not block a delete; its addresses stay reserved. */
  unreachableOnDelete: "fail" | "forget";
  tenantDefaults: TenantDefaults;
  /** Tenant of resources without one. */
  tenant?: Tenant | undefined;
  warn(text: string): void;
  /** Says what is no reason to worry. */
  note(text: string): void;
  /** Makes a token that permits the use of the lease's address. */
  token(lease: Lease): Promise<string>;
  /** false: the key that signed it is lost, as after a recovery without the old key ring. */
  isSignedHere(token: string): Promise<boolean>;
}

export interface EarlierOwner {
  owner: string;
  formerOwner?: string;
}

/** The resource that is checked, and what the run knows about it. */
export interface Caller {
  /** Scope and URN of the resource. */
  owner: string;
  /** The owner before this run renamed the resource. */
  formerOwner?: string | undefined;
  dryRun: boolean;
  /** Whether the program declares this owner in its first turn; absent: not known. */
  declares?: ((owner: string) => boolean) | undefined;
  /** Resources of its type that the program declares before it, and to which the pool gives values first. */
  earlier?: EarlierOwner[] | undefined;
  /** Inputs that the program marked as secret, wholly or in part, besides those in `secrets`. */
  secretInputs?: string[] | undefined;
  /** This run has checked it with its old state before. Pulumi checks a replacement a second time, without the old state. */
  isReplacement?: boolean | undefined;
  /** The ranges that it had until this run deleted it, to create it again. */
  preferred?: ValueRange[] | undefined;
  /** Its name in the state, if this run has compared it with that. */
  formerName?: string | undefined;
  movesAway?: OfferOptions["movesAway"] | undefined;
  /** See `Request`. */
  program?: string | undefined;
  /** See `Request`. */
  declared?: ValueRange[] | undefined;
}
