import * as pulumi from "@pulumi/pulumi";
import { refuseUnknownSettings } from "./check-settings";
import {
  type Declaration,
  type DescribedProgram,
  describeProgram,
  namesBefore,
  type OrderedDeclaration,
} from "./declared";

/** The properties of a resource class; written by the generator. */
export interface Shape {
  type: string;
  secrets: string[];
  /** By input that is a connection: what is shown of it, part → output. */
  shownParts: Record<string, Record<string, string>>;
  /** The pool serves the resources that are declared for the same `by` in their order, except those that request a value with `unless`. */
  inOrder?: { by: string; unless: string };
  /** By input: the types of resources that it may refer to, and the properties that are passed for each. */
  references: Record<string, ReferenceShape[]>;
  /** All inputs and outputs. */
  properties: string[];
}

export interface ReferenceShape {
  to: string;
  outputs: string[];
  inputs: string[];
  fills: Record<string, string>;
}

/** The type as it is written in owners. */
const CORE_TYPE = "overlay:index:";
const DYNAMIC_TYPE = "pulumi-nodejs:dynamic/overlay:";

/**
 * Pulumi stores this text in the state of every resource and runs it for every call. It loads the installed package, so the state
 * contains neither code nor secrets, and an upgrade of the package changes no resource. It must never change; a test compares it.
 */
const providerText = (type: string): string =>
  `exports.handler = () => require("pulumi-overlay/runtime").provider("${type}");`;

/** Type and arguments of each resource, for resources that refer to it. */
const argsOfResource = new WeakMap<OverlayResource, { type: string; args: Record<string, unknown> }>();

/** Like `pulumi.dynamic.Resource`, but with a constant provider text. */
export abstract class OverlayResource extends pulumi.CustomResource {
  constructor(shape: Shape, name: string, args: object, opts: pulumi.CustomResourceOptions = {}) {
    if (opts.import !== undefined)
      throw new Error(
        `${shape.type} ${name}: the option \`import\` does not work with this package. Set \`adopt: true\` to take over devices on the hosts, and use \`overlayctl import\` or \`overlayctl recover\` to record addresses in the pool.`,
      );
    refuseUnknownSettings();
    const names = [name, ...formerNames(opts.aliases)];
    const described = declare({ type: shape.type, names, args: args as Record<string, unknown> });
    const inputs = resolveReferences(shape, args as Record<string, unknown>);
    const props = {
      ...Object.fromEntries(shape.properties.map((key) => [key, undefined])),
      ...inputs,
      secretInputs: findSecretInputs(inputs),
      owner: ownerOf(shape.type, name, opts.parent),
      earlier: declareInOrder(shape, names, args as Record<string, unknown>, opts.parent),
      dryRun: pulumi.runtime.isDryRun(),
      declared: described.then(({ declared }) => declared),
      program: described.then(({ program }) => program),
      resources: described.then(({ resources }) => resources),
      __provider: providerText(shape.type),
    };
    const secrets = { additionalSecretOutputs: [...shape.secrets, ...(opts.additionalSecretOutputs ?? [])] };
    const frames = Error.stackTraceLimit;
    // Pulumi records four stack traces for each property, which takes longer than the rest of the constructor.
    if (!process.env.PULUMI_DEBUG_PROMISE_LEAKS) Error.stackTraceLimit = 0;
    try {
      super(`${DYNAMIC_TYPE}${shape.type}`, name, props, { ...opts, ...secrets });
    } catch (error) {
      Error.stackTraceLimit = frames;
      if (error instanceof Error) Error.captureStackTrace(error);
      throw error;
    } finally {
      Error.stackTraceLimit = frames;
    }
    argsOfResource.set(this, { type: shape.type, args: args as Record<string, unknown> });
  }
}

/**
 * What a program declares in the same turn of the event loop as its first resource. The provider tells by it the programs of two branches
 * apart, and finds which values it requests, and which resources move to other values. Pulumi may run later code in up and not in preview, and
 * in any order: what that declares does not count.
 */
interface FirstTurn {
  declarations: Declaration[];
  described: Promise<DescribedProgram>;
}

/** By run. A process has several with the Automation API. */
const firstTurns = new WeakMap<object, FirstTurn>();
const OUTSIDE_OF_PULUMI = {};
const currentRun = (): object => pulumi.runtime.getMonitor() ?? OUTSIDE_OF_PULUMI;

/** By run, and by type. */
const orders = new WeakMap<object, Map<string, OrderedDeclaration[]>>();

/** Pulumi checks resources in any order. Those that are declared earlier get their values first. */
function declareInOrder(
  { type, inOrder }: Shape,
  names: string[],
  args: Record<string, unknown>,
  parent: pulumi.Resource | undefined,
): string[][] | undefined {
  if (!inOrder || args[inOrder.unless] !== undefined) return undefined;
  const run = currentRun();
  const order = orders.get(run) ?? new Map<string, OrderedDeclaration[]>();
  orders.set(run, order);
  const types = [...typesOfParents(parent), `${CORE_TYPE}${type}`].join("$");
  const declaration = { names, of: args[inOrder.by], types };
  const all = [...(order.get(type) ?? []), declaration];
  order.set(type, all);
  return namesBefore(all, declaration);
}

/**
 * The outermost first. Pulumi's SDK has them in each resource, though its type declarations do not say so. The URN of a parent has them, too, but
 * can depend on other resources that are declared later.
 */
function typesOfParents(parent: InternalResource | undefined): string[] {
  if (!parent) return [];
  const { __pulumiType: type, __parentResource: above } = parent;
  const own = type === undefined || type === ROOT_TYPE ? [] : [type.replaceAll(DYNAMIC_TYPE, CORE_TYPE)];
  return [...typesOfParents(above), ...own];
}

interface InternalResource extends pulumi.Resource {
  __pulumiType?: string;
  __parentResource?: InternalResource;
}

const ROOT_TYPE = "pulumi:pulumi:Stack";

function declare(declaration: Declaration): Promise<DescribedProgram> {
  const run = currentRun();
  const known = firstTurns.get(run);
  if (known) {
    known.declarations.push(declaration); // Without effect after the first turn.
    return known.described;
  }
  const declarations = [declaration];
  const described = endOfTurn().then(() => describeProgram(declarations));
  firstTurns.set(run, { declarations, described });
  return described;
}

/** After everything that waits for no I/O and no timer: a tick that is queued by a promise runs when no promise has a callback left. */
const endOfTurn = (): Promise<void> =>
  new Promise((resolve) => process.nextTick(() => queueMicrotask(() => process.nextTick(resolve))));

const formerNames = (aliases: pulumi.CustomResourceOptions["aliases"]): string[] =>
  (Array.isArray(aliases) ? aliases : []).flatMap((alias: unknown) => {
    if (typeof alias === "string") return [alias.split("::").at(-1)!];
    const former = (alias as { name?: unknown } | undefined)?.name;
    return typeof former === "string" ? [former] : [];
  });

function resolveReferences(shape: Shape, args: Record<string, unknown>): Record<string, unknown> {
  const inputs: Record<string, unknown> = { ...args };
  for (const [key, passings] of Object.entries(shape.references)) {
    const named = args[key];
    if (named instanceof OverlayResource) {
      const { values, filled } = passReference(key, passings, named);
      inputs[key] = values;
      for (const [input, value] of Object.entries(filled)) inputs[input] ??= value;
    } else if (Array.isArray(named) && named.every((each) => each instanceof OverlayResource)) {
      const all = named.map((each) => passReference(key, passings, each));
      inputs[key] = all.map(({ values }) => values);
      for (const input of Object.keys(all[0]?.filled ?? {})) inputs[input] ??= all.map(({ filled }) => filled[input]);
    }
  }
  Object.assign(inputs, showParts(shape, inputs));
  for (const key of shape.secrets) if (inputs[key] !== undefined) inputs[key] = pulumi.secret(inputs[key]);
  return inputs;
}

/** Each part is as secret as the program made it: only the connection as a whole always is. */
function showParts({ shownParts }: Shape, inputs: Record<string, unknown>): Record<string, unknown> {
  const entries = Object.entries(shownParts).flatMap(([input, parts]) => {
    const given = inputs[input];
    if (given === undefined) return [];
    return Object.entries(parts).map(([part, output]) => [
      output,
      Array.isArray(given) ? given.map((each) => partOf(each, part)) : partOf(given, part),
    ]);
  });
  return Object.fromEntries(entries);
}

function partOf(connection: unknown, part: string): unknown {
  if (pulumi.Output.isInstance(connection) || connection instanceof Promise)
    return pulumi.output(connection).apply((known) => partOf(known, part));
  const parts = connection as Record<string, unknown> | undefined;
  if (part !== "jumpHost") return parts?.[part];
  if (parts?.proxy === undefined) return undefined;
  return pulumi
    .all([partOf(parts.proxy, "host"), partOf(parts.proxy, "port")])
    .apply(([host, port]) => (port === undefined || port === 22 ? host : `${host}:${port}`));
}

/**
 * The inputs that are secret, wholly or in part. The provider gets their values without the mark, and must not show them in errors.
 */
async function findSecretInputs(inputs: Record<string, unknown>): Promise<string[]> {
  const composite = Object.entries(inputs).filter(([, value]) => typeof value === "object" && value !== null);
  const keys = composite.map(async ([key, value]) => ((await pulumi.isSecret(pulumi.output(value))) ? [key] : []));
  return (await Promise.all(keys)).flat();
}

/**
 * A reference passes outputs of the other resource for properties that `check` always sets, and its arguments for the others: in
 * previews, Pulumi makes absent outputs unknown.
 */
function passReference(key: string, passings: ReferenceShape[], target: OverlayResource) {
  const { type, args } = argsOfResource.get(target)!;
  const passing = passings.find(({ to }) => to === type);
  if (!passing) throw new Error(`${key} must be ${passings.map(({ to }) => to).join(" or ")}, not ${type}`);
  const outputs = target as unknown as Record<string, unknown>;
  const pick = (from: Record<string, unknown>, keys: string[]) =>
    Object.fromEntries(keys.map((key) => [key, from[key]]));
  return {
    values: { ...pick(outputs, passing.outputs), ...pick(args, passing.inputs) },
    filled: Object.fromEntries(Object.entries(passing.fills).map(([input, property]) => [input, args[property]])),
  };
}

/**
 * The methods of a dynamic provider do not get the URN, so it is an input. It is a promise, because an output of a component would
 * wait for all its children, and the children for each other.
 */
function ownerOf(type: string, name: string, parent: pulumi.Resource | undefined): Promise<string> {
  const organization = pulumi.getOrganization();
  const urn = pulumi.createUrn(name, `${DYNAMIC_TYPE}${type}`, parent);
  return new Promise((resolve) =>
    urn.apply((text) => resolve(`${organization}/${text.replaceAll(DYNAMIC_TYPE, CORE_TYPE)}`)),
  );
}
