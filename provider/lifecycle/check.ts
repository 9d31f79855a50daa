import type { z } from "zod";
import { isOverlayError, OverlayError } from "../errors";
import { type Definition, type Impossible, type Reference, referencesOf, settingsIn } from "../resource";
import { dataOf } from "./apply";
import { decide, unknownValues } from "./deciding";
import { isWithin, type Path, unknownPaths, unknownWholes, type Values, without, withUnknown } from "./values";
import type { World } from "./world";

export interface Caller {
  /** scope + the resource's URN. */
  owner: string;
  /** The same under its old name, in a run that gives it another one. */
  formerly?: string | undefined;
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
    const given = withTenant(def, world, news, without(news, unknown));
    const parsed = parse(def, await resolveNames(def, world, named(def, caller, olds, given)), unknown);
    if (parsed.failures.length > 0) return { inputs: news, failures: parsed.failures };
    const inputs = without(parsed.inputs, unknownWholes(news)); // unknown is not the same as left out
    const undecided = unknown.some((path) => !isWithin(path, def.late));
    if (!undecided && !olds && def.nameInput && given[def.nameInput] === undefined)
      await keepName(def, world, caller, inputs);
    const settled = undecided ? inputs : await settle(def, world, caller, olds, inputs);
    const computed = undecided || !settled ? unknownValues(def) : await decide(def, world, caller, olds, settled);
    return { inputs: { ...restored(settled ?? inputs, news), ...computed, owner: caller.owner }, failures: [] };
  } catch (error) {
    if (!isOverlayError(error)) throw error;
    if (error.code === "STORE_UNAVAILABLE" && caller.dryRun) {
      world.warn(`${error.message} The values that the pool gives out are not shown in this preview.`);
      return { inputs: { ...news, ...unknownValues(def), owner: caller.owner }, failures: [] };
    }
    return { inputs: news, failures: [{ property: error.property ?? "", reason: error.message }] };
  }
}

/** undefined: in this preview there is nothing yet to choose from. */
async function settle(
  def: Definition,
  world: World,
  { owner, dryRun }: Caller,
  olds: Values | undefined,
  inputs: Values,
): Promise<Values | undefined> {
  if (!def.settle) return inputs;
  try {
    const { tenantDefaults } = world;
    return await def.settle(inputs, { pool: await world.pool(), owner, olds, tenantDefaults });
  } catch (error) {
    if (!isOverlayError(error, "POOL_NOT_FOUND") || !dryRun) throw error;
    world.warn(`${error.message} Its values are not shown in this preview.`);
    return undefined;
  }
}

/** A URN ends with the resource's name. */
const nameIn = (owner: string): string => owner.split("::").at(-1)!;

const named = ({ nameInput }: Definition, { owner }: Caller, olds: Values | undefined, given: Values): Values =>
  nameInput ? { ...given, [nameInput]: given[nameInput] ?? olds?.[nameInput] ?? nameIn(owner) } : given;

/** The provider's setting is the tenant of every resource that names none; one that is not known yet is named. */
const withTenant = (def: Definition, { tenant }: World, news: Values, given: Values): Values =>
  tenant && "tenant" in def.inputs.shape && news.tenant === undefined ? { ...given, tenant } : given;

/** Named after the resource at first; one that was renamed later (aliases) and is made anew keeps the name that it got. */
async function keepName(def: Definition, world: World, { owner }: Caller, inputs: Values): Promise<void> {
  const lease = await (await world.pool()).find(def.request(inputs, owner).pool, { owner });
  const name = lease && lease.state !== "offered" ? dataOf(lease).name : undefined;
  if (typeof name === "string") inputs[def.nameInput!] = name;
}

/** A reference by name takes its values from the pool that the named resource opened. */
async function resolveNames(def: Definition, world: World, news: Values): Promise<Values> {
  const resolved = { ...news };
  for (const [property, references] of referencesOf(def)) {
    const named = news[property];
    const settle = (each: unknown) =>
      typeof each === "string" ? settingsNamed(world, property, references, each) : Promise.resolve(each);
    if (typeof named === "string") resolved[property] = await settle(named);
    else if (Array.isArray(named)) resolved[property] = await Promise.all(named.map(settle));
  }
  return resolved;
}

async function settingsNamed(world: World, property: string, references: Reference[], name: string): Promise<unknown> {
  const pool = await world.pool();
  for (const reference of references) {
    const spec = await pool.spec(reference.pool(name));
    if (spec) return settingsIn<Values>(spec);
  }
  throw new OverlayError(
    "POOL_NOT_FOUND",
    `There is no ${references.map(({ to }) => to).join(" or ")} named '${name}' in the store.`,
    "Check the name and the store (overlay:store); the stack that makes it must be up first.",
  ).about(property);
}

/** What is not known stands as the user gave it. */
function restored(inputs: Values, news: Values): Values {
  const unknown = unknownWholes(news);
  const absent = unknown.filter(([key]) => !(key! in inputs)).map(([key]) => [key!, news[key!]]);
  return { ...withUnknown(inputs, unknown), ...Object.fromEntries(absent) };
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
    const inputs = def.inputs.partial(mask as Record<string, true> & Record<number, never>).parse(known);
    return {
      inputs: without(
        inputs,
        [...pending].map((key) => [key]),
      ),
      failures: [],
    };
  }
  const inputs = whole.data as Values;
  return { inputs, failures: impossible(def, inputs, unknown).map(coded) };
}

/** Inputs that decide something can make everything possible; those that are known only during up speak for themselves. */
function impossible(def: Definition, inputs: Values, unknown: Path[]): Impossible[] {
  if (unknown.some((path) => !isWithin(path, def.late))) return [];
  return [...(def.impossible?.(inputs) ?? [])].filter(
    ({ property }) => !unknown.some(([key]) => key === property.split(".")[0]),
  );
}

const failureOf = (issue: z.core.$ZodIssue): Impossible =>
  coded({ property: issue.path.join("."), reason: issue.message });

const coded = ({ property, reason }: Impossible): Impossible => ({
  property,
  // Ours go on where the property's name ends; zod's are sentences of their own.
  reason: /^[A-Z_]+: /.test(reason)
    ? reason
    : `INPUT_INVALID: ${property}${/^[A-Z]/.test(reason) ? ":" : ""} ${reason}.`,
});
