import { z } from "zod";
import { changeAnswer } from "./pools";

/** A change in the stream of all changes. */
export const eventAnswer = z.object({ id: z.number().int(), ...changeAnswer.shape });
