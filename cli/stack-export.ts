import { z } from "zod";
import { OverlayError } from "../provider/errors";
import type { ExistingLease } from "../provider/ipam";
import { tryParseJson } from "../provider/json";
import { expandReferences } from "../provider/lifecycle/shown-inputs";
import type { Values } from "../provider/lifecycle/values";
import { tunnelEnd } from "../provider/network/plan/tunnels/tunnel-end";
import { keyName } from "../provider/pool-names";
import type { TenantDefaults } from "../provider/resource";
import { resourceOf, resources } from "../provider/resources";
import { readInput } from "./command";

/** The resources of this package in an export of `pulumi stack export`. Encrypted secrets are left out. */
export interface StackExport {
  /** Where it came from, for messages. */
  source: string;
  /** `STACK::PROJECT`; undefined for a stack without resources. */
  stack?: string;
  resources: ExportedResource[];
}

export interface ExportedResource {
  source: string;
  type: string;
  props: Values & { owner: string; uid: string; leaseId: string };
}

const stateResource = z.looseObject({
  urn: z.string(),
  type: z.string(),
  outputs: z.record(z.string(), z.unknown()).default({}),
  delete: z.boolean().default(false),
});
const document = z.looseObject({ deployment: z.looseObject({ resources: z.array(stateResource).default([]) }) });

/** Types of this package, in the dynamic provider and in the schema. */
export const OUR_TYPES = /^(?:pulumi-nodejs:dynamic\/overlay:|overlay:index:)(\w+)$/;

export const readExport = async (file: string): Promise<StackExport> => parseExport(file, await readInput(file));

export function parseExport(source: string, text: string): StackExport {
  const parsed = document.safeParse(tryParseJson(text));
  if (!parsed.success) {
    const what = `${source} is not the output of \`pulumi stack export\`.`;
    throw new OverlayError("INPUT_INVALID", what, `Make it with \`pulumi stack export --stack STACK --file FILE\`.`);
  }
  const all = parsed.data.deployment.resources;
  const [stack, project] = all[0]?.urn.replace(/^urn:pulumi:/, "").split("::") ?? [];
  const ours = all.flatMap((each) => parseResource(source, each));
  return {
    source,
    resources: dropReplaced(ours),
    ...(project !== undefined && { stack: `${stack}::${project}` }),
  };
}

type ResourceState = ExportedResource & { pendingDelete: boolean };

/** None for a resource that failed before it had a lease. */
function parseResource(
  source: string,
  { type, urn, outputs, delete: pendingDelete }: z.output<typeof stateResource>,
): ResourceState[] {
  const [, ours] = OUR_TYPES.exec(type) ?? [];
  const revealed = revealSecrets(outputs) as ExportedResource["props"];
  if (!ours || !revealed.uid || !revealed.leaseId) return [];
  const def = resources.find((known) => known.type === ours);
  const props = def && (expandReferences(def, revealed) as ExportedResource["props"]);
  if (props) return props.owner ? [{ source, type: ours, props, pendingDelete }] : [];
  throw new OverlayError(
    "INPUT_INVALID",
    `${source} has ${urn}, a type that this release does not have.`,
    "Update pulumi-overlay.",
  );
}

/** A forced replacement renews the lease: a resource that is pending deletion then has a former lease id. */
const dropReplaced = (lives: ResourceState[]): ExportedResource[] =>
  lives
    .filter(({ pendingDelete, props }) => {
      const later = lives.some((other) => !other.pendingDelete && other.props.uid === props.uid);
      return !pendingDelete || !later;
    })
    .map(({ pendingDelete: _, ...life }) => life);

/** How Pulumi marks a secret in its state. */
const [SIGNATURE_KEY, SECRET_SIGNATURE] = ["4dabf18193072939515e22adb298388d", "1b47061264138c4ac30d75fd1eb44270"];

/** Replaces secrets by their plain text, which is present with `--show-secrets`, or removes them. */
function revealSecrets(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(revealSecrets);
  if (typeof value !== "object" || value === null) return value;
  const object = value as Values;
  if (object[SIGNATURE_KEY] === SECRET_SIGNATURE)
    return typeof object.plaintext === "string" ? JSON.parse(object.plaintext) : undefined;
  const entries = Object.entries(object).map(([key, inner]): [string, unknown] => [key, revealSecrets(inner)]);
  return Object.fromEntries(entries.filter(([, inner]) => inner !== undefined));
}

/** All leases that these resources need, each once, with prerequisites that no resource holds. */
export function findRequiredLeases(found: ExportedResource[], tenantDefaults: TenantDefaults): ExistingLease[] {
  const below = found.flatMap(
    ({ type, props }) => resourceOf(type).sourcePool?.prerequisiteLeases?.(props, tenantDefaults) ?? [],
  );
  return [...new Map(below.map((fact) => [fact.owner, fact])).values(), ...found.map(buildRequiredLease)];
}

/** It has hosts, but the export hides them. */
export const hasHiddenHosts = ({ type, props }: ExportedResource): boolean =>
  "hubConnection" in resourceOf(type).inputs.shape && !props.hubConnection;

/** The lease that a resource in state must have. */
export function buildRequiredLease({ type, props }: ExportedResource): ExistingLease {
  const def = resourceOf(type);
  const { pool, names, labels, tenant, usedBy, sharingKey, ports } = def.request(props, props.owner);
  const childPool = def.childPool?.(props, def.rangesFromProps(props));
  const { data: end } = tunnelEnd.safeParse(props.tunnelEnd);
  return {
    pool,
    owner: props.owner,
    type,
    values: def.rangesFromProps(props),
    identity: { uid: props.uid, leaseId: props.leaseId },
    // The lifecycle reads the name of a resource that is created again from here.
    ...(def.nameInput && { data: { name: String(props[def.nameInput]), ...(end && { tunnel: end }) } }),
    ...(tenant && { tenant }),
    ...(usedBy !== undefined && { usedBy }),
    // Used by the bearer of its token, as of the last up or refresh.
    ...(props.state === "used" && { state: "used" as const }),
    ...(names && { names: end?.publicKey === undefined ? names : [...names, keyName(end.publicKey)] }),
    ...(childPool && { childPool }),
    ...(labels && { labels }),
    ...(sharingKey !== undefined && { sharingKey }),
    ...(ports && { ports }),
  };
}

/** A lease, or a request for one: it is in a pool, and may open another. */
export interface PoolMember {
  pool: string;
  childPool?: string | { name: string };
}

/** Sorts leases so that each pool is opened before its own leases; stable. */
export function sortByDepth<T extends PoolMember>(all: T[]): T[] {
  const openers = new Map(
    all.flatMap((each): [string, T][] => (each.childPool ? [[childPoolName(each.childPool), each]] : [])),
  );
  const depth = ({ pool }: PoolMember): number => {
    const opener = openers.get(pool);
    return opener ? 1 + depth(opener) : 0;
  };
  const depths = new Map(all.map((each) => [each, depth(each)]));
  return [...all].sort((a, b) => depths.get(a)! - depths.get(b)!);
}

const childPoolName = (childPool: string | { name: string }): string =>
  typeof childPool === "string" ? childPool : childPool.name;
