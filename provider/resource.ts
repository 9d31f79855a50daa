import type { z } from "zod";
import { OverlayError } from "./errors";
import type { Connection } from "./host/connection";
import type { RunPlan } from "./ipam/run-plan";
import type { ExistingLease, Lease, PoolSpec, Request, ValueRange } from "./ipam/types";
import type { Container } from "./network/model/facts";
import type { Item, Link } from "./network/model/items";
import type { Underlay } from "./network/plan/hub";
import type { Probe } from "./network/plan/probes";
import type { MeshPeer } from "./network/plan/tunnels/tunnel";
import type { TunnelEnd } from "./network/plan/tunnels/tunnel-end";
import { describePool } from "./pool-names";

/**
 * What is specific to one resource; `lifecycle/` does the rest, once, for all of them. Every resource holds exactly one lease. The
 * ranges of the lease decide its computed values.
 */
export interface Definition<Inputs extends z.ZodObject = z.ZodObject, Computed extends z.ZodObject = z.ZodObject> {
  type: string;
  description: string;
  /** A program in TypeScript, for the documentation of its class. Those of all resources, one after the other, are one program. */
  example: string;
  /** Given by the user. Descriptions are the reference documentation. */
  inputs: Inputs;
  /** Added by `check` from the lease: known in preview, and to dependents. */
  computed: Computed;
  /** Known once the resource is created: from `leaseOutputs` and `host.report`. */
  outputs: z.ZodObject;
  /** Inputs and outputs that hold secrets. A secret that is only a part of an input hides the whole input in previews. */
  secrets: string[];
  /** What is shown of its connections, which are secret as a whole: input → part → output. */
  shownParts?: Record<string, Partial<Record<ConnectionPart, string>>>;
  /** Paths whose change needs a replacement. */
  replaceOn: string[];
  /** Paths that may be unknown in preview: nothing that preview shows depends on them. */
  mayBeUnknown: string[];

  id(props: Props<Inputs, Computed>): string;
  /** What the user sees beside the resource once it is made: the address or the range that it has. */
  result(props: Props<Inputs, Computed>): string;
  /** What it asks of which pool. Also called in previews, where a connection may be unknown: it is absent then. */
  request(inputs: z.output<Inputs>, owner: string): Omit<Request, "owner" | "type" | "childPool" | "data" | "by">;
  /** The computed values that follow from the ranges of its lease. */
  values(inputs: z.output<Inputs>, ranges: ValueRange[]): z.output<Computed>;
  /** The inverse of `values`: the ranges of its lease. */
  rangesFromProps(props: Props<Inputs, Computed>): ValueRange[];

  // All that follows is optional.

  /** The input that defaults to the resource's name. */
  nameInput?: string;
  /** Inputs of which exactly one must be given; the types of the SDK say so, too. */
  exactlyOneOf?: string[];
  /** The pool serves resources with the same `by` in the order of the program, except those that request a value with `unless`. */
  inOrder?: { by: string; unless: string };
  /** Inputs that refer to another resource. Several, if it may be of one type or another. */
  references?: Record<string, Reference | Reference[]>;
  /** A replacement is created before the old resource is deleted, if the pool has room for both. Default: deleted first. */
  createBeforeDelete?: boolean;
  /** Inputs that do not fit together. Called when all are well formed. One in `mayBeUnknown` that is unknown is absent; all others are known. */
  crossFieldErrors?(inputs: z.output<Inputs>): Iterable<InputError>;
  /** Rejects a conflict with other leases or pools. Called before the lease is granted or changed. */
  validate?(props: Props<Inputs, Computed>, context: ValidationContext): Promise<void>;
  /**
   * Rejects a conflict with leases that share its values. Unlike `validate`, also called if the resource does not change: those of the same
   * stack may change in the same run, and Pulumi checks them in any order.
   */
  validateCoHolders?(props: Props<Inputs, Computed>, context: CoHolderContext): Promise<void>;
  /** Throws if this lease must not be released. `hasSuccessor`: the resource is replaced in the same pool. */
  validateDelete?(props: Props<Inputs, Computed>, lease: Lease, hasSuccessor: boolean): void;
  /** The child pool of its lease; it may depend on the ranges of the lease. */
  childPool?(inputs: z.output<Inputs>, ranges: ValueRange[]): PoolSpec;
  /** Stored with the lease, for `validate` and `validateCoHolders` of other resources. */
  leaseData?(inputs: z.output<Inputs>): Record<string, string>;
  /** Outputs that follow from the lease or from the pool. */
  leaseOutputs?(props: Props<Inputs, Computed>, lease: Lease, context: LeaseContext): Promise<Record<string, unknown>>;
  sourcePool?: SourcePool<z.output<Inputs>, Props<Inputs, Computed>>;
  host?: HostDefinition<Props<Inputs, Computed>>;
}

/** About the pool that the lease is from, if another resource creates it or the inputs leave the choice open. */
export interface SourcePool<Inputs, Props> {
  /** Whether the same run deletes the pool that is stored, with all offers in it, and creates it with other values. */
  isReplacedInRun?(inputs: Inputs, stored: PoolSpec): boolean;
  /** Paths whose change has no effect on the resource: it is shown as unchanged. */
  ignoreChanges?: string[];
  /** Returns the inputs with the choices made that they leave open: which runner, which pool, which second address. */
  resolve?(inputs: Inputs, context: AllocationContext): Promise<Inputs>;
  /** Claims leases that its own claim needs and that no other resource holds. */
  claimPrerequisites?(props: Props, context: AllocationContext): Promise<void>;
  /** Those leases, for a store that is rebuilt. */
  prerequisiteLeases?(props: Props, tenantDefaults: TenantDefaults): ExistingLease[];
}

/** About the hosts of a resource that has any. */
export interface HostDefinition<Props> {
  /** Its hosts, in the order in which they are asked for their facts. */
  targets(props: Props): TargetHost[];
  /** Rejects, before a host is changed, what the underlays cannot carry. Hosts themselves refuse the rest, each for its own items. */
  checkUnderlays?(props: Props, underlays: Underlays): void;
  /** Pure: the items of each host, by role. `peers`: of a mesh. */
  plan(props: Props, underlays: Underlays, peers: MeshPeer[]): Record<string, Item[]>;
  mesh?: MeshDefinition<Props>;
  /** Paths whose change has no effect on hosts. */
  unaffectedBy: string[];
  /** Whether hosts restore their items after a boot. Default: yes. */
  persist?(props: Props): boolean;
  /** What its lease holds of its host, once an up has left it so. */
  tunnelEnd?(props: Props, underlays: Underlays): TunnelEnd;
  /**
   * How its hosts change to the tunnel of the properties while packets pass, one change after the other; none: they have it. `recorded`: the tunnel
   * devices that its record on the hub has. Its hosts have the roles of network/plan/tunnel-change.ts.
   */
  tunnelChanges?(props: Props, recorded: Link[], underlays: Underlays): TunnelChange<Props>[];
  /** Outputs that follow from the facts of its hosts. */
  report?(props: Props, underlays: Underlays): Record<string, unknown>;
  /** Leases for the addresses that containers on its hosts have from its child pool, whether or not they are held. */
  containerLeases?(props: Props, containers: Container[]): ExistingLease[];
  /** `neighbours`: addresses of others that it must reach, if they are known to exist; `peers`: of a mesh. */
  probe?(props: Props, underlays: Underlays, neighbours: string[], peers: MeshPeer[]): Probe | undefined;
}

/** About direct routes between the hosts with role `runner` of several resources; see lifecycle/mesh.ts. */
export interface MeshDefinition<Props> {
  /** The pool whose leases are the runners; undefined: it sends only to the hub. */
  pool(props: Props): string | undefined;
  /** Runners with another tunnel send to each other by the hub; so does one whose own ends change, meanwhile. */
  ends(props: Props): { tunnel: TunnelEnd["tunnel"] } & Record<string, string | number>;
  /** A script that prints the ids of the peers to which data passes directly. */
  probe(props: Props, underlays: Underlays, peers: MeshPeer[]): string;
}

/** Parts of a connection that hold no secret. `jumpHost`: with its port, if that is not 22. */
export type ConnectionPart = "host" | "port" | "user" | "jumpHost";

/** The outputs that show parts of connections. */
export const shownOutputs = ({ shownParts = {} }: Pick<Definition, "shownParts">): string[] =>
  Object.values(shownParts).flatMap((parts) => Object.values(parts));

export type Props<I extends z.ZodObject, C extends z.ZodObject> = z.output<I> & z.output<C>;

export interface AllocationContext {
  /** A run of Pulumi, or a request at run time. */
  pool: Pick<
    RunPlan,
    "ipam" | "offer" | "claim" | "withdrawOffer" | "plannedSpec" | "isReplaced" | "isEnding" | "isInRun"
  >;
  owner: string;
  /** Its properties in the state. */
  olds?: Record<string, unknown> | undefined;
  /** This run is a preview. */
  dryRun?: boolean;
  /** Whether the program has this owner; absent: not known. */
  declares?: ((owner: string) => boolean) | undefined;
  /** See `Request`. */
  program?: string | undefined;
  tenantDefaults: TenantDefaults;
}

export interface CoHolderContext {
  pool: RunPlan;
  owner: string;
  /** The resource has its lease already. */
  isHeld: boolean;
}

export interface ValidationContext {
  pool: RunPlan;
  owner: string;
  /** The pool that the resource opened under its old name. It ends before the replacement is created. */
  replacedPool: string | undefined;
}

/** By the type of a pool: the range that tenants share, and the size of each one's block. */
export type TenantDefaults = Record<string, { range: ValueRange; prefixLength: number }>;

export interface LeaseContext {
  pool: RunPlan;
  /** Makes a token that permits the use of the lease's address. */
  token(lease: Lease): Promise<string>;
}

export interface InputError {
  property: string;
  reason: string;
  /** The reason without values, for an input that is secret. */
  plainReason?: string;
}

/** An input that refers to another resource, by reference or by name. */
export interface Reference {
  /** Type of that resource. */
  to: string;
  /** Those of its properties that are passed on, as one object. All are known in preview. */
  passes: string[];
  /** Other inputs that the referenced resource fills in unless they are given: input → its property. */
  fills?: Record<string, string>;
  /** If it is given by name: the pool whose data holds the same values under `settings`. */
  pool(name: string): string;
  /** How they are read from there. */
  stored: StoredSettings;
  /** The input is a list of such resources; what they fill in are lists, too. */
  many?: true;
}

/** Settings that are stored with a pool, for resources that refer to it by name. */
export interface StoredSettings<S extends z.ZodType = z.ZodType> {
  schema: S;
  /** Name of the pool that they belong to. */
  poolOf(settings: z.output<S>): string;
}

/** Other stacks write to the store, too, and settings become parts of commands: they are parsed like the inputs of a user. */
export function parseSettings<S extends z.ZodType>(
  { schema, poolOf }: StoredSettings<S>,
  { name, data }: PoolSpec,
): z.output<S> {
  const isObject = typeof data === "object" && data !== null && !Array.isArray(data);
  const parsed = schema.safeParse(isObject ? data.settings : undefined);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw invalidSettingsError(name, [...issue!.path, issue!.message].join(": "));
  }
  if (poolOf(parsed.data) !== name)
    throw invalidSettingsError(name, `they are those of ${describePool(poolOf(parsed.data))}`);
  return parsed.data;
}

const invalidSettingsError = (pool: string, reason: string): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    `The settings of ${describePool(pool)} in the store are not valid (${reason}).`,
    "Find out what wrote them. `pulumi up` of the stack that owns the pool writes them again; if a newer release did, update this one.",
  );

export const referencesOf = ({ references = {} }: Pick<Definition, "references">): [string, Reference[]][] =>
  Object.entries(references).map(([property, reference]) => [property, [reference].flat()]);

/** A host of a resource: its role, and how to reach it. */
export interface TargetHost {
  role: string;
  connection: Connection;
  underlayIp?: string | undefined;
  /** A role or an address: the underlay address is the source address of the route to it. */
  toward?: string;
  /** The file of its key for tunnels, which an up makes; its facts then have the public key. */
  keyFile?: string | undefined;
  /** An address that the host is to answer for; its facts then name the device on which others look for it. */
  carries?: string;
}

/** The hosts of a resource; none if its definition has no `host`. */
export const targetsOf = ({ host }: Definition, props: Record<string, unknown>): TargetHost[] =>
  host?.targets(props) ?? [];

/** Of all hosts of a resource, by role. */
export type Underlays = Record<string, Underlay>;

export interface TunnelChange<Props> {
  /** The properties with the former tunnel, and with the new one, without direct routes of a mesh. */
  former: Props;
  target: Props;
  /** More items, while a host has both tunnels. */
  transition: { hub: Item[]; runner: Item[] };
  /** A script for the runner. It fails if packets do not pass by the new tunnel. */
  probe: string;
  /** A script for the runner that tells workloads where the hub's address is now. */
  announce?: string;
}

export const defineResource = <I extends z.ZodObject, C extends z.ZodObject>(
  definition: Definition<I, C>,
): Definition<I, C> => definition;
