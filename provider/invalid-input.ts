import { z } from "zod";
import type { Code } from "./error-codes";
import { nearestName } from "./nearest-name";

/**
 * Turns zod's issues into error texts. Each names the property by its path, says what is allowed, and shows the value unless it may
 * be a secret.
 */
export interface Refusal {
  path: string[];
  code: Code;
  /** What is wrong, and what is allowed. */
  reason: string;
}

export interface ExplainOptions {
  schema: z.ZodType;
  /** The values that were parsed. */
  given: unknown;
  /** Whether the value at this path must not be shown. */
  isSecret(path: string[]): boolean;
  /** The allowed values, where the schema alone does not say it. */
  allowed?(path: string[]): string | undefined;
}

/** The part of JSON Schema that our schemas use. */
interface SchemaNode {
  $ref?: string;
  $defs?: Record<string, SchemaNode>;
  type?: string;
  enum?: unknown[];
  const?: unknown;
  anyOf?: SchemaNode[];
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  properties?: Record<string, SchemaNode>;
  required?: string[];
  items?: SchemaNode;
  prefixItems?: SchemaNode[];
  additionalProperties?: SchemaNode | boolean;
}

/** Errors that are explained, and issues that are read for them: hostile input can have as many issues as it has bytes. */
export const MOST_EXPLAINED = 20;
const MOST_READ = 10 * MOST_EXPLAINED;

/** One error for each path: the first. At most MOST_EXPLAINED. */
export function explainIssues(issues: z.core.$ZodIssue[], about: ExplainOptions): Refusal[] {
  const root = jsonSchemaOf(about.schema);
  const refusals = new Map<string, Refusal>();
  for (const refusal of issues.slice(0, MOST_READ).flatMap((issue) => explainIssue(issue, about, root))) {
    const path = formatPath(refusal.path);
    if (!refusals.has(path)) refusals.set(path, refusal);
  }
  return [...refusals.values()].slice(0, MOST_EXPLAINED);
}

export const NOT_SHOWN = "Its value is not shown, as it may be a secret";

const jsonSchemas = new WeakMap<z.ZodType, SchemaNode>();

function jsonSchemaOf(schema: z.ZodType): SchemaNode {
  const made =
    jsonSchemas.get(schema) ?? (z.toJSONSchema(schema, { io: "input", unrepresentable: "any" }) as SchemaNode);
  jsonSchemas.set(schema, made);
  return made;
}

/** As Pulumi writes property paths: `forwards[0].port`. A long key is cut. */
export const formatPath = (path: PropertyKey[]): string =>
  path
    .map((key) => cutText(String(key), MOST_SHOWN))
    .map((key) => (/^\d+$/.test(key) ? `[${key}]` : `.${key}`))
    .join("")
    .replace(/^\./, "");

/** Characters of a key or a value in an error. */
const MOST_SHOWN = 80;

const cutText = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** A rule starts with a verb (`must be …`), or is a complete error with its own code. */
export function refuse(path: string[], rule: string): Refusal {
  const [, code, text] = /^([A-Z_]+): (.*)$/s.exec(rule) ?? [];
  if (code) return { path, code: code as Code, reason: `${formatPath(path)}: ${text}` };
  return { path, code: "INPUT_INVALID", reason: `${formatPath(path)} ${rule}.` };
}

function explainIssue(issue: z.core.$ZodIssue, about: ExplainOptions, root: SchemaNode): Refusal[] {
  const path = issue.path.map(String);
  const node = nodeAt(root, path);
  if (issue.code === "unrecognized_keys") {
    const isSecret = about.isSecret(path);
    return issue.keys.slice(0, MOST_EXPLAINED).map((key) => refuseUnknownKey(path, key, node, isSecret));
  }
  const value = valueAtPath(about.given, path);
  // Rules of our own schemas start in lower case or with a code; zod's own texts do not.
  const rule = /^([a-z]|[A-Z_]+: )/.test(issue.message)
    ? issue.message
    : `must be ${about.allowed?.(path) ?? describeAllowed(root, node)}`;
  if (value === undefined) return [refuse(path, `is missing: it ${rule}`)];
  const [code] = /^[A-Z_]+: /.exec(rule) ?? [];
  if (code) return [refuse(path, about.isSecret(path) ? `${code}${NOT_SHOWN}.` : rule)];
  const shown = about.isSecret(path) ? `. ${NOT_SHOWN}` : `; it is ${formatGiven(value)}`;
  return [refuse(path, `${rule}${shown}`)];
}

/** A name that no property has may be a secret in the wrong place. One that is similar to a known name is not. */
function refuseUnknownKey(path: string[], key: string, node: SchemaNode | undefined, isSecret: boolean): Refusal {
  const known = Object.keys(node?.properties ?? {});
  const nearest = nearestName(key, known);
  const whole = [...path, key];
  const unknown = `unknown property ${quoteCode(formatPath(whole))}`;
  const refuseAt = (at: string[], reason: string): Refusal => ({ path: at, code: "INPUT_INVALID", reason });
  if (nearest !== undefined) return refuseAt(whole, `${unknown}: did you mean ${quoteCode(nearest)}?`);
  const help = `. Known properties: ${known.map(quoteCode).join(", ")}.`;
  if (!isSecret && /^\w{1,40}$/.test(key)) return refuseAt(whole, unknown + help);
  const where = path.length === 0 ? "" : ` in ${quoteCode(formatPath(path))}`;
  return refuseAt(path, `unknown property${where}. Its name is not shown, as it may be a secret${help}`);
}

/** Short text on one line, without control characters. */
export function formatGiven(value: unknown): string {
  if (Array.isArray(value)) return value.length === 0 ? "an empty list" : `a list of ${value.length}`;
  if (typeof value === "object" && value !== null) return "an object";
  const text = typeof value === "string" ? JSON.stringify(value.slice(0, MOST_SHOWN)) : String(value);
  const printable = text.replace(/\p{C}/gu, (c) => `\\u${c.codePointAt(0)!.toString(16).padStart(4, "0")}`);
  return printable.length > MOST_SHOWN ? `${printable.slice(0, MOST_SHOWN - 3)}…"` : printable;
}

const quoteCode = (text: string): string => `\`${text}\``;

function formatList(options: string[]): string {
  return options.length < 2 ? options.join("") : `${options.slice(0, -1).join(", ")} or ${options.at(-1)}`;
}

/** The allowed values, as the end of "must be …". */
function describeAllowed(root: SchemaNode, at: SchemaNode | undefined): string {
  const node = at && dereference(root, at);
  if (node?.anyOf) return formatList(node.anyOf.map((option) => describeAllowed(root, option)));
  if (node?.enum) return formatList(node.enum.map((option) => quoteCode(String(option))));
  if (node?.const !== undefined) return quoteCode(String(node.const));
  switch (node?.type) {
    case "integer":
      return `a whole number${boundsText(node.minimum, node.maximum)}`;
    case "number":
      return `a number${boundsText(node.minimum, node.maximum)}`;
    case "boolean":
      return "true or false";
    case "string":
      return node.minLength !== undefined || node.maxLength !== undefined
        ? `a string of ${countText(node.minLength, node.maxLength)} characters`
        : "a string";
    case "array":
      return node.minItems
        ? `a list with at least ${node.minItems} ${node.minItems === 1 ? "entry" : "entries"}`
        : "a list";
    case "object":
      return node.required?.length ? `an object with ${node.required.map(quoteCode).join(", ")}` : "an object";
    default:
      return "another value";
  }
}

function boundsText(minimum = Number.MIN_SAFE_INTEGER, maximum = Number.MAX_SAFE_INTEGER): string {
  const [hasMin, hasMax] = [minimum !== Number.MIN_SAFE_INTEGER, maximum !== Number.MAX_SAFE_INTEGER];
  if (hasMin && hasMax) return ` from ${minimum} to ${maximum}`;
  if (hasMin) return ` of at least ${minimum}`;
  return hasMax ? ` of at most ${maximum}` : "";
}

const countText = (least = 0, most?: number): string =>
  most === undefined ? `at least ${least}` : least === 0 ? `at most ${most}` : `${least} to ${most}`;

function nodeAt(root: SchemaNode, [key, ...rest]: string[], at: SchemaNode = root): SchemaNode | undefined {
  const node = dereference(root, at);
  if (key === undefined) return node;
  const options = node.anyOf ?? [node];
  const children = options
    .map((option) => childOf(dereference(root, option), key))
    .filter((child) => child !== undefined);
  return children[0] && nodeAt(root, rest, children[0]);
}

function childOf(
  { properties, prefixItems, items, additionalProperties }: SchemaNode,
  key: string,
): SchemaNode | undefined {
  const listed = properties?.[key] ?? prefixItems?.[Number(key)] ?? items;
  return listed ?? (typeof additionalProperties === "object" ? additionalProperties : undefined);
}

function dereference(root: SchemaNode, node: SchemaNode): SchemaNode {
  const name = node.$ref?.replace("#/$defs/", "");
  return name === undefined ? node : root.$defs![name]!;
}

const valueAtPath = (given: unknown, path: string[]): unknown =>
  path.reduce<unknown>(
    (value, key) => (typeof value === "object" && value !== null ? (value as Record<string, unknown>)[key] : undefined),
    given,
  );
