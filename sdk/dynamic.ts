import * as pulumi from "@pulumi/pulumi";
import { requestedValues, shortHash } from "./declared";

/** The properties of a resource class; written by the generator. */
export interface Shape {
  type: string;
  secrets: string[];
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
    declare(shape.type, name, opts.aliases, args as Record<string, unknown>);
    const inputs = resolveReferences(shape, args as Record<string, unknown>);
    const props = {
      ...Object.fromEntries(shape.properties.map((key) => [key, undefined])),
      ...inputs,
      secretInputs: findSecretInputs(inputs),
      owner: ownerOf(shape.type, name, opts.parent),
      dryRun: pulumi.runtime.isDryRun(),
      declared:
        requestedValues(args as Record<string, unknown>) === ""
          ? undefined
          : afterDeclarations(() => [...declaredResources].join(" ")),
      program: afterDeclarations(hashProgram),
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
 * The resources of this program, under their present and former names: a hash of each and the values that it requests. If a
 * requested value is held by another resource of the stack, the provider checks here that this program moves that resource to
 * another value, because Pulumi deletes resources only after all creates.
 */
const declaredResources = new Set<string>();

function declare(
  type: string,
  name: string,
  aliases: pulumi.CustomResourceOptions["aliases"],
  args: Record<string, unknown>,
): void {
  const earlier = (Array.isArray(aliases) ? aliases : []).flatMap((alias: unknown) => {
    if (typeof alias === "string") return [alias.split("::").at(-1)!];
    const former = (alias as { name?: unknown } | undefined)?.name;
    return typeof former === "string" ? [former] : [];
  });
  for (const each of [name, ...earlier]) declaredResources.add(shortHash(`${type}::${each}`) + requestedValues(args));
}

/** Reads after all synchronous declarations of the program. Those after an `await` may be missing. */
const afterDeclarations = <T>(read: () => T): Promise<T> =>
  new Promise((resolve) => setImmediate(() => resolve(read())));

let lastHash = { size: 0, mark: "" };

/** Differs between programs, such as those of two branches, that declare other resources or request other values. */
function hashProgram(): string {
  if (lastHash.size !== declaredResources.size)
    lastHash = { size: declaredResources.size, mark: shortHash([...declaredResources].sort().join(" ")) };
  return lastHash.mark;
}

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
  for (const key of shape.secrets) if (inputs[key] !== undefined) inputs[key] = pulumi.secret(inputs[key]);
  return inputs;
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
