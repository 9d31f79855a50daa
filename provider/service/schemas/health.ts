import { z } from "zod";

/** Whether the process lives, and whether it can serve. */

export const healthAnswer = z.object({ status: z.literal("ok") });
export const readinessAnswer = z.object({ status: z.literal("ready") });
