import { type Definition, referencesOf } from "../../provider/resource";
import { resourceOf, resources } from "../../provider/resources";
import { type Property, packageSchema, type ResourceSchema } from "./schema";

/** The TypeScript classes of the SDK, written from the package schema, with the user's documentation on every property. */
export function sdkSource(): string {
  const schema = packageSchema();
  const types = Object.entries(schema.types).map(([token, type]) =>
    block(
      `export interface ${nameOf(token)}Args`,
      Object.entries(type.properties).map(([key, property]) =>
        field(key, property, type.required.includes(key), (text) => `pulumi.Input<${text}>`),
      ),
    ),
  );
  const classes = resources.map((def) => resourceSource(def, schema.resources[`overlay:index:${def.type}`]!));
  return `${[HEADER, ...types, ...classes].join("\n\n")}\n`;
}

const HEADER = `// Written by \`npm run generate\` from the zod schemas in provider/resources. Do not edit.
import type * as pulumi from "@pulumi/pulumi";
import { OverlayResource, type Shape } from "./dynamic";`;

function resourceSource(def: Definition, schema: ResourceSchema): string {
  const inputs = Object.entries(schema.inputProperties).map(([key, property]) =>
    field(key, property, schema.requiredInputs.includes(key), (text) => inputType(def, key, text)),
  );
  const outputs = Object.entries(schema.properties).map(([key, property]) => {
    const known =
      schema.required.includes(key) ||
      (key in schema.properties && !(key in def.inputs.shape) && !isOptional(def, key));
    return `${doc(property.description)}  declare readonly ${key}: pulumi.Output<${outputType(property)}${known ? "" : " | undefined"}>;`;
  });
  return [
    block(`${doc(`Inputs of ${def.type}.`, "")}export interface ${def.type}Args`, inputs),
    `const ${def.type}Shape: Shape = ${JSON.stringify(shapeOf(def, schema), null, 2)};`,
    `${doc(def.description, "")}export class ${def.type} extends OverlayResource {\n${outputs.join("\n")}\n
  constructor(name: string, args: ${def.type}Args, opts?: pulumi.CustomResourceOptions) {
    super(${def.type}Shape, name, args, opts);
  }
}`,
  ].join("\n\n");
}

const isOptional = (def: Definition, key: string): boolean =>
  (def.computed.shape[key] ?? def.outputs.shape[key])?.safeParse(undefined).success ?? false;

/** What the base class must know to turn arguments into properties. */
const shapeOf = (def: Definition, schema: ResourceSchema) => ({
  type: def.type,
  secrets: def.secrets,
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
const isKnown = (def: Definition, property: string): boolean =>
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

const typeText = (property: Property, object: (name: string) => string): string => {
  if (property.$ref) return object(nameOf(property.$ref));
  if (property.oneOf) return property.oneOf.map((option) => typeText(option, object)).join(" | ");
  if (property.type === "array") return `${wrapped(typeText(property.items!, object))}[]`;
  if (property.type === "object") return `Record<string, ${typeText(property.additionalProperties!, object)}>`;
  return property.type === "integer" ? "number" : property.type!;
};

const wrapped = (text: string): string => (text.includes("|") ? `(${text})` : text);

const outputType = (property: Property): string => typeText(property, (name) => `pulumi.Unwrap<${name}Args>`);

function field(key: string, property: Property, required: boolean, type: (text: string) => string): string {
  const text = type(typeText(property, (name) => `${name}Args`));
  return `${doc(property.description, "  ", property.default)}  ${key}${required ? "" : "?"}: ${text}${required ? "" : " | undefined"};`;
}

const block = (head: string, lines: string[]): string => `${head} {\n${lines.join("\n")}\n}`;

function doc(text: string | undefined, indent = "  ", initial?: unknown): string {
  const whole = `${text ?? ""}${initial === undefined ? "" : ` Default \`${initial}\`.`}`;
  return whole ? `${indent}/** ${whole} */\n` : "";
}
