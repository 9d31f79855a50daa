import { type Definition, referencesOf } from "../../provider/resource";
import { resourceOf, resources } from "../../provider/resources";
import { settingsSchema } from "../../provider/settings";
import { type NamedType, type Property, packageSchema, type ResourceSchema } from "./schema";

/** The TypeScript classes of the SDK, written from the package schema, with the user's documentation on every property. */
export function sdkSource(): string {
  const schema = packageSchema();
  const types = new Types(schema.types);
  const classes = resources.map((def) => resourceSource(def, schema.resources[`overlay:index:${def.type}`]!, types));
  return `${[HEADER, ...types.declarations(), ...classes].join("\n\n")}\n`;
}

/** For the check of a stack's configuration, which the SDK does in the program: the provider cannot list it. */
export const settingNamesSource = (): string =>
  `// Written by \`npm run generate\` from provider/settings.ts. Do not edit.
export const SETTING_NAMES: string[] = ${JSON.stringify(Object.keys(settingsSchema.shape))};
`;

const HEADER = `// Written by \`npm run generate\` from the zod schemas in provider/resources. Do not edit.
import type * as pulumi from "@pulumi/pulumi";
import { OverlayResource, type Shape } from "./dynamic";`;

/** The TypeScript type of a property: as an input, where every part may be an output of another resource, or as an output. */
class Types {
  constructor(private readonly named: Record<string, NamedType>) {}

  /** An interface for each object type. Those of few strings are written out where they are used, for editors to show. */
  declarations(): string[] {
    return Object.entries(this.named).flatMap(([token, type]) => {
      if (type.type !== "object") return [];
      const fields = Object.entries(type.properties).map(([key, property]) =>
        field(key, property, type.required.includes(key), `pulumi.Input<${this.input(property)}>`),
      );
      return [block(`export interface ${nameOf(token)}Args`, fields)];
    });
  }

  input(property: Property): string {
    return this.#text(property, {
      object: (name) => `${name}Args`,
      list: (item) => `pulumi.Input<${item}>[]`,
      map: (item) => `Record<string, pulumi.Input<${item}>>`,
    });
  }

  output(property: Property): string {
    return this.#text(property, {
      object: (name) => `pulumi.Unwrap<${name}Args>`,
      list: (item) => `${item.includes("|") ? `(${item})` : item}[]`,
      map: (item) => `Record<string, ${item}>`,
    });
  }

  #text(property: Property, write: Record<"object" | "list" | "map", (text: string) => string>): string {
    if (property.$ref) {
      const type = this.named[property.$ref.slice("#/types/".length)]!;
      if (type.type === "object") return write.object(nameOf(property.$ref));
      return type.enum.map(({ value }) => JSON.stringify(value)).join(" | ");
    }
    if (property.const !== undefined) return JSON.stringify(property.const);
    if (property.oneOf) return property.oneOf.map((option) => this.#text(option, write)).join(" | ");
    if (property.type === "array") return write.list(this.#text(property.items!, write));
    if (property.type === "object") return write.map(this.#text(property.additionalProperties!, write));
    return property.type === "integer" ? "number" : property.type!;
  }
}

function resourceSource(def: Definition, schema: ResourceSchema, types: Types): string {
  const outputs = Object.entries(schema.properties).map(([key, property]) => {
    const known =
      schema.required.includes(key) ||
      (key in schema.properties && !(key in def.inputs.shape) && !isOptional(def, key));
    return `${doc(property.description)}  declare readonly ${key}: pulumi.Output<${types.output(property)}${known ? "" : " | undefined"}>;`;
  });
  return [
    ...argsSource(def, schema, types),
    `const ${def.type}Shape: Shape = ${JSON.stringify(shapeOf(def, schema), null, 2)};`,
    `${classDoc(def)}export class ${def.type} extends OverlayResource {\n${outputs.join("\n")}\n
  constructor(name: string, args: ${def.type}Args, opts?: pulumi.CustomResourceOptions) {
    super(${def.type}Shape, name, args, opts);
  }
}`,
  ].join("\n\n");
}

/** One interface; or, where exactly one of some inputs must be given, one for each of them and their union. */
function argsSource(def: Definition, schema: ResourceSchema, types: Types): string[] {
  const { type, exactlyOneOf = [] } = def;
  const write = (key: string, required: boolean): string => {
    const property = schema.inputProperties[key]!;
    return field(key, property, required, inputType(def, key, types.input(property)));
  };
  const common = Object.keys(schema.inputProperties)
    .filter((key) => !exactlyOneOf.includes(key))
    .map((key) => write(key, schema.requiredInputs.includes(key)));
  if (exactlyOneOf.length === 0) {
    return [block(`${doc(`Inputs of ${type}.`, "")}export interface ${type}Args`, common)];
  }
  const nameWith = (key: string): string => `${type}With${key[0]!.toUpperCase()}${key.slice(1)}Args`;
  const variants = exactlyOneOf.map((key) => {
    const others = exactlyOneOf.filter((other) => other !== key).map((other) => `  ${other}?: undefined;`);
    const head = `${doc(`Inputs of ${type} that are given with \`${key}\`.`, "")}export interface ${nameWith(key)} extends ${type}CommonArgs`;
    return block(head, [write(key, true), ...others]);
  });
  const choice = exactlyOneOf.map((key) => `\`${key}\``).join(", ");
  return [
    block(`${doc(`Inputs of every ${type}.`, "")}export interface ${type}CommonArgs`, common),
    ...variants,
    `${doc(`Inputs of ${type}: exactly one of ${choice} must be given.`, "")}export type ${type}Args = ${exactlyOneOf.map(nameWith).join(" | ")};`,
  ];
}

const isOptional = (def: Definition, key: string): boolean =>
  (def.computed.shape[key] ?? def.outputs.shape[key])?.safeParse(undefined).success ?? false;

/** What the base class needs to make properties from arguments. */
const shapeOf = (def: Definition, schema: ResourceSchema) => ({
  type: def.type,
  secrets: def.secrets,
  shownParts: def.shownParts ?? {},
  ...(def.inOrder && { inOrder: def.inOrder }),
  references: Object.fromEntries(
    referencesOf(def).map(([key, references]) => [
      key,
      references.map(({ to, passes, fills = {} }) => ({
        to,
        outputs: passes.filter((property) => isKnown(resourceOf(to), property)),
        inputs: passes.filter((property) => !isKnown(resourceOf(to), property)),
        fills,
      })),
    ]),
  ),
  properties: Object.keys(schema.properties),
});

/** Whether check always gives it a value: in previews Pulumi calls every output unknown that is not there. */
export const isKnown = (def: Definition, property: string): boolean =>
  property === def.nameInput ||
  (property in def.computed.shape && !isOptional(def, property)) ||
  def.inputs.shape[property]!.safeParse(undefined).data !== undefined;

function inputType(def: Definition, key: string, text: string): string {
  const [, references = []] = referencesOf(def).find(([property]) => property === key) ?? [];
  if (references.length === 0) return `pulumi.Input<${text}>`;
  const one = `${references.map(({ to }) => to).join(" | ")} | pulumi.Input<string>`;
  return references[0]!.many ? `(${one})[]` : one;
}

const nameOf = (ref: string): string => ref.split(":").at(-1)!;

function field(key: string, property: Property, required: boolean, type: string): string {
  return `${doc(property.description, "  ", property.default)}  ${key}${required ? "" : "?"}: ${type}${required ? "" : " | undefined"};`;
}

const block = (head: string, lines: string[]): string => `${head} {\n${lines.join("\n")}\n}`;

function classDoc({ description, example }: Definition): string {
  const lines = [description, "", "@example", "```ts", ...example.split("\n"), "```"];
  return `/**\n${lines.map((line) => ` * ${line}`.trimEnd()).join("\n")}\n */\n`;
}

function doc(text: string | undefined, indent = "  ", initial?: unknown): string {
  const whole = `${text ?? ""}${initial === undefined ? "" : ` Default \`${initial}\`.`}`;
  return whole ? `${indent}/** ${whole} */\n` : "";
}
