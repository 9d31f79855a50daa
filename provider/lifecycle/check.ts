import type { z } from "zod";
import { isOverlayError, OverlayError } from "../errors";
import type { Extent, Pool, Request } from "../pool/types";
import type { Definition, Impossible } from "../resource";
import { dataOf } from "./apply";
import {
  equal,
  isWithin,
  jsonText,
  type Path,
  UNKNOWN,
  unknownPaths,
  type Values,
  valueAt,
  without,
  withUnknown,
} from "./values";
import type { World } from "./world";

export interface Caller {
  /** scope + the resource's URN. */
  owner: string;
  dryRun: boolean;
}

export interface Checked {
  inputs: Values;
  failures: Impossible[];
}

/**
 * Validates, and adds the values that the lease decides: this is what preview shows and dependents see. A resource that
 * stays keeps what it holds without a look at the pool; only a new or replaced one gets an offer. Otherwise renames
 * would move addresses, and an unmerged preview would renumber what is live.
 */
export async function check(
  def: Definition,
  world: World,
  caller: Caller,
  olds: Values | undefined,
  news: Values,
): Promise<Checked> {
  const unknown = unknownPaths(news);
  try {
    const given = without(news, unknown);
    const named = { ...given, [def.nameInput]: given[def.nameInput] ?? olds?.[def.nameInput] ?? nameIn(caller.owner) };
    const { inputs, failures } = parse(def, await resolveNames(def, world, named), unknown);
    if (failures.length > 0) return { inputs: news, failures };
    const undecided = unknown.some((path) => !isWithin(path, def.late));
    if (!undecided && !olds && given[def.nameInput] === undefined) await keepName(def, world, caller, inputs);
    const computed = undecided ? unknownValues(def) : await decide(def, world, caller, olds, inputs);
    return { inputs: { ...withUnknown(inputs, unknown), ...computed, owner: caller.owner }, failures: [] };
  } catch (error) {
    if (!isOverlayError(error)) throw error;
    if (error.code === "STORE_UNAVAILABLE" && caller.dryRun) {
      world.warn(`${error.message} The values that the pool gives out are not shown in this preview.`);
      return { inputs: { ...news, ...unknownValues(def), owner: caller.owner }, failures: [] };
    }
    return { inputs: news, failures: [{ property: error.property ?? "", reason: error.message }] };
  }
}

/** A URN ends with the resource's name. */
const nameIn = (owner: string): string => owner.split("::").at(-1)!;

/** Named after the resource at first; one that was renamed later (aliases) and is made anew keeps the name that it got. */
async function keepName(def: Definition, world: World, { owner }: Caller, inputs: Values): Promise<void> {
  const lease = await (await world.pool()).find(def.request(inputs).pool, { owner });
  const name = lease && lease.state !== "offered" ? dataOf(lease).name : undefined;
  if (typeof name === "string") inputs[def.nameInput] = name;
}

/** A reference by name takes its values from the pool that the named resource opened. */
async function resolveNames(def: Definition, world: World, news: Values): Promise<Values> {
  const resolved = { ...news };
  for (const [property, reference] of Object.entries(def.references ?? {})) {
    const name = news[property];
    if (typeof name !== "string") continue;
    const spec = await (await world.pool()).spec(reference.pool(name));
    if (!spec) {
      throw new OverlayError(
        "POOL_NOT_FOUND",
        `There is no ${reference.to} named '${name}' in the store.`,
        "Check the name and the store (overlay:store); the stack that makes it must be up first.",
      ).about(property);
    }
    resolved[property] = (spec.data as { settings: Values }).settings;
  }
  return resolved;
}

/** All failures at once, but none about what is not known yet. */
function parse(def: Definition, news: Values, unknown: Path[]): { inputs: Values; failures: Impossible[] } {
  const whole = def.inputs.safeParse(news);
  const blamed = (issue: z.core.$ZodIssue): boolean =>
    !unknown.some((path) => issue.path.every((key, i) => String(key) === path[i]));
  if (!whole.success) {
    const failures = whole.error.issues.filter(blamed).map(failureOf);
    if (failures.length > 0) return { inputs: {}, failures };
    const pending = new Set(whole.error.issues.map(({ path }) => String(path[0])));
    const known = Object.fromEntries(Object.entries(news).filter(([key]) => !pending.has(key)));
    const mask = Object.fromEntries([...pending].map((key) => [key, true as const]));
    return {
      inputs: def.inputs.partial(mask as Record<string, true> & Record<number, never>).parse(known),
      failures: [],
    };
  }
  const inputs = whole.data as Values;
  return { inputs, failures: unknown.length > 0 ? [] : [...(def.impossible?.(inputs) ?? [])].map(coded) };
}

const failureOf = (issue: z.core.$ZodIssue): Impossible =>
  coded({ property: issue.path.join("."), reason: issue.message });

const coded = ({ property, reason }: Impossible): Impossible => ({
  property,
  reason: /^[A-Z_]+: /.test(reason) ? reason : `INPUT_INVALID: ${property} ${reason}.`,
});

async function decide(
  def: Definition,
  world: World,
  caller: Caller,
  olds: Values | undefined,
  inputs: Values,
): Promise<Values> {
  const kept = olds && keptExtents(def, olds, inputs);
  const pool = kept && sameDetails(def, olds, inputs, kept) ? undefined : await world.pool();
  if (kept && pool) await refuseCollision(def, pool, olds, inputs, kept);
  if (kept) return def.values(inputs, kept);
  if (olds) await refuseLost(def, pool!, olds);
  const lease = await pool!.offer({
    ...def.request(inputs),
    ...opening(def, inputs),
    owner: caller.owner,
    type: def.type,
  });
  for (const warning of lease.warnings ?? []) world.warn(warning);
  const computed = def.values(inputs, lease.extents);
  def.refuse?.({ ...inputs, ...computed }, await pool!.pools("network/"));
  return computed;
}

/** The pool that a lease of it will open, whatever extents it gets. */
const opening = (def: Definition, inputs: Values): Pick<Request, "opens"> =>
  def.opens ? { opens: (extents) => def.opens!(inputs, extents) } : {};

const sameDetails = (def: Definition, olds: Values, inputs: Values, extents: Extent[]): boolean =>
  jsonText(detailsOf(def, olds, extents)) === jsonText(detailsOf(def, inputs, extents));

const detailsOf = (def: Definition, inputs: Values, extents: Extent[]) => {
  const known = without(inputs, unknownPaths(inputs));
  return { names: def.request(known).names, opens: def.opens?.(known, extents) };
};

/** A change in place can meet others, too: another name, a hub that another network has. An offer of what it holds asks. */
async function refuseCollision(
  def: Definition,
  pool: Pool,
  olds: Values,
  inputs: Values,
  kept: Extent[],
): Promise<void> {
  const owner = String(olds.owner);
  const request = { ...def.request(inputs), ...opening(def, inputs), owner, type: def.type, want: kept };
  const lease = await pool.find(request.pool, { owner });
  if (lease && lease.state !== "offered") await pool.offer(request);
  def.refuse?.({ ...inputs, ...def.values(inputs, kept) }, await pool.pools("network/"));
}

/** What it holds already, if that is still what it asks for. */
export function keptExtents(def: Definition, olds: Values, inputs: Values): Extent[] | undefined {
  if (unknownPaths(olds).some((path) => path[0]! in def.computed.shape)) return undefined;
  const held = def.held(olds);
  const { want } = def.request(inputs);
  if (want && !sameExtents(want, held)) return undefined;
  const candidate = { ...inputs, ...def.values(inputs, held) };
  return def.replaceOn.every((path) => equal(valueAt(candidate, path), valueAt(olds, path))) ? held : undefined;
}

const sameExtents = (a: Extent[], b: Extent[]): boolean =>
  a.length === b.length && a.every(({ first, last }, i) => first === b[i]!.first && last === b[i]!.last);

/** A lost pool is never an empty pool: what stands in Pulumi's state but not in the store stops every allocation. */
export async function refuseLost(def: Definition, pool: Pool, olds: Values): Promise<void> {
  const { pool: from } = def.request(olds);
  // An address space is always there; what stands in it has opened a pool.
  const name = from.startsWith("space/") ? def.opens!(olds, def.held(olds)).name : from;
  if (await pool.spec(name)) return;
  throw new OverlayError(
    "STORE_LOST",
    `${def.type} ${def.id(olds)} is in Pulumi's state, but the store knows no pool ${name}. Nothing is given out.`,
    "Point overlay:store at the store that this stack was deployed with, or rebuild it with `overlayctl recover`.",
  );
}

const unknownValues = (def: Definition): Values =>
  Object.fromEntries(
    Object.entries(def.computed.shape).flatMap(([key, schema]) =>
      schema.safeParse(undefined).success ? [] : [[key, UNKNOWN]],
    ),
  );
