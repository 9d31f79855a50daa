import { z } from "zod";
import { OverlayError } from "../provider/errors";
import { explainIssues, formatPath, MOST_EXPLAINED } from "../provider/invalid-input";
import type { Limits } from "./app";

/** Parses what a request contains. */

/** Never shown in an error. */
const SECRET_INPUTS = ["token"];

/** The validator of fastify for a zod schema: all that is wrong, in the words that resources use. */
export const validatorFor = (schema: z.ZodType) => (given: unknown) => {
  const parsed = schema.safeParse(given);
  return parsed.success ? { value: parsed.data } : { error: invalidInputError(schema, given, parsed.error) };
};

export function invalidInputError(
  schema: z.ZodType,
  given: unknown,
  { issues }: z.ZodError,
  fix = "See /docs.",
): OverlayError {
  const refusals = explainIssues(issues, {
    schema: unwrap(schema),
    given,
    isSecret: ([key]) => SECRET_INPUTS.includes(key!),
  });
  const reasons = refusals.map(({ reason }) => capitalize(reason));
  return new OverlayError("INPUT_INVALID", joinReasons(reasons), fix).about(formatPath(refusals[0]!.path));
}

/** Characters of all reasons. A problem has them twice, and stays below 8 KB. */
const MOST_CHARACTERS = 2500;

function joinReasons(reasons: string[]): string {
  let what = reasons[0]!;
  let shown = 1;
  for (; shown < reasons.length && what.length + reasons[shown]!.length < MOST_CHARACTERS; shown++)
    what += ` ${reasons[shown]}`;
  const isAll = shown === reasons.length && shown < MOST_EXPLAINED;
  return isAll ? what : `${what} Only the first ${shown} errors are shown.`;
}

/** The schema of what is given, without that it may be absent. */
const unwrap = (schema: z.ZodType): z.ZodType =>
  schema instanceof z.ZodOptional || schema instanceof z.ZodNullable ? unwrap(schema.unwrap() as z.ZodType) : schema;

const capitalize = (text: string): string => (/^unknown /.test(text) ? `U${text.slice(1)}` : text);

/** Inputs may be in the query or in a JSON body. */
export function mergeInputs<T extends object>({ query, body }: { query: T; body?: T | null | undefined }): T {
  const twice = Object.keys(query).find((key) => Object.hasOwn(body ?? {}, key));
  if (twice === undefined) return { ...query, ...body };
  throw new OverlayError(
    "INPUT_INVALID",
    `${twice} is both in the query and in the body.`,
    "Give it in one of them.",
  ).about(twice);
}

export function requireInput<T>(value: T | undefined, name: string): T {
  if (value !== undefined) return value;
  throw new OverlayError("INPUT_INVALID", `${name} is missing.`, "Give it in the query or in the body.").about(name);
}

/** The setting `pageLimit` bounds what a client asks for. */
export const pageSize = (asked: number | undefined, { pageLimit }: Limits): number =>
  Math.min(asked ?? pageLimit, pageLimit);
