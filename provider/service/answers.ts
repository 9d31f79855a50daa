import type { z } from "zod";
import { PROBLEM_TYPE, problemSchema } from "./problem";

/** The answers of a route that can fail. */
export const answers = <S extends z.ZodType>(success: S) => ({
  200: success,
  default: { description: "An error.", content: { [PROBLEM_TYPE]: { schema: problemSchema } } },
});
