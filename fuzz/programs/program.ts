/** A Pulumi program as data. `fixture/index.js` declares what it lists. */

export type ResourceType = "IPPool" | "IPReservation" | "StaticIP" | "OverlayNetwork" | "RunnerSubnet";

/** Another resource of the program, or one of its outputs. */
export interface ResourceReference {
  $resource: string;
  output?: string;
}

/** The address or port that a resource has in the state when a step first uses this reference. */
export interface ValueReference {
  $valueOf: string;
  id: number;
}

/** How to connect to a host of the lab. */
export interface HostReference {
  $host: string;
}

export type Arg =
  | string
  | number
  | boolean
  | ResourceReference
  | ValueReference
  | HostReference
  | Arg[]
  | { [key: string]: Arg };

export interface Declaration {
  type: ResourceType;
  name: string;
  args: { [input: string]: Arg };
  aliases?: string[];
  dependsOn?: string[];
  component?: string;
}

export type Program = Declaration[];

export const isResourceReference = (arg: unknown): arg is ResourceReference =>
  typeof arg === "object" && arg !== null && "$resource" in arg;

export const isValueReference = (arg: unknown): arg is ValueReference =>
  typeof arg === "object" && arg !== null && "$valueOf" in arg;

/** Names of the resources that an argument refers to. */
export function referencesIn(arg: Arg): string[] {
  if (typeof arg !== "object") return [];
  if (isResourceReference(arg)) return [arg.$resource];
  return Object.values(arg).flatMap((part) => referencesIn(part as Arg));
}

/** Without a resource, and without those that refer to it. */
export function withoutResource(program: Program, name: string): Program {
  const dependents = program.filter((each) => referencesIn(each.args).includes(name)).map((each) => each.name);
  const rest = program
    .filter((each) => each.name !== name)
    .map(({ dependsOn, ...each }): Declaration => {
      const others = dependsOn?.filter((other) => other !== name) ?? [];
      return { ...each, ...(others.length > 0 && { dependsOn: others }) };
    });
  return dependents.reduce(withoutResource, rest);
}

/** The program as TypeScript, for a person to read and run. */
export function renderTypeScript(program: Program): string {
  const lines = program.map(({ type, name, args, aliases, dependsOn, component }) => {
    const options = [
      ...(aliases ? [`aliases: [${aliases.map((alias) => `{ name: "${alias}" }`).join(", ")}]`] : []),
      ...(dependsOn ? [`dependsOn: [${dependsOn.join(", ")}]`] : []),
      ...(component ? [`parent: ${component}`] : []),
    ];
    const rest = options.length > 0 ? `, { ${options.join(", ")} }` : "";
    return `const ${name} = new overlay.${type}("${name}", ${renderArg(args)}${rest});`;
  });
  const components = [...new Set(program.flatMap(({ component }) => component ?? []))];
  return [
    ...components.map((name) => `const ${name} = new pulumi.ComponentResource("fuzz:index:Group", "${name}");`),
    ...lines,
  ].join("\n");
}

function renderArg(arg: Arg): string {
  if (typeof arg !== "object") return JSON.stringify(arg);
  if (Array.isArray(arg)) return `[${arg.map(renderArg).join(", ")}]`;
  if (isResourceReference(arg)) return arg.output ? `${arg.$resource}.${arg.output}` : arg.$resource;
  if (isValueReference(arg)) return `/* the value that ${arg.$valueOf} has */ "${arg.id}"`;
  if ("$host" in arg) return `at("${arg.$host}")`;
  const entries = Object.entries(arg).map(([key, value]) => {
    const text = renderArg(value);
    return text === key ? key : `${key}: ${text}`;
  });
  return `{ ${entries.join(", ")} }`;
}
