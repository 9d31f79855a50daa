import { z } from "zod";
import { deletedPoolAnswer, historyAnswer, poolPage, poolStatusAnswer } from "../../provider/answers";
import {
  createPool,
  deletePool,
  describeEvent,
  historyOfPool,
  poolUsagePage,
  showPool,
} from "../../provider/reservations";
import type { RouteGroup } from "../app";
import { createPoolFields, historyFields, poolPageFields } from "../inputs";
import { pageSize } from "../requests";

const poolParams = z.object({
  pool: z.string().min(1).describe("NAME of an IPPool, or the whole name, with `/` written as `%2F`."),
});

/** Pools of all kinds: how full they are, and their history. Pools that are made here belong to no stack. */
export const poolRoutes: RouteGroup = (app, { limits }) => {
  app.route({
    method: "GET",
    url: "/pools",
    config: { scope: "read" },
    schema: {
      operationId: "listPools",
      summary: "List pools by name.",
      querystring: poolPageFields,
      response: { 200: poolPage },
    },
    handler: async ({ overlay, query: { prefix, limit, cursor } }) => {
      return poolUsagePage(overlay, { prefix, limit: pageSize(limit, limits), after: cursor });
    },
  });

  app.route({
    method: "GET",
    url: "/pools/:pool",
    config: { scope: "read", failures: [404], example: { pool: "runner/training/node1" } },
    schema: {
      operationId: "showPool",
      summary: "How full a pool is, and when it is exhausted at its present rate.",
      params: poolParams,
      response: { 200: poolStatusAnswer },
    },
    handler: async ({ overlay, params }) => showPool(overlay, params.pool),
  });

  app.route({
    method: "GET",
    url: "/pools/:pool/history",
    config: { scope: "read", failures: [404], example: { pool: "runner/training/node1" } },
    schema: {
      operationId: "showPoolHistory",
      summary: "The last changes of a pool, oldest first.",
      params: poolParams,
      querystring: historyFields,
      response: { 200: historyAnswer },
    },
    handler: async ({ overlay, params, query }) => {
      const events = await historyOfPool(overlay, params.pool);
      return { changes: events.slice(-pageSize(query.limit, limits)).map(describeEvent) };
    },
  });

  app.route({
    method: "POST",
    url: "/pools",
    config: { scope: "admin", failures: [404, 409], example: { poolName: "edge", ranges: ["192.168.9.0/24"] } },
    schema: {
      operationId: "createPool",
      summary: "Create an IPPool. The same request again answers the same pool.",
      body: createPoolFields,
      response: { 200: poolStatusAnswer },
    },
    handler: async ({ overlay, body }) => showPool(overlay, (await createPool(overlay, body)).name),
  });

  app.route({
    method: "DELETE",
    url: "/pools/:pool",
    config: { scope: "admin", failures: [404, 409], example: { pool: "edge" } },
    schema: {
      operationId: "deletePool",
      summary: "Delete an IPPool that was created here and has no leases.",
      params: poolParams,
      response: { 200: deletedPoolAnswer },
    },
    handler: async ({ overlay, params }) => ({ deleted: (await deletePool(overlay, params.pool)).name }),
  });
};
