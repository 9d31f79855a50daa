import { z } from "zod";
import { leaseAnswer, leaseFields } from "./lease";

/** Reservations, one or several. */

export const reservationAnswer = z
  .object({
    ...leaseFields,
    gateway: z.string().optional().describe("Of the runner's subnet."),
    gateway6: z.string().optional(),
    token: z.string().describe("Lets its bearer use the reservation. Secret."),
    warnings: z.array(z.string()).optional(),
  })
  .meta({ id: "Reservation", description: "A reserved address, and the token to use it." });

export const batchAnswer = z
  .object({ reservations: z.array(reservationAnswer) })
  .meta({ id: "ReservationBatch", description: "All addresses that were requested." });

export const reserveAnswer = z
  .union([reservationAnswer, batchAnswer])
  .describe("The reservation; with `count`, a list of reservations.");

export const validationAnswer = z
  .object({
    valid: z.literal(true).describe("An invalid token is an error."),
    checked: z.enum(["store", "signature"]).describe("`signature`: whether the lease is still held was not asked."),
    ...leaseFields,
    state: leaseFields.state.optional(),
    createdAt: leaseFields.createdAt.optional(),
  })
  .meta({ id: "Validation", description: "The reservation of a valid token." });

export const releaseAnswer = z
  .object({
    released: z.array(leaseAnswer).describe("Released, or no longer used."),
    kept: z.array(leaseAnswer).describe("Those of them that stacks hold: they stay reserved for the stack."),
  })
  .meta({ id: "Release", description: "The leases that were released." });

export const leasePage = z
  .object({
    reservations: z.array(leaseAnswer),
    next: z.string().optional().describe("Cursor of the next page; absent on the last one."),
  })
  .meta({ id: "LeasePage", description: "A page of leases, by pool and address." });
