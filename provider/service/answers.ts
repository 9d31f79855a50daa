import { z } from "zod";
import { PROBLEM_TYPE, problemSchema, TITLES } from "./problem";

/** The statuses of failures that any route may have. */
const FAILURES = [400, 401, 403, 404, 409, 410, 413, 415, 429, 500, 503];

const describeFailures = (statuses: number[]) =>
  Object.fromEntries(
    statuses.map((status) => [
      status,
      { description: TITLES[status]!, content: { [PROBLEM_TYPE]: { schema: problemSchema } } },
    ]),
  );

/** The answers of a route. */
export const answers = <S extends z.ZodType>(success: S, failures = FAILURES) => ({
  200: success,
  ...describeFailures(failures),
});

/** The same for a route that answers with text. */
export const textAnswers = (type: string, description: string) => ({
  200: { description, content: { [type]: { schema: z.string() } } },
  ...describeFailures(FAILURES),
});
