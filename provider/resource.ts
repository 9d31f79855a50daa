import type { z } from "zod";
import { OverlayError } from "./errors";
import type { Connection } from "./host/connection";
import type { Container } from "./network/model/facts";
import type { Item } from "./network/model/items";
import type { Machine } from "./network/plan/hub";
import type { Extent, Fact, Lease, Pool, PoolSpec, Request } from "./pool/types";
import { describePool } from "./pool-names";

/**
 * What one resource must say about itself; `lifecycle.ts` does the rest, once, for all of them. Every resource holds
 * exactly one lease, whose extents decide its values, and may have items on hosts.
 */
export interface Definition<Inputs extends z.ZodObject = z.ZodObject, Computed extends z.ZodObject = z.ZodObject> {
  type: string;
  description: string;
  /** What the user gives; descriptions are the reference documentation. */
  inputs: Inputs;
  /** What `check` adds from the lease: known in preview, and to dependents. */
  computed: Computed;
  /** What only hosts and the pool can tell, once it is made. */
  outputs: z.ZodObject;
  /** The input that defaults to the resource's name. */
  nameInput?: string;
  /** Inputs of which exactly one must be given; the SDK's types say so, too. */
  exactlyOneOf?: string[];
  /** Inputs that hold secrets; each a property of its own, or a whole input would be hidden in every preview. */
  secrets: string[];
  /**
   * Inputs that name another resource: its type, and which of its values (all known in preview) are passed on. Several,
   * where it may be of one type or another.
   */
  references?: Record<string, Reference | Reference[]>;
  /** Paths whose change needs another resource in its place. */
  replaceOn: string[];
  /** Paths that may be known only during up: they decide nothing that preview shows. */
  late: string[];
  /** Inputs whose change concerns no host. */
  quiet: string[];
  /** A new life begins before the old one ends, where the pool has room for both. Else the old one ends first. */
  createFirst?: boolean;

  /** What zod cannot see: inputs that do not fit together. Called when all of them are well formed and, but for late ones, known. */
  impossible?(inputs: z.output<Inputs>): Iterable<Impossible>;
  id(props: Props<Inputs, Computed>): string;
  /** Makes the choices that the inputs leave open, in the form of inputs: on which runner, in whose pool. */
  settle?(inputs: z.output<Inputs>, settling: Settling): Promise<z.output<Inputs>>;
  /** Claims what its own claim stands on and no other resource does. */
  prepare?(props: Props<Inputs, Computed>, settling: Settling): Promise<void>;
  /** Those leases, for a store that must be rebuilt. */
  foundations?(props: Props<Inputs, Computed>, tenantDefaults: TenantDefaults): Fact[];
  /** What it asks of the pool. Called in previews too, where a connection may not be known yet: it is absent then. */
  request(inputs: z.output<Inputs>, owner: string): Omit<Request, "owner" | "type" | "opens" | "data" | "by">;
  /** The pool that its lease opens, which may follow from what the lease holds. */
  opens?(inputs: z.output<Inputs>, extents: Extent[]): PoolSpec;
  values(inputs: z.output<Inputs>, extents: Extent[]): z.output<Computed>;
  /** The inverse of `values`: what these properties hold. */
  held(props: Props<Inputs, Computed>): Extent[];
  /** How the pool that it asks is about to change in the same run; undefined: it is what the inputs say. */
  poolChange?(inputs: z.output<Inputs>, spec: PoolSpec | undefined): PoolChange | undefined;
  /** Paths whose change means nothing for it: it is shown as unchanged. */
  unaffectedBy?: string[];
  /** Throws when this cannot live beside what others have. */
  refuse?(props: Props<Inputs, Computed>, others: PoolSpec[]): void;

  /** The same about those who have a part in what it holds. */
  beside?(props: Props<Inputs, Computed>, owner: string, pool: Pool): Promise<void>;
  /** What those must be able to see; kept with the lease. */
  notes?(inputs: z.output<Inputs>): Record<string, string>;

  /** Throws when this lease must not be given up. It has a successor while its resource is replaced in the same pool. */
  refuseEnd?(props: Props<Inputs, Computed>, lease: Lease, hasSuccessor: boolean): void;

  /** The machines that have a part in it, in the order in which they are asked about themselves. */
  hosts(props: Props<Inputs, Computed>): Part[];
  /** Pure: what each of them must look like. */
  plan(props: Props<Inputs, Computed>, machines: Machines): Record<string, Item[]>;
  /** Whether the machines bring it back by themselves after a boot; default: yes. */
  persist?(props: Props<Inputs, Computed>): boolean;
  report(props: Props<Inputs, Computed>, machines: Machines): Record<string, unknown>;
  /** What only the pool can tell, once the lease stands. */
  tell?(props: Props<Inputs, Computed>, lease: Lease, teller: Teller): Promise<Record<string, unknown>>;
  /** What containers on its machines have of the pool that it opens, whether or not anybody holds it. */
  inUse?(props: Props<Inputs, Computed>, containers: Container[]): Fact[];
  /** A script that proves, on one of the machines, that it works. */
  probe?(props: Props<Inputs, Computed>, machines: Machines): Probe | undefined;
}

export type Props<I extends z.ZodObject, C extends z.ZodObject> = z.output<I> & z.output<C>;

export interface Settling {
  pool: Pool;
  owner: string;
  /** What it was before. */
  olds?: Record<string, unknown> | undefined;
  tenantDefaults: TenantDefaults;
}

/** By the type of a pool: the range that tenants share, and the size of each one's block. */
export type TenantDefaults = Record<string, { range: Extent; prefixLength: number }>;

/** Whom a resource can ask about its lease. */
export interface Teller {
  pool: Pool;
  /** Lets its bearer use the address of this lease. */
  token(lease: Lease): Promise<string>;
}

export interface PoolChange {
  /** The pool that is there now ends, with all that is offered in it. */
  replaced: boolean;
  /** Whether it will still have these. */
  keeps(extents: Extent[]): boolean;
}

export interface Impossible {
  property: string;
  reason: string;
}

export interface Reference {
  to: string;
  /** One object with these of its properties. */
  passes: string[];
  /** Other inputs that the referenced resource fills in unless they are given: input → its property. */
  fills?: Record<string, string>;
  /** Given by name: the pool whose data holds the same values under `settings`. */
  pool(name: string): string;
  /** What is read from there. */
  stored: StoredSettings;
  /** The input is a list of such resources; what they fill in are lists, too. */
  many?: true;
}

/** Settings that the opener of a pool keeps in the store, for resources that refer to it by name. */
export interface StoredSettings<S extends z.ZodType = z.ZodType> {
  schema: S;
  /** Name of the pool in which they belong. */
  poolOf(settings: z.output<S>): string;
}

/** Other stacks write to the store, too, and settings end up in commands: they are parsed like the inputs of a user. */
export function settingsIn<S extends z.ZodType>(
  { schema, poolOf }: StoredSettings<S>,
  { name, data }: PoolSpec,
): z.output<S> {
  const isObject = typeof data === "object" && data !== null && !Array.isArray(data);
  const parsed = schema.safeParse(isObject ? data.settings : undefined);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw invalidSettings(name, [...issue!.path, issue!.message].join(": "));
  }
  if (poolOf(parsed.data) !== name)
    throw invalidSettings(name, `they are those of ${describePool(poolOf(parsed.data))}`);
  return parsed.data;
}

const invalidSettings = (pool: string, reason: string): OverlayError =>
  new OverlayError(
    "STORE_CORRUPT",
    `The settings of ${describePool(pool)} in the store are not valid (${reason}).`,
    "Find out what wrote them. `pulumi up` of the stack that owns the pool writes them again; if a newer release did, update this one.",
  );

export const referencesOf = ({ references = {} }: Pick<Definition, "references">): [string, Reference[]][] =>
  Object.entries(references).map(([property, reference]) => [property, [reference].flat()]);

/** One machine's part in a resource. */
export interface Part {
  role: string;
  connection: Connection;
  underlayIp?: string | undefined;
  /** The role of the machine, or the address, towards which its underlay address is wanted. */
  toward?: string;
  /** An address that it is to carry for others; it says on which of its devices they would look for it. */
  carries?: string;
}

export type Machines = Record<string, Machine>;

export interface Probe {
  role: string;
  script: string;
  /** What the script shows, for the error when it fails. */
  shows: string;
}

export const defineResource = <I extends z.ZodObject, C extends z.ZodObject>(
  definition: Definition<I, C>,
): Definition<I, C> => definition;
