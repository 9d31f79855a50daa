import { z } from "zod";
import { PROBLEM_TYPE, problemSchema } from "./problem";

/** Schemas of answers. They validate what is sent, and document it. */

const time = z.string().describe("RFC 3339, in UTC.");

const leaseFields = {
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

export const reservationAnswer = z
  .object({
    ...leaseFields,
    gateway: z.string().optional().describe("Of the runner's subnet."),
    gateway6: z.string().optional(),
    token: z.string().describe("Lets its bearer use the reservation. Secret."),
    warnings: z.array(z.string()).optional(),
  })
  .meta({ id: "Reservation" });

export const validationAnswer = z
  .object({
    valid: z.literal(true).describe("An invalid token is an error."),
    checked: z.enum(["store", "signature"]).describe("`signature`: whether the lease is still held was not asked."),
    ...leaseFields,
    state: leaseFields.state.optional(),
    createdAt: leaseFields.createdAt.optional(),
  })
  .meta({ id: "Validation" });

export const releaseAnswer = z
  .object({
    released: z.array(leaseAnswer).describe("Released, or no longer used."),
    kept: z.array(leaseAnswer).describe("Those of them that stacks hold: they stay reserved for the stack."),
  })
  .meta({ id: "Release" });

export const leasePage = z
  .object({
    reservations: z.array(leaseAnswer),
    next: z.string().optional().describe("Cursor of the next page; absent on the last one."),
  })
  .meta({ id: "LeasePage" });

/** The answers of a route that can fail. */
export const answers = <S extends z.ZodType>(success: S) => ({
  200: success,
  default: { description: "An error.", content: { [PROBLEM_TYPE]: { schema: problemSchema } } },
});
