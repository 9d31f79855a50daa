import { z } from "zod";
import {
  addressInput,
  availableAddresses,
  availableInput,
  describeEvent,
  describeLease,
  historyOfAddress,
  poolStats,
  showAddress,
} from "../../reservations";
import { answers, count, leaseAnswer, time } from "../answers";
import type { RouteGroup } from "../app";
import { pageSize, where } from "../inputs";
import { historyAnswer, lastChanges, roomFields } from "./pools";

const availabilityAnswer = z
  .object({
    pool: z.string(),
    network: z.string().optional(),
    runner: z.string().optional(),
    capacity: count,
    held: count,
    available: count,
    addresses: z.array(z.string()).describe("The first free ones, without those in quarantine."),
  })
  .meta({ id: "Availability" });

const holdingAnswer = z
  .object({
    owner: z.string(),
    pool: z.string(),
    usedBy: z.string().optional(),
    since: time.optional().describe("Absent if the history no longer has it."),
    until: time,
    end: z.string().describe("How it ended."),
  })
  .meta({ id: "Holding" });

const addressAnswer = z
  .object({
    holders: z.array(leaseAnswer).describe("Those that hold it now; else its offer, or its last holder in quarantine."),
    before: z.array(holdingAnswer).describe("Earlier holders, latest first."),
  })
  .meta({ id: "Address" });

const addressParams = z.object({ ip: addressInput.shape.ip.describe("The address.") });

/** What is free, and who holds an address. */
export const addressRoutes: RouteGroup = (app, { limits }) => {
  app.route({
    method: "GET",
    url: "/ip/available",
    config: { scope: "read" },
    schema: {
      operationId: "listAvailable",
      summary: "How many addresses are free, and the first of them: of a pool, the runners of a network, or all.",
      querystring: z.strictObject({
        ...where,
        limit: availableInput.shape.limit.describe("How many free addresses of each pool are listed; default 100."),
      }),
      response: answers(z.object({ pools: z.array(availabilityAnswer) })),
    },
    handler: async ({ overlay, query }) => ({ pools: await availableAddresses(overlay, query) }),
  });

  app.route({
    method: "GET",
    url: "/ip/stats",
    config: { scope: "read" },
    schema: {
      operationId: "showTotals",
      summary: "Counts of all pools of addresses and ports together.",
      response: answers(z.object({ pools: z.number().int(), ...roomFields }).meta({ id: "PoolTotals" })),
    },
    handler: async ({ overlay }) => poolStats(overlay),
  });

  app.route({
    method: "GET",
    url: "/addresses/:ip",
    config: { scope: "read" },
    schema: {
      operationId: "showAddress",
      summary: "Who holds an address, and who held it before.",
      params: addressParams,
      querystring: z.strictObject(where),
      response: answers(addressAnswer),
    },
    handler: async ({ overlay, params, query }) => {
      const { holders, before } = await showAddress(overlay, { ...query, ...params });
      return { holders: holders.map(describeLease), before };
    },
  });

  app.route({
    method: "GET",
    url: "/addresses/:ip/history",
    config: { scope: "read" },
    schema: {
      operationId: "showAddressHistory",
      summary: "The last changes of an address, oldest first.",
      params: addressParams,
      querystring: z.strictObject({ ...where, limit: lastChanges }),
      response: answers(historyAnswer),
    },
    handler: async ({ overlay, params, query: { limit, ...where } }) => {
      const events = await historyOfAddress(overlay, { ...where, ...params });
      return { changes: events.slice(-pageSize(limit, limits)).map(describeEvent) };
    },
  });
};
