import { z } from "zod";
import { OverlayError } from "../../errors";

/**
 * JSON that a host printed, in the form that is expected and no other. A host may send millions of wrong elements: lists and objects are
 * read up to the first of them, and long texts are not read at all.
 */
export function parseAnswer<S extends z.ZodType>(schema: S, text: string): z.output<S> {
  if (text.length > LONGEST_JSON) throw unreadable(`one of its answers has ${text.length} characters`);
  const parsed = schema.safeParse(jsonIn(text));
  if (parsed.success) return parsed.data;
  const { path, message } = parsed.error.issues[0]!;
  throw unreadable([...(path.length > 0 ? [path.join(".")] : []), message].join(": "));
}

/** Characters of one JSON text: more than a hub of ten thousand runners needs. */
const LONGEST_JSON = 16 * 1024 * 1024;

/** Elements of one list or object. */
const MOST_ELEMENTS = 250_000;

/** An array, checked up to the first element that is not in the form. */
export const listOf = <S extends z.ZodType>(element: S) =>
  z.unknown().transform((value, context): z.output<S>[] => {
    if (!Array.isArray(value) || value.length > MOST_ELEMENTS) return refuse(context, "is not a list, or is too long");
    const elements: z.output<S>[] = [];
    for (const [i, each] of value.entries()) {
      const parsed = element.safeParse(each);
      const issue = parsed.error?.issues[0];
      if (issue) return refuse(context, issue.message, [i, ...issue.path]);
      elements.push(parsed.data!);
    }
    return elements;
  });

/** An object with any keys, checked as `listOf` checks its elements. */
export const recordOf = <S extends z.ZodType>(element: S) =>
  z.unknown().transform((value, context): Record<string, z.output<S>> => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return refuse(context, "is not an object");
    const entries = Object.entries(value);
    if (entries.length > MOST_ELEMENTS) return refuse(context, "has too many keys");
    for (const entry of entries) {
      const parsed = element.safeParse(entry[1]);
      const issue = parsed.error?.issues[0];
      if (issue) return refuse(context, issue.message, [entry[0], ...issue.path]);
      entry[1] = parsed.data;
    }
    return Object.fromEntries(entries);
  });

function refuse(context: z.RefinementCtx, message: string, path: PropertyKey[] = []): never {
  context.addIssue({ code: "custom", message, path });
  return z.NEVER;
}

function jsonIn(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw unreadable((error as Error).message);
  }
}

const unreadable = (reason: string): OverlayError =>
  new OverlayError(
    "HOST_COMMAND_FAILED",
    `it gave an answer that is not in the form that its tools print (${reason.slice(0, 300)}).`,
    "Look at `ip -j -d addr show`, `iptables-save` and `docker network inspect` on that host; if they are replaced or altered, treat the host as compromised.",
  );
