import { z } from "zod";
import { API, bodyOf, OPERATIONS } from "../../../provider/ipam/remote/api";
import {
  createPoolFields,
  freeFields,
  releaseFields,
  reportFields,
  reserveFields,
  useFields,
  validateFields,
  webhookFields,
} from "../../../service/inputs";

/** Bodies that cost as much as a body of their size can: deep, wide, with long keys, many errors, large numbers and long texts. */

export interface HostileBody {
  /** What is hostile in it, and where. */
  name: string;
  path: string;
  body: string;
}

interface Target {
  path: string;
  /** Bytes. */
  limit: number;
  schema: z.ZodType;
}

const KIB = 1024;
const SMALL = 64 * KIB;

const TARGETS: Target[] = [
  ...Object.entries({
    "ip/reserve": reserveFields,
    "ip/validate": validateFields,
    "ip/use": useFields,
    "ip/release": releaseFields,
    "ip/free": freeFields,
    pools: createPoolFields,
    webhooks: webhookFields,
  }).map(([route, schema]) => ({ path: `/api/overlay/${route}`, limit: SMALL, schema })),
  { path: "/api/overlay/runners/node1/report", limit: 2048 * KIB, schema: reportFields },
  ...OPERATIONS.filter((name) => name in API).map((name) => ({
    path: `/api/pool/v1/${name}`,
    limit: 1024 * KIB,
    schema: bodyOf(name),
  })),
];

/** A value of about so many bytes, as JSON. */
const VALUES: Record<string, (bytes: number) => string> = {
  "nested lists": (bytes) => "[".repeat(bytes / 2) + "]".repeat(bytes / 2),
  "nested objects": (bytes) => `${'{"a":'.repeat(bytes / 6)}1${"}".repeat(bytes / 6)}`,
  "a list of numbers": (bytes) => `[${"0,".repeat(bytes / 2 - 2)}0]`,
  "a list of objects": (bytes) => `[${"{},".repeat(bytes / 3 - 2)}{}]`,
  "a list of texts": (bytes) => `[${'"",'.repeat(bytes / 3 - 2)}""]`,
  "many keys": (bytes) => objectOf(bytes, (i) => `k${i}`),
  "many keys with one beginning": (bytes) => objectOf(bytes, (i) => `${"k".repeat(100)}${i}`),
  // A body may have one value for 32 bytes of the limit.
  "as many numbers as are parsed": (bytes) => `[${"0,".repeat(bytes / 34)}0]`,
  "as many objects as are parsed": (bytes) => `[${"{},".repeat(bytes / 68)}{}]`,
  "as many keys as are parsed": (bytes) => `{${Array.from({ length: bytes / 34 }, (_, i) => `"k${i}":1`).join(",")}}`,
  "one long key": (bytes) => `{"${"k".repeat(bytes - 10)}":1}`,
  "a long number": (bytes) => "1".repeat(bytes),
  "a number beyond all bounds": () => "1e400",
  "a text of digits": (bytes) => `"${"1".repeat(bytes)}"`,
  "a text of colons": (bytes) => `"${":".repeat(bytes)}"`,
  "a text of slashes": (bytes) => `"${"a/".repeat(bytes / 2)}"`,
  "a text of dots": (bytes) => `"${"1.".repeat(bytes / 2)}"`,
  "a text of blanks": (bytes) => `"${" ".repeat(bytes)}x"`,
  "a text of control characters": (bytes) => `"${"\\u0000".repeat(bytes / 6)}"`,
  "a text of hyphens": (bytes) => `"${"a-".repeat(bytes / 2)}!"`,
};

function objectOf(bytes: number, key: (index: number) => string): string {
  const entries: string[] = [];
  for (let length = 0; length < bytes - 200; length += entries.at(-1)!.length + 1)
    entries.push(`"${key(entries.length)}":1`);
  return `{${entries.join(",")}}`;
}

interface SchemaNode {
  properties?: Record<string, SchemaNode>;
  items?: SchemaNode;
  anyOf?: SchemaNode[];
}

/** Where values can be: the paths of all inputs, with `[]` for the entries of a list. */
function pathsOf(node: SchemaNode, path: string[] = []): string[][] {
  if (path.length > 4) return [path];
  const own = Object.entries(node.properties ?? {}).flatMap(([key, child]) => pathsOf(child, [...path, key]));
  const entries = node.items ? pathsOf(node.items, [...path, "[]"]) : [];
  const options = (node.anyOf ?? []).flatMap((option) => pathsOf(option, path).slice(1));
  return [path, ...own, ...entries, ...options];
}

/** The body with a value at a path; as an entry of a list, as often as there is room. */
function place(path: string[], value: (bytes: number) => string, bytes: number): string {
  const [key, ...rest] = path;
  if (key === undefined) return value(bytes);
  if (key !== "[]") return `{"${key}":${place(rest, value, bytes - key.length - 6)}}`;
  const entry = place(rest, value, Math.min(bytes / 4, 200));
  return `[${Array.from({ length: Math.max(1, Math.floor((bytes - 10) / (entry.length + 1))) }, () => entry).join(",")}]`;
}

/** The same so many bodies each time, over all routes, inputs and values. */
export function* hostileBodies(count: number): Generator<HostileBody> {
  const all = TARGETS.flatMap((target) => {
    const schema = z.toJSONSchema(target.schema, { io: "input", unrepresentable: "any" }) as SchemaNode;
    const paths = pathsOf(schema);
    return paths.flatMap((path) => Object.keys(VALUES).map((name) => ({ target, path, name })));
  });
  const step = all.length / Math.min(count, all.length);
  for (let i = 0; i < Math.min(count, all.length); i++) {
    const { target, path, name } = all[Math.floor(i * step)]!;
    const body = place(path, (bytes) => VALUES[name]!(Math.max(20, Math.floor(bytes))), target.limit - 20);
    yield { name: `${name} at ${path.join(".") || "the top"}`, path: target.path, body };
  }
}
