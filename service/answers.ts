import type { RouteOptions } from "fastify";
import { z } from "zod";
import { PROBLEM_TYPE, problemSchema, TITLES } from "./problem";

/** The answers of routes, as the OpenAPI document describes them. */

/** An answer that is text. */
export const textAnswer = (type: string, description: string) => ({
  description,
  content: { [type]: { schema: z.string() } },
});

type TextAnswer = ReturnType<typeof textAnswer>;

/** All answers of a route. The description of a success is that of its schema. */
export function describeAnswers(route: RouteOptions): Record<number, object> {
  const { 200: success } = route.schema!.response as { 200: z.ZodType | TextAnswer };
  return {
    200: success instanceof z.ZodType ? describeSuccess(success) : success,
    ...Object.fromEntries(failuresOf(route).map((status) => [status, describeFailure(status)])),
  };
}

const describeSuccess = (schema: z.ZodType) => ({
  description: schema.description,
  content: { "application/json": { schema } },
});

const describeFailure = (status: number) => ({
  description: TITLES[status]!,
  content: { [PROBLEM_TYPE]: { schema: problemSchema } },
});

/** The statuses of failures: those that follow from the form of the request and from access, and those that the route declares. */
function failuresOf({ method, schema = {}, config = {} }: RouteOptions): number[] {
  const mayHaveBody = method !== "GET"; // fastify reads it even if the route has no schema for it
  const hasInputs = mayHaveBody || schema.querystring !== undefined || schema.params !== undefined;
  return [
    ...(hasInputs ? [400] : []),
    ...(mayHaveBody ? [408, 413, 415] : []),
    ...(config.scope === "public" ? [403] : [401, 403, 429, 503]),
    ...(config.failures ?? []),
    500,
  ];
}
