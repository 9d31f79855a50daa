import { z } from "zod";
import { OverlayError } from "../../errors";

/**
 * Parses JSON that a host printed, in the expected form and no other. A host may send millions of wrong elements: lists and objects are
 * read up to the first wrong one, and long texts are not read at all.
 */
export function parseHostJson<S extends z.ZodType>(schema: S, text: string): z.output<S> {
  if (text.length > MAX_JSON_CHARS) throw unexpectedOutput(`one of its answers has ${text.length} characters`);
  const parsed = schema.safeParse(parseJson(text));
  if (parsed.success) return parsed.data;
  const { path, message } = parsed.error.issues[0]!;
  throw unexpectedOutput([...(path.length > 0 ? [path.join(".")] : []), message].join(": "));
}

/** Characters of one JSON text: more than a hub of ten thousand runners needs. */
const MAX_JSON_CHARS = 16 * 1024 * 1024;

/** Elements of one list or object. */
const MAX_ELEMENTS = 250_000;

/** An array, checked up to the first wrong element. */
export const boundedArray = <S extends z.ZodType>(element: S) =>
  z.unknown().transform((value, context): z.output<S>[] => {
    if (!Array.isArray(value) || value.length > MAX_ELEMENTS) return addIssue(context, "is not a list, or is too long");
    const elements: z.output<S>[] = [];
    for (const [i, each] of value.entries()) {
      const parsed = element.safeParse(each);
      const issue = parsed.error?.issues[0];
      if (issue) return addIssue(context, issue.message, [i, ...issue.path]);
      elements.push(parsed.data!);
    }
    return elements;
  });

/** An object with any keys, checked as `listOf` checks its elements. */
export const boundedRecord = <S extends z.ZodType>(element: S) =>
  z.unknown().transform((value, context): Record<string, z.output<S>> => {
    if (typeof value !== "object" || value === null || Array.isArray(value))
      return addIssue(context, "is not an object");
    const entries = Object.entries(value);
    if (entries.length > MAX_ELEMENTS) return addIssue(context, "has too many keys");
    for (const entry of entries) {
      const parsed = element.safeParse(entry[1]);
      const issue = parsed.error?.issues[0];
      if (issue) return addIssue(context, issue.message, [entry[0], ...issue.path]);
      entry[1] = parsed.data;
    }
    return Object.fromEntries(entries);
  });

function addIssue(context: z.RefinementCtx, message: string, path: PropertyKey[] = []): never {
  context.addIssue({ code: "custom", message, path });
  return z.NEVER;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw unexpectedOutput((error as Error).message);
  }
}

const unexpectedOutput = (reason: string): OverlayError =>
  new OverlayError(
    "HOST_COMMAND_FAILED",
    `its output is not in the form of its tools (${reason.slice(0, 300)}).`,
    "Look at `ip -j -d addr show`, `iptables-save` and `docker network inspect` on that host; if they are replaced or altered, treat the host as compromised.",
  );
