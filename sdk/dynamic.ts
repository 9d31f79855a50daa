import { createHash } from "node:crypto";
import * as pulumi from "@pulumi/pulumi";

/** What a resource class knows of its type; written by the generator. */
export interface Shape {
  type: string;
  secrets: string[];
  /** By input: how each type of resource that can be named there is passed on. */
  references: Record<string, Passing[]>;
  /** All that it will have: inputs, also those that are left to their defaults, and outputs. */
  properties: string[];
}

export interface Passing {
  to: string;
  outputs: string[];
  inputs: string[];
  fills: Record<string, string>;
}

/** Part of every owner key, in this form in both faces. */
const CORE_TYPE = "overlay:index:";
const DYNAMIC_TYPE = "pulumi-nodejs:dynamic/overlay:";

/**
 * Stored in state with every resource, and sent along with every call. Pulumi would make such a text out of functions, with
 * a TypeScript compiler; this one only loads today's code, so that state holds neither code nor secrets, and an upgrade of
 * the package changes no resource. Keep it as it is: a test compares it byte by byte.
 */
const providerText = (type: string): string =>
  `exports.handler = () => require("pulumi-overlay/runtime").provider("${type}");`;

/** What each resource was given, and its type; those that refer to it pass it on. */
const given = new WeakMap<OverlayResource, { type: string; args: Record<string, unknown> }>();

/** What `pulumi.dynamic.Resource` is, but for the text. */
export abstract class OverlayResource extends pulumi.CustomResource {
  constructor(shape: Shape, name: string, args: object, opts: pulumi.CustomResourceOptions = {}) {
    if (opts.import !== undefined)
      throw new Error(
        `${shape.type} ${name}: the option \`import\` does not work with this package. Set \`adopt: true\` to take over what stands on the hosts, and \`overlayctl import\` or \`overlayctl recover\` to enter it in the pool.`,
      );
    declare(shape.type, name, opts.aliases, args as Record<string, unknown>);
    const inputs = inputsOf(shape, args as Record<string, unknown>);
    const props = {
      ...Object.fromEntries(shape.properties.map((key) => [key, undefined])),
      ...inputs,
      secretInputs: secretInputs(inputs),
      owner: ownerOf(shape.type, name, opts.parent),
      dryRun: pulumi.runtime.isDryRun(),
      declared:
        pinsOf(args as Record<string, unknown>) === "" ? undefined : onceDeclared(() => [...declared].join(" ")),
      program: onceDeclared(programMark),
      __provider: providerText(shape.type),
    };
    const secrets = { additionalSecretOutputs: [...shape.secrets, ...(opts.additionalSecretOutputs ?? [])] };
    const frames = Error.stackTraceLimit;
    // Pulumi writes down four stack traces for each property, which takes longer than all else about a resource.
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
    given.set(this, { type: shape.type, args: args as Record<string, unknown> });
  }
}

/**
 * Resources of this program, under their present and earlier names, each as a mark with the values that it asks for. The provider
 * needs them for a value that another resource of the stack holds: Pulumi deletes that one only after all creates, so it must be
 * declared, with another value.
 */
const declared = new Set<string>();

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
  for (const each of [name, ...earlier]) declared.add(markOf(`${type}::${each}`) + pinsOf(args));
}

const markOf = (text: string): string => createHash("sha256").update(text).digest("hex").slice(0, 8);

/** The values that a resource asks for; `?` for one that is an output. */
const pinsOf = (args: Record<string, unknown>): string =>
  ["ip", "ip6", "port", "runnerId"]
    .filter((key) => args[key] !== undefined)
    .map((key) => `=${["string", "number"].includes(typeof args[key]) ? args[key] : "?"}`)
    .join("");

/** Once the program has declared what it declares in one go. What follows an `await` may come later. */
const onceDeclared = <T>(read: () => T): Promise<T> => new Promise((resolve) => setImmediate(() => resolve(read())));

let marked = { size: 0, mark: "" };

/** Tells the program from those of other branches, which declare other resources, or ask for other values. */
function programMark(): string {
  if (marked.size !== declared.size) marked = { size: declared.size, mark: markOf([...declared].sort().join(" ")) };
  return marked.mark;
}

function inputsOf(shape: Shape, args: Record<string, unknown>): Record<string, unknown> {
  const inputs: Record<string, unknown> = { ...args };
  for (const [key, passings] of Object.entries(shape.references)) {
    const named = args[key];
    if (named instanceof OverlayResource) {
      const { values, filled } = passed(key, passings, named);
      inputs[key] = values;
      for (const [input, value] of Object.entries(filled)) inputs[input] ??= value;
    } else if (Array.isArray(named) && named.every((each) => each instanceof OverlayResource)) {
      const all = named.map((each) => passed(key, passings, each));
      inputs[key] = all.map(({ values }) => values);
      for (const input of Object.keys(all[0]?.filled ?? {})) inputs[input] ??= all.map(({ filled }) => filled[input]);
    }
  }
  for (const key of shape.secrets) if (inputs[key] !== undefined) inputs[key] = pulumi.secret(inputs[key]);
  return inputs;
}

/**
 * The inputs that are secret, wholly or in part. The provider gets their values without the mark, and must not show them
 * when it refuses them.
 */
async function secretInputs(inputs: Record<string, unknown>): Promise<string[]> {
  const composite = Object.entries(inputs).filter(([, value]) => typeof value === "object" && value !== null);
  const keys = composite.map(async ([key, value]) => ((await pulumi.isSecret(pulumi.output(value))) ? [key] : []));
  return (await Promise.all(keys)).flat();
}

/**
 * A reference passes the other resource's outputs where check always gives them a value. Others it passes as they were
 * given: in previews Pulumi calls every output unknown that is not there.
 */
function passed(key: string, passings: Passing[], target: OverlayResource) {
  const { type, args } = given.get(target)!;
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
 * The methods of a dynamic provider are not told the URN, so the class hands it over. As a promise: whoever takes an output
 * of a component waits for all that is in it, and so all that is in it would wait for each other.
 */
function ownerOf(type: string, name: string, parent: pulumi.Resource | undefined): Promise<string> {
  const organization = pulumi.getOrganization();
  const urn = pulumi.createUrn(name, `${DYNAMIC_TYPE}${type}`, parent);
  return new Promise((resolve) =>
    urn.apply((text) => resolve(`${organization}/${text.replaceAll(DYNAMIC_TYPE, CORE_TYPE)}`)),
  );
}
