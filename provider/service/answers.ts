import { z } from "zod";
import { PROBLEM_TYPE, problemSchema } from "./problem";

const failure = { description: "An error.", content: { [PROBLEM_TYPE]: { schema: problemSchema } } };

/** The answers of a route that can fail. */
export const answers = <S extends z.ZodType>(success: S) => ({ 200: success, default: failure });

/** The same for a route that answers with text. */
export const textAnswers = (type: string, description: string) => ({
  200: { description, content: { [type]: { schema: z.string() } } },
  default: failure,
});
