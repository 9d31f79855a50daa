import { z } from "zod";
import { count, leaseAnswer, time } from "./lease";
import { roomFields } from "./pools";

/** What is free, and the holders of addresses. */

const poolAvailability = z
  .object({
    pool: z.string(),
    network: z.string().optional(),
    runner: z.string().optional(),
    capacity: count,
    held: count,
    available: count,
    addresses: z.array(z.string()).describe("The first free ones, without those in quarantine."),
  })
  .meta({ id: "Availability", description: "A pool and its first free addresses." });

const holdingAnswer = z
  .object({
    owner: z.string(),
    pool: z.string(),
    usedBy: z.string().optional(),
    since: time.optional().describe("Absent if the history no longer has it."),
    until: time,
    end: z.string().describe("How it ended."),
  })
  .meta({ id: "Holding", description: "A former holder of an address." });

export const addressAnswer = z
  .object({
    holders: z.array(leaseAnswer).describe("Those that hold it now; else its offer, or its last holder in quarantine."),
    before: z.array(holdingAnswer).describe("Earlier holders, latest first."),
  })
  .meta({ id: "Address", description: "The current and former holders of an address." });

export const availabilityAnswer = z
  .object({
    pools: z.array(poolAvailability),
    next: z.string().optional().describe("Cursor of the next page; absent on the last one."),
  })
  .describe("A page of pools, each with its first free addresses.");

export const totalsAnswer = z
  .object({ pools: z.number().int(), ...roomFields })
  .meta({ id: "PoolTotals", description: "Counts of all pools together." });
