import type { z } from "zod";
import { escapeControls, isOverlayError, OverlayError } from "../errors";
import type { Connection } from "../host/connection";
import { explainIssues, formatPath, NOT_SHOWN, type Refusal, refuse } from "../invalid-input";
import { findSpec } from "../ipam/interface";
import { type Definition, parseSettings, type Reference, referencesOf, shownOutputs } from "../resource";
import { allocateOrKeep, cannotOffer, unknownValues } from "./allocation";
import type { Caller, Dependencies } from "./dependencies";
import { readLeaseData } from "./lease";
import { isPathWithin, type Path, unknownPaths, unknownWholes, type Values, withoutPaths, withUnknown } from "./values";

/** One reason why inputs are invalid. Pulumi prints `property`, its value, and `reason`. */
export interface Failure {
  /** Empty for an input that holds a secret, because Pulumi would print its value. */
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
 * Validates inputs, and adds the computed values: these are what preview shows and dependents get. A resource that is not replaced
 * keeps its values; only a new or replaced one gets an offer. Otherwise a rename would change addresses, and a preview of a branch
 * would renumber what is deployed.
 */
export async function check(
  def: Definition,
  deps: Dependencies,
  caller: Caller,
  olds: Values | undefined,
  given: Values,
): Promise<Checked> {
  const outputs = shownOutputs(def);
  const shown = Object.fromEntries(Object.entries(given).filter(([key]) => outputs.includes(key)));
  const news = Object.fromEntries(Object.entries(given).filter(([key]) => !outputs.includes(key)));
  const { inputs, failures } = await checkInputs(def, deps, caller, olds, news);
  return { inputs: { ...inputs, ...shown }, failures };
}

async function checkInputs(
  def: Definition,
  deps: Dependencies,
  caller: Caller,
  olds: Values | undefined,
  news: Values,
): Promise<Checked> {
  const unknown = unknownPaths(news);
  try {
    if (!caller.dryRun) await mustAllowUp(deps);
    const given = withTenant(def, deps, news, withoutPaths(news, unknown));
    const parsed = parse(def, caller, await resolveNames(def, deps, withName(def, caller, olds, given)), unknown);
    if (parsed.refusals.length > 0)
      return { inputs: news, failures: parsed.refusals.map(toFailure(def, caller, news)) };
    const inputs = withoutPaths(parsed.inputs, unknownWholes(news)); // an unknown input has no default
    await checkKeys(def, deps, parsed.inputs, unknown);
    const isUndecided =
      unknown.some((path) => !isPathWithin(path, def.mayBeUnknown)) || (!olds && (await cannotOffer(deps, caller)));
    if (!isUndecided && !olds && def.nameInput && given[def.nameInput] === undefined)
      await restoreName(def, deps, caller, inputs);
    const resolved = isUndecided ? inputs : await resolveInputs(def, deps, caller, olds, inputs);
    const computed =
      isUndecided || !resolved ? unknownValues(def) : await allocateOrKeep(def, deps, caller, olds, resolved);
    return { inputs: { ...restoreUnknown(resolved ?? inputs, news), ...computed, owner: caller.owner }, failures: [] };
  } catch (error) {
    if (!isOverlayError(error)) throw error;
    if (error.code === "STORE_UNAVAILABLE" && caller.dryRun) {
      deps.warn(`${error.message} The values that the pool gives out are not shown in this preview.`);
      return { inputs: { ...news, ...unknownValues(def), owner: caller.owner }, failures: [] };
    }
    const path = error.property?.split(".") ?? [];
    return {
      inputs: news,
      failures: [toFailure(def, caller, news)(toRefusal(error, path, isSecret(def, caller, path[0])))],
    };
  }
}

/** Reads the private keys of all connections, except of those that are still unknown in a part. */
async function checkKeys(def: Definition, { fleet }: Dependencies, inputs: Values, unknown: Path[]): Promise<void> {
  const known = def.secrets.filter((key) => !unknown.some(([first]) => first === key));
  const connections = known.flatMap((key) => [inputs[key] as Connection | Connection[] | undefined].flat());
  for (const each of connections) if (each?.host !== undefined) await fleet.checkKey(each);
}

/** An up of a user that may only preview stops before anything is changed. A store that does not answer is reported where it is needed. */
async function mustAllowUp({ pool }: Dependencies): Promise<void> {
  const store = await pool()
    .then((opened) => opened.describeStore())
    .catch(() => undefined);
  if (store?.whyNoClaims) throw store.whyNoClaims;
}

/** Errors of the pool contain the value of an input, so for a secret input only the code is shown. */
function toRefusal(error: OverlayError, path: string[], isHidden: boolean): Refusal {
  if (isHidden) return refuse(path, `${error.code}: ${NOT_SHOWN}. ${error.fix}`);
  const isNamed = path.length === 0 || error.what.includes(formatPath(path));
  if (!isNamed) return refuse(path, error.message);
  return { path, code: error.code, reason: `${error.what} ${escapeControls(error.fix)}` };
}

/** undefined: in this preview there is no pool yet to choose from. */
async function resolveInputs(
  def: Definition,
  deps: Dependencies,
  { owner, dryRun, program, declares }: Caller,
  olds: Values | undefined,
  inputs: Values,
): Promise<Values | undefined> {
  if (!def.sourcePool?.resolve) return inputs;
  try {
    const { tenantDefaults } = deps;
    const context = { pool: await deps.pool(), owner, olds, dryRun, program, declares, tenantDefaults };
    return await def.sourcePool.resolve(inputs, context);
  } catch (error) {
    if (!isOverlayError(error, "POOL_NOT_FOUND") || !dryRun) throw error;
    deps.warn(`${error.message} Its values are not shown in this preview.`);
    return undefined;
  }
}

/** A URN ends with the resource's name. */
const nameOfResource = (owner: string): string => owner.split("::").at(-1)!;

function withName({ nameInput }: Definition, caller: Caller, olds: Values | undefined, given: Values): Values {
  if (!nameInput) return given;
  const former = olds?.[nameInput] ?? caller.formerName;
  return { ...given, [nameInput]: given[nameInput] ?? former ?? nameOfResource(caller.owner) };
}

/** Resources without a tenant get that of the provider's settings; an unknown tenant counts as given. */
const withTenant = (def: Definition, { tenant }: Dependencies, news: Values, given: Values): Values =>
  tenant && "tenant" in def.inputs.shape && news.tenant === undefined ? { ...given, tenant } : given;

/** The name defaults to that of the resource at its first create; it is kept when the resource is renamed (aliases) and created again. */
async function restoreName(def: Definition, deps: Dependencies, { owner }: Caller, inputs: Values): Promise<void> {
  const lease = await (await deps.pool()).ipam.find({ pool: def.request(inputs, owner).pool, owner });
  const name = lease && lease.state !== "offered" ? readLeaseData(lease).name : undefined;
  if (typeof name === "string") inputs[def.nameInput!] = name;
}

/** Replaces references by name with the settings in the pool that the named resource opened. */
async function resolveNames(def: Definition, deps: Dependencies, news: Values): Promise<Values> {
  const resolved = { ...news };
  for (const [property, references] of referencesOf(def)) {
    const named = news[property];
    const resolveOne = (each: unknown) =>
      typeof each === "string" ? readNamedSettings(deps, property, references, each) : Promise.resolve(each);
    if (typeof named === "string") resolved[property] = await resolveOne(named);
    else if (Array.isArray(named)) resolved[property] = await Promise.all(named.map(resolveOne));
  }
  return resolved;
}

async function readNamedSettings(
  deps: Dependencies,
  property: string,
  references: Reference[],
  name: string,
): Promise<unknown> {
  const pool = await deps.pool();
  for (const reference of references) {
    const spec = await findSpec(pool.ipam, reference.pool(name));
    if (spec) return parseSettings(reference.stored, spec);
  }
  throw new OverlayError(
    "POOL_NOT_FOUND",
    `There is no ${references.map(({ to }) => to).join(" or ")} named '${name}' in the store.`,
    "Check the name and the store (overlay:store); the stack that makes it must be up first.",
  ).about(property);
}

/** Puts unknown inputs back as they were given. */
function restoreUnknown(inputs: Values, news: Values): Values {
  const unknown = unknownWholes(news);
  const absent = unknown.filter(([key]) => !(key! in inputs)).map(([key]) => [key!, news[key!]]);
  return { ...withUnknown(inputs, unknown), ...Object.fromEntries(absent) };
}

/** Parses the inputs. Returns all errors, except those about inputs that are still unknown. */
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
      inputs: withoutPaths(
        inputs,
        [...pending].map((key) => [key]),
      ),
      refusals: [],
    };
  }
  const inputs = whole.data as Values;
  return { inputs, refusals: findCrossFieldErrors(def, caller, inputs, unknown) };
}

/** None while an input is unknown that is not in `mayBeUnknown`: its value may resolve the conflict. */
function findCrossFieldErrors(def: Definition, caller: Caller, inputs: Values, unknown: Path[]): Refusal[] {
  if (unknown.some((path) => !isPathWithin(path, def.mayBeUnknown))) return [];
  return [...(def.crossFieldErrors?.(inputs) ?? [])]
    .map((error) => ({ ...error, path: error.property.split(".") }))
    .filter(({ path }) => !unknown.some(([key]) => key === path[0]))
    .map(({ path, reason, plainReason = "does not fit the other inputs" }) =>
      refuse(path, caller.secretInputs?.includes(path[0]!) ? plainReason : reason),
    );
}

const isSecret = (def: Definition, { secretInputs = [] }: Caller, key: string | undefined): boolean =>
  key !== undefined && (def.secrets.includes(key) || secretInputs.includes(key));

/** Describes the allowed values of an input that refers to another resource. */
function referenceText(def: Definition, path: string[]): string | undefined {
  const [, references] = referencesOf(def).find(([key]) => key === path[0]) ?? [];
  if (!references || path.length > (references[0]!.many ? 2 : 1)) return undefined;
  const one = `${references.map(({ to }) => to).join(" or ")}, or the name of one`;
  return references[0]!.many && path.length === 1 ? `a list, each a ${one}` : `of type ${one}`;
}

/**
 * Pulumi prints the value of the named input. So only whole inputs are named, and none that contains an object: it may be a
 * connection, given for the wrong input, with a password in it.
 */
const toFailure =
  (def: Definition, caller: Caller, news: Values) =>
  ({ path, code, reason }: Refusal): Failure => {
    const [key = ""] = path;
    const isWhole = path.length === 1 && key in def.inputs.shape && !isSecret(def, caller, key);
    return {
      property: isWhole && !hasObject(news[key]) ? key : "",
      path: path.join("."),
      reason: `${code}: ${reason}`,
    };
  };

const hasObject = (value: unknown): boolean =>
  Array.isArray(value) ? value.some(hasObject) : typeof value === "object" && value !== null;
