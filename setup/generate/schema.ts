import { z } from "zod";
import pkg from "../../package.json";
import { type Definition, referencesOf } from "../../provider/resource";
import { resources } from "../../provider/resources";
import { SECRET_SETTINGS, settingsSchema } from "../../provider/settings";

/** The Pulumi package schema, made from the zod schemas of the resources: one source for checks, docs and SDKs. */

export interface Property {
  type?: string;
  $ref?: string;
  items?: Property;
  additionalProperties?: Property;
  oneOf?: Property[];
  description?: string;
  default?: string | number | boolean;
  /** For the SDK's types. Pulumi's schema has no literal types: `main.ts` leaves it out of schema.json. */
  const?: string | number | boolean;
  secret?: boolean;
  replaceOnChanges?: boolean;
  willReplaceOnChanges?: boolean;
}

interface JsonSchema extends Omit<Property, "type" | "items" | "additionalProperties"> {
  type?: string | string[];
  properties?: Record<string, JsonSchema>;
  required?: string[];
  anyOf?: JsonSchema[];
  enum?: string[];
  items?: JsonSchema | false;
  prefixItems?: JsonSchema[];
  additionalProperties?: JsonSchema | false;
  $defs?: Record<string, JsonSchema>;
}

export interface ObjectType {
  description?: string;
  type: "object";
  properties: Record<string, Property>;
  required: string[];
}

/** A string that is one of a few. */
export interface EnumType {
  description?: string;
  type: "string";
  enum: { value: string }[];
}

export type NamedType = ObjectType | EnumType;

export interface ResourceSchema extends Omit<ObjectType, "type"> {
  inputProperties: Record<string, Property>;
  requiredInputs: string[];
  aliases: { type: string }[];
}

const token = (name: string): string => `overlay:index:${name}`;

export function packageSchema() {
  const types: Record<string, NamedType> = {};
  return {
    name: "overlay",
    displayName: "Overlay",
    version: pkg.version,
    description: pkg.description,
    license: pkg.license,
    keywords: pkg.keywords,
    meta: { moduleFormat: "(.*)" },
    config: { variables: mapValues(propertiesOf(settingsSchema, "input", types), markSecret) },
    types,
    resources: Object.fromEntries(resources.map((def) => [token(def.type), resourceSchema(def, types)])),
  };
}

const markSecret = (property: Property, key: string): Property =>
  SECRET_SETTINGS.includes(key) ? { ...property, secret: true } : property;

/** Outputs of every resource besides its own. */
export const COMMON_OUTPUTS = z.object({
  leaseId: z.string().describe("The lease in the pool; renewed by every create."),
  pendingCleanup: z
    .array(z.string())
    .optional()
    .describe("Hosts that it no longer has, whose items are still to be removed."),
  drift: z.array(z.string()).describe("What refresh found to differ on the hosts; the next up corrects it."),
});

function resourceSchema(def: Definition, types: Record<string, NamedType>): ResourceSchema {
  const inputs = propertiesOf(def.inputs, "input", types);
  const outputs = { ...inputs, ...propertiesOf(def.computed, "output", types) };
  Object.assign(outputs, propertiesOf(def.outputs, "output", types), propertiesOf(COMMON_OUTPUTS, "output", types));
  const filled = referencesOf(def).flatMap(([, all]) => all.flatMap(({ fills }) => Object.keys(fills ?? {})));
  const optional = new Set([...(def.nameInput ? [def.nameInput] : []), ...filled]);
  return {
    description: def.description,
    inputProperties: mapValues(inputs, (property, key) => inputProperty(def, key, property)),
    requiredInputs: requiredOf(def.inputs, "input").filter((key) => !optional.has(key)),
    properties: mapValues(outputs, (property, key) => outputProperty(def, key, property)),
    required: [
      ...requiredOf(def.inputs, "output"),
      ...requiredOf(def.computed, "output"),
      ...requiredOf(COMMON_OUTPUTS, "output"),
    ],
    aliases: [{ type: `pulumi-nodejs:dynamic/overlay:${def.type}` }],
  };
}

function inputProperty(def: Definition, key: string, property: Property): Property {
  return {
    ...(def.references?.[key] ? byName(property) : property),
    ...(def.secrets.includes(key) && { secret: true }),
    ...(replaces(def, key) && { willReplaceOnChanges: true }),
  };
}

/** A resource can also be given by its name. */
const byName = ({ description, $ref, items }: Property): Property => ({
  ...($ref ? { oneOf: [{ type: "string" }, { $ref }] } : { type: "array", items: byName(items!) }),
  ...(description && { description }),
});

/** An output has the name of the resource that it refers to. */
const nameOnly = ({ description, items }: Property): Property => ({
  ...(items ? { type: "array", items: { type: "string" } } : { type: "string" }),
  ...(description && { description }),
});

const outputProperty = (def: Definition, key: string, { default: _, ...property }: Property): Property => ({
  ...(def.references?.[key] ? nameOnly(property) : property),
  ...(def.secrets.includes(key) && { secret: true }),
  ...(replaces(def, key) && { replaceOnChanges: true }),
});

const replaces = (def: Definition, key: string): boolean => def.replaceOn.includes(key);

const jsonOf = (schema: z.ZodType, io: "input" | "output"): JsonSchema =>
  z.toJSONSchema(schema, { io, unrepresentable: "any" }) as JsonSchema;

const requiredOf = (schema: z.ZodType, io: "input" | "output"): string[] => jsonOf(schema, io).required ?? [];

function propertiesOf(schema: z.ZodType, io: "input" | "output", types: Record<string, NamedType>) {
  const json = jsonOf(schema, io);
  for (const [name, type] of Object.entries(json.$defs ?? {})) types[token(name)] = namedType(type);
  return mapValues(json.properties ?? {}, propertyOf);
}

const namedType = (json: JsonSchema): NamedType =>
  json.enum
    ? { type: "string", enum: json.enum.map((value) => ({ value })) }
    : { type: "object", properties: mapValues(json.properties ?? {}, propertyOf), required: json.required ?? [] };

/** JSON Schema as Pulumi's schema: named types, unions as oneOf, no tuples. */
function propertyOf(json: JsonSchema): Property {
  const described = {
    ...(json.description && { description: json.description }),
    ...(isPlain(json.default) && { default: json.default }),
  };
  if (json.$ref) return { $ref: `#/types/${token(json.$ref.slice("#/$defs/".length))}`, ...described };
  if (Array.isArray(json.type)) return { oneOf: json.type.map((type) => ({ type })), ...described };
  if (json.anyOf) return { oneOf: json.anyOf.map(propertyOf), ...described };
  if (json.type === "array") {
    return { type: "array", items: propertyOf(json.prefixItems?.[0] ?? (json.items as JsonSchema)), ...described };
  }
  if (json.type === "object") {
    return { type: "object", additionalProperties: propertyOf(json.additionalProperties as JsonSchema), ...described };
  }
  return { type: json.type ?? "string", ...(isPlain(json.const) && { const: json.const }), ...described };
}

const isPlain = (value: unknown): value is string | number | boolean =>
  ["string", "number", "boolean"].includes(typeof value);

const mapValues = <A, B>(record: Record<string, A>, map: (value: A, key: string) => B): Record<string, B> =>
  Object.fromEntries(Object.entries(record).map(([key, value]) => [key, map(value, key)]));
