import { z } from "zod";

/** Whether the process is running, and whether it can serve. */

export const healthAnswer = z.object({ status: z.literal("ok") }).describe("The process is running.");
export const readinessAnswer = z.object({ status: z.literal("ready") }).describe("The store answers.");
