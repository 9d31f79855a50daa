import type { z } from "zod";
import { isOverlayError, OverlayError } from "../errors";
import { explainIssues, NOT_SHOWN, pathText, type Refusal, refuse } from "../invalid-input";
import type { Extent, OfferOptions } from "../pool/types";
import { type Definition, type Reference, referencesOf, settingsIn } from "../resource";
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
  /** Inputs that the program marked as secret, wholly or in part, besides those that always are. */
  secretInputs?: string[] | undefined;
  /** Pulumi checks a replacement once more without what was: this run has seen it with that. */
  isReplacement?: boolean | undefined;
  /** What it held until this run deleted it in order to make it anew. */
  prefer?: Extent[] | undefined;
  movesAway?: OfferOptions["movesAway"] | undefined;
  /** See `Request`. */
  program?: string | undefined;
}

/** One reason why the inputs are refused. Pulumi prints `property`, the value that it has there, and `reason`. */
export interface Failure {
  /** Empty unless it is an input without a secret in it: Pulumi prints its value, also when that is a secret. */
  property: string;
  /** What is wrong, as a path into the inputs: `forwards.0.port`. */
  path: string;
  /** `CODE: what is wrong. What to do.`, with the path in it. */
  reason: string;
}

export interface Checked {
  inputs: Values;
  failures: Failure[];
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
    const parsed = parse(def, caller, await resolveNames(def, world, named(def, caller, olds, given)), unknown);
    if (parsed.refusals.length > 0)
      return { inputs: news, failures: parsed.refusals.map(failureOf(def, caller, news)) };
    const inputs = without(parsed.inputs, unknownWholes(news)); // unknown is not the same as left out
    const undecided =
      unknown.some((path) => !isWithin(path, def.mayBeUnknown)) || (!olds && (await cannotPromise(world, caller)));
    if (!undecided && !olds && def.nameInput && given[def.nameInput] === undefined)
      await keepName(def, world, caller, inputs);
    const settled = undecided ? inputs : await resolve(def, world, caller, olds, inputs);
    const computed = undecided || !settled ? unknownValues(def) : await decide(def, world, caller, olds, settled);
    return { inputs: { ...restored(settled ?? inputs, news), ...computed, owner: caller.owner }, failures: [] };
  } catch (error) {
    if (!isOverlayError(error)) throw error;
    if (error.code === "STORE_UNAVAILABLE" && caller.dryRun) {
      world.warn(`${error.message} The values that the pool gives out are not shown in this preview.`);
      return { inputs: { ...news, ...unknownValues(def), owner: caller.owner }, failures: [] };
    }
    const path = error.property?.split(".") ?? [];
    return {
      inputs: news,
      failures: [failureOf(def, caller, news)(refusalOf(error, path, isSecret(def, caller, path[0])))],
    };
  }
}

/** What the pool says about an input names its value, so of a secret one only the code is told. */
function refusalOf(error: OverlayError, path: string[], isHidden: boolean): Refusal {
  if (isHidden) return refuse(path, `${error.code}: ${NOT_SHOWN}. ${error.fix}`);
  const isNamed = path.length === 0 || error.what.includes(pathText(path));
  return isNamed ? { path, reason: error.message } : refuse(path, error.message);
}

/** Where a preview may not write offers, the values of a new resource are not shown. */
export async function cannotPromise(world: World, { dryRun }: Caller): Promise<boolean> {
  const reason = dryRun ? (await world.pool()).whyNoOffers : undefined;
  if (reason) world.warn(`Values of new resources are not shown in this preview: ${reason}.`);
  return reason !== undefined;
}

/** undefined: in this preview there is nothing yet to choose from. */
async function resolve(
  def: Definition,
  world: World,
  { owner, dryRun }: Caller,
  olds: Values | undefined,
  inputs: Values,
): Promise<Values | undefined> {
  if (!def.sourcePool?.resolve) return inputs;
  try {
    const { tenantDefaults } = world;
    return await def.sourcePool.resolve(inputs, { pool: await world.pool(), owner, olds, tenantDefaults });
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
    if (spec) return settingsIn(reference.stored, spec);
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

/** Everything that is wrong, but nothing about what is not known yet. */
function parse(
  def: Definition,
  caller: Caller,
  news: Values,
  unknown: Path[],
): { inputs: Values; refusals: Refusal[] } {
  const whole = def.inputs.safeParse(news);
  const isKnown = (issue: z.core.$ZodIssue): boolean =>
    !unknown.some((path) => issue.path.every((key, i) => String(key) === path[i]));
  if (!whole.success) {
    const refusals = explainIssues(whole.error.issues.filter(isKnown), {
      schema: def.inputs,
      given: news,
      isSecret: ([key]) => isSecret(def, caller, key),
      allowed: (path) => referenceText(def, path),
    });
    if (refusals.length > 0) return { inputs: {}, refusals };
    const pending = new Set(whole.error.issues.map(({ path }) => String(path[0])));
    const known = Object.fromEntries(Object.entries(news).filter(([key]) => !pending.has(key)));
    const mask = Object.fromEntries([...pending].map((key) => [key, true as const]));
    const inputs = def.inputs.partial(mask as Record<string, true> & Record<number, never>).parse(known);
    return {
      inputs: without(
        inputs,
        [...pending].map((key) => [key]),
      ),
      refusals: [],
    };
  }
  const inputs = whole.data as Values;
  return { inputs, refusals: crossFieldErrors(def, caller, inputs, unknown) };
}

/** Inputs that decide something can make everything possible; those that are known only during up speak for themselves. */
function crossFieldErrors(def: Definition, caller: Caller, inputs: Values, unknown: Path[]): Refusal[] {
  if (unknown.some((path) => !isWithin(path, def.mayBeUnknown))) return [];
  return [...(def.crossFieldErrors?.(inputs) ?? [])]
    .map(({ property, reason }) => ({ path: property.split("."), reason }))
    .filter(({ path }) => !unknown.some(([key]) => key === path[0]))
    .map(({ path, reason }) =>
      refuse(path, caller.secretInputs?.includes(path[0]!) ? "does not fit the other inputs" : reason),
    );
}

const isSecret = (def: Definition, { secretInputs = [] }: Caller, key: string | undefined): boolean =>
  key !== undefined && (def.secrets.includes(key) || secretInputs.includes(key));

/** What an input that names another resource can be. */
function referenceText(def: Definition, path: string[]): string | undefined {
  const [, references] = referencesOf(def).find(([key]) => key === path[0]) ?? [];
  if (!references || path.length > (references[0]!.many ? 2 : 1)) return undefined;
  const one = `${references.map(({ to }) => to).join(" or ")}, or the name of one`;
  return references[0]!.many && path.length === 1 ? `a list, each a ${one}` : `of type ${one}`;
}

/**
 * Pulumi looks the value up by the name of a whole input, so nothing below one is named to it. Nor is one with an object in it: a
 * connection in the place of another input has a password in it all the same.
 */
const failureOf =
  (def: Definition, caller: Caller, news: Values) =>
  ({ path, reason }: Refusal): Failure => {
    const [key = ""] = path;
    const isWhole = path.length === 1 && key in def.inputs.shape && !isSecret(def, caller, key);
    return { property: isWhole && !hasObject(news[key]) ? key : "", path: path.join("."), reason };
  };

const hasObject = (value: unknown): boolean =>
  Array.isArray(value) ? value.some(hasObject) : typeof value === "object" && value !== null;
