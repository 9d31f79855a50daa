import { z } from "zod";
import { count, time } from "./lease";

/** Pools: how full they are, and their history. */

export const roomFields = {
  capacity: count.describe("How many values it can give out."),
  allocated: count.describe("Held or offered."),
  available: count.describe("Neither held nor offered; those in quarantine are given out last."),
  offered: z.number().int().describe("Leases offered by a preview."),
  reserved: z.number().int(),
  used: z.number().int(),
  quarantined: z.number().int(),
  utilization: z.number().describe("Percentage that is held or offered."),
};

const poolFields = {
  pool: z.string(),
  kind: z.enum(["space", "address", "id", "port"]),
  type: z.string().optional().describe("Of an IPPool."),
  range: z.string(),
  allocation: z.string(),
  tenant: z.string().optional(),
  ...roomFields,
};

export const poolAnswer = z.object(poolFields).meta({ id: "Ipam", description: "A pool, and how full it is." });

export const poolStatusAnswer = z
  .object({
    ...poolFields,
    growthLastHour: z
      .number()
      .optional()
      .describe(
        "Values that were given out, less those that were returned; absent if the caller sees only some changes.",
      ),
    growthLastDay: z.number().optional(),
    exhaustedInSeconds: z.number().optional().describe("At the faster of both rates; absent when it does not grow."),
  })
  .meta({ id: "PoolStatus", description: "A pool, how full it is, and how fast it fills." });

export const changeAnswer = z
  .object({
    at: time,
    what: z.string().describe("`claimed`, `used`, `released`, `expired`, …"),
    value: z.string(),
    pool: z.string(),
    owner: z.string(),
    usedBy: z.string().optional(),
    by: z.string().optional().describe("User, or name of the access token."),
    takenBy: z.string().optional(),
    formerOwner: z.string().optional(),
    tenant: z.string().optional(),
    leaseId: z.string(),
  })
  .meta({ id: "Change", description: "A change of a lease." });

export const historyAnswer = z
  .object({ changes: z.array(changeAnswer) })
  .meta({ id: "History", description: "Changes, oldest first." });

export const poolPage = z
  .object({
    pools: z.array(poolAnswer),
    next: z.string().optional().describe("Cursor of the next page; absent on the last one."),
  })
  .meta({ id: "PoolPage", description: "A page of pools, by name." });

export const deletedPoolAnswer = z
  .object({ deleted: z.string().describe("The whole name of the pool.") })
  .describe("The pool was deleted.");
