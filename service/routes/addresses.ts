import { z } from "zod";
import { addressAnswer, availabilityAnswer, historyAnswer, totalsAnswer } from "../../provider/answers";
import {
  addressInput,
  availableAddresses,
  describeEvent,
  describeLease,
  historyOfAddress,
  poolStats,
  showAddress,
} from "../../provider/reservations";
import type { RouteGroup } from "../app";
import { addressHistoryFields, availableFields, placeFields } from "../inputs";
import { pageSize } from "../requests";

const addressParams = z.object({ ip: addressInput.shape.ip.describe("The address.") });

/** What is free, and the holders of addresses. */
export const addressRoutes: RouteGroup = (app, { limits }) => {
  app.route({
    method: "GET",
    url: "/ip/available",
    config: { scope: "read", failures: [404] },
    schema: {
      operationId: "listAvailable",
      summary: "How many addresses are free, and the first of them: of a pool, the runners of a network, or all.",
      querystring: availableFields,
      response: { 200: availabilityAnswer },
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
      response: { 200: totalsAnswer },
    },
    handler: async ({ overlay }) => poolStats(overlay),
  });

  app.route({
    method: "GET",
    url: "/addresses/:ip",
    config: { scope: "read", failures: [404], example: { ip: "10.128.64.10" } },
    schema: {
      operationId: "showAddress",
      summary: "The current and former holders of an address.",
      params: addressParams,
      querystring: placeFields,
      response: { 200: addressAnswer },
    },
    handler: async ({ overlay, params, query }) => {
      const { holders, before } = await showAddress(overlay, { ...query, ...params });
      return { holders: holders.map(describeLease), before };
    },
  });

  app.route({
    method: "GET",
    url: "/addresses/:ip/history",
    config: { scope: "read", failures: [404], example: { ip: "10.128.64.10" } },
    schema: {
      operationId: "showAddressHistory",
      summary: "The last changes of an address, oldest first.",
      params: addressParams,
      querystring: addressHistoryFields,
      response: { 200: historyAnswer },
    },
    handler: async ({ overlay, params, query: { limit, ...where } }) => {
      const events = await historyOfAddress(overlay, { ...where, ...params });
      return { changes: events.slice(-pageSize(limit, limits)).map(describeEvent) };
    },
  });
};
