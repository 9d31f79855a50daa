import { z } from "zod";
import {
  addressInput,
  availableAddresses,
  describeEvent,
  describeLease,
  historyOfAddress,
  poolStats,
  showAddress,
} from "../../reservations";
import { answers } from "../answers";
import type { RouteGroup } from "../app";
import { addressHistoryFields, availableFields, placeFields } from "../inputs";
import { pageSize } from "../requests";
import { addressAnswer, availabilityAnswer, totalsAnswer } from "../schemas/addresses";
import { historyAnswer } from "../schemas/pools";

const addressParams = z.object({ ip: addressInput.shape.ip.describe("The address.") });

/** What is free, and the holders of addresses. */
export const addressRoutes: RouteGroup = (app, { limits }) => {
  app.route({
    method: "GET",
    url: "/ip/available",
    config: { scope: "read" },
    schema: {
      operationId: "listAvailable",
      summary: "How many addresses are free, and the first of them: of a pool, the runners of a network, or all.",
      querystring: availableFields,
      response: answers(availabilityAnswer),
    },
    handler: async ({ overlay, query: { cursor, ...input } }) =>
      availableAddresses(overlay, { ...input, after: cursor }),
  });

  app.route({
    method: "GET",
    url: "/ip/stats",
    config: { scope: "read" },
    schema: {
      operationId: "showTotals",
      summary: "Counts of all pools of addresses and ports together.",
      response: answers(totalsAnswer),
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
      querystring: placeFields,
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
      querystring: addressHistoryFields,
      response: answers(historyAnswer),
    },
    handler: async ({ overlay, params, query: { limit, ...where } }) => {
      const events = await historyOfAddress(overlay, { ...where, ...params });
      return { changes: events.slice(-pageSize(limit, limits)).map(describeEvent) };
    },
  });
};
