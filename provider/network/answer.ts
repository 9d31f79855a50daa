import { z } from "zod";
import { OverlayError } from "../errors";

/**
 * JSON that a host printed, in the form that is expected and no other. A host may send millions of wrong elements: lists are read up
 * to the first of them, and long texts are not read at all.
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

/** Elements of one list. */
const LONGEST_LIST = 250_000;

/** An array, checked up to the first element that is not in the form. */
export const listOf = <S extends z.ZodType>(element: S) =>
  z.unknown().transform((value, context): z.output<S>[] => {
    const refuse = (message: string, path: PropertyKey[] = []): never => {
      context.addIssue({ code: "custom", message, path });
      return z.NEVER;
    };
    if (!Array.isArray(value) || value.length > LONGEST_LIST) return refuse("is not a list, or is too long");
    const elements: z.output<S>[] = [];
    for (const [i, each] of value.entries()) {
      const parsed = element.safeParse(each);
      const issue = parsed.error?.issues[0];
      if (issue) return refuse(issue.message, [i, ...issue.path]);
      elements.push(parsed.data!);
    }
    return elements;
  });

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
    "Look at `ip -j -d addr show`, `iptables-save` and `docker network inspect` on that host; if it was broken into, do not trust it.",
  );
