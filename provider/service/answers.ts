import { z } from "zod";
import { PROBLEM_TYPE, problemSchema } from "./problem";

/** Schemas of answers that several groups of routes share. They validate what is sent, and document it. */

export const time = z.string().describe("RFC 3339, in UTC.");

/** Exact: a string past 2^53. */
export const count = z.union([z.number(), z.string()]);

export const leaseFields = {
  ip: z.string().describe("The address; in a pool of ports, the port."),
  ip6: z.string().optional().describe("In a dual-stack network: the IPv6 address."),
  port: z.number().int().optional(),
  pool: z.string().describe("`runner/NETWORK/RUNNER` or `pool/NAME`."),
  network: z.string().optional(),
  runner: z.string().optional(),
  state: z.enum(["offered", "reserved", "used", "quarantined", "ended"]),
  usedBy: z.string().optional().describe("The container or virtual machine that uses it."),
  createdAt: time,
  createdBy: z.string().optional().describe("User, or name of the access token."),
  expiresAt: time.optional(),
  tenant: z.string().optional().describe("`ORGANIZATION/PROJECT`."),
  labels: z.record(z.string(), z.string()).optional(),
  owner: z.string(),
  leaseId: z.string(),
};

export const leaseAnswer = z.object(leaseFields).meta({ id: "Lease" });

const failure = { description: "An error.", content: { [PROBLEM_TYPE]: { schema: problemSchema } } };

/** The answers of a route that can fail. */
export const answers = <S extends z.ZodType>(success: S) => ({ 200: success, default: failure });

/** The same for a route that answers with text. */
export const textAnswers = (type: string, description: string) => ({
  200: { description, content: { [type]: { schema: z.string() } } },
  default: failure,
});
